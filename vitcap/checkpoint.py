"""Self-contained models on disk: weights, config, tokenizer and preprocessing in one file.

Two kinds of file are read: `model.safetensors` (for sharing; the description is its metadata) and the trainer's
`.ckpt` (the same description under the key `vitcap`, beside the optimiser state). Nothing in either can run code:
pickles are opened with `weights_only=True`, and only models of vitcap.models and searches of vitcap.decoding are built.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor, nn

from vitcap import pretrained, untrusted
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.files import whole
from vitcap.models.captioner import CaptionModel
from vitcap.models.storage import pack, unpack
from vitcap.models.weights import misnamed, read_torch, unwrapped
from vitcap.record import View
from vitcap.untrusted import CheckpointError, Within, build

FORMAT = 1
MODEL_FILE = "model.safetensors"
PARTS = {
    "caption": ("encoder", "decoder", "tokenizer", "preprocess", "decode"),
    "translate": ("encoder", "decoder", "tokenizer", "source_tokenizer", "decode"),
    "classify": ("encoder", "head", "classes", "preprocess"),
}
"""Kind of model -> what its description holds."""


@dataclass(frozen=True)
class Saved:
    """Content of a model file at `path`. description: plain JSON types (see `describe`); weights: of the model.

    others: what else a .ckpt holds, the state of training, by type.
    """

    description: dict[str, Any]
    weights: dict[str, Tensor]
    path: Path
    others: dict[str, type] = field(default_factory=dict)

    @property
    def kind(self) -> str:
        """One of PARTS."""
        return self.description.get("kind", "caption")


def describe(
    *,
    kind: str = "caption",
    encoder: dict[str, Any],
    facts: dict[str, Any] | None = None,
    view: View | None = None,
    **parts: Any,
) -> dict[str, Any]:
    """What a model file says about itself, in plain JSON types.

    kind: "caption", "translate" or "classify"; parts: the others of PARTS[kind].
    encoder, decoder, head: `_target_` and keyword arguments that rebuild each; where the encoder's first weights came
    from is kept as a fact, and not looked up again. decode: `_target_`, a search, and its settings.
    classes: (class, name for people) in the order of the model's outputs. tokenizer, source_tokenizer: Tokenizers.
    preprocess: a Preprocess. facts: anything worth keeping (data, seed, scores).
    view: how the model's attention is best looked at; left out where it is not known.
    """
    assert {"encoder", *parts} == set(PARTS[kind])
    origin = {k: encoder[k] for k in ("weights", "pretrained") if encoder.get(k)}
    parts["encoder"] = {**encoder, **{k: (False if k == "pretrained" else None) for k in origin}}
    for name, part in parts.items():
        if isinstance(part, Tokenizer):
            parts[name] = part.to_json()
        elif isinstance(part, Preprocess):
            parts[name] = part.to_dict()
    shown = {} if view is None else {"view": plain_view(view)}
    return {"format": FORMAT, "kind": kind, **parts, **shown, "facts": {**(facts or {}), "encoder_origin": origin}}


def plain_view(view: View) -> dict[str, Any]:
    """A view as a description keeps it, in plain JSON types; `view_of` is the inverse."""
    chosen = {"layers": view.layers, "heads": view.heads}
    return {"method": view.method, **{name: None if v is None else list(v) for name, v in chosen.items()}}


def view_of(description: dict[str, Any]) -> View | None:
    """The view that a description names; None where it names none. Raises CheckpointError for one that is none."""
    plain = description.get("view")
    if plain is None:
        return None
    lists = [plain.get(name) for name in ("layers", "heads")] if isinstance(plain, dict) else []
    if (
        not isinstance(plain, dict)
        or set(plain) - {"method", "layers", "heads"}
        or not (isinstance(plain.get("method"), str) and plain["method"])
        or not all(v is None or (isinstance(v, list) and v and all(type(i) is int for i in v)) for v in lists)
    ):
        raise CheckpointError(
            f"view {str(plain)[:80]}: a method, and layers and heads as lists of numbers or null, are wanted, such as "
            '{"method": "attention", "layers": [-1], "heads": null}'
        )
    layers, heads = (None if v is None else tuple(v) for v in lists)
    return View(plain["method"], layers, heads)


TRAINING_ONLY = {"dropout", "drop_path", "weights", "weights_size", "pretrained", "trainable", "soft_share"}
"""Options of encoders and decoders that do not change what a trained model computes."""


def difference(saved: dict[str, Any], own: dict[str, Any]) -> tuple[str, Any, Any] | None:
    """The first option of two descriptions' encoders or decoders by which they compute something else, such as
    ("decoder.heads", 2, 4); None if there is none, or none that both have."""
    for part in ("encoder", "decoder"):
        theirs, ours = saved.get(part, {}), own.get(part, {})
        for key in theirs:
            if key in ours and key not in TRAINING_ONLY and json.dumps(theirs[key]) != json.dumps(ours[key]):
                return f"{part}.{key}", theirs[key], ours[key]
    return None


def rebuild(saved: Saved, kind: str | None = None) -> Any:
    """The model of a file, in evaluation mode. Raises CheckpointError, which names the file, when it is of another kind
    than the given one, or its weights and config do not fit."""
    if kind not in (None, saved.kind):
        raise CheckpointError(f"{saved.path}: a model made to {saved.kind}, where one that can {kind} is wanted")
    with _naming(saved.path):
        return _rebuild(saved)


def rebuild_search(saved: Saved) -> Any:
    """The decoding that a file brings along. Raises CheckpointError, which names the file."""
    with _naming(saved.path):
        search = build(saved.description["decode"])
        for name, most in (
            ("max_length", untrusted.LONGEST),
            ("beams", untrusted.MOST_BEAMS),
            ("samples", untrusted.MOST_BEAMS),
        ):
            if getattr(search, name, 0) > most:
                raise CheckpointError(f"decode.{name}={getattr(search, name)}: at most {most} is believed")
        return search


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    try:
        yield
    except CheckpointError as error:
        raise CheckpointError(f"{path}: {error}") from None


def _rebuild(saved: Saved) -> nn.Module:
    d = saved.description
    untrusted.check_parts(d, tensors=len(saved.weights))
    model: nn.Module
    with Within(saved.path.stat().st_size if saved.path.exists() else sum(t.nbytes for t in saved.weights.values())):
        encoder = build(d["encoder"])
        preprocess = untrusted.preprocessing(d, encoder)
        scale = {} if preprocess is None else {"mean": preprocess.mean, "std": preprocess.std}
        if "head" in d:
            model = build(d["head"], encoder=encoder, **scale)
        else:
            decoder, width = build(d["decoder"]), d["decoder"].get("memory_width")
            if width != getattr(encoder, "width", None):
                raise CheckpointError(f"decoder.memory_width is {width}, the encoder's width {encoder.width}")
            model = CaptionModel(encoder, decoder, **scale)
    untrusted.check_words(d)
    untrusted.check_classes(d)
    load_weights(model, saved)
    return model.eval()


def load_weights(model: nn.Module, saved: Saved) -> None:
    """Put a file's weights into a model. Raises CheckpointError that names entries which do not fit or are missing."""
    shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
    wrong = [
        f"{name} {tuple(tensor.shape)} instead of {shapes.get(name, 'nothing')}"
        for name, tensor in saved.weights.items()
        if shapes.get(name) != tuple(tensor.shape)
    ]
    if wrong:
        raise CheckpointError(f"weights do not fit the model's own config: {'; '.join(wrong[:3])}")
    own = model.state_dict()
    for name, tensor in saved.weights.items():
        if tensor.is_floating_point() != own[name].is_floating_point():
            raise CheckpointError(f"weights do not fit the model: {name} is {tensor.dtype}, not {own[name].dtype}")
    absent = set(untied(model.state_dict())) - set(saved.weights)
    if absent:
        raise CheckpointError(f"weights are missing: {', '.join(sorted(absent)[:3])}")
    model.load_state_dict(saved.weights, strict=False)


