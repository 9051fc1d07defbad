"""A report as Markdown, its pictures in a folder beside it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

from PIL import Image

from vitcap.files import whole
from vitcap.report.blocks import (
    Block,
    Charts,
    Details,
    Document,
    Example,
    Figures,
    Heading,
    Paragraph,
    Picture,
    Table,
)
from vitcap.report.page import encode


def write_markdown(document: Document, file: Path, folder: Path) -> None:
    """Write FILE, and the pictures that it shows into FOLDER, which lies beside it."""
    lines = [f"# {text(document.title)}", "", text(document.subtitle), ""]
    for block in document.blocks:
        lines += [*_block(block, folder), ""]
    with whole(file) as part:
        part.write_text("\n".join(lines).rstrip("\n") + "\n", encoding="utf-8")


def text(anything: str) -> str:
    """Text on one line that means nothing but itself in Markdown."""
    found = " ".join(re.sub(r"[\x00-\x1f\x7f]", " ", anything.encode("utf-8", "replace").decode("utf-8")).split())
    found = found.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    found = re.sub(r"([\\`*_{}\[\]|~])", r"\\\1", found)
    return re.sub(r"^([#+-]|\d+[.)])", lambda m: f"{m[1][:-1]}\\{m[1][-1]}", found)


def _block(block: Block, folder: Path) -> Iterator[str]:
    match block:
        case Heading():
            yield f"## {text(block.text)}"
        case Paragraph():
            yield ("> " if block.loud else "") + text(block.text)
        case Figures():
            yield from _block(Table(("score", "value", "about"), block.rows, (1,)), folder)
        case Table():
            head = block.head or tuple("" for _ in block.rows[0])
            yield _row(head)
            yield _row(tuple("---:" if n in block.numbers else "---" for n in range(len(head))), plain=True)
            yield from map(_row, block.rows)
        case Charts():
            for number, one in enumerate(block.charts):
                name = f"curve-{number + 1}.svg"
                with whole(folder / name) as part:
                    part.write_text(one.file, encoding="utf-8")
                yield from (f"**{text(one.title)}**", "", _link(folder, name, one.alt), "")
        case Picture():
            yield _save(block.image, folder, block.name, block.alt, exact=True)
        case Example():
            yield from _example(block, folder)
        case Details():
            fence = "`" * max([3, *(len(run) + 1 for run in re.findall("`+", block.text))])
            yield from (text(block.summary), "", fence, block.text.encode("utf-8", "replace").decode().rstrip(), fence)


def _example(example: Example, folder: Path) -> Iterator[str]:
    yield from (f"**{text(example.said) or '(no words)'}**", "", f"{text(example.score)}; {text(example.label)}", "")
    if example.source is not None:
        yield from (f"source: {text(example.source)}", "")
    if example.wanted:
        yield from (f"{text(example.wanted_label)}:", "", *(f"- {text(one)}" for one in example.wanted), "")
    if example.problem:
        yield from (text(example.problem), "")
    if example.photo is not None:
        yield from (_save(example.photo, folder, f"{example.name}-photo", f"the picture {example.label}"), "")
    if example.sheet is not None:
        yield from (_save(example.sheet, folder, example.name, example.sheet_alt, exact=not example.tiles), "")


def _row(cells: tuple[str, ...], *, plain: bool = False) -> str:
    return "| " + " | ".join(cell if plain else text(cell) for cell in cells) + " |"


def _save(image: Image.Image, folder: Path, name: str, alt: str, *, exact: bool = False) -> str:
    kind, content = encode(image, exact=exact)
    file = f"{name}.{'png' if kind == 'png' else 'jpg'}"
    with whole(folder / file) as part:
        part.write_bytes(content)
    return _link(folder, file, alt)


def _link(folder: Path, name: str, alt: str) -> str:
    return f"![{text(alt)}]({quote(f'{folder.name}/{name}')})"
