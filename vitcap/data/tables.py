"""Captions in text files: Flickr8k and Flickr30k as published, and tables (CSV, TSV, JSON lines) of one's own."""

from __future__ import annotations

import csv
import io
import os
import re
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

from vitcap.data.reading import image_folder, only_file, parse_json, plain_path, read_text
from vitcap.data.records import Entry, FileSource

_FLICKR_FILES = [
    "Flickr8k.token.txt",
    "results_20130124.token",
    "results.csv",
    "captions.txt",
    "*.token.txt",
    "*.token",
]
_FLICKR_FOLDERS = [
    *("images", "Images", "Flicker8k_Dataset", "Flickr8k_Dataset", "flickr30k-images", "flickr30k_images", ""),
]
_FLICKR_LISTS = {
    "train": ["Flickr_8k.trainImages.txt", "Flickr_30k.trainImages.txt", "train.txt"],
    "val": ["Flickr_8k.devImages.txt", "Flickr_30k.devImages.txt", "val.txt", "dev.txt"],
    "test": ["Flickr_8k.testImages.txt", "Flickr_30k.testImages.txt", "test.txt"],
}
_SPLIT_NAMES = {"dev": "val", "valid": "val", "validation": "val"}
_HEADER = re.compile(r"(image|img|photo|file)[ _]?(id|name)?", re.IGNORECASE)
_NUMBER = re.compile(r"#\d*\s*$")
_PIPE_DEFECT = re.compile(r"\s*(\d+)\s+(\S.*)")


