"""What one view of a record shows: a map of every word in multiples of one unit, and the same in words. NumPy only.

The unit. A value is drawn as value * patches / total, one total for all words. Attention weights of a word sum to 1,
so their total is 1 and the result counts in multiples of uniform attention. Gradient methods are in units of the score
and sum to anything: their total is the mean over all words of what a map sums to, so the result counts in multiples of
the mean over all words and patches. Negative values are drawn as 0, and the total is of what is left.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitcap.record import AttentionRecord, View, Window
from vitcap.viz.heatmap import describe_lift

_TITLES = {
    "attention": "Cross-attention",
    "rollout": "Attention rollout",
    "relevance": "Gradient-weighted relevance",
    "grad-cam": "Grad-CAM",
}
_SUM = 0.02  # weights in half precision sum to 1 within this


@dataclass(frozen=True)
class Shown:
    """lifts: (words, views, rows, columns), 0 or more, in multiples of the unit. attention: whether that is uniform
    attention, or else the mean of all maps. clamped: whether negative values became 0. rest: mean share of attention
    that went to prefix tokens, 0..1; 0 for other methods."""

    lifts: NDArray[np.float64]
    attention: bool
    clamped: bool
    rest: float

    @property
    def unit(self) -> str:
        """What 1 is, in words."""
        return "uniform attention" if self.attention else "the mean of all maps"

    @property
    def short(self) -> str:
        """The same in a word."""
        return "uniform" if self.attention else "mean"


def show(record: AttentionRecord, *views: View) -> Shown:
    """The maps of all words under each view, all of one method, on one scale."""
    if record.grid is None:
        raise ValueError("this record is of a sentence: it has no patches, so there is no map to draw over a photo")
    views = views or (record.shown,)
    (method,) = {view.method for view in views}
    maps = np.zeros((len(record.words), len(views), *record.grid))
    for word, which in np.ndindex(maps.shape[:2]):
        maps[word, which] = record.map(word, views[which])
    tokens = [token for word in record.words for token in range(word.start, word.stop)]
    values = record.maps[method][tokens]
    attention = bool((values >= -1e-6).all() and (abs(values.sum(-1) - 1) <= _SUM).all())
    positive = np.maximum(maps, 0)
    sums = positive.sum((2, 3))
    total = 1.0 if attention else float(sums.mean()) or 1.0
    rest = max(0.0, 1 - float(sums.mean())) if attention and record.prefix and sums.size else 0.0
    patches = record.grid[0] * record.grid[1]
    return Shown(positive * (patches / total), attention, bool((maps < 0).any()), rest)


def window_of(record: AttentionRecord, width: int, height: int) -> Window:
    """What the model saw, in pixels of the photo drawn at width x height."""
    return _scaled(record, record.window, width, height)


def cells_of(record: AttentionRecord, width: int, height: int) -> Window:
    """What the cells of the grid cover, in pixels of the photo drawn at width x height."""
    return _scaled(record, record.grid_window, width, height)


def _scaled(record: AttentionRecord, window: Window | None, width: int, height: int) -> Window:
    if window is None or record.size is None:
        return (0.0, 0.0, float(width), float(height))
    across, down = width / record.size[0], height / record.size[1]
    x0, y0, x1, y1 = window
    return (x0 * across, y0 * down, x1 * across, y1 * down)


def of_classes(record: AttentionRecord) -> bool:
    """Whether the maps are of classes, not of the words of a caption."""
    return record.facts.get("kind") == "classify"


def method_title(record: AttentionRecord, method: str) -> str:
    """What people call a method, of a record's kind."""
    if method == "attention" and of_classes(record):
        return "Attention of the encoder"
    return _TITLES.get(method, method[:1].upper() + method[1:])


def note(record: AttentionRecord, view: View, shown: Shown) -> str:
    """Which method, layers and heads a view shows, on how many patches."""
    title = method_title(record, view.method)
    layers, heads = record.maps[view.method].shape[1:3]
    if max(layers, heads) > 1 or view.method == "attention":
        title += f": {which('layer', view.layers, layers)}, {which('head', view.heads, heads)}"
    rows, columns = record.grid or (0, 0)
    text = f"{title}; {rows} x {columns} patches"
    if of_classes(record) and len(shown.lifts) > 1 and (shown.lifts == shown.lifts[0]).all():
        text += "; the same for every class"
    if shown.rest:
        text += f"; {100 * shown.rest:.0f} % of the attention went to {record.prefix} token"
        text += ("" if record.prefix == 1 else "s") + " beside the patches"
    return text


def which(kind: str, chosen: Sequence[int] | None, size: int) -> str:
    """Which layers or heads, in words."""
    if chosen is None:
        return f"{kind} 0, the only one" if size == 1 else f"mean of all {size} {kind}s"
    return f"{kind} {', '.join(str(index) for index in chosen)} of 0..{size - 1}"


def describe_record(record: AttentionRecord, view: View | None = None) -> list[str]:
    """The maps of a view for screen readers and logs: the caption, what is shown, and a line for each word."""
    view = view or record.shown
    shown = show(record, view)
    lines = [("class: " if of_classes(record) else "caption: ") + record.text, note(record, view, shown)]
    if shown.clamped:
        lines[1] += "; negative values count as 0"
    return lines + [describe_word(record, shown, index) for index in range(len(record.words))]


def describe_word(record: AttentionRecord, shown: Shown, index: int, which_view: int = 0) -> str:
    """One map in words."""
    width, height = size_of(record)
    cells, window = cells_of(record, width, height), window_of(record, width, height)
    return describe_lift(
        record.words[index].text, shown.lifts[index, which_view], cells, width, height, unit=shown.unit, window=window
    )


def size_of(record: AttentionRecord) -> tuple[int, int]:
    """(width, height) of the original photo in pixels."""
    if record.size is not None:
        return record.size
    if record.photo is None:
        raise ValueError("this record holds no photo to draw maps over")
    return record.photo.shape[1], record.photo.shape[0]


def probability(record: AttentionRecord, index: int) -> float:
    """Of a word or class under the model, 0..1."""
    return math.exp(record.words[index].log_prob)
