"""Line charts as SVG: sharp at any size, in the colours of the page they stand in. The standard library only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import pairwise

from vitcap.viz.curves import Points, round_ticks

PALETTE = ("#2b7bba", "#d55e00", "#0a9268", "#b5659b", "#7a7f87", "#a87900")
"""Told apart with any colour vision, and against white as against black (contrast above 3 with both)."""
_DASHES = ("", "7 4", "2 4", "9 3 2 3", "4 4", "1 3")
_WIDTH, _HEIGHT = 480, 260
_MOST = 400
"""Points of a line that are drawn; of more, the mean of each of so many stretches."""


def line_chart(
    series: Mapping[str, Points],
    *,
    xlabel: str,
    alt: str,
    zero: bool = False,
    faint: Sequence[str] = (),
    page: bool = True,
) -> str:
    """An <svg> element of lines through points, each with its colour, its dashes and its name above.

    series: name -> (x, y) pairs in order of x; values that are not finite are left out. alt: what the chart shows, for
    those who do not see it. zero: whether the y axis has to show 0. faint: names of lines that are only a background.
    page: for a page whose colours it takes; otherwise a file by itself, dark on white.

    Raises ValueError where there is no point to draw.
    """
    lines = {
        name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)] for name, points in series.items()
    }
    lines = {name: list(_thin(points)) for name, points in lines.items() if points}
    if not lines:
        raise ValueError("no lines to draw: at least one series with one finite point is wanted")
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    y_ticks = round_ticks(min([*ys, 0.0] if zero else ys), max(ys))
    x_ticks = [tick for tick in round_ticks(min(xs), max(xs)) if min(xs) <= tick <= max(xs)] or [xs[0]]
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1e-12)
    names, rows = _legend(list(lines))
    left, right, top, bottom = 16 + 7 * max(len(f"{t:,g}") for t in y_ticks), _WIDTH - 16, 12 + 18 * rows, _HEIGHT - 40

    def place(x: float, y: float) -> tuple[float, float]:
        across = 0.5 if len(set(xs)) == 1 else (x - x_low) / (x_high - x_low)
        up = (y - y_ticks[0]) / (y_ticks[-1] - y_ticks[0])
        return round(left + across * (right - left), 1), round(bottom - up * (bottom - top), 1)

    parts = []
    for tick in y_ticks:
        y = place(x_low, tick)[1]
        parts.append(f'<path d="M{left} {y}H{right}" stroke="currentColor" stroke-opacity=".15"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 4}" text-anchor="end" fill-opacity=".75">{tick:,g}</text>')
    for tick in x_ticks:
        x = place(tick, y_ticks[0])[0]
        parts.append(f'<path d="M{x} {bottom}v4" stroke="currentColor" stroke-opacity=".5"/>')
        x = min(x, _WIDTH - 2 - 3.6 * len(f"{tick:,g}"))  # its text within the chart
        parts.append(f'<text x="{x}" y="{bottom + 17}" text-anchor="middle" fill-opacity=".75">{tick:,g}</text>')
    middle = (left + right) / 2
    parts.append(
        f'<text x="{middle}" y="{_HEIGHT - 6}" text-anchor="middle" fill-opacity=".75">{escape(xlabel)}</text>'
    )
    for number, (name, points) in enumerate(lines.items()):
        colour, dash = PALETTE[number % len(PALETTE)], _DASHES[number % len(_DASHES)]
        look = f'stroke="{colour}" stroke-width="{1.2 if name in faint else 2}" stroke-linejoin="round"'
        look += f' stroke-dasharray="{dash}"' if dash and name not in faint else ""
        look += ' stroke-opacity=".6"' if name in faint else ""
        spots = [place(x, y) for x, y in points]
        parts.append(f'<polyline points="{" ".join(f"{x},{y}" for x, y in spots)}" fill="none" {look}/>')
        if len(spots) <= 30:
            parts += [f'<circle cx="{x}" cy="{y}" r="3" fill="{colour}"/>' for x, y in spots]
        x, row = names[number]
        parts.append(f'<path d="M{x} {10 + 18 * row}h22" {look}/>')
        parts.append(f'<text x="{x + 28}" y="{14 + 18 * row}">{escape(name)}</text>')
    style = "font:12px system-ui,sans-serif" + ("" if page else ";color:#1c1e22;background:#fff")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" '
        f'aria-label="{escape(alt)}" style="{style}" fill="currentColor">{"".join(parts)}</svg>'
    )


def _thin(points: Points) -> Points:
    if len(points) <= _MOST:
        return points
    edges = [round(index * len(points) / _MOST) for index in range(_MOST + 1)]
    parts = [points[a:b] for a, b in pairwise(edges)]
    return [(sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part)) for part in parts]


def _legend(names: Sequence[str]) -> tuple[list[tuple[int, int]], int]:
    """(x, row) of each name, and the number of rows."""
    places, x, row = [], 8, 0
    for name in names:
        needed = 28 + 7 * len(name) + 18
        if x > 8 and x + needed - 18 > _WIDTH - 8:
            x, row = 8, row + 1
        places.append((x, row))
        x += needed
    return places, row + 1
