"""Parallel text of one's own: tab-separated files of source and target sentences."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from collections import Counter
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from vitcap.data.reading import clean_caption, existing_folder, only_file, read_text
from vitcap.data.sequences import SPLITS, SequenceRecord

log = logging.getLogger(__name__)

_SPLIT_NAMES = {"train": "train", "test": "test", **dict.fromkeys(("val", "dev", "valid", "validation"), "val")}
_LINK = re.compile(r"(\d{1,6})-(\d{1,6})")


class _Line(NamedTuple):
    where: str
    split: str
    source: str
    target: str
    alignment: frozenset[tuple[int, int]] | None


class PairsSource:
    """Parallel text: a line for each pair, source<TAB>target, UTF-8 with or without byte order mark.

    root: the data folder. file: the file under it, for all splits; left out, `train.tsv`, `val.tsv` (or dev, valid,
        validation) and `test.tsv` if there are any, otherwise the only .tsv or .txt file.
    source_column, target_column, split_column, alignment_column: names in the first line, in any letter case. A first
        line without the names of source and target is a pair itself; the columns are then source, target, split (not
        in a file that is one split) and alignment, as many as there are. split_column=None: the file has no such
        column and is all train; a third column of a file without header is then left alone. Splits are named train,
        val (or dev, valid, validation) and test.
    val_fraction: for text without a val split: this share of the train sources, at least one, becomes val. The place
        of a sentence depends on its text and split_seed only.
    on_bad: "error", or "skip" to leave out, with a count, lines that lack a side, a field or a valid alignment, and
        training sources that are also in val or test (or, of val, in test).
    report: counts over the whole text: lines, records, and everything skipped.

    A quotation mark is a character like any other, since sentences hold stray ones; no field holds a tab or line break.
    Several targets of one source in a split make one record, in the order of the lines. An alignment is in the Pharaoh
    format, "0-0 1-2": source word - target word, counted from 0 over words separated by blanks; that of the first
    target is kept.
    """

    name = "pairs"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        file: str | None = None,
        source_column: str = "source",
        target_column: str = "target",
        split_column: str | None = "split",
        alignment_column: str = "alignment",
        val_fraction: float | None = None,
        split_seed: int = 0,
        on_bad: str = "error",
    ) -> None:
        self.root = existing_folder(root)
        if val_fraction is not None and not (isinstance(val_fraction, int | float) and 0 < val_fraction < 1):
            raise ValueError(f"data.source.val_fraction={val_fraction}: a share between 0 and 1 is wanted")
        if on_bad not in ("error", "skip"):
            raise ValueError(f"data.source.on_bad={on_bad}: choose error or skip")
        if source_column.strip().casefold() == target_column.strip().casefold():
            raise ValueError(f"data.source.target_column={target_column} is the source column, too: name two columns")
        self.val_fraction, self.split_seed, self.on_bad = val_fraction, split_seed, on_bad
        self.columns = {"source": source_column, "target": target_column, "alignment": alignment_column}
        if split_column is not None:
            self.columns["split"] = split_column
        usual = {} if file else {path: _SPLIT_NAMES.get(path.stem, "") for path in sorted(self.root.glob("*.tsv"))}
        self.files = {path: split for path, split in usual.items() if split}
        for split in SPLITS:
            if len(same := [path.name for path, other in self.files.items() if other == split]) > 1:
                raise ValueError(f"{self.root}: {' and '.join(same)} are both the split {split!r}; keep one")
        if not self.files:
            self.files = {
                self.root / file if file else only_file(self.root, ["*.tsv", "*.txt"], "data.source.file"): ""
            }
        self.report: Counter[str] = Counter()

    def splits(self) -> tuple[str, ...]:
        """Splits that the text has, the one carved out by val_fraction included."""
        return tuple(name for name in SPLITS if name in self._records)

    def split(self, name: str) -> list[SequenceRecord]:
        """The records of a split. Raises ValueError or FileNotFoundError, naming file and line, for bad data."""
        if name not in self._records:
            hint = "; set data.source.val_fraction to take some of train" if name == "val" else ""
            raise ValueError(f"{self.root}: no split {name!r}; there is {', '.join(self.splits())}{hint}")
        return list(self._records[name])

    @cached_property
    def _records(self) -> dict[str, list[SequenceRecord]]:
        self.report.clear()
        grouped: dict[str, dict[str, list[_Line]]] = {}
        for path, split in self.files.items():
            lines = self._read(path, split)
            if not lines:
                raise ValueError(f"{path}: no pairs in it; fill the file or take it away")
            for line in lines:
                grouped.setdefault(line.split, {}).setdefault(line.source, []).append(line)
        for split, others in (("train", ("val", "test")), ("val", ("test",))):
            for other in others:
                self._separate(grouped, split, other)
        if self.val_fraction is not None:
            self._carve(grouped)
        records = {
            split: [
                SequenceRecord(lines[0].where, source, tuple(line.target for line in lines), lines[0].alignment)
                for source, lines in sources.items()
            ]
            for split, sources in grouped.items()
        }
        for split, made in records.items():
            self.report[f"{split} records"] = len(made)
            if not made:
                raise ValueError(f"{self.root}: split {split!r} has no source that is not in another split")
        log.info("%s: %s", self.root, ", ".join(f"{number} {what}" for what, number in self.report.items()))
        return records

    def _read(self, path: Path, file_split: str) -> list[_Line]:
        rows = [
            (number, line.rstrip("\r").split("\t"))
            for number, line in enumerate(read_text(path).split("\n"), 1)
            if line.strip("\r")
        ]
        if not rows:
            return []
        header, columns = self._header(path, rows[0][1], bool(file_split))
        width = len(rows[0][1])
        lines: list[_Line] = []
        bad: dict[str, list[int]] = {}
        for number, fields in rows[header:]:
            self.report["lines"] += 1
            row = {name: fields[place] for name, place in columns.items() if place < len(fields)}
            source, target = (clean_caption(row.get(side, ""))[0] for side in ("source", "target"))
            if len(fields) != width:
                bad.setdefault(f"lines without the {width} fields of the first", []).append(number)
            elif source is None or target is None:
                bad.setdefault("lines with a side that has no letter or digit", []).append(number)
            else:
                split = file_split or self._split_of(path, number, row.get("split"), header)
                try:
                    alignment = _links(row["alignment"], source, target) if row.get("alignment") else None
                except ValueError as error:
                    bad.setdefault(f"lines with a bad alignment ({error})", []).append(number)
                else:
                    lines.append(_Line(f"{path.name}:{number}", split, source, target, alignment))
        for what, numbers in bad.items():
            self._complain(
                f"{len(numbers)} {what}: {_numbers(numbers)}", path, re.sub(r" \(.*", "", what), len(numbers)
            )
        return lines

    def _header(self, path: Path, fields: list[str], is_split: bool) -> tuple[int, dict[str, int]]:
        """Lines of header (0 or 1), and the place of each column."""
        names = [field.strip().casefold() for field in fields]
        for column, wanted in self.columns.items():
            if names.count(wanted.casefold()) > 1:
                raise ValueError(f"{path}: line 1 names the {column} column, {wanted!r}, more than once: rename one")
        named = {column: names.index(n.casefold()) for column, n in self.columns.items() if n.casefold() in names}
        if "source" in named and "target" in named:
            return 1, named
        given = [self.columns[side] for side in ("source", "target") if self.columns[side] != side]
        if given or "source" in named or "target" in named:
            lacking = [self.columns[side] for side in ("source", "target") if side not in named]
            raise ValueError(f"{path}: no column {' and no column '.join(lacking)}; line 1 has {str(fields)[:200]}")
        if len(fields) < 2:
            raise ValueError(f"{path}: line 1 has no tab; each line is source<TAB>target: {fields[0][:80]!r}")
        order = ["source", "target"] + (["alignment"] if is_split else ["split", "alignment"])
        if "split" not in self.columns and not is_split:
            order = order[:2]
        return 0, dict(zip(order, range(len(fields)), strict=False))

    def _split_of(self, path: Path, number: int, value: str | None, header: int) -> str:
        if value is None:
            return "train"
        if (split := _SPLIT_NAMES.get(value.strip().lower())) is None:
            remedy = "" if header else ", or data.source.split_column=null where the third column is something else"
            raise ValueError(f"{path}: line {number}: split {value[:80]!r}; choose train, val or test{remedy}")
        return split

    def _complain(self, what: str, path: Path, kind: str, count: int) -> None:
        if self.on_bad == "error":
            raise ValueError(f"{path}: {what}; mend the file, or set data.source.on_bad=skip")
        log.warning("%s: %s, skipped", path, what)
        self.report[f"{kind} skipped"] += count

    def _separate(self, grouped: dict[str, dict[str, list[_Line]]], split: str, other: str) -> None:
        """No source in two splits: it leaves the one that is trained on."""
        if both := [source for source in grouped.get(split, {}) if source in grouped.get(other, {})]:
            first = f"{grouped[split][both[0]][0].where} and {grouped[other][both[0]][0].where}"
            kind = f"sources of {split} that are also in {other}"
            self._complain(f"{len(both)} {kind}, such as {first}", self.root, kind, len(both))
            for source in both:
                del grouped[split][source]

    def _carve(self, grouped: dict[str, dict[str, list[_Line]]]) -> None:
        if "val" in grouped or "train" not in grouped:
            there = ", ".join(grouped)
            raise ValueError(f"{self.root}: val_fraction is for text with a train and no val split; this has {there}")
        assert self.val_fraction is not None
        train = grouped["train"]
        count = max(1, round(self.val_fraction * len(train)))
        if count >= len(train):
            raise ValueError(
                f"{self.root}: val_fraction {self.val_fraction} of {len(train)} sources leaves none to train on: add "
                "sources, or lower it"
            )
        order = sorted(train, key=lambda text: hashlib.sha256(f"{self.split_seed}:{text}".encode()).digest())
        chosen = set(order[:count])
        grouped["val"] = {source: lines for source, lines in train.items() if source in chosen}
        grouped["train"] = {source: lines for source, lines in train.items() if source not in chosen}


def _links(text: str, source: str, target: str) -> frozenset[tuple[int, int]]:
    """Pharaoh format; ValueError for what is none, or a word that is not there."""
    sizes = len(source.split()), len(target.split())
    links = set()
    for item in text.split():
        if not (match := _LINK.fullmatch(item)):
            raise ValueError(f"{item[:20]!r} is no link like 0-0")
        link = int(match[1]), int(match[2])
        if link[0] >= sizes[0] or link[1] >= sizes[1]:
            raise ValueError(f"link {item} between sentences of {sizes[0]} and {sizes[1]} words")
        links.add(link)
    return frozenset(links)


def _numbers(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:5]))
    more = f" and {len(numbers) - 5} more" if len(numbers) > 5 else ""
    return f"line{'s' if len(numbers) > 1 else ''} {shown}{more}"
