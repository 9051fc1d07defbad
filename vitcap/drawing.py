"""From a sentence with attention to its picture: what the command line and training both draw."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitcap.record import word_map
from vitcap.viz.alignment import alignment_matrix, describe_alignment
from vitcap.viz.heatmap import describe
from vitcap.viz.overlay import sheet

if TYPE_CHECKING:  # these import torch, for which `vitcap overlay --help` need not wait
    from vitcap.captioner import Captioner
    from vitcap.data.pictures import CaptionData
    from vitcap.data.sentences import SentenceData
    from vitcap.translator import Translator
    from vitcap.writer import Caption


def overlay_sheet(
    captioner: Captioner,
    photo: Image.Image,
    caption: Caption,
    *,
    layers: Sequence[int] | None = None,
    heads: Sequence[int] | None = None,
    top: float | None = None,
    font: str | None = None,
) -> tuple[Image.Image, list[str]]:
    """The sheet of one photo, and its lines of text: the caption, what is shown, and one line for each word.

    caption: what the captioner gave for the upright photo with need_attention=True.
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


def draw_overlays(
    captioner: Captioner, data: CaptionData, folder: Path, *, count: int, split: str = "val", seed: int = 0
) -> list[Path]:
    """Write the overlay sheets of the first `count` readable pictures of a split into a folder; returns their files.

    seed: of a sampling search.
    """
    records = [record for record in data.records(split) if record.image_id not in data.bad[split]][:count]
    paths = [folder / f"{name}.png" for name in unique_names([str(record.image_id) for record in records])]
    for record, path in zip(records, paths, strict=True):
        photo = record.open()
        caption = captioner.caption(photo, need_attention=True, seed=seed)
        folder.mkdir(parents=True, exist_ok=True)
        save_sheet(path, *overlay_sheet(captioner, photo, caption))
    return paths


def draw_alignments(
    translator: Translator, data: SentenceData, folder: Path, *, count: int, split: str = "val", seed: int = 0
) -> list[Path]:
    """Write the alignment matrices of the first `count` sentences of a split, as the model translates them, into a
    folder; returns their files, none for a model without attention."""
    paths = []
    names = unique_names([re.sub(r"[^\w.-]", "-", f"{record.id}.png") for record in data.records(split)[:count]])
    for record, name in zip(data.records(split)[:count], names, strict=True):
        if record.id not in data.bad[split]:
            found = translator.translate(record.source, need_attention=True, seed=seed)
            if found.attention is None:
                return []
            if found.text:
                links = None  # known to the first target
                if record.alignment is not None and data.tokenizer.clean(record.targets[0]) == found.text:
                    links = translator.relink(record.alignment, record.source, record.targets[0])
                folder.mkdir(parents=True, exist_ok=True)
                paths.append(folder / f"{name}.png")
                page = alignment_page(translator, record.source, found, links=links)
                save_sheet(paths[-1], *page)
    return paths


def alignment_page(
    translator: Translator, source: str, found: Caption, *, links: Collection[tuple[int, int]] | None = None
) -> tuple[Image.Image, list[str]]:
    """The alignment matrix of one translation, and its lines of text. Attention is the mean of all layers and heads.

    found: what the translator gave for the source with need_attention=True. links: known (source word, target word)
    pairs. Raises ValueError for a model without attention, or a translation without words.
    """
    if found.attention is None:
        raise ValueError("this model has no attention, so there is no alignment to draw")
    if not found.words:
        raise ValueError(f"the model gave no words for {source!r}, so there is no alignment to draw")
    words, written = translator.source_words(source), [word.text for word in found.words]
    weights = translator.by_words(found.attention.mean((1, 2)), found.tokens, translator.encode(source))
    page = alignment_matrix(weights, words, written, links=links, title=found.text)
    return page, [
        f"caption: {found.text}",
        f"source: {source}",
        *describe_alignment(weights, words, written, links=links),
    ]


def unique_names(paths: Sequence[str]) -> list[str]:
    """A file name without suffix for each path: its own, numbered where two would fall together.

    Letter case does not tell names apart, as on the file systems of Windows and macOS.
    """
    taken: set[str] = set()
    names = []
    for path in paths:
        stem = Path(path).stem or "photo"
        name, count = stem, 1
        while name.casefold() in taken:
            count += 1
            name = f"{stem}-{count}"
        taken.add(name.casefold())
        names.append(name)
    return names


def save_sheet(target: Path, page: Image.Image, lines: Sequence[str]) -> None:
    """Write the sheet as PNG, and its lines both into it and beside it as .txt."""
    text = "\n".join(lines).encode("utf-8", "replace").decode("utf-8")
    information = PngInfo()
    information.add_itxt("Title", text.partition("\n")[0].partition(": ")[2])
    information.add_itxt("Description", text)
    page.save(target, pnginfo=information)
    target.with_name(f"{target.stem}.txt").write_text(text + "\n", encoding="utf-8")


def _which(kind: str, chosen: Sequence[int] | None, size: int) -> str:
    if chosen is None:
        return f"{kind} 0, the only one" if size == 1 else f"mean of all {size} {kind}s"
    return f"{kind} {', '.join(str(index) for index in chosen)} of 0..{size - 1}"