def untied(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Weights with each shared tensor once, under its first name."""
    seen: set[int] = set()
    kept = {}
    for name, tensor in weights.items():
        if tensor.data_ptr() not in seen or not tensor.numel():
            seen.add(tensor.data_ptr())
            kept[name] = tensor
    return kept


def write(path: str | Path, model: nn.Module, description: dict[str, Any], *, storage: str = "fp32") -> Path:
    """Save as safetensors, under a temporary name first, so that no half-written file ever has the final name.

    storage: "fp32", "fp16" or "int8", see vitcap.models.storage.pack.
    """
    from safetensors.torch import save_file

    path = Path(path)
    weights = pack({name: t.detach().cpu().contiguous() for name, t in untied(model.state_dict()).items()}, storage)
    with whole(path) as temporary, TemporaryDirectory(prefix=".", suffix=".part", dir=path.parent) as folder:
        temporary.touch()
        mode = temporary.stat().st_mode
        # It makes a temporary file of its own, under a name that nobody else knows, and for this user alone.
        save_file(weights, Path(folder, path.name), metadata={"vitcap": json.dumps(description)})
        os.replace(Path(folder, path.name), temporary)
        temporary.chmod(mode)
    return path


def read(path: str | Path) -> Saved:
    """Open a model file, the one in a run folder, or a packaged model by its name (a file or run of that name comes
    first). Raises CheckpointError in one line for anything else."""
    path = Path(path)
    if str(path) in pretrained.names() and not (path.is_file() or (path / MODEL_FILE).is_file()):
        path = pretrained.path(str(path))
    if path.is_dir():
        inside = path / MODEL_FILE
        if not inside.exists():
            raise CheckpointError(f"{path}: the folder holds no {MODEL_FILE}; name a model file or a finished run")
        path = inside
    if not path.is_file():
        what = "no regular file" if path.exists() else "no such file"
        ours = f"or a packaged model ({', '.join(pretrained.names())})"
        raise CheckpointError(f"{path}: {what}; name a model.safetensors, a .ckpt, the folder of a run, {ours}")
    if told := misnamed(path):
        raise CheckpointError(f"{path}: {told}")
    with open(path, "rb") as f:
        head = f.read(9)
    if head.startswith(b"\x80") and head[8:] != b"{":
        raise CheckpointError(
            f"{path}: neither a safetensors file nor a .ckpt but a Python pickle, which could run code"
        )
    with _naming(path):
        saved = _read_zip(path) if head.startswith(b"PK") else _read_safetensors(path)
        saved = replace(saved, description=untrusted.plain(saved.description))
    if not isinstance(saved.description, dict) or not isinstance(saved.description.get("format"), int):
        raise CheckpointError(f"{path}: no vitcap model: it has weights but no description of the model")
    if saved.description["format"] > FORMAT:
        raise CheckpointError(
            f"{path}: written by a newer vitcap (format {saved.description['format']}, this one reads {FORMAT}); update"
        )
    if not isinstance(saved.kind, str) or saved.kind not in PARTS:
        raise CheckpointError(f"{path}: a model of an unknown kind, {saved.kind!r}")
    if absent := [name for name in PARTS[saved.kind] if name not in saved.description]:
        raise CheckpointError(f"{path}: the model's description lacks {', '.join(absent)}")
    with _naming(path):
        view_of(saved.description)
        untrusted.check_weights(saved.weights)
        if not isinstance(saved.description.get("facts", {}), dict):
            raise CheckpointError("facts: an object is wanted")
    return saved


def _read_safetensors(path: Path) -> Saved:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="pt") as f:
            metadata = f.metadata() or {}
            weights = unpack({name: f.get_tensor(name) for name in f.keys()})  # noqa: SIM118 (no mapping)
        return Saved(json.loads(metadata.get("vitcap", "null")), weights, path)
    except (SafetensorError, ValueError, OSError, RecursionError, KeyError, AttributeError, RuntimeError) as error:
        raise CheckpointError(
            f"neither a safetensors file nor a .ckpt, or damaged ({untrusted.one_line(str(error))})"
        ) from None


def _read_zip(path: Path) -> Saved:
    try:
        content = read_torch(path)
    except ValueError as error:
        raise CheckpointError(f"not a checkpoint that can be opened safely ({error})") from None
    state = content.get("state_dict") if isinstance(content, dict) else None
    if not isinstance(content, dict) or "vitcap" not in content or not isinstance(state, dict):
        raise CheckpointError("a torch file, but no vitcap checkpoint (it lacks the description of the model)")
    # Wrappers put their own prefixes before the names: torch.compile, DistributedDataParallel, the training task.
    weights = {re.sub(r"^((module|model)\.)+", "", unwrapped(str(name))): tensor for name, tensor in state.items()}
    return Saved(content["vitcap"], weights, path, {name: type(part) for name, part in content.items()})
