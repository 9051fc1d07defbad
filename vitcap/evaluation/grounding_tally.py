"""Measures of word maps, gathered picture by picture.

Letters: L layers, H heads.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitcap.metrics.grounding import (
    area,
    correctness,
    hits,
    map_box,
    phrase_correctness,
    pointing,
    rank_accuracy,
    segmentation,
    sights,
    spread,
)
from vitcap.metrics.regions import Box, Floats, Region, box_iou, clip_box, seen
from vitcap.record import AttentionRecord

BASIC = ("correctness", "area", "mean_lift", "pointing", "near", "above_area")
FULL = (*BASIC, "rank_accuracy", "iou", "box_hit", "foreground_iou", "mean_iou", "average_precision", "empty")
"""Figures of one word; of nouns all, of the others the basic ones. See vitcap.metrics.grounding.localisation; near is
the lenient pointing game, box_hit an IoU above 0.5, empty a map without mass."""
_RASTER = 256  # pixels of a side on which ranks are taken: the order of thousands of equal pixels tells nothing more


@dataclass
class Place:
    """Where the object of a word is in one photo, as the maps of one window see it. boxes: of its instances, cut to
    what the model saw. cells: the rectangle that the maps' patches share out evenly. tolerance: pixels of the lenient
    pointing game."""

    region: Region
    boxes: Sequence[Box]
    window: Box
    cells: Box
    grid: tuple[int, int]
    size: tuple[int, int]
    tolerance: float

    def __post_init__(self) -> None:
        self.cover, self.sight = sights(self.region, self.window, self.grid, self.size, cells=self.cells)
        self.area = area(self.cover, self.sight)

    @cached_property
    def hit(self) -> NDArray[np.bool_]:
        return hits(self.region, self.cells, self.grid)

    @cached_property
    def near(self) -> NDArray[np.bool_]:
        return hits(self.region, self.cells, self.grid, tolerance=self.tolerance)

    @cached_property
    def _small(self) -> tuple[Box, Box, tuple[int, int], NDArray[np.bool_]]:
        """Window, cells, size and region at the size on which ranks are taken."""
        share = min(1.0, _RASTER / max(self.size))
        width, height = (max(1, round(side * share)) for side in self.size)
        across, down = width / self.size[0], height / self.size[1]
        window, cells = (
            (x0 * across, y0 * down, x1 * across, y1 * down) for x0, y0, x1, y1 in (self.window, self.cells)
        )
        return window, cells, (width, height), self.region.scale(across, down).raster(width, height)

    def basic(self, heats: Sequence[Floats], *, ties: str = "first") -> list[float]:
        """BASIC figures of a word, or of a name of several words: their best correctness, and the peak of the last."""
        share = float(phrase_correctness(correctness(np.stack(heats), self.cover, self.sight)))
        won, near = (float(pointing(heats[-1], hit, ties=ties)) for hit in (self.hit, self.near))
        return [share, self.area, share / self.area, won, near, float(share > self.area)]

    def full(self, heats: Sequence[Floats], *, ties: str = "first") -> list[float]:
        """FULL figures likewise."""
        heat = heats[-1]
        found = map_box(heat, self.window, cells=self.cells)
        box = None if found is None else clip_box(found, seen(self.window, self.size))
        iou = max((box_iou(box, own) for own in self.boxes), default=0.0) if box is not None else 0.0
        window, cells, size, truth = self._small
        rank = rank_accuracy(spread(heat, window, size, cells=cells), truth)
        heat = np.where(self.sight > 0, heat, np.nan)
        inside = np.divide(self.cover, self.sight, out=np.zeros_like(self.cover), where=self.sight > 0)
        parts = segmentation(heat, inside, self.sight)
        more = [parts[name] for name in ("foreground_iou", "mean_iou", "average_precision")]
        return [*self.basic(heats, ties=ties), rank, iou, float(iou > 0.5), *more, float(found is None)]


@dataclass
class Tally:
    """Figures of words by (group, row); sums over words for every layer and head by (group, method).

    A group is a kind of word ("nouns"), a row a source of maps ("attention", "uniform").
    """

    words: dict[tuple[str, str], list[tuple[int, str, list[float]]]] = field(default_factory=lambda: defaultdict(list))
    views: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)

    def add(self, group: str, row: str, picture: int, category: str, figures: list[float]) -> None:
        """One word's figures. picture: its number, by which intervals resample."""
        self.words[group, row].append((picture, category, figures))

    def add_views(self, group: str, method: str, heats: Sequence[Floats], place: Place) -> None:
        """A word's maps (L + 1, H + 1, rows, columns) of `all_views`, of each word of its name."""
        sums = self.views.setdefault((group, method), {"correctness": 0.0, "area": 0.0, "pointing": 0.0, "words": 0})
        of_words = [correctness(heat, place.cover, place.sight) for heat in heats]
        sums["correctness"] = sums["correctness"] + phrase_correctness(of_words)
        sums["pointing"] = sums["pointing"] + pointing(heats[-1], place.hit)
        sums["area"] += place.area
        sums["words"] += 1

    def table(self, group: str, row: str) -> tuple[NDArray[np.int64], list[str], Floats]:
        """(pictures (W,), categories (W,), figures (W, F)) of the words of a row."""
        found = self.words.get((group, row), [])
        figures = np.array([figures for _, _, figures in found], dtype=np.float64)
        return np.array([p for p, _, _ in found], dtype=np.int64), [c for _, c, _ in found], figures


def all_views(record: AttentionRecord, method: str, index: int) -> Floats:
    """(L + 1, H + 1, rows, columns): a word's map of every layer and head; the last of each is the mean."""
    word = record.words[index]
    assert record.grid is not None
    values = record.maps[method][word.start : word.stop].mean(0, dtype=np.float64)[..., record.prefix :]
    values = np.concatenate((values, values.mean(1, keepdims=True)), 1)
    values = np.concatenate((values, values.mean(0, keepdims=True)), 0)
    return values.reshape(*values.shape[:2], *record.grid)
