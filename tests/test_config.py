"""The configuration: every leaf has exactly its class's parameters, every choice and experiment composes."""

from __future__ import annotations

import importlib
import inspect
from pathlib import Path

import pytest
from omegaconf import OmegaConf

CONF = Path(__file__).resolve().parents[1] / "conf"
FILLED_IN = {
    "vocab_size", "memory_width", "classes", "encoder",  # by vitcap.build, from the data and the encoder
    "model", "search", "decode", "judge", "references",  # by vitcap.build, live objects
    "root", "self",
}  # fmt: skip

AUGMENT = {"size", "interpolation"}
LIVE = {"ImageClassifier": {"mean", "std"}, "Augment": AUGMENT, "ClassifyAugment": AUGMENT}  # from the preprocessing


def leaves(node, path=""):
    """(path, mapping) of every `_target_` node."""
    if isinstance(node, dict):
        if "_target_" in node:
            yield path, node
        for key, value in node.items():
            yield from leaves(value, f"{path}.{key}" if path else str(key))


def choices(group: str) -> list[str]:
    return sorted(p.stem for p in (CONF / group).glob("*.yaml") if not p.stem.startswith("base"))


CASES = [
    *(f"data={name}" for name in choices("data")),
    *(f"task={name}" for name in choices("task")),
    *(f"model={name}" for name in choices("model")),
    *(f"model/encoder={name}" for name in choices("model/encoder")),
    *(f"model/decoder={name}" for name in choices("model/decoder")),
    *(f"decode={name}" for name in choices("decode")),
    *(f"experiment={name}" for name in choices("experiment")),
]


@pytest.mark.parametrize("override", CASES)
def test_keys_of_a_leaf_are_exactly_the_parameters_of_its_class(override, config):
    cfg = config(override, "data.root=FOLDER", "out=runs/x")
    for key in OmegaConf.missing_keys(cfg):  # what only its user knows
        OmegaConf.update(cfg, key, None)
    for path, node in leaves(OmegaConf.to_container(cfg, resolve=True)):
        module, _, name = node["_target_"].rpartition(".")
        signature = inspect.signature(getattr(importlib.import_module(module), name))
        live = FILLED_IN | LIVE.get(name, set())
        wanted = set(signature.parameters) - live
        given = set(node) - {"_target_", "_partial_"} - live
        assert given == wanted, f"{path}: missing {sorted(wanted - given)}, unknown {sorted(given - wanted)}"


@pytest.mark.parametrize("name", choices("experiment"))
def test_the_header_of_an_experiment_says_how_to_run_it(name):
    text = (CONF / "experiment" / f"{name}.yaml").read_text(encoding="utf-8")
    header = "\n".join(line for line in text.splitlines() if line.startswith("#"))
    assert "# @package _global_" in header
    assert f"python scripts/train.py experiment={name}" in header
    assert "minutes" in header or "hours" in header
    assert any(score in header for score in ("CIDEr-D", "top-1", "BLEU-4"))


def test_experiments_win_over_the_defaults(config):
    cfg = config("experiment=flickr8k_hybrid", "data.root=FOLDER")
    assert cfg.trainer.precision == "bf16-mixed"
    assert cfg.data.resize == "squash"
    assert cfg.model.encoder._target_.endswith("HybridEncoder")
