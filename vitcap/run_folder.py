"""The folder of a training run: what may be written there, and what a run goes on from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import nn

from vitcap import checkpoint
from vitcap.files import clear_parts, whole

LAST = Path("checkpoints") / "last.ckpt"
# By name where it can be: a user's own notes in the folder are not ours to delete.
PRODUCTS = (
    *(checkpoint.MODEL_FILE, "scores.json", "unreadable.json", "per_image.json", "captions.json", "metrics.csv"),
    *("translations.tsv", "lengths.png", "predictions.csv", "per_class.json", "confusion.png"),
    *("grounding.json", "grounding.txt", "grounding.png", "faithfulness.json"),
    *("events.out.tfevents.*", "checkpoints/*.ckpt", "overlays/*.png", "overlays/*.txt"),
    *("environment.json", "report.html", "report.md", "report/*.jpg", "report/*.png", "report/*.svg"),
)

TRAINING = {
    "epoch": int,
    "global_step": int,
    "pytorch-lightning_version": str,
    "loops": dict,
    "callbacks": dict,
    "optimizer_states": list,
    "lr_schedulers": list,
}
"""What Lightning goes on from."""


def open_run(out: Path, *, resume: bool | str | None, overwrite: bool) -> str | None:
    """Make the folder, and find the checkpoint to go on from, None for a new run.

    resume: True for the last checkpoint of `out`, or a checkpoint, or the folder of a run. Raises FileNotFoundError
    where there is none, and ValueError for a new run in a folder that holds one, unless `overwrite`.
    """
    if any("\ud800" <= letter <= "\udfff" for letter in str(out)):  # which TensorBoard cannot write to
        raise ValueError(f"out={str(out)!a}: not in UTF-8 as this locale has it; set PYTHONUTF8=1, or rename it")
    file: Path | None = None
    if resume:
        file = out / LAST if resume is True else Path(resume)
        file = file / LAST if file.is_dir() else file
        if not file.exists():
            raise FileNotFoundError(f"{file}: no checkpoint to resume from; give resume=FILE or out=FOLDER of the run")
    elif (out / LAST.parent).exists() and not overwrite:
        raise ValueError(f"{out} already holds a run: resume=true goes on with it, overwrite=true starts it anew")
    out.mkdir(parents=True, exist_ok=True)
    return None if file is None else str(file)


def write_unreadable(out: Path, found: Iterable[Mapping[str, Mapping[int | str, str]]]) -> None:
    """`unreadable.json`: the records left out, as split -> id -> why; no such file where there are none.

    found: as `RecordData.bad`, of every process.
    """
    file, all_of = out / "unreadable.json", dict[str, dict[str, str]]()
    for bad in found:
        for split, reasons in bad.items():
            if reasons:
                all_of.setdefault(split, {}).update({str(id_): reason for id_, reason in reasons.items()})
    if all_of:
        with whole(file) as part:
            part.write_text(json.dumps(all_of, indent=1) + "\n", encoding="ascii")
    else:
        file.unlink(missing_ok=True)


def begin(out: Path, config: str, *, new: bool) -> None:
    """Write the config of a run, once nothing is wrong with its options: a mistake in one must not cost an old run.

    Deletes what runs that were killed left half; before a new run, everything that an old one wrote.
    """
    clear_parts(out, out / LAST.parent, out / "overlays", out / "report")
    if new:
        clear(out)
    with whole(out / "config.yaml") as part:
        part.write_text(config, encoding="utf-8")


def clear(out: Path) -> None:
    """Delete what an old run wrote; or a run that is interrupted would leave it beside another run's config."""
    for old in [path for pattern in PRODUCTS for path in out.glob(pattern)]:
        old.unlink()


def check_resume(file: str, model: nn.Module, description: dict[str, Any]) -> None:
    """One clear error if a checkpoint is none, has no state of training, or is of another model, vocabulary or classes.

    description: of the model that is to go on.
    """
    saved = checkpoint.read(file)
    if file.endswith(".safetensors"):
        raise ValueError(f"{file}: a finished model without the state of training; resume from a {LAST.as_posix()}")
    if lacking := [name for name, kind in TRAINING.items() if not issubclass(saved.others.get(name, object), kind)]:
        raise ValueError(
            f"{file}: the state of training lacks {', '.join(lacking)}; init={file} starts anew from its weights"
        )
    if saved.kind != description["kind"]:
        raise ValueError(f"{file}: a model made to {saved.kind}, but this one is to {description['kind']}; choose out=")
    shapes = {name: tensor.shape for name, tensor in model.state_dict().items()}
    other = [name for name, tensor in saved.weights.items() if shapes.get(name) != tensor.shape]
    other += [name for name in checkpoint.untied(model.state_dict()) if name not in saved.weights]
    for part, name in (("tokenizer", "vocabulary"), ("source_tokenizer", "source vocabulary"), ("classes", "classes")):
        if saved.description.get(part) != description.get(part):
            other.insert(0, name)
    if not other and (difference := checkpoint.difference(saved.description, description)):
        told = "there model.{} is {}, here {}".format(*difference)
        raise ValueError(f"{file}: of another model ({told}); resume with the options it was started with")
    if other:
        raise ValueError(f"{file}: of another model ({other[0]} differs); resume with the options it was started with")
