"""Attention of a translation as a matrix: a row for each target word, a column for each source word."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from vitcap.record import AttentionRecord, View, word_map
from vitcap.viz.heatmap import is_flat
from vitcap.viz.style import GREY, INK, MARGIN, PAPER, Fonts, clean, colours, fit, wrap

_LINK = (64, 216, 255)
_LONGEST = 260
_LEGEND = 360
_PIXELS = 100_000_000


def alignment_matrix(
    weights: ArrayLike,
    source_words: Sequence[str],
    target_words: Sequence[str],
    *,
    links: Collection[tuple[int, int]] | None = None,
    title: str | None = None,
    top: float = 1.0,
    cell: int | None = None,
    font: str | None = None,
) -> Image.Image:
    """Target words as rows, source words as columns, the attention weight as colour.

    weights: (T, S) in 0..1; absolute weights on one scale from 0 to `top`, so matrices can be compared.
    links: known (source word, target word) pairs, 0-based, outlined. title: headline.
    top: weight at the end of the colour scale; higher ones get its last colour.
    cell: side of a cell in pixels, 12 or more; None makes long sentences smaller.
    font: TrueType or OpenType file, for scripts that no font found on this computer covers.

    Raises ValueError for weights outside 0..1 or numbers of words, links or sizes that do not fit.
    """
    matrix = _checked(weights, source_words, target_words, links)
    if not 0 < top <= 1:
        raise ValueError(f"top={top}: a weight above 0 and up to 1 is wanted")
    if cell is not None and not (isinstance(cell, int) and cell >= 12):
        raise ValueError(f"cell={cell}: a whole number of at least 12 pixels is wanted, or the words cannot be read")
    side = cell or max(20, min(44, 1000 // max(matrix.shape)))
    if (pixels := matrix.size * side * side) > _PIXELS:
        raise ValueError(
            f"{len(target_words)} target and {len(source_words)} source words in cells of {side} pixels make a picture "
            f"of {pixels:,} pixels, more than {_PIXELS:,}: draw fewer words, or smaller cells"
        )
    source_words, target_words = [clean(w) for w in source_words], [clean(w) for w in target_words]
    fonts = Fonts.for_text("".join([*source_words, *target_words, title or ""]), font)
    face = fonts.medium if side >= 24 else fonts.small
    upright = all(face.getlength(word) <= side - 4 for word in source_words)
    heads = [_text(fit(word, face, _LONGEST), face, upright) for word in source_words]
    sides = [fit(word, face, _LONGEST) for word in target_words]

    rows, columns = matrix.shape
    left = MARGIN + round(max(face.getlength(word) for word in sides)) + 10
    width = max(left + columns * side + MARGIN, _LEGEND + 2 * MARGIN)
    lines = wrap(clean(title), fonts.medium, width - 2 * MARGIN) if title else []
    above = MARGIN + 24 * len(lines) + 8 * bool(lines) + max(head.height for head in heads) + 6
    below = above + rows * side
    legend = _legend(top, bool((matrix > top + 1e-6).any()), links is not None, fonts)
    page = Image.new("RGB", (width, below + 20 + legend.height + MARGIN), PAPER)
    draw = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        draw.text((MARGIN, MARGIN + 24 * number), line, fill=INK, font=fonts.medium)

    rgb = colours(matrix / top).round().astype(int)
    for row, column in np.ndindex(rows, columns):
        x, y = left + column * side, above + row * side
        draw.rectangle([x, y, x + side - 2, y + side - 2], fill=tuple(rgb[row, column].tolist()))
    for column, row in sorted(links or ()):  # over every colour of the scale: a bright line with a dark one inside
        x, y = left + column * side, above + row * side
        draw.rectangle([x - 1, y - 1, x + side - 1, y + side - 1], outline=_LINK, width=3)
        draw.rectangle([x + 2, y + 2, x + side - 4, y + side - 4], outline=(0, 0, 0), width=1)
    for row, word in enumerate(sides):
        middle = above + row * side + (side - 1) // 2
        draw.text((left - 8, middle), word, fill=INK, font=face, anchor="rm")
    for column, head in enumerate(heads):
        x = left + column * side + (side - 1 - head.width) // 2
        page.paste(head, (x, above - 6 - head.height))
    page.paste(legend, (MARGIN, below + 20))
    return page


def _text(word: str, font: ImageFont.FreeTypeFont, upright: bool) -> Image.Image:
    """A word, or from bottom to top, in the height of a line whatever its letters, so that words stand in line."""
    ascent, descent = font.getmetrics()
    image = Image.new("RGB", (max(1, round(font.getlength(word)) + 2), ascent + descent), PAPER)
    ImageDraw.Draw(image).text((1, ascent), word, fill=INK, font=font, anchor="ls")
    return image if upright else image.transpose(Image.Transpose.ROTATE_90)


def _legend(top: float, clipped: bool, links: bool, fonts: Fonts) -> Image.Image:
    """The colour bar with its ticks, what it measures, and what the outlines mean."""
    image = Image.new("RGB", (_LEGEND, 70 + 24 * links), PAPER)
    draw = ImageDraw.Draw(image)
    ramp = colours(np.linspace(0, 1, _LEGEND)).round().astype(np.uint8)
    image.paste(Image.fromarray(np.broadcast_to(ramp, (14, _LEGEND, 3)).copy()), (0, 0))
    for index in range(5):
        at = round(index / 4 * (_LEGEND - 1))
        label = f"{index / 4 * top:g}" + ("+" if clipped and index == 4 else "")
        draw.line([(at, 14), (at, 17)], fill=GREY)
        anchor = "la" if index == 0 else "ra" if index == 4 else "ma"
        draw.text((at, 20), label, fill=GREY, font=fonts.small, anchor=anchor)
    draw.text((0, 44), "attention weight; 1 is all attention of a row", fill=GREY, font=fonts.small)
    if links:
        draw.rectangle([0, 70, 18, 88], fill=(0, 0, 4), outline=_LINK, width=3)
        draw.text((28, 71), "known alignment", fill=GREY, font=fonts.small)
    return image


def describe_alignment(
    weights: ArrayLike,
    source_words: Sequence[str],
    target_words: Sequence[str],
    *,
    links: Collection[tuple[int, int]] | None = None,
) -> list[str]:
    """One line of text for each target word, for screen readers and logs; arguments as in `alignment_matrix`.

    "zone (word 5): attends most to Area (word 7), 0.82; known: Area (word 7)". Words are counted from 1.
    """
    matrix = _checked(weights, source_words, target_words, links)
    source_words, target_words = [clean(w) for w in source_words], [clean(w) for w in target_words]
    lines = []
    for row, word in enumerate(target_words):
        best = int(matrix[row].argmax())
        line = f"{word} (word {row + 1}): "
        if matrix.shape[1] > 1 and is_flat(matrix[row]):
            line += f"flat, no word stands out (highest weight {matrix[row, best]:.2f})"
        else:
            line += f"attends most to {source_words[best]} (word {best + 1}), {matrix[row, best]:.2f}"
        if links is not None:
            known = [f"{source_words[s]} (word {s + 1})" for s, t in sorted(links) if t == row]
            line += f"; known: {', '.join(known) or 'none'}"
        lines.append(line)
    return lines


def _checked(
    weights: ArrayLike,
    source_words: Sequence[str],
    target_words: Sequence[str],
    links: Collection[tuple[int, int]] | None,
) -> NDArray[np.float64]:
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.shape != (len(target_words), len(source_words)) or not matrix.size:
        raise ValueError(
            f"attention has the shape {matrix.shape}; {len(target_words)} target and {len(source_words)} source words "
            f"need {(len(target_words), len(source_words))}, at least one of each"
        )
    if not ((matrix >= -1e-6) & (matrix <= 1 + 1e-3)).all():
        raise ValueError(f"attention weights lie in 0..1; got {matrix.min():g} to {matrix.max():g}")
    for source, target in links or ():
        if not (0 <= source < len(source_words) and 0 <= target < len(target_words)):
            raise ValueError(
                f"link ({source}, {target}) between {len(source_words)} source and {len(target_words)} target words"
            )
    return matrix


def record_alignment(
    record: AttentionRecord,
    view: View | None = None,
    *,
    links: Collection[tuple[int, int]] | None = None,
    font: str | None = None,
) -> Image.Image:
    """The alignment matrix of a record of a sentence under a view (None: its own), titled with the translation.

    links, font: as in `alignment_matrix`. Raises ValueError for a record of a picture, of no words, or for a method
    whose values are no weights.
    """
    weights, words = _of(record, view)
    return alignment_matrix(weights, record.places, words, links=links, title=record.text, font=font)


def describe_record_alignment(
    record: AttentionRecord, view: View | None = None, *, links: Collection[tuple[int, int]] | None = None
) -> list[str]:
    """The same in words: the translation, the source, and a line for each target word."""
    weights, words = _of(record, view)
    lines = describe_alignment(weights, record.places, words, links=links)
    return [f"translation: {record.text}", f"source: {record.source}", *lines]


def _of(record: AttentionRecord, view: View | None) -> tuple[NDArray[np.float64], list[str]]:
    """(target words, source words) weights of a view, and the target words."""
    if record.grid is not None:
        raise ValueError("this record is of a picture; an alignment is of two sentences")
    if not record.words:
        raise ValueError(f"the model gave no words for {record.source!r}, so there is no alignment to draw")
    view, places = view or record.shown, (1, len(record.places))
    rows = [
        word_map(record.maps[view.method], (w.start, w.stop), grid=places, layers=view.layers, heads=view.heads)[0]
        for w in record.words
    ]
    return np.stack(rows), [word.text for word in record.words]
