"""What is asked of `explain`: its options, and the methods that a model has."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from weakref import WeakKeyDictionary

from torch import nn

from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.explain.methods import CAPTION_METHODS, CLASS_METHODS, unavailable
from vitcap.record import View
from vitcap.translator import Translator
from vitcap.types import require_number
from vitcap.writer import Caption, Search

Explained = Captioner | Classifier | Translator

_WITHOUT = 'to do without it: model = vitcap.load(FILE); del model.description["view"]; model.save(FILE)'

# What a model lacks may take a pass through it to tell, and never changes.
_lacking: WeakKeyDictionary[nn.Module, dict[str, str]] = WeakKeyDictionary()


_KINDS: tuple[tuple[str, Any, str], ...] = (
    ("caption", Caption | str | None, "a text, a Caption or None"),
    ("classes", list | tuple | None, "a list of names or indices"),
    ("methods", str | list | tuple, "one or more names, or 'all',"),
    ("search", Callable | None, "a search of vitcap.decoding or None"),
    ("rollout", Mapping | None, "{'fusion': ..., 'discard': ...} or None"),
)


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
    rollout: Mapping[str, Any] | None = None

    def check(self, door: Any) -> None:
        """ValueError for an option out of range, or one that this door does not have."""
        if not isinstance(door, Explained):
            raise ValueError(f"{type(door).__name__}: a model as vitcap.load gives it is wanted")
        for name in ("top", "photo_side"):
            require_number(name, getattr(self, name), 1, whole=True)
        if self.seed is not None:
            require_number("seed", self.seed, 0, 2**63 - 1, whole=True)
        for name, kind, wanted in _KINDS:
            if not isinstance(given := getattr(self, name), kind):
                raise ValueError(f"{name}={given!r}: {wanted} is wanted")
        if not (isinstance(self.methods, str) or all(isinstance(method, str) for method in self.methods)):
            raise ValueError(f"methods={self.methods!r}: names are wanted, or 'all'")
        alien = ("caption", "search", "seed") if isinstance(door, Classifier) else ("classes",)
        for name in alien:
            if getattr(self, name) is not None:
                raise ValueError(f"{name}: a {type(door).__name__} has no such option")
        known = (str, int)
        if self.classes is not None and (not self.classes or any(type(one) not in known for one in self.classes)):
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
        require_method(view, have, lacking)
        wanted += (view.method,)
    for method in wanted:
        if method not in have:
            reason = lacking.get(method, "there is no such method")
            raise ValueError(f"method {method!r}: {reason}; this model has {', '.join(have) or 'none'}")
    if not wanted:
        raise ValueError("; ".join(dict.fromkeys(lacking.values())) if methods == "all" else "no method is chosen")
    return wanted, view or View("attention" if "attention" in wanted else wanted[0])


def require_method(view: View, have: Iterable[str], lacking: Mapping[str, str]) -> None:
    """ValueError where the model file's view is of a method that the model does not have. lacking: name -> reason."""
    if view.method not in have:
        reason = lacking.get(view.method, "there is no such method")
        raise ValueError(f"the model file's view shows method {view.method!r}: {reason}; {_WITHOUT}")


def require_fit(view: View, shape: Sequence[int]) -> None:
    """ValueError for layers or heads of the model file's view that maps of (T, L, H, N) lack."""
    for name, size in (("layers", shape[1]), ("heads", shape[2])):
        if wrong := [index for index in getattr(view, name) or () if not -size <= index < size]:
            told = f"{name} {', '.join(map(str, wrong))} of {view.method}, which has {size}"
            raise ValueError(f"the model file's view shows {told}; {_WITHOUT}")
