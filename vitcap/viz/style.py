"""How pictures look: the colour map, type that fits its text, and the layout of words. NumPy and Pillow only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image, ImageDraw, ImageFont

# 16 equidistant colours of matplotlib's perceptually uniform map "inferno" (N. Smith and S. van der Walt, released as
# CC0). Linear interpolation between them differs from the full table of 256 by at most 6 of 255.
_ANCHORS = (
    "000004 0c0826 240c4f 420a68 5d126e 781c6d 932667 ae305c c73e4c dd513a ed6925 f8850f fca50a fac62d f2e661 fcffa4"
)
INFERNO = np.array([list(bytes.fromhex(anchor)) for anchor in _ANCHORS.split()], dtype=np.float64)

_FONTS = ("DejaVuSans.ttf", "NotoSansCJK-Regular.ttc", "NotoSans-Regular.ttf", "Arial Unicode.ttf", "msyh.ttc")
PAPER, INK, GREY = (255, 255, 255), (28, 30, 34), (108, 112, 120)
MARGIN = 24


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


def word_line(words: Sequence[str], current: int | None, fonts: Fonts, width: int) -> Image.Image:
    """Words in reading order, the one at `current` white on dark; as many lines as they need.

    The place of a word does not depend on `current`, so that pictures of one caption can follow each other.
    """
    face, height = fonts.medium, 30
    places, x, y = [], 0, 0
    for word in (fit(word, face, width - 14) for word in words):
        room = round(face.getlength(word)) + 14
        if x and x + room > width:
            x, y = 0, y + height
        places.append((word, x, y, room))
        x += room
    image = Image.new("RGB", (width, y + height), PAPER)
    draw = ImageDraw.Draw(image)
    for index, (word, x, y, room) in enumerate(places):
        if index == current:
            frame = Image.new(
                "L", (4 * room, 4 * (height - 3))
            )  # drawn larger, then reduced, which smooths its corners
            ImageDraw.Draw(frame).rounded_rectangle([0, 0, frame.width - 1, frame.height - 1], radius=24, fill=255)
            frame = frame.resize((room, height - 3), Image.Resampling.BOX)
            image.paste(Image.new("RGB", frame.size, INK), (x, y + 1), frame)
        ink = PAPER if index == current else INK
        draw.text((x + 7, y + 20), word, fill=ink, font=face, anchor="ls")
    return image
