"""One picture for a caption: the photo, then a tile for each word with its map over that photo.

All words share one colour scale, whose legend counts in multiples of uniform attention, so a word that attends to
nothing in particular looks like nothing in particular. NumPy and Pillow only.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw

from vitcap.record import AttentionRecord, View, Window
from vitcap.viz.heatmap import is_flat, lift, peak, to_photo
from vitcap.viz.shown import Shown, cells_of, note, of_classes, probability, show, size_of, window_of
from vitcap.viz.style import GREY, INK, MARGIN, PAPER, Fonts, blend, clean, colours, fit, wrap

GAP, _TITLE = 16, 24
WIDTH = 1400
"""Most pixels across of a page of tiles."""
LEAST = 4.0
_FEW = 20


@dataclass(frozen=True)
class Scale:
    """The colour scale of a picture: from 0 to `end` multiples of a unit, ticks every `step`. clipped: whether some
    value lies above the end. alpha: opacity of the colours, 0..1."""

    end: float
    step: float
    clipped: bool
    alpha: float

    @classmethod
    def of(cls, shown: Shown, top: float | None = None, alpha: float = 0.6) -> Scale:
        """The scale that holds all maps, and 1 in its dark part; or one that ends at `top`."""
        highest = float(shown.lifts.max(initial=0.0))
        if top is not None:
            return cls(top, top / 4, highest > top, alpha)
        raw = max(highest, LEAST) / 5
        power = 10.0 ** math.floor(math.log10(raw))
        step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
        return cls(math.ceil(max(highest, LEAST) / step - 1e-9) * step, step, False, alpha)


def _hatch(image: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Pale picture with diagonal lines where `where` is True."""
    y, x = np.indices(where.shape)
    stripe = np.asarray((x + y) % 10 < 2)
    lines = np.where(stripe[..., None], 120.0, 0.35 * image + 0.65 * 255)
    return np.where(where[..., None], lines, image)


def paint(photo: Image.Image, heat: ArrayLike, window: Window, *, top: float, alpha: float = 0.6) -> Image.Image:
    """One map of attention weights over one photo, at the size of `photo`.

    heat: (rows, columns) absolute attention. window: in pixels of `photo`.
    top: multiple of uniform attention at the end of the colour scale; higher values get its last colour.

    The photo is shown in grey, so that colour means attention and nothing else; what the model never saw is hatched.
    """
    return paint_lift(photo, lift(heat), window, top=top, alpha=alpha)


def paint_lift(
    photo: Image.Image, values: ArrayLike, window: Window, *, cells: Window | None = None, top: float, alpha: float
) -> Image.Image:
    """The same for a map that is in multiples of a unit already. cells: what its patches cover; None: the window."""
    spread, seen = to_photo(values, window, *photo.size, cells=cells)
    grey = (
        0.75 * np.asarray(photo.convert("L").convert("RGB"), dtype=np.float64) + 64
    )  # lifted: dark parts stay legible
    mixed = blend(grey, colours(spread / top), np.ones_like(spread), alpha)
    return Image.fromarray(np.where(seen[..., None], mixed, _hatch(grey, ~seen)).round().astype(np.uint8))


def photo_of(record: AttentionRecord, width: int, height: int) -> Image.Image:
    """The photo of a record at a size in pixels. ValueError for a record without one."""
    if record.photo is None:
        raise ValueError("this record holds no photo to draw maps over")
    image = Image.fromarray(np.ascontiguousarray(record.photo))
    return image.convert("RGB").resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)


def fit_in(record: AttentionRecord, width: float, height: float) -> tuple[int, int]:
    """The largest size in the photo's proportions within width x height pixels, no side below 1."""
    across, down = size_of(record)
    scale = min(width / across, height / down)
    return max(1, round(across * scale)), max(1, round(down * scale))


