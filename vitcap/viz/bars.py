"""Figures with intervals as bars, and tables of values as coloured cells, on one scale. NumPy and Pillow only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from PIL import Image, ImageDraw

from vitcap.viz.style import GREY, INK, MARGIN, PAPER, Fonts, colours, fit

Bar = tuple[float, float | None, float | None]
"""Value, and the low and high end of its interval, None without one."""
_NAME, _LONG, _LINE, _CELL = 230, 420, 24, (58, 26)


def bars_and_tables(
    title: str, bars: Mapping[str, Bar], tables: Mapping[str, Sequence[Sequence[float]]], *, mark: float = 1.0
) -> Image.Image:
    """A bar for each name, and a table (rows, columns) of cells for each title, the last row and column being means.

    mark: value at which a line crosses the bars. Values are 0 or more; the longest bar, and the brightest cell, is the
    largest value of all. Raises ValueError for values that are not finite, or below 0.
    """
    cells = {name: np.asarray(values, dtype=np.float64) for name, values in tables.items()}
    every = [*(value for value, _, _ in bars.values()), *(v for table in cells.values() for v in table.ravel()), mark]
    if not np.isfinite(every).all() or min(every) < 0:
        raise ValueError("bars and cells show finite values of 0 or more")
    top = max([*every, *(high for _, _, high in bars.values() if high is not None)])
    fonts = Fonts.for_text("".join([title, *bars, *tables]))
    broad = max([table.shape[1] for table in cells.values()], default=0)
    width = 2 * MARGIN + max(_NAME + _LONG + 60, 60 + broad * _CELL[0])
    height = 2 * MARGIN + 40 + _LINE * len(bars) + sum(64 + _CELL[1] * table.shape[0] for table in cells.values())
    page = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(page)
    pen.text((MARGIN, MARGIN), fit(title, fonts.medium, width - 2 * MARGIN), fill=INK, font=fonts.medium)
    y, left = MARGIN + 40, MARGIN + _NAME
    foot = y + _LINE * len(bars)
    for name, (value, low, high) in bars.items():
        label = fit(name, fonts.small, _NAME - 10)
        pen.text((left - 8, y + _LINE // 2), label, fill=INK, font=fonts.small, anchor="rm")
        pen.rectangle((left, y + 5, left + value / top * _LONG, y + _LINE - 6), fill=(0, 114, 178))
        end = value if high is None else max(high, value)
        if low is not None and high is not None:
            a, b = (left + end / top * _LONG for end in (low, high))
            pen.line((a, y + _LINE // 2, b, y + _LINE // 2), fill=INK, width=2)
        at = (left + end / top * _LONG + 8, y + _LINE // 2)
        pen.text(at, f"{value:.2f}", fill=GREY, font=fonts.small, anchor="lm")
        y += _LINE
    if bars:
        pen.line((left + mark / top * _LONG, MARGIN + 40, left + mark / top * _LONG, foot), fill=(213, 94, 0), width=2)
    for name, table in cells.items():
        pen.text((MARGIN, y + 14), fit(name, fonts.small, width - 2 * MARGIN), fill=INK, font=fonts.small)
        y += 64
        shades = colours(table / top)
        for row, column in np.ndindex(*table.shape):
            x0, y0 = MARGIN + 50 + column * _CELL[0], y + row * _CELL[1]
            middle = (x0 + _CELL[0] // 2, y0 + _CELL[1] // 2)
            rgb = tuple(round(c) for c in shades[row, column].tolist())
            pen.rectangle((x0, y0, x0 + _CELL[0] - 2, y0 + _CELL[1] - 2), fill=rgb)
            ink = INK if table[row, column] / top > 0.6 else PAPER
            pen.text(middle, f"{table[row, column]:.2f}", fill=ink, font=fonts.small, anchor="mm")
            if not row:
                head = "mean" if column == table.shape[1] - 1 else f"head {column}"
                pen.text((middle[0], y0 - 10), head, fill=GREY, font=fonts.small, anchor="mm")
            if not column:
                side = "mean" if row == table.shape[0] - 1 else f"layer {row}"
                pen.text((x0 - 6, middle[1]), side, fill=GREY, font=fonts.small, anchor="rm")
        y += _CELL[1] * table.shape[0]
    return page
