"""One picture for a caption: the photo, then a tile for each word with its attention over that photo.

All words share one colour scale, whose legend counts in multiples of uniform attention, so a word that attends to
nothing in particular looks like nothing in particular. NumPy and Pillow only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

from vitcap.record import Window
from vitcap.viz.heatmap import is_flat, lift, peak, to_photo

# 16 equidistant colours of matplotlib's perceptually uniform map "inferno" (N. Smith and S. van der Walt, released as
# CC0). Linear interpolation between them differs from the full table of 256 by at most 6 of 255.
_ANCHORS = (
    "000004 0c0826 240c4f 420a68 5d126e 781c6d 932667 ae305c c73e4c dd513a ed6925 f8850f fca50a fac62d f2e661 fcffa4"
)
INFERNO = np.array([list(bytes.fromhex(anchor)) for anchor in _ANCHORS.split()], dtype=np.float64)

_FONTS = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "msyh.ttc")
PAPER, INK, GREY = (255, 255, 255), (28, 30, 34), (108, 112, 120)
_GAP, MARGIN, _TITLE = 16, 24, 24
_WIDTH = 1400
_LEAST = 4.0


def colours(values: ArrayLike) -> NDArray[np.float64]:
    """Values in 0..1, any shape -> RGB in 0..255, one axis more."""
    positions = np.clip(np.asarray(values, dtype=np.float64), 0, 1) * (len(INFERNO) - 1)
    knots = np.arange(len(INFERNO))
    return np.stack([np.interp(positions, knots, INFERNO[:, channel]) for channel in range(3)], axis=-1)


def blend(photo: ArrayLike, rgb: ArrayLike, weight: ArrayLike, alpha: float) -> NDArray[np.float64]:
    """(1 - alpha w) photo + alpha w rgb; photo and rgb (..., 3) in 0..255, weight w (...) in 0..1, alpha in 0..1.

    A convex mixture: nothing is divided by a maximum, so the photo keeps its brightness where the weight is 0.
    """
    opacity = alpha * np.asarray(weight, dtype=np.float64)[..., None]
    return (1 - opacity) * np.asarray(photo, dtype=np.float64) + opacity * np.asarray(rgb, dtype=np.float64)


@dataclass(frozen=True)
class Fonts:
    """Type in three sizes, able to draw the given text as far as any font found here can."""

    large: ImageFont.FreeTypeFont
    medium: ImageFont.FreeTypeFont
    small: ImageFont.FreeTypeFont

    @classmethod
    def for_text(cls, text: str, font: str | None = None) -> Fonts:
        """font: path or name of a TrueType/OpenType file; None takes Pillow's own font, or one installed on this
        computer that has more of the letters needed."""
        letters = {letter for letter in text if not letter.isspace()}

        def load(name: str, size: int) -> ImageFont.FreeTypeFont:
            return ImageFont.truetype(name, size) if name else ImageFont.load_default(size)  # type: ignore[return-value]

        def lacking(name: str) -> int:
            try:
                face = load(name, 20)
            except OSError:
                if name == font:
                    raise ValueError(f"font {font!r} is not a TrueType or OpenType file that can be opened") from None
                return len(letters) + 1
            missing = bytes(face.getmask("\U0010ffff"))  # a code point no font has: the box drawn for unknown letters
            return sum(bytes(face.getmask(letter)) == missing for letter in letters)

        best = min([font] if font else ["", *_FONTS], key=lacking)
        return cls(load(best, 26), load(best, 17), load(best, 13))


def clean(text: str) -> str:
    """Text on one line, without code units that no encoding can write."""
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def fit(text: str, font: ImageFont.FreeTypeFont, width: float) -> str:
    """The text, shortened with dots at its end where it is too wide."""
    kept = text
    while kept and font.getlength(kept if kept == text else kept + "...") > width:
        kept = kept[:-1]
    return kept if kept == text else kept + "..."


def wrap(text: str, font: ImageFont.FreeTypeFont, width: float) -> list[str]:
    """Lines no wider than `width`, broken at blanks, and inside a word only where it alone is too wide."""
    lines = [""]
    for word in text.split():
        joined = f"{lines[-1]} {word}".strip()
        if font.getlength(joined) <= width:
            lines[-1] = joined
            continue
        if lines[-1]:
            lines.append("")
        for letter in word:
            if lines[-1] and font.getlength(lines[-1] + letter) > width:
                lines.append("")
            lines[-1] += letter
    return lines


def _tile_size(width: int, height: int, tile: int) -> tuple[int, int]:
    """Size of about tile * tile pixels in the photo's proportions; no side is above 2.5 tiles nor below 1 pixel."""
    scale = min(tile / math.sqrt(width * height), 2.5 * tile / max(width, height))
    return max(1, round(width * scale)), max(1, round(height * scale))


