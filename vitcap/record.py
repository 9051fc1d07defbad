"""What one model attended to in one picture: the record that every renderer and every metric reads.

Letters for shapes: T tokens (or classes), L layers, H heads, N places attended to: prefix tokens first, then the
rows * columns patches in row-major order. NumPy only.
"""

from __future__ import annotations

import json
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitcap.files import whole
from vitcap.record_check import check_record

if TYPE_CHECKING:  # it imports torch, for which drawing need not wait
    from vitcap.types import Grid

Window = tuple[float, float, float, float]
"""(x0, y0, x1, y1): a rectangle of the upright photo, in its pixels; it may reach beyond the photo."""

FORMAT = 1


@dataclass(frozen=True)
class Word:
    """A word of a caption: its text, the half-open span of tokens that spell it, and their summed log-probability.

    Of a classifier, a class: one "token", and the log-probability of the class.
    """

    text: str
    start: int
    stop: int
    log_prob: float


@dataclass(frozen=True)
class View:
    """One way to look at a record: a method, and the layers and heads to average (None: all; -1: the last)."""

    method: str
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None


@dataclass(frozen=True)
class AttentionRecord:
    """Maps of every word of one caption (or every class) over one picture (or source sentence).

    words: what has a map, in order; start and end tokens are none. text: the whole caption.
    maps: method -> (T, L, H, N) values of every token, not rescaled: attention sums to 1 over N, gradient methods are
        in units of the score. T covers at least the spans of the words; L and H are 1 where a method has but one map.
    shown: the view that is drawn where none is asked for.
    grid: (rows, columns) of the last rows * columns places; None for text. prefix: places before them that are none of
        the picture (class token, registers).
    places: texts of the N places of a source sentence; empty for pictures.
    photo: (height, width, 3) uint8, the upright picture in RGB, perhaps smaller than the original; None for text.
    size: (width, height) of the upright original in pixels; the unit of `window` and `cells`.
    window: the rectangle of the original that the model input shows.
    cells: the one that the cells of the grid share out evenly, each around what it reads; None: the window. A stack of
        convolutions may move them by half a cell against the input.
    transforms: what was done from the file to the model input, in order, in plain JSON types.
    source: name of the picture file, or the source sentence. facts: plain JSON types: the model's fingerprint, the
        decoding, the seed, whether words were generated or given.
    """

    words: tuple[Word, ...]
    text: str
    maps: Mapping[str, NDArray[np.float32]]
    shown: View
    grid: Grid | None = None
    prefix: int = 0
    places: tuple[str, ...] = ()
    photo: NDArray[np.uint8] | None = None
    size: tuple[int, int] | None = None
    window: Window | None = None
    cells: Window | None = None
    transforms: tuple[dict[str, Any], ...] = ()
    source: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_record(self)
        count = self.prefix + self.grid[0] * self.grid[1] if self.grid else len(self.places)
        tokens = max((word.stop for word in self.words), default=0)
        for method, values in self.maps.items():
            if values.ndim != 4 or values.shape[3] != count or values.shape[0] < tokens:
                raise ValueError(
                    f"maps of {method} have the shape {values.shape}; (tokens, layers, heads, places) with at least "
                    f"{tokens} tokens and {count} places are wanted"
                )
        if self.shown.method not in self.maps:
            raise ValueError(f"shown method {self.shown.method!r}: the record has {', '.join(self.maps) or 'no maps'}")

    @property
    def grid_window(self) -> Window | None:
        """The rectangle of the original that the grid covers: where every cell of a map lies."""
        return self.window if self.cells is None else self.cells

    def view(self, method: str | None = None, layers: Any = None, heads: Any = None) -> View:
        """The view asked for, or the one that is shown by default; other layers or heads than its own go with its
        method. Raises ValueError for a method that the record lacks."""
        if method is None and layers is None and heads is None:
            return self.shown
        method = self.shown.method if method is None else method
        if method not in self.maps:
            raise ValueError(f"method {method!r}: this record has {', '.join(self.maps)}")
        return View(method, _tuple(layers), _tuple(heads))

    def map(self, index: int, view: View | None = None, *, merge: str = "mean") -> NDArray[np.float64]:
        """Map (rows, columns) of word `index` under a view; see `word_map`."""
        if self.grid is None:
            raise ValueError("this record is of a sentence: it has places, and no grid of patches")
        view = self.shown if view is None else view
        word = self.words[index]
        return word_map(
            self.maps[view.method],
            (word.start, word.stop),
            grid=self.grid,
            prefix=self.prefix,
            layers=view.layers,
            heads=view.heads,
            merge=merge,
        )

    def save(self, path: str | Path) -> tuple[Path, Path]:
        """Write PATH.npz (maps and photo) and PATH.json (the rest); returns both. Each appears whole or not at all."""
        arrays: dict[str, Any] = {f"map:{method}": values for method, values in self.maps.items()}
        arrays |= {} if self.photo is None else {"photo": self.photo}
        rest = {
            "format": FORMAT,
            "text": self.text,
            "words": [[w.text, w.start, w.stop, w.log_prob] for w in self.words],
            "methods": list(self.maps),
            "shown": [self.shown.method, self.shown.layers, self.shown.heads],
            **{name: getattr(self, name) for name in _PLAIN},
        }
        npz, sidecar = Path(f"{path}.npz"), Path(f"{path}.json")
        with whole(npz) as temporary, open(temporary, "wb") as f:
            np.savez_compressed(f, **arrays)
        with whole(sidecar) as temporary:
            temporary.write_text(json.dumps(rest, ensure_ascii=False, indent=1) + "\n", "utf-8", "backslashreplace")
        return npz, sidecar

    @classmethod
    def load(cls, path: str | Path) -> AttentionRecord:
        """Read what `save` wrote: PATH, PATH.npz or PATH.json. Raises ValueError or FileNotFoundError that names the
        file."""
        stem = Path(path).with_suffix("") if Path(path).suffix in (".npz", ".json") else Path(path)
        npz, sidecar = Path(f"{stem}.npz"), Path(f"{stem}.json")
        try:
            rest = json.loads(sidecar.read_text(encoding="utf-8"))
            if (found := rest.get("format", FORMAT)) != FORMAT:
                raise ValueError(f"format {found!r}, and this version of vitcap reads {FORMAT}")
            with np.load(npz, allow_pickle=False) as arrays:
                maps = {method: arrays[f"map:{method}"] for method in rest["methods"]}
                photo = arrays.get("photo")
            words = tuple(Word(*word) for word in rest["words"])
            method, layers, heads = rest["shown"]
            plain: Any = {
                name: tuple(v) if name in _TUPLES and (v := rest[name]) is not None else rest[name] for name in _PLAIN
            }
            view = View(method, _tuple(layers), _tuple(heads))
            record = cls(words, rest["text"], maps, view, photo=photo, **plain)
            if wrong := [name for name, values in maps.items() if not np.isfinite(values).all()]:
                raise ValueError(f"maps of {wrong[0]} hold values that are not finite (NaN or infinity)")
            return record
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{error.filename}: no such file; a record is PATH.npz and PATH.json") from None
        except (*_DAMAGED, zipfile.BadZipFile, zlib.error) as error:
            reason = str(error) if type(error) is ValueError else f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{stem}: no attention record that can be read (.npz and .json): {reason}; save it anew"
            ) from None


