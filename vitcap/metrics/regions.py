"""Regions of a photo, and how a grid of patches lies over them. NumPy only.

All lengths are pixels of the upright original photo, x to the right, y downwards. Boxes are (x0, y0, x1, y1) and
half-open: a point on the left or upper edge belongs to them, one on the right or lower edge does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Box = tuple[float, float, float, float]
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Region:
    """A union of axis-parallel rectangles, exactly: of boxes with any edges, or of the pixels of a mask.

    xs (C + 1,), ys (R + 1,): rising edges. inside: (R, C) bool, whether ys[r]..ys[r + 1] by xs[c]..xs[c + 1] belongs.
    """

    xs: Floats
    ys: Floats
    inside: NDArray[np.bool_]

    @classmethod
    def of_boxes(cls, boxes: Iterable[Box]) -> Region:
        """The union of boxes; what several of them cover counts once."""
        corners = np.array([box for box in boxes if box[2] > box[0] and box[3] > box[1]], dtype=float).reshape(-1, 4)
        if not len(corners):
            return EMPTY
        xs, ys = np.unique(corners[:, [0, 2]]), np.unique(corners[:, [1, 3]])
        x, y = xs[:-1], ys[:-1, None]
        x0, y0, x1, y1 = corners.T[:, :, None, None]
        covered = (x >= x0) & (x < x1) & (y >= y0) & (y < y1)
        return cls(xs, ys, np.asarray(covered.any(0)))

    @classmethod
    def of_mask(cls, mask: ArrayLike) -> Region:
        """The pixels where an (H, W) mask is not 0; pixel (row, column) is the square from (column, row)."""
        pixels = np.asarray(mask) != 0
        if pixels.ndim != 2:
            raise ValueError(f"a mask has rows and columns; got the shape {pixels.shape}")
        rows, columns = np.flatnonzero(pixels.any(1)), np.flatnonzero(pixels.any(0))
        if not len(rows):
            return EMPTY
        (top, bottom), (left, right) = rows[[0, -1]], columns[[0, -1]]
        cut = pixels[top : bottom + 1, left : right + 1]
        return cls(np.arange(left, right + 2.0), np.arange(top, bottom + 2.0), cut)

    @property
    def area(self) -> float:
        """Square pixels."""
        return float(np.diff(self.ys) @ self.inside @ np.diff(self.xs))

    def clip(self, box: Box) -> Region:
        """The part within a box."""
        x0, y0, x1, y1 = box
        xs, columns = _cut(self.xs, x0, x1)
        ys, rows = _cut(self.ys, y0, y1)
        part = self.inside[rows][:, columns]
        return Region(xs, ys, part) if part.any() else EMPTY

    def scale(self, across: float, down: float) -> Region:
        """The region in a photo that is so many times larger."""
        return Region(self.xs * across, self.ys * down, self.inside)

    def contains(self, x: float, y: float) -> bool:
        """Whether a point belongs to the region."""
        column, row = (int(np.searchsorted(edges, at, side="right")) - 1 for edges, at in ((self.xs, x), (self.ys, y)))
        rows, columns = self.inside.shape
        return 0 <= row < rows and 0 <= column < columns and bool(self.inside[row, column])

    def squared_distance(self, x: float, y: float) -> float:
        """From a point to the nearest point of the region or its edge; 0 inside, infinity if the region is empty."""
        across = np.maximum(np.maximum(self.xs[:-1] - x, x - self.xs[1:]), 0)
        down = np.maximum(np.maximum(self.ys[:-1] - y, y - self.ys[1:]), 0)
        return float(np.min(np.add.outer(down**2, across**2), where=self.inside, initial=np.inf))

    def raster(self, width: int, height: int) -> NDArray[np.bool_]:
        """(height, width) bool: the pixels whose centre belongs to the region."""
        rows, columns = self.inside.shape
        if not rows:
            return np.zeros((height, width), bool)
        column = np.searchsorted(self.xs, np.arange(width) + 0.5, side="right") - 1
        row = np.searchsorted(self.ys, np.arange(height) + 0.5, side="right") - 1
        within = ((row >= 0) & (row < rows))[:, None] & ((column >= 0) & (column < columns))
        return within & self.inside[np.clip(row, 0, rows - 1)][:, np.clip(column, 0, columns - 1)]


EMPTY = Region(np.zeros(1), np.zeros(1), np.zeros((0, 0), bool))


def union(regions: Iterable[Region]) -> Region:
    """All regions together; what several of them cover counts once."""
    given = [region for region in regions if region.inside.any()]
    if not given:
        return EMPTY
    xs, ys = (np.unique(np.concatenate([getattr(region, name) for region in given])) for name in ("xs", "ys"))
    total = np.zeros((len(ys) - 1, len(xs) - 1), bool)
    for region in given:
        row, column = (
            np.searchsorted(own, of, side="right")[:-1] - 1 for own, of in ((region.ys, ys), (region.xs, xs))
        )
        rows, columns = region.inside.shape
        within = ((row >= 0) & (row < rows))[:, None] & ((column >= 0) & (column < columns))
        total |= within & region.inside[np.clip(row, 0, rows - 1)][:, np.clip(column, 0, columns - 1)]
    return Region(xs, ys, total)


def edges(grid: tuple[int, int], window: Box, cells: Box | None = None) -> tuple[Floats, Floats]:
    """(columns + 1,) and (rows + 1,) rising edges of the patches of a grid.

    window: the rectangle of the photo that the model saw. cells: the one that the patches share out evenly, where that
    is another; the outermost then reach on to the window's edges, as far as a map over the photo does.
    """
    x0, y0, x1, y1 = window if cells is None else cells
    xs, ys = np.linspace(x0, x1, grid[1] + 1), np.linspace(y0, y1, grid[0] + 1)
    for of, (low, high) in ((xs, window[::2]), (ys, window[1::2])):
        of[0], of[-1] = min(of[0], low), max(of[-1], high)
    return xs, ys


def coverage(region: Region, window: Box, grid: tuple[int, int], *, cells: Box | None = None) -> Floats:
    """(rows, columns): the area of each patch that the region covers, exactly, in units of a patch: 0..1, and more for
    an outermost patch that reaches on. window, cells: see `edges`.
    """
    x0, y0, x1, y1 = window if cells is None else cells
    xs, ys = edges(grid, window, cells)
    covered = _overlap(ys, region.ys) @ region.inside @ _overlap(xs, region.xs).T
    return np.asarray(covered) * (grid[0] * grid[1] / ((x1 - x0) * (y1 - y0)))


def seen(window: Box, size: tuple[int, int]) -> Box:
    """The part of the photo, of (width, height) pixels, that the model saw: the window without any padding."""
    x0, y0, x1, y1 = window
    return max(x0, 0.0), max(y0, 0.0), min(x1, float(size[0])), min(y1, float(size[1]))


def box_iou(a: Box, b: Box) -> float:
    """Intersection over union (0..1) of two boxes."""
    both = max(0.0, min(a[2], b[2]) - max(a[0], b[0])) * max(0.0, min(a[3], b[3]) - max(a[1], b[1]))
    either = (a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - both
    return both / either if either > 0 else 0.0


def clip_box(box: Box, limits: Box) -> Box:
    """The part of a box within another; of width or height 0 where they do not meet."""
    x0, y0 = max(box[0], limits[0]), max(box[1], limits[1])
    return x0, y0, max(x0, min(box[2], limits[2])), max(y0, min(box[3], limits[3]))


def _cut(edges: Floats, low: float, high: float) -> tuple[Floats, slice]:
    """The edges within low..high, both added where cells go on beyond them, and the cells between the edges."""
    first = max(int(np.searchsorted(edges, low, side="right")) - 1, 0)
    last = max(int(np.searchsorted(edges, high, side="left")), first)
    return np.clip(edges[first : last + 1], low, max(low, high)), slice(first, last)


def _overlap(cells: Floats, edges: Floats) -> Floats:
    """(cells, intervals): the length that each cell has in common with each interval between edges."""
    low = np.maximum(cells[:-1, None], edges[:-1])
    return np.maximum(np.minimum(cells[1:, None], edges[1:]) - low, 0)