def _tile_size(width: int, height: int, tile: int) -> tuple[int, int]:
    """Size of about tile * tile pixels in the photo's proportions; no side is above 2.5 tiles nor below 1 pixel."""
    scale = min(tile / math.sqrt(width * height), 2.5 * tile / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def legend(record: AttentionRecord, shown: Shown, scale: Scale, width: int, fonts: Fonts, *, among: str) -> Image.Image:
    """The colour bar as it looks over mid-grey, its ticks, a mark at 1, and what it all means.

    among: what shares the scale, such as "all words".
    """
    bar_width = min(360, width)
    unseen = not to_photo(np.ones((1, 1)), window_of(record, 240, 240), 240, 240)[1].all()
    sentence = f"multiples of {shown.unit} (mark at 1"
    sentence += ": all patches alike)" if shown.attention else ")"
    sentence += f", one scale for {among}"
    lines = wrap(sentence + ("; negative values are drawn as 0" if shown.clamped else ""), fonts.small, width)
    image = Image.new("RGB", (width, 50 + 20 * len(lines) + 6 + 24 * unseen), PAPER)
    draw = ImageDraw.Draw(image)
    ramp = np.broadcast_to(colours(np.linspace(0, 1, bar_width)), (14, bar_width, 3))
    bar = blend(np.full_like(ramp, 128), ramp, np.ones((14, bar_width)), scale.alpha)
    image.paste(Image.fromarray(bar.round().astype(np.uint8)), (0, 8))
    for index in range(count := round(scale.end / scale.step) + 1):
        at = round(index / (count - 1) * (bar_width - 1))
        label = f"{index * scale.step:g}" + ("+" if scale.clipped and index == count - 1 else "")
        draw.line([(at, 22), (at, 25)], fill=GREY)
        anchor = "la" if index == 0 else "ra" if index == count - 1 else "ma"
        draw.text((at, 28), label, fill=GREY, font=fonts.small, anchor=anchor)
    if scale.end >= 1:
        one = round((bar_width - 1) / scale.end)
        draw.polygon([(one - 4, 0), (one + 4, 0), (one, 6)], fill=INK)
    for number, line in enumerate(lines):
        draw.text((0, 50 + 20 * number), line, fill=GREY, font=fonts.small)
    if unseen:
        swatch = _hatch(np.full((14, 28, 3), 128.0), np.ones((14, 28), dtype=bool))
        image.paste(Image.fromarray(swatch.round().astype(np.uint8)), (0, image.height - 23))
        text = fit("outside the model's view", fonts.small, width - 36)
        draw.text((36, image.height - 24), text, fill=GREY, font=fonts.small)
    return image


def below(record: AttentionRecord, shown: Shown, index: int, which_view: int = 0) -> str:
    """What stands below a map: how high its peak is, and whether that lies beside the photo."""
    values = shown.lifts[index, which_view]
    if is_flat(values):
        return "flat" if values.max() > 0 else "0 everywhere"
    width, height = size_of(record)
    x, y = peak(values, cells_of(record, width, height), window_of(record, width, height))
    beside = "" if 0 <= x <= width and 0 <= y <= height else ", in the padding"
    return f"peak {values.max():.1f}x {shown.short}{beside}"


def sheet(
    record: AttentionRecord,
    view: View | None = None,
    *,
    top: float | None = None,
    alpha: float = 0.6,
    tile: int | None = None,
    columns: int | None = None,
    font: str | None = None,
) -> Image.Image:
    """The photo and a tile for each word (or class), with its map over the photo, as one picture.

    The photo is shown whole and in its true proportions; words carry their probability under the model.
    view: None draws the record's own. top: end of the colour scale in multiples of uniform attention (see `shown` for
    methods that give no attention); None takes it from the highest map value. alpha: opacity of the colours, 0..1.
    tile: square root of a tile's area in pixels; None: 240, and 190 where the words are many. columns: tiles in a row.
    font: TrueType or OpenType file, for scripts that no font found on this computer covers.

    Raises ValueError for a record without a photo or a grid, and for a view that it does not have.
    """
    view = view or record.shown
    shown = show(record, view)
    scale = Scale.of(shown, top, alpha)
    words = [clean(word.text) for word in record.words]
    headline = clean(record.text) or "(the model gave no words)"
    remark = clean(note(record, view, shown))
    fonts = Fonts.for_text("".join([*words, headline, remark]), font)

    original = size_of(record)
    width, height = _tile_size(*original, tile or (240 if len(words) <= _FEW else 190))
    small = photo_of(record, width, height)
    small_window, cells = window_of(record, width, height), cells_of(record, width, height)
    tiles = [("photo", "", small, f"{original[0]} x {original[1]} pixels")]
    for index, word in enumerate(words):
        picture = paint_lift(small, shown.lifts[index, 0], small_window, cells=cells, top=scale.end, alpha=alpha)
        tiles.append((word, f"{100 * probability(record, index):.0f} %", picture, below(record, shown, index)))

    cell = max(width, 120)
    if columns is None:
        fitting = max(1, min(len(tiles), (WIDTH - 2 * MARGIN + GAP) // (cell + GAP)))
        columns = math.ceil(len(tiles) / math.ceil(len(tiles) / fitting))
    inner = max(columns * (cell + GAP) - GAP, 500)
    rows = math.ceil(len(tiles) / columns)
    lines, remarks = wrap(headline, fonts.large, inner), wrap(remark, fonts.small, inner)
    bar = legend(record, shown, scale, inner, fonts, among="all classes" if of_classes(record) else "all words")

    row_height = _TITLE + height + _TITLE + GAP
    first = MARGIN + 34 * len(lines) + 20 * len(remarks) + 4 + GAP
    page = Image.new("RGB", (inner + 2 * MARGIN, first + rows * row_height + bar.height + MARGIN), PAPER)
    draw = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        draw.text((MARGIN, MARGIN + 34 * number), line, fill=INK, font=fonts.large)
    for number, line in enumerate(remarks):
        draw.text((MARGIN, MARGIN + 34 * len(lines) + 20 * number), line, fill=GREY, font=fonts.small)
    for index, (title, right, picture, text) in enumerate(tiles):
        x, y = MARGIN + index % columns * (cell + GAP), first + index // columns * row_height
        room = cell - fonts.small.getlength(right) - 8
        colour = INK if index else GREY
        draw.text((x, y + 16), fit(title, fonts.medium, room), fill=colour, font=fonts.medium, anchor="ls")
        draw.text((x + cell, y + 16), right, fill=GREY, font=fonts.small, anchor="rs")
        page.paste(picture, (x, y + _TITLE))
        draw.text((x, y + _TITLE + height + 5), text, fill=GREY, font=fonts.small)
    page.paste(bar, (MARGIN, first + rows * row_height))
    return page
