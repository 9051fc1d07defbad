"""The part of a check that looks into the picture files: do they decode, which are the same, which are odd."""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from vitcap.data.check_report import Report
from vitcap.data.records import CaptionRecord
from vitcap.data.survey import Results, survey

MOST_ASPECT = 8.0
"""Longer side by shorter one above which a picture is reported: a crop then shows little of it."""
LEAST_SIDE = 32
"""Shorter side in pixels below which a picture is reported: two patches of 16 pixels."""
LOOSE = "(folder)"
"""In place of a split for pictures of the folder that no split has, where a reader refused one."""

_SUFFIXES = {"JPEG": {"jpg", "jpeg", "jpe", "jfif"}, "MPO": {"jpg", "jpeg", "mpo"}, "TIFF": {"tif", "tiff"}}
_SUFFIXES |= {"PPM": {"ppm", "pgm", "pbm", "pnm"}, "BMP": {"bmp", "dib"}, "HEIF": {"heic", "heif"}}
_SUFFIXES |= {"JPEG2000": {"jp2"}, "DIB": {"bmp", "dib"}}


def check_pictures(
    report: Report,
    splits: Mapping[str, Sequence[CaptionRecord]],
    *,
    root: Path,
    jobs: int | None = None,
    results: Results | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> dict[str, dict[int | str, str]]:
    """Inspect the file of every record and add what is found to the report; other records are passed over.

    root: names of pictures are told from there. jobs, results: see `survey`. progress: called with (done, total) files.
    Two pictures are the same if their bytes are, or the upright RGB pixels that a model gets of them.
    Returns split -> image id -> why it cannot be read.
    """
    places: dict[Path, list[tuple[str, CaptionRecord]]] = {}
    for split, records in splits.items():
        for record in records:
            if isinstance(record.image, Path):
                places.setdefault(record.image, []).append((split, record))
    shared: defaultdict[str, list[str]] = defaultdict(list)
    repeated: list[str] = []
    for path, found in places.items():
        if len(of := dict.fromkeys(split for split, _ in found)) > 1:
            shared[" and ".join(of)].append(relative(path, root))
        elif len(found) > 1:
            repeated.append(f"{relative(path, root)}: {', '.join(str(record.image_id) for _, record in found)}")
    for pair, both in shared.items():
        report.add("error", f"files that are both in {pair}", both)
    report.add("warning", "files under several image ids", repeated)

    bad: dict[str, dict[int | str, str]] = {split: {} for split in splits}
    odd: defaultdict[tuple[str, str, str], list[str]] = defaultdict(list)
    same = _Same(odd)
    modes: Counter[str] = Counter()
    turned = 0
    smallest, largest = (0, 0), (0, 0)
    move = None if progress is None else lambda done: progress(done, len(places))
    for path, seen in survey(places, jobs=jobs, results=results, progress=move):
        owners, name = dict(places[path]), relative(path, root)
        if seen.error:
            for split in owners:
                odd["error", "pictures that cannot be read", split].append(f"{name}: {seen.error}")
            for split, record in places[path]:
                bad[split][record.image_id] = f"{path}: {seen.error}"
            continue
        same.add(name, owners, seen.content, seen.pixels)
        modes[seen.mode] += 1
        turned += seen.turned
        size = (seen.width, seen.height)
        smallest = min(smallest, size, key=_area) if _area(smallest) else size
        largest = max(largest, size, key=_area)
        told = f"{name}: {seen.width}x{seen.height}"
        if max(size) > MOST_ASPECT * min(size):
            odd["warning", f"pictures longer than {MOST_ASPECT:g} times their width or height", ""].append(told)
        elif min(size) < LEAST_SIDE:
            odd["warning", f"pictures with a side below {LEAST_SIDE} pixels", ""].append(told)
        if path.suffix[1:].lower() not in _SUFFIXES.get(seen.format, {seen.format.lower()}):
            odd["fact", "pictures of another format than their name says (read by their bytes)", ""].append(
                f"{name}: {seen.format}"
            )
    for (level, what, split), names in sorted(odd.items(), key=lambda item: item[0][0] != "error"):
        report.add(level, what, names, split=split)
    for split, records in splits.items():
        files = sum(isinstance(record.image, Path) for record in records)
        if files and len(bad[split]) == files:
            report.add("error", "splits without a picture that can be read", [split])
    if read := sum(modes.values()):
        report.facts["pictures that decode"] = read
        report.facts |= {"smallest picture": "{}x{}".format(*smallest), "largest picture": "{}x{}".format(*largest)}
        report.facts["turned by EXIF"] = turned
        report.facts["not stored as RGB"] = read - modes["RGB"]
        report.facts["modes"] = dict(modes.most_common())
    return bad


class _Same:
    """Finds pictures that are the same, within a split and across."""

    def __init__(self, odd: defaultdict[tuple[str, str, str], list[str]]) -> None:
        self._odd = odd
        self._first: dict[str, dict[str, tuple[str, int | None]]] = {}

    def add(self, name: str, owners: Mapping[str, CaptionRecord], content: str, pixels: str) -> None:
        """Compare a picture with those before it. owners: split -> its record."""
        known = self._first.get(content)
        kind = "equal files"
        if known is None and (known := self._first.get(pixels)):
            kind = "pictures of equal pixels in different files"
        for split, record in owners.items():
            if known is not None and split in known:
                first, label = known[split]
                self._odd["warning", f"{kind} more than once", split].append(f"{name} = {first}")
                if label != record.label:
                    self._odd["warning", "equal pictures in different classes", split].append(f"{name} = {first}")
            elif known is not None:
                other, (first, _) = next(iter(known.items()))
                if other not in owners:  # else it is the same file, and is told already
                    level = "warning" if split == LOOSE else "error"
                    self._odd[level, f"{kind} in {other} and {split}", ""].append(f"{name} = {first}")
        known = {} if known is None else known
        for split, record in owners.items():
            known.setdefault(split, (name, record.label))
        self._first[content] = self._first[pixels] = known


def _area(size: tuple[int, int]) -> int:
    return size[0] * size[1]


def relative(path: Path, root: Path) -> str:
    """The name of a file as seen from a folder, if it is below it."""
    return str(path).removeprefix(f"{root}{os.sep}")
