"""From a record to the files that show it: what the command line and training both draw."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from PIL import Image
from PIL.PngImagePlugin import PngInfo

from vitcap.files import whole
from vitcap.record import AttentionRecord, View
from vitcap.viz.alignment import describe_record_alignment, record_alignment
from vitcap.viz.animation import animation
from vitcap.viz.figures import describe_heads, head_grid, highest_word, word_figure
from vitcap.viz.overlay import sheet
from vitcap.viz.shown import describe_record

if TYPE_CHECKING:  # these import torch, for which `vitcap overlay --help` need not wait
    from vitcap.captioner import Captioner
    from vitcap.data.pictures import CaptionData
    from vitcap.data.sentences import SentenceData
    from vitcap.translator import Translator
    from vitcap.writer import Caption

FORMATS = ("sheet", "gif", "grid", "maps")
"""Kinds of pictures of a record: a tile for each word, an animation, one word by layer and head, a picture a word."""

_LONG = 160  # bytes of a name: file systems take 255, and a number, a word and a suffix are added


def draw_record(
    record: AttentionRecord,
    folder: Path,
    name: str,
    *,
    formats: Sequence[str] = ("sheet",),
    view: View | None = None,
    word: int | str | None = None,
    top: float | None = None,
    font: str | None = None,
) -> list[Path]:
    """Write the pictures of a record into a folder, each with the same in words beside it; returns the pictures.

    sheet: NAME.png. gif: NAME.gif. grid: NAME.grid.png, of `word`. maps: NAME.01-WORD.png and so on. Of a sentence
    there is only the sheet, its alignment matrix. view, top, font: see `vitcap.viz.overlay.sheet`.
    word: of the grid; its number from 0 or its text; None: that with the highest peak.
    Raises ValueError for a format or word that there is none of, and whatever drawing raises.
    """
    if wrong := [kind for kind in formats if kind not in FORMATS]:
        raise ValueError(f"format {wrong[0]!r}: choose from {', '.join(FORMATS)}")
    folder.mkdir(parents=True, exist_ok=True)
    if record.grid is None:
        if other := [kind for kind in formats if kind != "sheet"]:
            raise ValueError(f"format {other[0]!r}: the record is of a sentence, which has only its alignment matrix")
        save_sheet(
            folder / f"{name}.png", record_alignment(record, view, font=font), describe_record_alignment(record, view)
        )
        return [folder / f"{name}.png"]
    view = view or record.shown
    options: Any = {"top": top, "font": font}
    lines = describe_record(record, view)
    files = []
    if "sheet" in formats:
        files.append(folder / f"{name}.png")
        save_sheet(files[-1], sheet(record, view, **options), lines)
    if "gif" in formats:
        files.append(folder / f"{name}.gif")
        with whole(files[-1]) as part:
            part.write_bytes(animation(record, view, comment="\n".join(lines), **options))
        save_lines(files[-1], lines)
    if "grid" in formats:
        index = find_word(record, word, view)
        files.append(folder / f"{name}.grid.png")
        heads = describe_heads(record, index, view.method)
        save_sheet(files[-1], head_grid(record, index, view.method, **options), [lines[0], *heads])
    if "maps" in formats:
        for index, one in enumerate(record.words):
            text = cut(re.sub(r"[^\w-]+", "-", one.text).strip("-"), 40)
            files.append(folder / f"{name}.{index + 1:02d}-{text or 'word'}.png")
            save_sheet(files[-1], word_figure(record, index, view, **options), [*lines[:2], lines[2 + index]])
    return files


def find_word(record: AttentionRecord, word: int | str | None, view: View | None = None) -> int:
    """Number of the word that is meant: a number from 0, a text, or None for the highest peak of the view.

    Raises ValueError, which lists the words, for one that is not there.
    """
    texts = [one.text for one in record.words]
    if word is None:
        return highest_word(record, view)
    if isinstance(word, str) and word in texts:  # before numbers: a word may be one
        return texts.index(word)
    number = int(word) if re.fullmatch(r"\d{1,9}", str(word)) else -1
    if not 0 <= number < len(texts):
        listed = ", ".join(f"{index} {text}" for index, text in enumerate(texts))
        raise ValueError(f"word {word!r} is not there: {record.text!r} has {listed or 'no words'}")
    return number


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
    """The sheet of one photo and a caption of it, and its lines of text; see `vitcap.explain.explain`.

    layers, heads: to average, None for all; without either the model's own view. top, font: see `sheet`.
    """
    from vitcap.explain import explain

    record = explain(captioner, photo, caption=caption)
    view = record.view(None, layers, heads)
    return sheet(record, view, top=top, font=font), describe_record(record, view)


def draw_overlays(
    captioner: Captioner, data: CaptionData, folder: Path, *, count: int, split: str = "val", seed: int = 0
) -> list[Path]:
    """Write the overlay sheets of the first `count` readable pictures of a split into a folder; returns their files,
    none for a model that attends to no grid.

    seed: of a sampling search.
    """
    from vitcap.explain import explain
    from vitcap.explain.methods import available

    if not available(captioner.model):
        return []
    records = [record for record in data.records(split) if record.image_id not in data.bad[split]][:count]
    names = unique_names([str(record.image_id) for record in records])
    files = []
    for record, name in zip(records, names, strict=True):
        files += draw_record(explain(captioner, record.open(), seed=seed), folder, name)
    return files


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
    """The alignment matrix of one translation, and its lines of text, as the model's view shows it.

    found: what the translator gave for the source with need_attention=True. links: known (source word, target word)
    pairs. Raises ValueError for a model without attention, or a translation without words.
    """
    from vitcap.explain import explain

    if found.attention is None:
        raise ValueError("this model has no attention, so there is no alignment to draw")
    record = explain(translator, source, caption=found)
    return record_alignment(record, links=links), describe_record_alignment(record, links=links)


def unique_names(paths: Sequence[str]) -> list[str]:
    """A file name without suffix for each path: its own, numbered where two would fall together.

    Letter case does not tell names apart, as on the file systems of Windows and macOS. Long names are cut, so that
    there is room for what is added; a name such as "dog.grid", which the grid of "dog" would have, gets another dot.
    """
    taken: set[str] = set()
    names = []
    for path in paths:
        stem = cut(re.sub(r"\.(?=(grid|\d+-[\w-]*)$)", "_", Path(path).stem), _LONG) or "photo"
        name, count = stem, 1
        while name.casefold() in taken:
            count += 1
            name = f"{stem}-{count}"
        taken.add(name.casefold())
        names.append(name)
    return names


def cut(text: str, most: int) -> str:
    """The beginning of a text, at most so many bytes of a file's name."""
    while len(text.encode("utf-8", "replace")) > most:
        text = text[:-1]
    return text


def save_sheet(target: Path, page: Image.Image, lines: Sequence[str]) -> None:
    """Write a page as PNG, and its lines both into it and beside it as .txt."""
    text = _writable(lines)
    information = PngInfo()
    information.add_itxt("Title", text.partition("\n")[0].partition(": ")[2])
    information.add_itxt("Description", text)
    with whole(target) as part:
        page.save(part, "PNG", pnginfo=information)
    save_lines(target, lines)


def save_lines(target: Path, lines: Sequence[str]) -> None:
    """Write the lines of a picture beside it, as .txt."""
    with whole(target.with_name(f"{target.stem}.txt")) as part:
        part.write_text(_writable(lines) + "\n", encoding="utf-8")


def _writable(lines: Sequence[str]) -> str:
    return "\n".join(lines).encode("utf-8", "replace").decode("utf-8")
