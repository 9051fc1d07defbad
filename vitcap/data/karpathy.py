"""The Karpathy split of COCO from lists of its images (Karpathy and Fei-Fei 2015), for the official captions of 2014.

The split takes 5,000 pictures each for val and test out of the official val2014; the rest of it, "restval", is trained
on together with train2014.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path

from vitcap.data.reading import read_text
from vitcap.data.records import Entry

FOLDERS = ("", "splits", "coco_splits", "karpathy", "annotations")
"""Where lists are looked for under the data folder."""

TRAIN, RESTVAL, VAL, TEST = 82_783, 30_504, 5_000, 5_000
FEWEST_CAPTIONS = 5

_LIST = re.compile(r"(?:(?:coco|karpathy)_)?(train|restval|val|dev|test)(?:_(?:images|ids))?\.txt")


def find_lists(root: Path, folder: str | None = None) -> dict[str, Path]:
    """Split -> its list in a folder under root; left out, the first of `FOLDERS` with a list of val and one of test.

    A list is called `coco_val.txt`, `karpathy_val_images.txt`, `val.txt` or `val_ids.txt`; "dev" also means val. Empty
    where there are none in `FOLDERS`. Raises FileNotFoundError for a given folder without those of val and test, and
    ValueError for two lists of one split.
    """
    for name in FOLDERS if folder is None else (folder,):
        where = root / name
        found: dict[str, Path] = {}
        for path in sorted(where.glob("*.txt")):
            if match := _LIST.fullmatch(path.name.lower()):
                split = "val" if match[1] == "dev" else match[1]
                if other := found.get(split):
                    raise ValueError(f"{where}: {other.name} and {path.name} are both lists of {split}: keep one")
                found[split] = path
        if {"val", "test"} <= set(found):
            return {split: found[split] for split in ("train", "restval", "val", "test") if split in found}
    if folder is not None:
        raise FileNotFoundError(f"{root / folder}: no lists of val and test, such as coco_val.txt and coco_test.txt")
    return {}


def split_by_lists(
    lists: Mapping[str, Path],
    train2014: Sequence[Entry],
    val2014: Sequence[Entry],
    *,
    expect: bool = True,
    refuse: Callable[[str], None] | None = None,
) -> dict[str, list[Entry]]:
    """Split -> the official pictures that its list names, in the order of the list.

    lists: of val and test, and of train and restval or neither: these are then the rest of train2014 and of val2014.
        One image a line: its file name, with or without folders, or its id; after a file name its id may follow.
        A train list may hold restval, too.
    train2014, val2014: every picture of the official files, with its captions.
    expect: the counts of the Karpathy split (train with restval 113,287, val and test 5,000) and at least 5 captions
        an image are asserted.
    refuse: called with what is wrong with a line, which is left out if it returns, or with a count; left out, it is
        raised.

    Raises ValueError, naming list, line and image, for what is not in the official files, two ids in one line, an image
    listed twice, and counts that are not met.
    """
    refuse = refuse or _stop
    official = [*train2014, *val2014]
    by_id = {entry.image_id: entry for entry in official}
    by_name = {entry.path.name: entry for entry in official}
    if min(len(by_id), len(by_name)) < len(official):
        twice = next(e for e in official if by_id[e.image_id] is not e or by_name[e.path.name] is not e)
        raise ValueError(f"{twice.where}: its id or its name {twice.path.name} is that of another image, too")
    splits: dict[str, list[Entry]] = {}
    listed: dict[int | str, str] = {}
    for split, path in lists.items():
        splits[split] = []
        for where, words in _lines(path):
            try:
                entry = _entry(words, where, by_id, by_name)
                if before := listed.get(entry.image_id):
                    raise ValueError(f"{path}: image {entry.image_id} is listed in {before} and in {where}")
            except ValueError as error:
                refuse(str(error))
                continue
            listed[entry.image_id] = where
            splits[split].append(entry)
    if "train" not in lists:
        splits["train"] = [entry for entry in train2014 if entry.image_id not in listed]
        if "restval" not in lists:
            splits["restval"] = [entry for entry in val2014 if entry.image_id not in listed]
    if expect:
        _check_counts(lists, splits, refuse)
    return {split: splits[split] for split in ("train", "restval", "val", "test") if splits.get(split)}


def _lines(path: Path) -> Iterable[tuple[str, list[str]]]:
    for number, line in enumerate(read_text(path).splitlines(), start=1):
        if words := line.split():
            yield f"{path.name} line {number}", words


def _entry(words: Sequence[str], where: str, by_id: Mapping[int | str, Entry], by_name: Mapping[str, Entry]) -> Entry:
    """The picture that a line names."""
    name = os.path.basename(words[0].replace("\\", "/"))
    entry = by_id.get(int(name)) if re.fullmatch(r"[0-9]{1,18}", name) else by_name.get(name)
    if entry is None:
        raise ValueError(
            f"{where}: image {words[0]} is neither in captions_train2014.json nor in captions_val2014.json"
        )
    if len(words) > 2 or (len(words) == 2 and words[1] != str(entry.image_id)):
        raise ValueError(
            f"{where}: {' '.join(words)[:80]!r}, where {name} and perhaps its id {entry.image_id} is wanted"
        )
    return entry


def _stop(what: str) -> None:
    raise ValueError(what)


def _check_counts(lists: Mapping[str, Path], splits: Mapping[str, list[Entry]], refuse: Callable[[str], None]) -> None:
    """Refuses unless these are the splits that everybody reports on."""
    hint = "; if the lists are only a part of the split, set data.source.expect=false"
    for split, wanted in (("val", VAL), ("test", TEST)):
        if len(splits[split]) != wanted:
            refuse(f"{lists[split]}: {wanted:,} images are wanted, {len(splits[split]):,} found{hint}")
    train, rest = len(splits["train"]), len(splits.get("restval", ()))
    if train + rest != TRAIN + RESTVAL:
        where = lists.get("train", "the official pictures in neither val nor test")
        if train == TRAIN and not rest:
            hint = "; restval is missing: add coco_restval.txt, or take the train list away"
        refuse(f"{where}: train and restval together are {TRAIN + RESTVAL:,} images, {train:,} + {rest:,} found{hint}")
    for split, entries in splits.items():
        for entry in entries:
            if len(entry.captions) < FEWEST_CAPTIONS:
                found = len(entry.captions)
                refuse(f"{entry.where} ({split}): {FEWEST_CAPTIONS} captions or more are wanted, {found} found")