def word_map(
    attention: ArrayLike,
    span: tuple[int, int],
    *,
    grid: tuple[int, int],
    prefix: int = 0,
    layers: int | Sequence[int] | None = None,
    heads: int | Sequence[int] | None = None,
    merge: str = "mean",
) -> NDArray[np.float64]:
    """The attention of one word over the patches.

    attention: (T, L, H, N) cross-attention weights of the step that emitted each token; rows over N sum to 1.
    span: (start, stop) of the word's tokens, half-open.
    grid: (rows, columns) of the last rows * columns memory tokens, as the model states it; never guessed from N.
    prefix: number of memory tokens before them that are no place in the picture (class token, registers).
    layers, heads: index, indices or None; several are averaged, None averages all. Negative counts from the end.
    merge: "mean" over the tokens of the word (stays a distribution over N), or "max" over them, divided by its sum.

    Returns (rows, columns). The values are the absolute weights: they sum to 1 minus the share that went to prefix
    tokens; `lift` turns them into multiples of uniform attention.

    Raises ValueError for a shape, span or index that does not fit.
    """
    weights = np.asarray(attention, dtype=np.float64)
    rows, columns = grid
    if weights.ndim != 4 or weights.shape[3] != prefix + rows * columns:
        raise ValueError(
            f"attention has the shape {weights.shape}; expected (tokens, layers, heads, {prefix + rows * columns}) "
            f"for {prefix} prefix tokens and a grid of {rows} x {columns}"
        )
    start, stop = span
    if not 0 <= start < stop <= len(weights):
        raise ValueError(f"span ({start}, {stop}) is empty or outside the {len(weights)} tokens of the caption")
    if merge not in ("mean", "max"):
        raise ValueError(f"merge is {merge!r}; choose 'mean' or 'max'")
    tokens = _select(_select(weights[start:stop], 1, layers, "layers"), 2, heads, "heads")[:, 0, 0]
    if not np.isfinite(tokens).all():
        raise ValueError("the attention holds values that are not finite (NaN or infinity), so there is no map to draw")
    if merge == "mean":
        merged = tokens.mean(0)
    else:
        merged = tokens.max(0)
        merged = merged / (merged.sum() or 1.0)
    return merged[prefix:].reshape(rows, columns)


def _select(attention: NDArray, axis: int, chosen: int | Sequence[int] | None, name: str) -> NDArray:
    """Mean over the chosen indices of one axis, which stays as length 1; None = all of them."""
    size = attention.shape[axis]
    wanted = range(size) if chosen is None else [chosen] if isinstance(chosen, int) else list(chosen)
    if not wanted:
        raise ValueError(f"{name}: none chosen; give at least one index, or None for the mean over all {size}")
    for index in wanted:
        if not -size <= index < size:
            raise ValueError(f"{name}: there is no {index}; this model has {size}, so give 0 to {size - 1} (-1 = last)")
    return attention.take([i % size for i in wanted], axis).mean(axis, keepdims=True)


def _tuple(chosen: Any) -> tuple[int, ...] | None:
    return None if chosen is None else (chosen,) if isinstance(chosen, int) else tuple(chosen)


_PLAIN = ("grid", "prefix", "places", "size", "window", "cells", "transforms", "source", "facts")
_DAMAGED = (OSError, EOFError, ValueError, LookupError, AttributeError, TypeError, RuntimeError)
_TUPLES = ("grid", "places", "size", "window", "cells", "transforms")
