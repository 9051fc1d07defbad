"""ImageNet's own files: class index, ground truth of the flat validation folder, ReaL labels.

Two orders of the 1,000 classes are about. Models count synset ids (n01440764, ...) in sorted order from 0. The ground
truth of the development kit counts from 1 in an order of its own, which only meta.mat or map_clsloc.txt tell.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from vitcap.data.reading import read_json, read_text
from vitcap.data.records import CaptionRecord

_NUMBER = re.compile(r"ILSVRC2012_val_(\d{8})")
_SYNSET = re.compile(r"n\d{8}")
_PLACES = ("", "data", "devkit/data", "ILSVRC2012_devkit_t12/data", "ILSVRC2012_devkit_t12", "LOC", "ImageSets/CLS-LOC")
_TRUTH = "ILSVRC2012_validation_ground_truth.txt"


def find_class_index(root: Path, given: str | None) -> Path | None:
    """The class index file that is named, under root or anywhere; or the only `*class_index.json` of root, or None."""
    if given is not None:
        return root / Path(given).expanduser()
    found = sorted(path for path in root.glob("*class_index.json") if not path.name.startswith("."))
    if len(found) > 1:
        names = ", ".join(path.name for path in found)
        raise ValueError(f"{root}: several class indices ({names}): choose one with data.source.class_index=")
    return found[0] if found else None


def read_class_index(path: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """(class ids, class names) in index order, from JSON {"0": ["n01440764", "tench"], ...}, or a list of these pairs.

    A plain name in place of a pair is id and name. Raises ValueError unless the indices are 0, 1, 2, ... and the ids
    differ.
    """
    data = read_json(path)
    rows = dict(enumerate(data)) if isinstance(data, list) else data
    if not isinstance(rows, dict) or not rows:
        raise ValueError(f'{path}: no class index: {{"0": ["n01440764", "tench"], ...}} is wanted')
    entries: dict[int, tuple[str, str]] = {}
    for key, value in rows.items():
        pair = [value, value] if isinstance(value, str) else value
        if not str(key).isdecimal() or not isinstance(pair, list) or [type(v) for v in pair] != [str, str]:
            raise ValueError(f'{path}: entry {key!r} is {value!r}: "INDEX": ["id", "name"] is wanted')
        entries[int(key)] = (pair[0], pair[1])
    if missing := sorted(set(range(len(entries))) - set(entries)):
        raise ValueError(
            f"{path}: {len(entries)} classes, but index {missing[0]} is missing: they count from 0 without gaps"
        )
    ids, names = zip(*(entries[i] for i in range(len(entries))), strict=True)
    if len(set(ids)) < len(ids):
        twice = next(i for i in ids if ids.count(i) > 1)
        raise ValueError(f"{path}: class {twice!r} is there twice")
    return ids, names


def find_val_labels(
    root: Path, folder: Path, names: Sequence[str], *, classes: Sequence[str]
) -> tuple[dict[str, str], str]:
    """({picture name: class id}, which file said so) for a flat folder of ILSVRC2012_val_*.JPEG.

    Looked for in root, the folder and the development kit under them: LOC_val_solution.csv (Kaggle, by synset id);
    val.txt (Caffe, `NAME INDEX` in sorted synset order); ILSVRC2012_validation_ground_truth.txt with map_clsloc.txt,
    meta.mat (needs scipy) or a synset list in the development kit's order.
    """
    foreign = [name for name in names if not _NUMBER.match(name)]
    if foreign:
        raise ValueError(
            f"{folder}: pictures ({foreign[0]}, ...) but no class folders: the layout is {folder.name}/CLASS/picture"
        )
    places = [base / place for base in (root, folder, root.parent, root.parent.parent) for place in _PLACES]
    labels: dict[str, str]
    if file := _first(places, "LOC_val_solution.csv"):
        labels, told = _read_solution(file), f"labels by synset id from {file}"
    elif file := _first(places, "val.txt"):
        labels, told = _read_caffe(file, classes), f"labels by index in sorted synset order from {file}"
    elif file := _first(places, _TRUTH):
        synsets, told = _devkit_order(file, places)
        numbers = [int(line) for line in read_text(file).split()]
        labels = {}
        for name in names:
            index = _number(name)
            if not index <= len(numbers) or not 1 <= numbers[index - 1] <= len(synsets):
                raise ValueError(f"{file}: {len(numbers)} labels over {len(synsets)} synsets have none for {name}")
            labels[_stem(name)] = synsets[numbers[index - 1] - 1]
    else:
        raise FileNotFoundError(
            f"{folder}: pictures but no class folders, and no LOC_val_solution.csv, val.txt or {_TRUTH} beside it: put "
            "one of them into the data folder, or sort the pictures into class folders"
        )
    if lacking := [name for name in names if _stem(name) not in labels]:
        raise ValueError(f"{file}: no label for {lacking[0]} ({len(lacking)} of {len(names)} pictures)")
    return {name: labels[_stem(name)] for name in names}, told


def read_real(path: Path, records: Iterable[CaptionRecord], *, classes: int) -> dict[int | str, frozenset[int]]:
    """Image id -> ReaL labels, from real.json: a list of label lists, entry n - 1 for ILSVRC2012_val_n (Beyer et al.
    2020); labels count the synsets in sorted order. Raises ValueError, naming file and picture."""
    data = read_json(path)
    if not isinstance(data, list) or not all(isinstance(row, list) for row in data):
        raise ValueError(f"{path}: no ReaL labels: a list with one list of labels for each validation image is wanted")
    if bad := {x for row in data for x in row if not isinstance(x, int) or isinstance(x, bool) or not 0 <= x < classes}:
        raise ValueError(f"{path}: label {min(bad, key=str)!r} is none of the classes 0 to {classes - 1}")
    labels: dict[int | str, frozenset[int]] = {}
    for record in records:
        file = record.image if isinstance(record.image, Path) else Path(str(record.image_id))
        if not _NUMBER.match(file.name):
            raise ValueError(f"{file}: ReaL goes by the number in ILSVRC2012_val_*, and this name has none")
        if not 1 <= (number := _number(file.name)) <= len(data):
            raise ValueError(f"{path}: {len(data)} entries, none for {file.name}")
        labels[record.image_id] = frozenset(data[number - 1])
    return labels


def _number(name: str) -> int:
    match = _NUMBER.match(name)
    assert match is not None
    return int(match[1])


def _stem(name: str) -> str:
    return name.partition(".")[0]


def _first(places: Iterable[Path], name: str) -> Path | None:
    return next((place / name for place in places if (place / name).is_file()), None)


def _read_solution(file: Path) -> dict[str, str]:
    rows = list(csv.DictReader(read_text(file).splitlines()))
    if not rows or not {"ImageId", "PredictionString"} <= set(rows[0]):
        raise ValueError(f"{file}: the columns ImageId and PredictionString are wanted")
    return {row["ImageId"]: (row["PredictionString"] or "").partition(" ")[0] for row in rows}


def _read_caffe(file: Path, classes: Sequence[str]) -> dict[str, str]:
    ordered, labels = sorted(classes), {}
    for number, line in enumerate(read_text(file).splitlines(), 1):
        name, _, index = line.rpartition(" ")
        if not index.isdecimal() or int(index) >= len(ordered):
            raise ValueError(f"{file}: line {number} is {line!r}: NAME INDEX is wanted, the index below {len(ordered)}")
        labels[_stem(Path(name).name)] = ordered[int(index)]
    return labels


def _devkit_order(truth: Path, places: Iterable[Path]) -> tuple[list[str], str]:
    """Synset ids in the order of the development kit, and where that order is from."""
    places = [truth.parent, *places]
    if file := _first(places, "map_clsloc.txt"):
        rows = [line.split() for line in read_text(file).splitlines() if line.strip()]
        if bad := next(
            (row for row in rows if len(row) < 2 or not _SYNSET.fullmatch(row[0]) or not row[1].isdecimal()), None
        ):
            raise ValueError(f"{file}: {' '.join(bad)!r}: SYNSET NUMBER NAME is wanted")
        return [
            row[0] for row in sorted(rows, key=lambda row: int(row[1]))
        ], f"labels in {truth} in the order of {file}"
    for name in ("synset_words.txt", "synsets.txt", "LOC_synset_mapping.txt"):
        if file := _first(places, name):
            ids = [line.split()[0] for line in read_text(file).splitlines() if line.strip()]
            if ids != sorted(ids):
                return ids, f"labels in {truth} in the order of {file}"
    if file := _first(places, "meta.mat"):
        try:
            from scipy.io import loadmat
        except ImportError:
            raise ValueError(
                f"{file}: reading it needs scipy: pip install scipy, or put map_clsloc.txt beside it"
            ) from None
        synsets = loadmat(file, squeeze_me=True)["synsets"]
        known = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in synsets}
        return [known[i] for i in sorted(known) if i <= 1000], f"labels in {truth} in the order of {file}"
    raise FileNotFoundError(
        f"{truth}: its numbers follow the order of the development kit, which no sorted synset list tells: put "
        "meta.mat or map_clsloc.txt beside it"
    )