class FlickrSource(FileSource):
    """Flickr8k (Hodosh et al. 2013) or Flickr30k (Young et al. 2014): a caption file, split lists, an image folder.

    root: the data folder. captions: the caption file under it; left out, `Flickr8k.token.txt`,
        `results_20130124.token`, `results.csv` or `captions.txt`. Lines are `name#number<TAB>caption`, or
        `name| number| caption` or `name,caption` below a header; only the first separators split.
    lists: split -> file with one image name a line, with or without its suffix; left out, the official names
        (`Flickr_8k.trainImages.txt`, `train.txt`, ...; val is the dev list). A list that is not there matters only to
        who asks for that split. Without any list all images are train.
    images: the image folder; left out, `images`, `Flicker8k_Dataset`, `flickr30k-images`, ... or the root.
    val_fraction, split_seed, on_missing, report: see FileSource.
    """

    name = "flickr"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        captions: str | None = None,
        lists: Mapping[str, str] | None = None,
        images: str | None = None,
        val_fraction: float | None = None,
        split_seed: int = 0,
        on_missing: str = "error",
    ) -> None:
        super().__init__(root, val_fraction=val_fraction, split_seed=split_seed, on_missing=on_missing)
        folders = [self.root, self.root / "Flickr8k_text"]  # as the official archives unpack
        if captions:
            self.file = self.root / captions
        else:
            usual = [(folder, name) for name in _FLICKR_FILES for folder in folders if any(folder.glob(name))]
            folder, pattern = usual[0] if usual else (self.root, " or ".join(_FLICKR_FILES[:4]))
            self.file = only_file(folder, [pattern], "data.source.captions")
        if lists is not None and not isinstance(lists, Mapping):
            raise ValueError(f"data.source.lists={lists}: one a split is wanted, such as {{train: {lists}}}")
        if lists:
            self.lists = {split: self.root / name for split, name in lists.items() if name}
        else:
            self.lists = {}
            for split, names in _FLICKR_LISTS.items():
                if there := [folder / name for name in names for folder in folders if (folder / name).is_file()]:
                    self.lists[split] = there[0]
        self.images = images

    @cached_property
    def _captions(self) -> dict[str, tuple[list[str], list[int]]]:
        """Image name -> its captions, and their lines."""
        captions: dict[str, tuple[list[str], list[int]]] = {}
        for number, name, caption in self._lines():
            texts, lines = captions.setdefault(name, ([], []))
            texts.append(caption)
            lines.append(number)
        if not captions:
            raise ValueError(f"{self.file}: no captions in it")
        return captions

    def _lines(self) -> Iterator[tuple[int, str, str]]:
        lines = read_text(self.file).split("\n")
        header = lines[0].strip().lower()
        token_file = re.match(r"\S+#\d", header)
        separator = "\t" if token_file else next((s for s in "\t|," if s in header), "\t")
        for number, line in enumerate(lines, 1):
            key, found, caption = line.strip("\r").partition(separator)
            name = plain_path(_NUMBER.sub("", key))
            if not line.strip() or (number == 1 and _HEADER.fullmatch(key.strip())):
                continue
            if not found or not name:
                wanted = {"|": "name| number| caption", ",": "name,caption"}.get(separator, "name#number<TAB>caption")
                self._refuse(f"{self.file}: line {number} is not {wanted}: {line.strip()[:80]!r}")
                continue
            if separator == "|":
                _, found, rest = caption.partition("|")
                if not found:  # a known row of Flickr30k has lost its second bar
                    if not (match := _PIPE_DEFECT.fullmatch(caption.rstrip())):
                        self._refuse(f"{self.file}: line {number} has no caption: {line.strip()[:80]!r}")
                        continue
                    rest = match[2]
                    self._note("rows that lack a bar repaired", f"{self.file.name} line {number}")
                caption = rest
            elif separator == "," and caption[:1] == caption[-1:] == '"' and len(caption) > 1:
                caption = caption[1:-1].replace('""', '"')
            yield number, name, caption

    @cached_property
    def _names(self) -> dict[str, list[str]]:
        """Split -> image names; an image in two lists is an error."""
        if not self.lists:
            return {"train": list(self._captions)}
        by_stem: dict[str, list[str]] = {}
        for name in self._captions:
            by_stem.setdefault(Path(name).stem, []).append(name)
        splits: dict[str, list[str]] = {}
        seen: dict[str, str] = {}
        for split, path in self.lists.items():
            if not path.is_file():
                continue
            for number, line in enumerate(read_text(path).splitlines(), 1):
                listed = plain_path(line)
                if not listed:
                    continue
                fits = [listed] if listed in self._captions else by_stem.get(listed, [listed])
                if len(fits) > 1:
                    self._refuse(f"{path}: line {number}: {listed} may be {fits[0]} or {fits[1]}: write it whole")
                    continue
                name = fits[0]
                if name in seen:
                    self._refuse(f"{path}: line {number}: {name} is listed already: {seen[name]}")
                    continue
                seen[name] = f"{path.name} line {number}"
                splits.setdefault(split, []).append(name)
        return splits

    def _own_splits(self) -> tuple[str, ...]:
        return tuple(self._names)

    def _why_not(self, split: str) -> str:
        if split in self.lists:
            return f" ({self.lists[split]} is {'empty' if self.lists[split].is_file() else 'not there'})"
        return f" (no {' or '.join(_FLICKR_LISTS.get(split, ['list of it']))})"

    def _entries(self, split: str) -> list[Entry]:
        names = self._names[split]
        folder = image_folder(self.root, self.images, _FLICKR_FOLDERS, names[0])
        entries = []
        for name in names:
            captions, lines = self._captions.get(name, ([], []))
            where = f"{self.file.name} line {lines[0]}" if lines else f"{name}, not in {self.file.name}"
            entries.append(Entry(name, folder / name, captions, where, lines))
        return entries