def _scale(maximum: float) -> tuple[float, float]:
    """(end, step) of a scale from 0 that holds `maximum`, and 1 in its dark part; steps of 1, 2 or 5 times ten^n."""
    raw = max(maximum, _LEAST) / 5
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= raw * (1 - 1e-9))
    return math.ceil(max(maximum, _LEAST) / step - 1e-9) * step, step


def _hatch(image: NDArray[np.float64], where: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Pale picture with diagonal lines where `where` is True."""
    y, x = np.indices(where.shape)
    stripe = np.asarray((x + y) % 10 < 2)
    lines = np.where(stripe[..., None], 120.0, 0.35 * image + 0.65 * 255)
    return np.where(where[..., None], lines, image)


def paint(photo: Image.Image, heat: ArrayLike, window: Window, *, top: float, alpha: float = 0.6) -> Image.Image:
    """One map over one photo, at the size of `photo`.

    heat: (rows, columns) absolute attention. window: in pixels of `photo`.
    top: multiple of uniform attention at the end of the colour scale; higher values get its last colour.

    The photo is shown in grey, so that colour means attention and nothing else; what the model never saw is hatched.
    """
    spread, seen = to_photo(lift(heat), window, *photo.size)
    grey = (
        0.75 * np.asarray(photo.convert("L").convert("RGB"), dtype=np.float64) + 64
    )  # lifted: dark parts stay legible
    mixed = blend(grey, colours(spread / top), np.ones_like(spread), alpha)
    return Image.fromarray(np.where(seen[..., None], mixed, _hatch(grey, ~seen)).round().astype(np.uint8))


def _legend(
    width: int, *, end: float, step: float, clipped: bool, alpha: float, unseen: bool, fonts: Fonts
) -> Image.Image:
    """The colour bar as it looks over mid-grey, its ticks, a mark at uniform attention, and what it all means."""
    bar_width = min(360, width)
    image = Image.new("RGB", (width, 76 + 24 * unseen), PAPER)
    draw = ImageDraw.Draw(image)
    ramp = np.broadcast_to(colours(np.linspace(0, 1, bar_width)), (14, bar_width, 3))
    bar = blend(np.full_like(ramp, 128), ramp, np.ones((14, bar_width)), alpha)
    image.paste(Image.fromarray(bar.round().astype(np.uint8)), (0, 8))
    for index in range(count := round(end / step) + 1):
        at = round(index / (count - 1) * (bar_width - 1))
        label = f"{index * step:g}" + ("+" if clipped and index == count - 1 else "")
        draw.line([(at, 22), (at, 25)], fill=GREY)
        anchor = "la" if index == 0 else "ra" if index == count - 1 else "ma"
        draw.text((at, 28), label, fill=GREY, font=fonts.small, anchor=anchor)
    one = round((bar_width - 1) / end)
    draw.polygon([(one - 4, 0), (one + 4, 0), (one, 6)], fill=INK)
    sentence = "multiples of uniform attention (mark at 1: all patches alike), one scale for all words"
    draw.text((0, 50), fit(sentence, fonts.small, width), fill=GREY, font=fonts.small)
    if unseen:
        swatch = _hatch(np.full((14, 28, 3), 128.0), np.ones((14, 28), dtype=bool))
        image.paste(Image.fromarray(swatch.round().astype(np.uint8)), (0, 77))
        draw.text((36, 76), fit("outside the model's view", fonts.small, width - 36), fill=GREY, font=fonts.small)
    return image


def sheet(
    photo: Image.Image,
    words: Sequence[str],
    maps: Sequence[ArrayLike],
    window: Window,
    *,
    caption: str | None = None,
    probabilities: Sequence[float] | None = None,
    note: str = "",
    top: float | None = None,
    alpha: float = 0.6,
    tile: int = 240,
    columns: int | None = None,
    font: str | None = None,
) -> Image.Image:
    """The photo and a tile for each word, with the word's attention over the photo, as one picture.

    photo: upright RGB photo of any size and shape; it is shown whole and in its true proportions.
    words, maps: the words to show (no start or end tokens) and their (rows, columns) attention from `word_map`.
    window: (x0, y0, x1, y1), the rectangle of the photo that the model saw, in photo pixels (`Preprocess.window`).
    caption: headline; the words joined by blanks if None. note: a line below it, such as which layers are shown.
    probabilities: of each word, in 0..1, shown beside it.
    top: end of the colour scale in multiples of uniform attention; None takes it from the highest map value.
    alpha: opacity of the colours, 0..1. tile: square root of a tile's area in pixels. columns: tiles in a row.
    font: TrueType or OpenType file, for scripts that no font found on this computer covers.

    Raises ValueError if words, maps and probabilities differ in number.
    """
    if len(words) != len(maps) or (probabilities is not None and len(probabilities) != len(words)):
        raise ValueError(
            f"{len(words)} words need as many maps and probabilities; got {len(maps)} maps"
            + (f" and {len(probabilities)} probabilities" if probabilities is not None else "")
        )
    headline = " ".join(words) if caption is None else caption
    words, headline, note = [clean(word) for word in words], clean(headline), clean(note)
    fonts = Fonts.for_text("".join([*words, headline, note]), font)

    width, height = _tile_size(*photo.size, tile)
    small = photo.convert("RGB").resize((width, height), Image.Resampling.LANCZOS, reducing_gap=3.0)
    across, down = width / photo.width, height / photo.height
    small_window = (window[0] * across, window[1] * down, window[2] * across, window[3] * down)
    peaks = [float(lift(heat).max()) for heat in maps]
    end, step = _scale(max(peaks, default=1.0)) if top is None else (top, top / 4)

    tiles = [("photo", "", small, f"{photo.width} x {photo.height} pixels")]
    for index, (word, heat) in enumerate(zip(words, maps, strict=True)):
        chance = "" if probabilities is None else f"{100 * probabilities[index]:.0f} %"
        x, y = peak(heat, window)
        where = "" if 0 <= x <= photo.width and 0 <= y <= photo.height else ", in the padding"
        below = "flat" if is_flat(heat) else f"peak {peaks[index]:.1f}x uniform{where}"
        tiles.append((word, chance, paint(small, heat, small_window, top=end, alpha=alpha), below))

    cell = max(width, 120)
    if columns is None:
        fitting = max(1, min(len(tiles), (_WIDTH - 2 * MARGIN + _GAP) // (cell + _GAP)))
        columns = math.ceil(len(tiles) / math.ceil(len(tiles) / fitting))
    inner = max(columns * (cell + _GAP) - _GAP, 480)
    rows = math.ceil(len(tiles) / columns)
    lines = wrap(headline, fonts.large, inner)
    seen = to_photo(np.ones((1, 1)), small_window, width, height)[1]
    clipped = max(peaks, default=0.0) > end
    legend = _legend(inner, end=end, step=step, clipped=clipped, alpha=alpha, unseen=not seen.all(), fonts=fonts)

    row_height = _TITLE + height + _TITLE + _GAP
    first = MARGIN + 34 * len(lines) + 24 * bool(note) + _GAP
    page = Image.new("RGB", (inner + 2 * MARGIN, first + rows * row_height + legend.height + MARGIN), PAPER)
    draw = ImageDraw.Draw(page)
    for number, line in enumerate(lines):
        draw.text((MARGIN, MARGIN + 34 * number), line, fill=INK, font=fonts.large)
    draw.text((MARGIN, MARGIN + 34 * len(lines)), fit(note, fonts.small, inner), fill=GREY, font=fonts.small)
    for index, (title, right, picture, below) in enumerate(tiles):
        x, y = MARGIN + index % columns * (cell + _GAP), first + index // columns * row_height
        room = cell - fonts.small.getlength(right) - 8
        colour = INK if index else GREY
        draw.text((x, y + 16), fit(title, fonts.medium, room), fill=colour, font=fonts.medium, anchor="ls")
        draw.text((x + cell, y + 16), right, fill=GREY, font=fonts.small, anchor="rs")
        page.paste(picture, (x, y + _TITLE))
        draw.text((x, y + _TITLE + height + 5), below, fill=GREY, font=fonts.small)
    page.paste(legend, (MARGIN, first + rows * row_height))
    return page
