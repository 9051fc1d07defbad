"""What the README and the pages under docs/ say, taken apart: for the tests that run it."""

from __future__ import annotations

import copy
import functools
import importlib.util
import re
import shlex
from pathlib import Path
from typing import Any

from hydra import compose, initialize_config_dir
from omegaconf import DictConfig, OmegaConf
from PIL import Image, ImageDraw

from vitcap import cli, run
from vitcap.command import evaluate, shorthand

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8")


PAGES = {"README.md": _text(ROOT / "README.md")} | {path.name: _text(path) for path in sorted(DOCS.glob("*.md"))}
"""Name -> text of everything whose commands are run."""

CAPTIONS = {
    "dog.jpg": ["a brown dog runs on the beach", "a dog by the sea"],
    "boat.jpg": ["a white boat on a lake"],
    "cat.jpg": ["a cat asleep on a chair"],
    "bike.jpg": ["a red bike leaning on a wall"],
}
"""What every example data set says, commas left out."""


def blocks(language: str, text: str) -> list[str]:
    """Contents of the fenced blocks of a language, those indented in lists or notes included."""
    return [code for _, code in re.findall(rf"^( *)```{language}\b[^\n]*\n(.*?)^\1```", text, re.MULTILINE | re.DOTALL)]


def commands(text: str, language: str = "bash") -> list[str]:
    """Every single command of the blocks of a language, comments and continuation lines resolved; pipes stay whole."""
    found = []
    for block in blocks(language, text):
        if block.startswith("#!"):  # a script, such as SLURM's
            continue
        for line in block.replace("\\\n", " ").splitlines():
            for part in line.split("&&"):
                plain = re.search(r"[|<>$]|`", part)
                words = part.partition(" #")[0].strip() if plain else shlex.join(shlex.split(part, comments=True))
                found += [words] if words and not words.startswith("#") else []
    return found


def prose(text: str) -> str:
    return re.sub(r"^( *)```.*?^\1```", "", text, flags=re.MULTILINE | re.DOTALL)


def inline_code(text: str) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(text))


def config(*overrides: str, name: str = "config") -> DictConfig:
    return copy.deepcopy(_composed(overrides, name))


@functools.cache
def _composed(overrides: tuple[str, ...], name: str) -> DictConfig:
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        return compose(name, overrides=list(overrides))


