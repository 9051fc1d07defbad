"""From a caption with attention to its overlay sheet: what the command line and training both draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitcap.viz.heatmap import describe, word_map
from vitcap.viz.overlay import sheet


def overlay_sheet(
    captioner: Any,
    photo: Image.Image,
    caption: Any,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    top: float | None = None,
    font: str | None = None,
) -> tuple[Image.Image, list[str]]:
    """The sheet of one photo, and its lines of text: the caption, what is shown, and one line for each word.

    captioner, caption: a vitcap.captioner.Captioner and what it gave for the upright photo with need_attention=True.
    layers, heads: decoder layers and attention heads to average, None for all. top, font: see vitcap.viz.overlay.sheet.
    Raises ValueError for a model that attends to no grid, or a layer or head that is not there.
    """
    if captioner.grid is None or caption.attention is None:
        raise ValueError("this model attends to no grid of patches, so there is no map to draw")
    rows, columns = captioner.grid
    of_layers, of_heads = caption.attention.shape[1:3]
    note = f"Cross-attention: {_which('layer', layers, of_layers)}, {_which('head', heads, of_heads)}; "
    note += f"{rows} x {columns} patches"
    words = [word.text for word in caption.words]
    maps = [
        word_map(
            caption.attention,
            (word.start, word.stop),
            grid=captioner.grid,
            prefix=captioner.prefix,
            layers=layers,
            heads=heads,
        )
        for word in caption.words
    ]
    window = captioner.preprocess.window(*photo.size)
    page = sheet(
        photo,
        words,
        maps,
        window,
        caption=caption.text or "(the model gave no words)",
        probabilities=[math.exp(word.log_prob) for word in caption.words],
        note=note,
        top=top,
        font=font,
    )
    return page, [f"caption: {caption.text}", note, *describe(words, maps, window, *photo.size)]


def save_sheet(target: Path, page: Image.Image, lines: Sequence[str]) -> None:
    """Write the sheet as PNG, and its lines both into it and beside it as .txt."""
    text = "\n".join(lines).encode("utf-8", "replace").decode("utf-8")
    information = PngInfo()
    information.add_itxt("Title", text.partition("\n")[0].removeprefix("caption: "))
    information.add_itxt("Description", text)
    page.save(target, pnginfo=information)
    target.with_name(f"{target.stem}.txt").write_text(text + "\n", encoding="utf-8")


def _which(kind: str, chosen: Sequence[int] | None, size: int) -> str:
    if chosen is None:
        return f"{kind} 0, the only one" if size == 1 else f"mean of all {size} {kind}s"
    return f"{kind} {', '.join(str(index) for index in chosen)} of 0..{size - 1}"
