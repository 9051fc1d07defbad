"""The layout of model hubs: model.safetensors, config.json, tokenizer.json, preprocessor_config.json and a card."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from PIL import Image

import vitcap
from vitcap import checkpoint
from vitcap.export.folders import new_folder
from vitcap.types import count_parameters
from vitcap.untrusted import one_line

TASKS = {"caption": "image-to-text", "classify": "image-classification", "translate": "translation"}
_USE = {
    "caption": 'print(model.caption("photo.jpg"))',
    "classify": 'print([(one.name, one.probability) for one in model.classify("photo.jpg")])',
    "translate": 'print(model.translate("a sentence"))',
}


def to_hub(
    door: Any, folder: str | Path, *, weights: str = "fp32", name: str | None = None, card: str | None = None
) -> None:
    """Write a model to a new folder in the layout of model hubs; `vitcap.load(folder)` reads it.

    door: a Captioner, Classifier or Translator. weights: "fp32", "fp16" or "int8", as checkpoint.write has them. name:
    of the model in its card; the folder's if left out. card: Markdown in place of the card that is made of the model's
    facts. Places of files on this computer that the facts mention are cut to the names of the files.
    Raises ValueError for a folder that holds files.
    """
    description = {**door.description, "facts": _public(door.description.get("facts", {}))}
    kind = description.get("kind", "caption")
    with new_folder(folder) as out:
        checkpoint.write(out / checkpoint.MODEL_FILE, door.model, description, storage=weights)
        texts = {key: part for key, part in description.items() if not key.endswith("tokenizer") and key != "facts"}
        _write(out / "config.json", {"library_name": "vitcap", "vitcap_version": vitcap.__version__, **texts})
        for key in ("tokenizer", "source_tokenizer"):
            if key in description:
                _write(out / f"{key}.json", json.loads(description[key])["library"])
        if "preprocess" in description:
            _write(out / "preprocessor_config.json", preprocessor(description["preprocess"]))
        named = name or Path(folder).absolute().name
        body = card if card is not None else _body(named, kind, door, description)
        (out / "README.md").write_text(_front(named, kind, description) + body.strip() + "\n", encoding="utf-8")


def preprocessor(preprocess: dict[str, Any]) -> dict[str, Any]:
    """The preprocessing in the words of preprocessor_config.json, and under "vitcap" in our own, which say all."""
    height, width = preprocess["size"]
    return {
        "do_convert_rgb": True,
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": int(Image.Resampling[preprocess["interpolation"].upper()]),
        "do_center_crop": preprocess["mode"] == "crop",
        "crop_size": {"height": height, "width": width},
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": preprocess["mean"],
        "image_std": preprocess["std"],
        "vitcap": preprocess,
    }


def push_to_hub(folder: str | Path, repo_id: str, *, private: bool = False) -> str:
    """Upload a folder that `to_hub` has written to the Hugging Face Hub; returns the address of the repository.

    repo_id: "user/name"; made where it is missing, private: as one that only you see. The library `huggingface_hub`
    finds your token where `hf auth login` has put it. Raises ValueError, in one line, for whatever goes wrong.
    """
    try:
        from huggingface_hub import HfApi
    except ImportError:
        raise ValueError("uploading needs the package huggingface_hub: pip install huggingface_hub") from None
    try:
        hub = HfApi(library_name="vitcap", library_version=vitcap.__version__)
        repository = hub.create_repo(repo_id, private=private, exist_ok=True)
        hub.upload_folder(folder_path=str(folder), repo_id=repo_id, commit_message="Model written by vitcap export")
    except Exception as error:  # of the network, of the hub, of the name: each library has its own
        raise ValueError(
            f"{repo_id}: not uploaded ({type(error).__name__}: {one_line(str(error))}); {folder} is complete: upload "
            f"it when the connection and the login (hf auth login) are there, with hf upload {repo_id} {folder}"
        ) from error
    return str(repository)


def _public(value: Any) -> Any:
    """Facts without where files lie on this computer."""
    if isinstance(value, dict):
        return {key: _public(part) for key, part in value.items()}
    if isinstance(value, list):
        return [_public(part) for part in value]
    return Path(value).name if isinstance(value, str) and Path(value).is_absolute() else value


def _write(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _front(name: str, kind: str, description: dict[str, Any]) -> str:
    """Front matter in YAML, of which JSON is a part."""
    facts = description["facts"]
    tags = {"caption": ["image-captioning"], "classify": ["image-classification"]}.get(kind, [])
    entries: dict[str, Any] = {
        "library_name": "vitcap",
        "pipeline_tag": TASKS[kind],
        "tags": ["vitcap", "pytorch", *tags],
    }
    if scores := _numbers(facts.get("scores")):
        about = facts.get("evaluation", {})
        dataset = {"name": str(facts.get("data", "own data")), "type": str(facts.get("data", "own")), "split": "val"}
        dataset |= {key: str(about[key]) for key in ("split",) if key in about}
        metrics = [{"type": key, "name": key, "value": value} for key, value in scores.items()]
        results = [{"task": {"type": TASKS[kind]}, "dataset": dataset, "metrics": metrics}]
        entries["model-index"] = [{"name": name, "results": results}]
    lines = (f"{key}: {json.dumps(value, ensure_ascii=False)}\n" for key, value in entries.items())
    return "---\n" + "".join(lines) + "---\n\n"


def _numbers(scores: Any) -> dict[str, float]:
    found = scores.items() if isinstance(scores, dict) else ()
    return {key: round(x, 4) for key, x in found if isinstance(x, int | float) and not isinstance(x, bool)}


def _body(name: str, kind: str, door: Any, description: dict[str, Any]) -> str:
    facts = description["facts"]
    parts = {part: description[part] for part in ("encoder", "decoder", "head", "decode") if part in description}
    made = {part: str(options.get("_target_", "")).rpartition(".")[2] for part, options in parts.items()}
    size = count_parameters(list(door.model.parameters()))
    lines = [f"# {name}", "", f"A model made to {kind}, written by vitcap {vitcap.__version__}.", ""]
    lines += ["```python", "import vitcap", "", f'model = vitcap.load("{name}")  # this folder', _USE[kind], "```", ""]
    lines += ["## Model", "", f"{size:,} parameters.", ""]
    for part, options in parts.items():
        told = ", ".join(f"{key} {value}" for key, value in options.items() if key != "_target_" and value is not None)
        lines.append(f"- {part}: {made[part]} ({told})")
    if "preprocess" in description:
        lines.append("- pictures: " + ", ".join(f"{key} {value}" for key, value in description["preprocess"].items()))
    if origin := facts.get("encoder_origin"):
        lines.append("- the encoder's first weights: " + ", ".join(f"{key} {value}" for key, value in origin.items()))
    lines += ["", "## Training and scores", ""]
    lines += [f"- {key}: {value}" for key, value in facts.items() if isinstance(value, str | int | float)]
    if scores := _numbers(facts.get("scores")):
        lines += ["", "| score | value |", "|---|---|", *(f"| {key} | {value} |" for key, value in scores.items())]
        about = facts.get("evaluation", {})
        told = ", ".join(f"{key} {value}" for key, value in about.items() if isinstance(value, str | int))
        lines += ["", f"How they were obtained: {told or 'not stated'}."]
    lines += ["", "## Limits and licence", ""]
    lines.append(
        "It repeats what its training data say, mistakes and prejudices included: look at some of it before use."
    )
    lines.append(
        "The licence depends on the data and on the encoder's first weights: state it here before you share it."
    )
    return "\n".join(lines)