def script(name: str) -> Any:
    """A file of scripts/ as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "scripts" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def section(text: str, heading: str) -> str:
    """What stands under a heading, down to the next of its level or above."""
    level = heading.count("#")
    found = re.search(rf"^{re.escape(heading)}\n(.*?)(?=^#{{1,{level}}} |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found, f"no heading {heading!r}"
    return found[1]


# --- data ---


def example_files(text: str, folder: str) -> dict[str, str]:
    """Name within the folder -> content, of the example files that a page shows."""
    return dict(re.findall(rf"`{folder}/([^`]+)`:\n+```\w+\n(.*?)```", text, re.DOTALL))


def draw(path: Path, index: int, size: tuple[int, int] = (48, 40)) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    picture = Image.new("RGB", size, (60 * index % 256, 120, 255 - 60 * index % 256))
    ImageDraw.Draw(picture).ellipse((10, 5, 20 + 5 * index, 30), fill=(255, 255, 255))
    picture.save(path)


def write_example(folder: Path, files: dict[str, str]) -> None:
    """The example files and the pictures that they name."""
    for name, content in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content, encoding="utf-8")
    for index, name in enumerate(CAPTIONS):
        draw(folder / "images" / name, index)


# --- running ---

FEW: dict[str, Any] = {"trainer.max_steps": 2, "trainer.accelerator": "cpu", "trainer.precision": "32-true"}
SIZES = {
    "vit": {"image_size": 32, "patch_size": 16, "width": 16, "depth": 1, "heads": 2},
    "hybrid": {"image_size": 64, "width": 16, "depth": 1, "heads": 2},
    "backbones": {"name": "test_vit", "pretrained": False},  # the smallest of timm; no weights are downloaded
    "cnn": {"image_size": 32, "width": 16},
    "text": {"width": 16, "embed_width": 8},
    "transformer_decoder": {"width": 16, "depth": 1, "heads": 2},
    "rnn_decoder": {"width": 16, "embed_width": 8, "attention_width": 8},
}
"""Module under vitcap.models -> what makes its model tiny."""


def shrink(cfg: DictConfig, overlays: int) -> DictConfig:
    """The config of a training command that does all that it does, but with a tiny model for two steps."""
    new = FEW | {"data.batch_size": 2, "overlays": overlays, "report": False, "overwrite": not cfg.resume}
    for part in ("encoder", "decoder"):
        node = cfg.model.get(part)
        if node is None:
            continue
        module = node._target_.split(".")[2]
        new |= {f"model.{part}.{key}": value for key, value in SIZES[module].items() if key in node}
        if isinstance(node.get("weights"), str) and _missing(node.weights):
            new[f"model.{part}.weights"] = None
        if node.get("trainable") not in (None, "all") and module in (
            "vit",
            "backbones",
        ):  # what is frozen has no weights
            new[f"model.{part}.trainable"] = "all" if node.trainable == "none" else 1
    new |= {f"data.source.{key}": n for key, n in (("train_size", 12), ("val_size", 6)) if key in cfg.data.source}
    new |= {"data.min_count": 1} if "min_count" in cfg.data else {}
    new |= {f"{search}.max_length": 8 for search in ("decode", "validation_decode")}
    for key, value in new.items():
        OmegaConf.update(cfg, key, value, force_add=False)
    return cfg


def _missing(weights: str) -> bool:
    package = weights.removeprefix("package:")
    return importlib.util.find_spec(package) is None if package != weights else not Path(weights).exists()


def run_command(command: str, overlays: int = 0) -> dict[str, Any] | None:
    """Do what a command of a page does, in this process and in the current folder: training tiny and short, evaluation
    of some pictures. Returns the scores of training and evaluation. AssertionError if it fails.

    overlays: pictures that training draws.
    """
    words = shlex.split(command)
    if words[0] == "vitcap":
        for out in re.findall(r"--out (\S+\.(?:jsonl|csv|safetensors))", command):  # of another page, and other options
            Path(out).unlink(missing_ok=True)
        assert cli.main(words[1:]) == 0, command
        return None
    assert words[0] == "python", f"{command}: nothing is known of this"
    name, given = Path(words[1]).stem, words[2:]
    if "--help" in given:
        assert (ROOT / words[1]).is_file()
        return None
    if name == "train":
        return run.train(shrink(config(*given), overlays))
    if name == "evaluate":
        cfg = config(*shorthand(given), name="evaluate")
        new = {f"data.source.{key}": 6 for key in ("val_size", "test_size") if key in cfg.data.source}
        new |= {"limit": 2} if cfg.limit else {}
        new |= {"out": "runs/evaluated"} if not any(word.startswith("out=") for word in given) else {}
        for key, value in new.items():
            OmegaConf.update(cfg, key, value)
        return evaluate(cfg)
    sizes = [f"--{split}-size=6" for split in ("train", "val", "test")] if given[:1] == ["shapes"] else []
    assert not script(name).main(given + sizes), command
    return None


def check_composes(command: str) -> None:
    """AssertionError unless the options of a command of train.py or evaluate.py exist and leave nothing open."""
    words = shlex.split(command)
    at = next(i for i, word in enumerate(words) if word.endswith(".py"))
    name, overrides = Path(words[at]).stem, [w for w in words[at + 1 :] if not w.startswith("-")]
    overrides = shorthand(overrides) if name == "evaluate" else overrides
    cfg = config(*_single(overrides), name={"train": "config", "evaluate": "evaluate"}[name])
    assert not OmegaConf.missing_keys(cfg), command


def _single(overrides: list[str]) -> list[str]:
    """Of a sweep such as seed=1,2 the first value."""
    return [re.sub(r"^([\w./@+]+=[^\[{,'\"]+),.*$", r"\1", word) for word in overrides]


def plain(cfg: DictConfig) -> dict[str, Any]:
    """A config as plain dictionaries, nothing resolved."""
    found = OmegaConf.to_container(cfg)
    assert isinstance(found, dict)
    return found  # type: ignore[return-value]
