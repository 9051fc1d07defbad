"""What a report is made of. It is put together once, and written as HTML and as Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from PIL import Image


@dataclass(frozen=True)
class Heading:
    """The title of a section."""

    text: str


@dataclass(frozen=True)
class Paragraph:
    """Running text. loud: what nobody may miss."""

    text: str
    loud: bool = False


@dataclass(frozen=True)
class Figures:
    """The numbers that a run is judged by: (name, value, what it means or its interval)."""

    rows: list[tuple[str, str, str]]


@dataclass(frozen=True)
class Table:
    """Rows of texts under a head, which may be empty. numbers: columns that are set to the right."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Chart:
    """Curves. page, file: the SVG for the page, and the one that stands by itself; alt: what they show, in words."""

    title: str
    page: str
    file: str
    alt: str


@dataclass(frozen=True)
class Charts:
    """Curves side by side."""

    charts: list[Chart]


@dataclass(frozen=True)
class Picture:
    """A picture of its own. name: of its file, without suffix."""

    name: str
    image: Image.Image
    alt: str


@dataclass(frozen=True)
class Tile:
    """One word of an example with its map over the photo."""

    word: str
    note: str
    image: Image.Image
    alt: str


@dataclass(frozen=True)
class Example:
    """One record, what the model made of it, and what was wanted.

    name: of its files. label: what the record is called. score: how good it is, in words. said, wanted: texts.
    wanted_label: what `wanted` are. photo: None where there is none. tiles: for the page; sheet: the same as one
    picture, for Markdown, or what there is in place of tiles. note: what the colours mean. problem: why it lacks some.
    """

    name: str
    label: str
    score: str
    said: str
    wanted: list[str]
    wanted_label: str
    source: str | None = None
    photo: Image.Image | None = None
    tiles: list[Tile] = field(default_factory=list)
    sheet: Image.Image | None = None
    sheet_alt: str = ""
    note: str = ""
    problem: str = ""


@dataclass(frozen=True)
class Details:
    """Long text as it stands, folded away where that is possible."""

    summary: str
    text: str


Block = Heading | Paragraph | Figures | Table | Charts | Picture | Example | Details


@dataclass(frozen=True)
class Document:
    """A report. subtitle: a line below the title."""

    title: str
    subtitle: str
    blocks: list[Block]
