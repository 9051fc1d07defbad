"""Line charts: how a score changes with sentence length, and plain curves. NumPy and Pillow only."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from PIL import Image, ImageDraw

from vitcap.viz.style import GREY, INK, MARGIN, PAPER, Fonts, clean, wrap

# Okabe and Ito's palette, told apart with any colour vision; the yellow is left out, since it is faint on white.
_PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9", "#e69f00", "#000000")
_RULE = (226, 228, 232)
_FINE = 4
"""Lines are drawn this many times larger, then reduced, which smooths them."""

Points = Sequence[tuple[float, float]]


def length_curves(
    series: Mapping[str, Sequence[tuple[int, int, float, int]]],
    *,
    ylabel: str,
    title: str | None = None,
    xlabel: str = "words of the source sentence",
    size: tuple[int, int] = (760, 460),
) -> Image.Image:
    """A score over ranges of sentence length, a line for each model.

    series: name -> (low, high, value, count): a range of lengths, both included, the score and how many sentences it is
    of. Every line needs the same ranges and counts, since scores of other sentences do not compare; ValueError if not.
    """
    if not series or not all(series.values()):
        raise ValueError("no lines to draw: at least one series with one range of lengths is wanted")
    ranges = {name: [(low, high, count) for low, high, _, count in rows] for name, rows in series.items()}
    first, *others = ranges
    for name in others:
        if ranges[name] != ranges[first]:
            raise ValueError(
                f"{first!r} and {name!r} are of other sentences: (low, high, count) {ranges[first]} and {ranges[name]}"
            )
    labels = [
        f"{low}-{high}\nn = {count}" if low != high else f"{low}\nn = {count}" for low, high, count in ranges[first]
    ]
    points = {name: [(float(x), row[2]) for x, row in enumerate(rows)] for name, rows in series.items()}
    return line_plot(points, xlabel=xlabel, ylabel=ylabel, title=title, x_labels=labels, values=True, size=size)


def line_plot(
    series: Mapping[str, Points],
    *,
    xlabel: str,
    ylabel: str,
    title: str | None = None,
    x_labels: Sequence[str] | None = None,
    values: bool = False,
    size: tuple[int, int] = (760, 460),
) -> Image.Image:
    """Lines through points, each with its colour and marker.

    series: name -> (x, y) pairs. x_labels: names of x = 0, 1, 2, ..., of one or two lines, in place of numbers.
    The y axis begins at 0 unless a value is below. values: write y beside each point,
        unless there are more than 60.
    size: (width, height) of the chart in pixels; a long legend or title adds to the height.
    """
    if not series or not all(series.values()):
        raise ValueError("no lines to draw: at least one series with one point is wanted")
    xs = [x for points in series.values() for x, _ in points]
    ys = [y for points in series.values() for _, y in points]
    if not all(map(math.isfinite, xs + ys)):
        raise ValueError("points to draw must be finite numbers; leave the others out")
    title, names = clean(title or ""), [clean(name) for name in series]
    fonts = Fonts.for_text("".join([title, xlabel, ylabel, *names, *(x_labels or ())]))
    width = size[0]
    lines = wrap(title, fonts.medium, width - 2 * MARGIN) if title else []
    entries, legend_rows = _legend_places(names, fonts, width - 2 * MARGIN)

    y_ticks = round_ticks(min(0.0, *ys), max(ys))
    x_ticks = list(map(float, range(len(x_labels)))) if x_labels else round_ticks(min(xs), max(xs))
    y_names = [f"{tick:,g}" for tick in y_ticks]
    under = x_labels or [f"{tick:,g}" for tick in x_ticks]
    top = MARGIN + 24 * len(lines) + 22 * legend_rows + 36
    left = MARGIN + 26 + round(max(fonts.small.getlength(name) for name in y_names)) + 10
    height = size[1] + 24 * len(lines) + 22 * (legend_rows - 1)
    right, bottom = width - MARGIN - 16, height - MARGIN - 30 - 18 * max(1 + label.count("\n") for label in under)
    inset = 40 if x_labels else 0
    x_low, x_high = x_ticks[0], max(x_ticks[-1], x_ticks[0] + 1e-12)
    y_low, y_high = y_ticks[0], y_ticks[-1]

    def place(x: float, y: float) -> tuple[float, float]:
        across = 0.5 if len(x_ticks) == 1 else (x - x_low) / (x_high - x_low)
        return left + inset + across * (right - left - 2 * inset), bottom - (y - y_low) / (y_high - y_low) * (
            bottom - top
        )

    page = Image.new("RGB", (width * _FINE, height * _FINE), PAPER)
    draw = ImageDraw.Draw(page)
    for tick in y_ticks:
        row = round(place(x_low, tick)[1])
        _rule(draw, (left, row, right, row), _RULE)
    for tick in x_ticks:
        column = round(place(tick, y_low)[0])
        _rule(draw, (column, bottom, column, bottom + 4), GREY)
    _rule(draw, (left, bottom, right, bottom), GREY)
    for index, points in enumerate(series.values()):
        colour = _PALETTE[index % len(_PALETTE)]
        spots = [place(x, y) for x, y in points]
        x, y = MARGIN + entries[index][0], MARGIN + 24 * len(lines) + 22 * entries[index][1] + 9
        _line(draw, spots, colour)
        _line(draw, [(x, y), (x + 28, y)], colour)
        for spot in [(x + 14, y), *spots] if len(spots) <= 40 else ():
            _marker(draw, spot, colour, index)

    page = page.resize((width, height), Image.Resampling.BOX)
    draw = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        draw.text((MARGIN, MARGIN + 24 * number - 4), line, fill=INK, font=fonts.medium)
    for (x, y), name in zip(entries, names, strict=True):
        spot = (MARGIN + x + 36, MARGIN + 24 * len(lines) + 22 * y + 9)
        draw.text(spot, name, fill=INK, font=fonts.small, anchor="lm")
    for tick, name in zip(y_ticks, y_names, strict=True):
        draw.text((left - 8, place(x_low, tick)[1]), name, fill=GREY, font=fonts.small, anchor="rm")
    for tick, name in zip(x_ticks, under, strict=True):
        for number, part in enumerate(name.split("\n")):
            draw.text((place(tick, y_low)[0], bottom + 8 + 18 * number), part, fill=GREY, font=fonts.small, anchor="ma")
    draw.text(((left + right) / 2, height - MARGIN), xlabel, fill=INK, font=fonts.small, anchor="ms")
    _vertical(page, ylabel, fonts, (MARGIN, round((top + bottom) / 2)))
    if values and len(xs) <= 60:
        _write_values(draw, [[(place(x, y), y) for x, y in points] for points in series.values()], fonts)
    return page


def round_ticks(low: float, high: float) -> list[float]:
    """Round numbers in steps of 1, 2 or 5 times ten^n, from at or below low to at or above high."""
    if high - low < 1e-9:  # finer than the ticks are rounded
        high = low + (abs(low) or 1.0)
    raw = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(index * step, 12) for index in range(first, last + 1)]


def _rule(draw: ImageDraw.ImageDraw, box: tuple[int, int, int, int], colour: tuple[int, int, int]) -> None:
    """A sharp line one pixel wide, both ends included."""
    draw.rectangle([*(v * _FINE for v in box[:2]), *(v * _FINE + _FINE - 1 for v in box[2:])], fill=colour)


def _line(draw: ImageDraw.ImageDraw, spots: Points, colour: str) -> None:
    draw.line([(x * _FINE, y * _FINE) for x, y in spots], fill=colour, width=round(2.5 * _FINE), joint="curve")


def _marker(draw: ImageDraw.ImageDraw, spot: tuple[float, float], colour: str, index: int) -> None:
    """Circle, square, triangle, diamond: the lines differ without colour, too."""
    x, y, r = spot[0] * _FINE, spot[1] * _FINE, 5 * _FINE
    if index % 4 == 0:
        draw.ellipse([x - r, y - r, x + r, y + r], fill=colour)
    elif index % 4 == 1:
        draw.rectangle([x - r * 0.9, y - r * 0.9, x + r * 0.9, y + r * 0.9], fill=colour)
    elif index % 4 == 2:
        draw.polygon([(x, y - r * 1.2), (x + r * 1.1, y + r * 0.8), (x - r * 1.1, y + r * 0.8)], fill=colour)
    else:
        draw.polygon([(x, y - r * 1.2), (x + r * 1.2, y), (x, y + r * 1.2), (x - r * 1.2, y)], fill=colour)


def _legend_places(names: Sequence[str], fonts: Fonts, width: float) -> tuple[list[tuple[float, int]], int]:
    """(offset, row) of each entry, and the number of rows."""
    places, x, row = [], 0.0, 0
    for name in names:
        needed = 36 + fonts.small.getlength(name) + 24
        if x and x + needed - 24 > width:
            x, row = 0.0, row + 1
        places.append((x, row))
        x += needed
    return places, row + 1


def _vertical(page: Image.Image, text: str, fonts: Fonts, at: tuple[int, int]) -> None:
    """Text from bottom to top, centred on `at` from its left edge."""
    ascent, descent = fonts.small.getmetrics()
    image = Image.new("RGB", (round(fonts.small.getlength(text)) + 2, ascent + descent), PAPER)
    ImageDraw.Draw(image).text((1, ascent), text, fill=INK, font=fonts.small, anchor="ls")
    turned = image.transpose(Image.Transpose.ROTATE_90)
    page.paste(turned, (at[0], at[1] - turned.height // 2))


def _write_values(
    draw: ImageDraw.ImageDraw, lines: Sequence[Sequence[tuple[tuple[float, float], float]]], fonts: Fonts
) -> None:
    """Each value above or below its point, where it covers the fewest markers, lines and other values."""
    taken = [(x, y, 6.0, 6.0) for line in lines for (x, y), _ in line]  # centre and half size of what is drawn already
    along = [
        (ax + (bx - ax) * i / 40, ay + (by - ay) * i / 40)
        for line in lines
        for ((ax, ay), _), ((bx, by), _) in pairwise(line)
        for i in range(41)
    ]
    labels = [(spot, value, index) for index, line in enumerate(lines) for spot, value in line]
    for (x, y), value, index in sorted(labels, key=lambda label: label[0][1]):
        text = f"{value:.2f}" if abs(value) < 10 else f"{value:,.0f}"
        half = fonts.small.getlength(text) / 2

        def covered(middle: float, x: float = x, half: float = half) -> float:
            boxes = sum(abs(x - bx) < half + w and abs(middle - by) < 6 + h for bx, by, w, h in taken)
            return 40 * boxes + sum(abs(x - px) < half and abs(middle - py) < 7 for px, py in along)

        middle = min((y - 15, y + 15, y - 29, y + 29, y + 43), key=covered)
        taken.append((x, middle, half, 6.0))
        draw.text((x, middle), text, fill=_PALETTE[index % len(_PALETTE)], font=fonts.small, anchor="mm")
