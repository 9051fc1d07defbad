"""From attention weights to a map over the original photograph.

Letters for shapes: T tokens of the caption, L decoder layers, H heads, N memory tokens (prefix tokens first, then
rows * columns patches in row-major order). Maps keep the absolute weights of the model; nothing is rescaled by its own
range, so maps of different words, layers and pictures can be compared. Pure NumPy.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitcap.record import Window

FLAT = 1.25
"""A map whose peak is at most this multiple of its mean is called flat: it points at no place."""


def lift(heat: ArrayLike) -> NDArray[np.float64]:
    """Map times its number of patches: multiples of uniform attention.

    1 is what every patch gets when all attention is spread evenly over the patches; the mean over the map is the
    share of attention that did not go to prefix tokens.
    """
    values = np.asarray(heat, dtype=np.float64)
    return values * values.size


def is_flat(heat: ArrayLike) -> bool:
    """Whether no patch stands out: the peak is at most `FLAT` times the mean of the map."""
    values = np.asarray(heat)
    return bool(values.max() <= FLAT * values.mean())


def _interpolation(size: int, start: float, stop: float, cells: int) -> NDArray[np.float64]:
    """(size, cells) weights that read a row of cells, spread over start..stop, at pixel centres 0.5, 1.5, ..."""
    centre = np.arange(size) + 0.5
    position = np.clip((centre - start) * (cells / (stop - start)) - 0.5, 0, cells - 1)
    low = np.minimum(position.astype(int), max(cells - 2, 0))
    weights = np.zeros((size, cells))
    pixel = np.arange(size)
    weights[pixel, low] = 1 - (position - low)
    if cells > 1:
        weights[pixel, low + 1] = position - low
    return weights


def _within(size: int, start: float, stop: float) -> NDArray[np.bool_]:
    """(size,) whether a pixel's centre lies within start..stop."""
    centre = np.arange(size) + 0.5
    return (centre >= start) & (centre <= stop)


def to_photo(
    heat: ArrayLike, window: Window, width: int, height: int, *, cells: Window | None = None
) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
    """Spread a (rows, columns) map over the photo it was computed from.

    window: the rectangle of the photo that the model input shows, in pixels of a picture of width x height. It may
    lie inside the photo (crop), be the photo (squash) or reach beyond it (letterbox). To draw on a reduced copy,
    scale window, cells, width and height alike.
    cells: the rectangle that the cells of the map share out evenly; None: the window.

    Returns (height, width) values and a bool mask of the same shape, False where the model saw nothing: the values
    there are 0 and mean "unknown", not "no attention". Bilinear between the centres of cells, constant from the
    outermost centres to the edge of the window (torch's interpolate with align_corners=False); values are not rescaled.
    """
    values = np.asarray(heat, dtype=np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"a map has rows and columns; got the shape {values.shape}")
    cells = window if cells is None else cells
    for name, (x0, y0, x1, y1) in (("window", window), ("cells", cells)):
        if not (x1 > x0 and y1 > y0):
            raise ValueError(f"{name} {(x0, y0, x1, y1)} is empty: (x0, y0, x1, y1) with x0 < x1 and y0 < y1 is wanted")
    down = _interpolation(height, cells[1], cells[3], values.shape[0])
    across = _interpolation(width, cells[0], cells[2], values.shape[1])
    seen = _within(height, window[1], window[3])[:, None] & _within(width, window[0], window[2])
    return np.where(seen, down @ values @ across.T, 0.0), seen


def peak(heat: ArrayLike, cells: Window, window: Window | None = None) -> tuple[float, float]:
    """(x, y) in photo pixels of the centre of the strongest patch (the first in row-major order among equals).

    cells: the rectangle that the patches share out evenly, in photo pixels. window: the one that the model saw; cells
    of convolutions may reach over its edge, and the point is then the nearest one in it.
    """
    values = np.asarray(heat)
    row, column = np.unravel_index(values.argmax(), values.shape)
    x0, y0, x1, y1 = cells
    x = float(x0 + (column + 0.5) * (x1 - x0) / values.shape[1])
    y = float(y0 + (row + 0.5) * (y1 - y0) / values.shape[0])
    if window is None:
        return x, y
    return min(max(x, window[0]), window[2]), min(max(y, window[1]), window[3])


def _place(x: float, y: float, width: int, height: int) -> str:
    """Words for a point of the photo."""
    if not (0 <= x <= width and 0 <= y <= height):
        return "in the padding beside the photo"
    vertical = ("top", "middle", "bottom")[min(int(3 * y / height), 2)]
    horizontal = ("left", "centre", "right")[min(int(3 * x / width), 2)]
    return f"at x {x:.0f}, y {y:.0f} of {width} x {height} pixels ({vertical} {horizontal})"


def describe(
    words: Sequence[str],
    maps: Sequence[ArrayLike],
    cells: Window,
    width: int,
    height: int,
    *,
    window: Window | None = None,
) -> list[str]:
    """One line of text for each word's map of attention weights, for screen readers and logs.

    width, height: size of the photo in pixels, which `cells` and `window` (see `peak`) refer to.
    """
    return [
        describe_lift(word, lift(heat), cells, width, height, unit="uniform attention", window=window)
        for word, heat in zip(words, maps, strict=True)
    ]


def describe_lift(
    word: str,
    values: NDArray[np.float64],
    cells: Window,
    width: int,
    height: int,
    *,
    unit: str,
    window: Window | None = None,
) -> str:
    """The line of one map (rows, columns) in multiples of a unit, such as "uniform attention"."""
    if not values.max() > 0:
        return f"{word}: empty map, 0 everywhere"
    if is_flat(values):
        return f"{word}: flat map, no place stands out (peak {values.max():.2f} times {unit})"
    row, column = np.unravel_index(values.argmax(), values.shape)
    return (
        f"{word}: peak {values.max():.1f} times {unit} {_place(*peak(values, cells, window), width, height)}, "
        f"patch row {row + 1} of {values.shape[0]}, column {column + 1} of {values.shape[1]}"
    )