class TableSource(FileSource):
    """A table of one's own, one row for each (image, caption): CSV, TSV, or JSON lines.

    root: the data folder. file: the table under it; left out, the only .csv, .tsv or .jsonl file there.
    image_column: picture path, from `images` or the root. caption_column: the text; in JSON lines it may be a list, and
        "captions" is taken too. Rows of one image are gathered, in order.
    split_column: train, val (or dev, valid, validation), test, or others; without such a column all is train.
    images: the folder that picture paths start from; left out, the root or `images`.
    val_fraction, split_seed, on_missing, report: see FileSource.

    The first line of CSV and TSV names the columns. All fields stay text: the caption "NA" is the caption "NA". Where
    the caption is the last column, commas in it need no quotes (counted in the report).
    """

    name = "table"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        file: str | None = None,
        image_column: str = "image",
        caption_column: str = "caption",
        split_column: str | None = "split",
        images: str | None = None,
        val_fraction: float | None = None,
        split_seed: int = 0,
        on_missing: str = "error",
    ) -> None:
        super().__init__(root, val_fraction=val_fraction, split_seed=split_seed, on_missing=on_missing)
        self.file = (
            self.root / file if file else only_file(self.root, ["*.csv", "*.tsv", "*.jsonl"], "data.source.file")
        )
        if self.file.suffix.lower() not in (".csv", ".tsv", ".jsonl"):
            raise ValueError(f"{self.file}: a .csv, .tsv or .jsonl file is wanted")
        self.image_column, self.caption_column, self.split_column = image_column, caption_column, split_column
        self.images = images

    @cached_property
    def _by_split(self) -> dict[str, list[Entry]]:
        entries: dict[str, tuple[str, Entry]] = {}
        folder: Path | None = None
        for number, row in self._json_rows() if self.file.suffix.lower() == ".jsonl" else self._csv_rows():
            name = row.get(self.image_column)
            if not isinstance(name, str) or not (name := plain_path(name)):
                self._refuse(f"{self.file}: line {number}: no image in {self.image_column!r}")
                continue
            if re.match(r"https?:", name):
                self._refuse(f"{self.file}: line {number}: {name[:80]} is a web address; fetch the pictures first")
                continue
            if (split := self._split_of(row)) is None:
                self._refuse(f"{self.file}: line {number}: no split in {self.split_column!r}")
                continue
            folder = folder or image_folder(self.root, self.images, ["", "images"], name)
            where = f"{self.file.name} line {number}"
            first_split, entry = entries.setdefault(name, (split, Entry(name, folder / name, [], where, [])))
            if first_split != split:
                self._refuse(f"{self.file}: {name} is in {first_split} ({entry.where}) and {split} (line {number})")
                continue
            captions = row.get(self.caption_column, row.get("captions"))
            captions = captions if isinstance(captions, list) else [captions]
            assert isinstance(entry.captions, list)
            assert isinstance(entry.lines, list)
            entry.captions.extend(captions)
            entry.lines.extend([number] * len(captions))
        if not entries:
            raise ValueError(f"{self.file}: no rows in it")
        by_split: dict[str, list[Entry]] = {}
        for split, entry in entries.values():
            by_split.setdefault(split, []).append(entry)
        return by_split

    def _split_of(self, row: Mapping[str, Any]) -> str | None:
        if self.split_column is None or (self.split_column == "split" and "split" not in row):
            return "train"
        split = row.get(self.split_column)
        if not isinstance(split, str) or not split.strip():
            return None
        return _SPLIT_NAMES.get(split.strip().lower(), split.strip())

    def _csv_rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        delimiter = "\t" if self.file.suffix.lower() == ".tsv" else ","
        reader = csv.reader(io.StringIO(read_text(self.file), newline=""), delimiter=delimiter, strict=True)
        try:
            header = [name.strip() for name in next(reader, [])]
            if twice := [name for name in dict.fromkeys(header) if name and header.count(name) > 1]:
                raise ValueError(f"{self.file}: line 1 names the column {twice[0]!r} more than once; rename one")
            wanted = [self.image_column, self.caption_column]
            wanted += [self.split_column] if self.split_column not in (None, "split") else []
            if lacking := [name for name in wanted if name not in header]:
                hint = "; are the fields separated by ; or |?" if set(";|") & set("".join(header)) else ""
                raise ValueError(
                    f"{self.file}: no column {' and no column '.join(map(str, lacking))}; line 1 names "
                    f"{str(header)[:200]}{hint}"
                )
            number = 1 + reader.line_num
            for fields in reader:
                if len(fields) > len(header) and header[-1] == self.caption_column:
                    fields[len(header) - 1 :] = [delimiter.join(fields[len(header) - 1 :])]
                    self._note("rows with unquoted separators joined", f"{self.file.name} line {number}")
                if fields and len(fields) != len(header):
                    self._refuse(f"{self.file}: line {number} has {len(fields)} fields, line 1 has {len(header)}")
                elif fields:
                    yield number, dict(zip(header, fields, strict=True))
                number = 1 + reader.line_num
        except csv.Error as error:  # where the next row begins is a guess from here on
            raise ValueError(f"{self.file}: line {reader.line_num}: {error}; check the quotes") from None

    def _json_rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        for number, line in enumerate(read_text(self.file).split("\n"), 1):
            if not line.strip():
                continue
            try:
                row = parse_json(line)
            except (ValueError, RecursionError) as error:
                reason = getattr(error, "msg", None) or str(error).partition(";")[0]
                self._refuse(f"{self.file}: line {number} is cut or not JSON: {reason}")
                continue
            if isinstance(row, dict):
                yield number, row
            else:
                self._refuse(f"{self.file}: line {number} is no object with {self.image_column!r}")

    def _own_splits(self) -> tuple[str, ...]:
        return tuple(self._by_split)

    def _entries(self, split: str) -> list[Entry]:
        return self._by_split[split]
