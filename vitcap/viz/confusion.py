"""The confusion matrix of a classifier as a picture. NumPy and Pillow only."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike
from PIL import Image, ImageDraw, ImageFont

from vitcap.viz.style import Fonts, colours

_PAPER, _INK, _GREY, _EMPTY = (255, 255, 255), (28, 30, 34), (108, 112, 120), (222, 224, 228)
_MARGIN, _GAP, _LABEL, _BAR = 20, 10, 200, 16
LABELLED = 50
"""Largest number of classes whose names are written on the axes."""


def confusion_picture(counts: ArrayLike, classes: Sequence[str], *, title: str = "", side: int = 1000) -> Image.Image:
    """Rows are true classes, columns predicted ones; the colour is the share (0..1) of a row's samples.

    counts: (C, C), 0 or more. classes: C names. side: pixels that the matrix takes at most, but at least 1 a class.
    Up to 12 classes the cells carry their counts, up to `LABELLED` the axes the names; beyond that it is a plain image.
    Rows without samples are grey. Raises ValueError where counts and names do not fit.
    """
    table = np.asarray(counts)
    size = len(classes)
    if table.shape != (size, size) or not size:
        raise ValueError(f"counts {table.shape} for {size} class names: a square matrix of that size is wanted")
    if not np.isfinite(table).all() or (table < 0).any():
        raise ValueError("counts of samples are 0 or more")
    total = table.sum(1, keepdims=True)
    share = table / np.maximum(total, 1)
    rgb = np.where(total[..., None] > 0, colours(share), np.array(_EMPTY, dtype=np.float64)).round().astype(np.uint8)
    cell = min(max(1, side // size), 60)
    fonts = Fonts.for_text(f"{title}{''.join(classes)}")
    names = [_short(name, fonts.small, _LABEL) for name in classes] if size <= LABELLED else []
    wide = max((int(fonts.small.getlength(name)) + _GAP for name in names), default=0)
    left, top = _MARGIN + 30 + wide, _MARGIN + (36 if title else 0) + 26 + wide
    extent = cell * size
    canvas = Image.new("RGB", (left + extent + _GAP + _BAR + 60 + _MARGIN, top + max(extent, 120) + _MARGIN), _PAPER)
    matrix = Image.fromarray(rgb).resize((extent, extent), Image.Resampling.NEAREST)
    canvas.paste(matrix, (left, top))
    pen = ImageDraw.Draw(canvas)
    if title:
        pen.text((_MARGIN, _MARGIN), title, fill=_INK, font=fonts.medium)
    pen.text((left, top - wide - 24), "predicted class", fill=_GREY, font=fonts.small)
    _upright(canvas, "true class", (_MARGIN, top), fonts.small, _GREY)
    for i, name in enumerate(names):
        middle = i * cell + cell // 2
        pen.text((left - _GAP // 2, top + middle), name, fill=_INK, font=_fitting(fonts.small, cell), anchor="rm")
        _upright(canvas, name, (left + middle, top - _GAP // 2), _fitting(fonts.small, cell), _INK, foot=True)
    if size <= 12:
        for row, column in np.ndindex(size, size):
            at = (left + column * cell + cell // 2, top + row * cell + cell // 2)
            ink = _INK if share[row, column] > 0.6 or not total[row, 0] else _PAPER
            pen.text(at, f"{table[row, column]:g}", fill=ink, font=fonts.small, anchor="mm")
    ramp = colours(np.linspace(1, 0, 100)[:, None]).round().astype(np.uint8)
    height = min(max(extent, 100), 240)
    edge = left + extent + _GAP
    canvas.paste(Image.fromarray(ramp).resize((_BAR, height)), (edge, top))
    for value, y in ((1.0, top + 6), (0.0, top + height - 6)):
        pen.text((edge + _BAR + 4, y), f"{100 * value:.0f} %", fill=_GREY, font=fonts.small, anchor="lm")
    return canvas


def _short(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    kept = text
    while kept and font.getlength(kept if kept == text else f"{kept}...") > width:
        kept = kept[:-1]
    return kept if kept == text else f"{kept}..."


def _fitting(font: ImageFont.FreeTypeFont, cell: int) -> ImageFont.FreeTypeFont:
    """The font, no higher than a cell."""
    return font if font.size <= cell else font.font_variant(size=max(cell, 6))


def _upright(
    canvas: Image.Image,
    text: str,
    at: tuple[int, int],
    font: ImageFont.FreeTypeFont,
    ink: tuple[int, int, int],
    *,
    foot: bool = False,
) -> None:
    """Text turned to read upwards: its top left corner at `at`, or with `foot` the middle of its beginning."""
    x0, y0, x1, y1 = font.getbbox(text)
    stamp = Image.new("L", (max(1, int(x1 - x0)), max(1, int(y1 - y0))))
    ImageDraw.Draw(stamp).text((-x0, -y0), text, fill=255, font=font)
    stamp = stamp.transpose(Image.Transpose.ROTATE_90)
    where = (at[0] - stamp.width // 2, at[1] - stamp.height) if foot else at
    canvas.paste(Image.new("RGB", stamp.size, ink), where, stamp)
