"""What is asked of `explain`: its options, and the methods that a model has."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.explain.methods import CAPTION_METHODS, CLASS_METHODS, unavailable
from vitcap.record import View
from vitcap.translator import Translator
from vitcap.writer import Caption, Search, require_counts

Explained = Captioner | Classifier | Translator

# What a model lacks may take a pass through it to tell, and never changes.
_lacking: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()


@dataclass(frozen=True)
class Options:
    """Those of `vitcap.explain.explain`, which says what they mean."""

    caption: Caption | str | None = None
    classes: Sequence[str | int] | None = None
    methods: Sequence[str] | str = ("attention",)
    search: Search | None = None
    seed: int | None = None
    top: int = 5
    photo_side: int = 1600

    def check(self, door: Any) -> None:
        """ValueError for an option out of range, or one that this door does not have."""
        if not isinstance(door, Explained):
            raise ValueError(f"{type(door).__name__}: a model as vitcap.load gives it is wanted")
        require_counts(top=self.top, photo_side=self.photo_side)
        alien = ("caption", "search", "seed") if isinstance(door, Classifier) else ("classes",)
        for name in alien:
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: a {type(door).__name__} has no such option")
        if self.classes is not None and (isinstance(self.classes, str) or not self.classes):
            raise ValueError(f"classes={self.classes!r}: a list of names or indices is wanted")


def choose(door: Explained, methods: Sequence[str] | str) -> tuple[tuple[str, ...], View]:
    """The methods to compute, and the view that is shown by default: see `explain`, whose ValueErrors these are."""
    lacking = _lacking.get(door.model)
    if lacking is None:
        lacking = _lacking[door.model] = unavailable(door.model)
    known = CLASS_METHODS if isinstance(door, Classifier) else CAPTION_METHODS
    view, have = door.view, tuple(name for name in known if name not in lacking)
    wanted = have if methods == "all" else (methods,) if isinstance(methods, str) else tuple(dict.fromkeys(methods))
    if view is not None and view.method not in wanted:
        wanted += (view.method,)
    for method in wanted:
        if method not in have:
            reason = lacking.get(method, "there is no such method")
            raise ValueError(f"method {method!r}: {reason}; this model has {', '.join(have) or 'none'}")
    if not wanted:
        raise ValueError("; ".join(dict.fromkeys(lacking.values())) if methods == "all" else "no method is chosen")
    return wanted, view or View("attention" if "attention" in wanted else wanted[0])
