"""A folder of ONNX files with all that captions need: config, tokenizer, preprocessing, and a program that reads it."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch

import vitcap
from vitcap.decoding import Beam
from vitcap.export.compress import compress
from vitcap.export.folders import new_folder
from vitcap.export.graphs import OPSET, exportable, plans, trace
from vitcap.models.storage import STORAGES
from vitcap.types import BOS, Batch

FORMAT = "vitcap-onnx 1"
ONE_FILE = 2**31 - 2**24
"""Most bytes of weights in one .onnx file, which may have 2 GB; those of larger models go beside it."""
ALLOWED = 1e-3
"""Largest difference of a logit from the model's, over the largest logit, of weights that are not rounded."""


def to_onnx(door: Any, folder: str | Path, *, weights: str = "fp32") -> dict[str, Any]:
    """Write the model of a Captioner or Classifier as ONNX files to a new folder; returns its config.

    weights: how they are stored, see vitcap.export.compress.compress. What is written is run by onnxruntime on noise
    and compared with the model; the config says the largest difference of a logit under `difference`.
    Raises ValueError for other models, a folder that holds files, and missing packages; RuntimeError where the graphs
    do not compute what the model does.
    """
    for package in ("onnx", "onnxscript", "onnxruntime"):
        try:
            import_module(package)
        except ImportError:
            raise ValueError(f'ONNX files need the package {package}: pip install "vitcap[export]"') from None
    if weights not in STORAGES:
        raise ValueError(f"weights={weights!r}: one of {', '.join(STORAGES)} is wanted")
    model = exportable(door.model)
    parts = plans(model)
    with new_folder(folder) as out:
        config = {**_config(door, weights), "graphs": {}}
        for name, plan in parts.items():
            graph = trace(plan)
            compress(graph, weights)
            _write(graph, out / f"{name}.onnx")
            config["graphs"][name] = {
                side: {value.name: _shape(value) for value in getattr(graph.graph, side.removesuffix("s"))}
                for side in ("inputs", "outputs")
            }
        if "search" in config:
            library = json.loads(door.tokenizer.to_json())["library"]
            _write_json(library, out / "tokenizer.json")
        shutil.copyfile(Path(__file__).with_name("runtime.py"), out / "caption.py")
        _write_json(config, out / "config.json")
        config["difference"] = _difference(door, out, exact=weights == "fp32")
        _write_json(config, out / "config.json")
    return config


def _config(door: Any, weights: str) -> dict[str, Any]:
    kind = "classify" if hasattr(door, "classes") else "caption"
    config = {
        "format": FORMAT,
        "kind": kind,
        "vitcap": vitcap.__version__,
        "model": door.fingerprint,
        "weights": weights,
        "opset": OPSET,
        "preprocess": door.preprocess.to_dict(),
        "grid": door.grid,
        "prefix": door.prefix,
    }
    if kind == "classify":
        return config | {"classes": list(zip(door.classes, door.class_names, strict=True))}
    rules = asdict(door.search)
    if not isinstance(door.search, Beam):
        kept = {name: rules[name] for name in ("max_length", "min_length", "no_repeat_ngram", "forbid")}
        rules = kept | {"beams": 1, "n_best": 1, "length_penalty": 0.0, "patience": 1.0}
    limit = getattr(door.model.decoder, "max_length", None)
    return config | {"tokenizer": door.tokenizer.kind, "search": rules, "max_length": limit}


def _shape(value: Any) -> list[int | str]:
    return [dim.dim_param or dim.dim_value for dim in value.type.tensor_type.shape.dim]


def _write(graph: Any, path: Path) -> None:
    import onnx

    apart = sum(len(tensor.raw_data) for tensor in graph.graph.initializer) > ONE_FILE
    onnx.save_model(graph, path, save_as_external_data=apart, location=f"{path.name}.data")
    onnx.checker.check_model(path, full_check=True)


def _write_json(content: Any, path: Path) -> None:
    path.write_text(json.dumps(content, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _difference(door: Any, folder: Path, *, exact: bool) -> float:
    """Largest difference of a logit between the files and the model, on two pictures of noise and four tokens.

    exact: RuntimeError where that is more than rounding.
    """
    from vitcap.export import runtime  # here, as it imports onnxruntime, which may be missing

    images = np.random.default_rng(0).integers(0, 256, (2, 3, *door.preprocess.size), dtype=np.uint8)
    batch = Batch(ids=(0, 1), images=torch.from_numpy(images).to(door.device))
    files, found = runtime.Model(folder), []
    with torch.no_grad():
        if not files.search:
            found = [(files.run("classifier", images=images)["logits"], door.model(batch))]
        else:
            decoder, random = door.model.decoder, np.random.default_rng(1)
            memory, state = files.start(images)
            theirs = decoder.start(door.model.encode(batch), 1)
            tokens = np.full((2, 1), BOS)
            for _ in range(min(4, files.config["max_length"] or 4)):
                ours, _, state = files.step(tokens, memory, state)
                logits, _, theirs = decoder.step(torch.from_numpy(tokens).to(door.device), theirs)
                found.append((ours, logits))
                branch = np.zeros((2, 3), np.int64)
                state = {name: runtime.take(x, branch) for name, x in state.items()}
                theirs = theirs.select(torch.from_numpy(branch).to(door.device))
                tokens = random.integers(3, ours.shape[-1], branch.shape)
    largest, difference = 0.0, 0.0
    for ours, logits in found:
        wanted = logits.float().cpu().numpy()
        largest, difference = max(largest, float(abs(wanted).max())), max(difference, float(abs(ours - wanted).max()))
    if exact and not difference <= ALLOWED * max(1.0, largest):
        raise RuntimeError(f"the exported graphs differ from the model, by {difference:.3g} in a logit: not written")
    return difference
