"""The models that come with the package: NAME.safetensors, and NAME.md, the card that says what it is and scores."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

DEFAULT = "flickr8k"
"""The captioner that is used where no model is named."""


def names() -> list[str]:
    """Names of the packaged models, the default first."""
    found = sorted(file.stem for file in _folder().glob("*.safetensors"))
    return sorted(found, key=lambda name: name != DEFAULT)


def path(name: str = DEFAULT) -> Path:
    """The model file of a packaged model. Raises FileNotFoundError that lists the names there are."""
    if name not in names():
        raise FileNotFoundError(f"{name}: no packaged model; there are {', '.join(names()) or 'none'}")
    return _folder() / f"{name}.safetensors"


def card(name: str = DEFAULT) -> str:
    """The card of a packaged model, in Markdown."""
    return path(name).with_suffix(".md").read_text(encoding="utf-8")


def _folder() -> Path:
    return Path(str(files("vitcap.pretrained")))
