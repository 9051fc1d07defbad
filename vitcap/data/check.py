"""A data set checked before hours of training on it: every file, caption, id, split, word and class.

Nothing stops at the first defect: all are listed, with names. Readers that refuse a file are taken at their word.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from vitcap.data.check_pictures import LOOSE, check_pictures, relative
from vitcap.data.check_report import Report
from vitcap.data.check_texts import TextOptions, check_texts
from vitcap.data.image_folder import ImageFolderSource
from vitcap.data.images import IMAGE_SUFFIXES, find_images
from vitcap.data.pairs import PairsSource
from vitcap.data.reading import clean_caption
from vitcap.data.records import CaptionRecord, Entry, FileSource
from vitcap.data.survey import Results

FEWEST_OF_CLASS = 5
"""Training pictures below which a class is reported."""

STOPS = "defects that the reader stops at"
_REPEATED = "repeated captions kept"
# The counts of FileSource.report that a check finds itself, with names.
_OWN = {"images", "captions", "lines", "records", "images without captions skipped", "missing images skipped"}
_HARMLESS = ("hidden and junk", "no pictures left out", _REPEATED)


def check_source(
    source: FileSource | PairsSource,
    options: TextOptions | None = None,
    *,
    jobs: int | None = None,
    results: Results | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check the data of a source. options: how training would read the texts.

    jobs, results, progress: see `check_pictures`. The report holds what a reader refuses, too; nothing that is wrong
    with the data is raised. The source is read anew, so hand in one of its own.
    """
    options = options or TextOptions()
    report = Report(str(source.root), source.name)
    if isinstance(source, PairsSource):
        _check_pairs(report, source, options)
        return report
    splits = read_splits(report, source)
    whole = all(split in splits for split in _names(source))
    check_ids(report, splits)
    if isinstance(source, ImageFolderSource):
        check_classes(report, source.class_names, splits)
    texts = {split: [text for record in records for text in record.captions] for split, records in splits.items()}
    check_texts(report, {split: found for split, found in texts.items() if found}, options)
    if source.refused or not whole:  # what a reader leaves out, or gives up, can be looked at all the same
        known = {record.image for records in splits.values() for record in records}
        splits |= _loose(source.root, known)
    check_pictures(report, splits, root=source.root, jobs=jobs, results=results, progress=progress)
    return report


def check_folder(root: Path, *, kind: str = "folder", refused: str = "", **options: Any) -> Report:
    """Check all pictures under a folder, whatever else is there.

    kind, refused: the source that was tried, and what it said. options: jobs, results, progress.
    """
    report = Report(str(root), kind)
    report.add("error", STOPS, [refused] if refused else [])
    splits = _loose(root, set())
    report.splits = {split: {"images": len(records)} for split, records in splits.items()}
    if not splits and not refused:
        report.add("error", "folder without pictures", [str(root)])
    check_pictures(report, splits, root=root, **options)
    return report


def read_splits(report: Report, source: FileSource) -> dict[str, list[CaptionRecord]]:
    """The records of every split that can be read. What is wrong with the others, and with captions, is reported."""
    lacking = "error" if source.on_missing == "error" else "warning"
    source.on_missing, source.refused = "skip", []
    captioned = not isinstance(source, ImageFolderSource)
    listed: set[Path] = set()
    splits: dict[str, list[CaptionRecord]] = {}
    for split in _names(source):
        report.splits[split] = {}
        try:
            entries = source._entries(split)
            if captioned:
                _check_entries(report, split, entries, lacking)
                listed |= {entry.path for entry in entries}
            splits[split] = source._finish(split, entries)
        except (ValueError, OSError) as error:
            report.add("error", STOPS, [str(error)], split=split)
    report.add("error", STOPS, source.refused)
    _check_extra(report, source.root, listed)
    if source.val_fraction is not None:
        report.splits.setdefault("val", {})
        try:
            if "train" not in splits or "val" in splits:
                raise ValueError(
                    f"val_fraction is for data with a train and no val split; this has {', '.join(splits)}"
                )
            splits |= source._carve(splits["train"])
        except ValueError as error:
            report.add("error", STOPS, [str(error)])
    for split, records in splits.items():
        captions = [len(record.captions) for record in records]
        report.splits[split] |= {"images": len(records)}
        if any(captions):
            per_image = f"{min(captions)} to {max(captions)}" if min(captions) < max(captions) else str(captions[0])
            report.splits[split] |= {"captions": sum(captions), "an image": per_image}
    for what, count in source.report.items():
        if what not in _OWN and not what.startswith(("captions ", "blank ")):
            level = "fact" if any(part in what for part in _HARMLESS) else "warning"
            level = lacking if "unlisted" in what else level
            report.add(level, what, source.places.get(what, ()), count=count)
    return splits


def _names(source: FileSource) -> tuple[str, ...]:
    try:
        return source._own_splits()
    except (ValueError, OSError):
        return ("all",)  # reading it says why


def _check_entries(report: Report, split: str, entries: Sequence[Entry], lacking: str) -> None:
    """Captions as the file has them, and whether their pictures are there. lacking: the level of those that are not."""
    odd: defaultdict[tuple[str, str], list[str]] = defaultdict(list)
    for entry in entries:
        good = 0
        for index, raw in enumerate(entry.captions):
            text, remark = clean_caption(raw)
            good += text is not None
            if remark:
                told = ascii(raw[:60]) if isinstance(raw, str) else "none" if raw is None else type(raw).__name__
                odd["warning", remark].append(f"{entry.place(index)}: {told}")
        if not good:
            odd["warning", "pictures without captions, left out"].append(entry.where)
        elif not os.path.isfile(entry.path):  # Path.is_file raises for names too long for the disk
            odd[lacking, "captioned pictures that are not there"].append(f"{entry.path} ({entry.where})")
    for (level, what), names in odd.items():
        report.add(level, what, names, split=split)


def _check_extra(report: Report, root: Path, listed: Collection[Path]) -> None:
    """Pictures in the folders of those that are listed."""
    folders = {path.parent for path in listed}
    found = (p for folder in folders if os.path.isdir(folder) for p in folder.iterdir() if p not in listed)
    extra = [relative(p, root) for p in found if p.suffix.lower() in IMAGE_SUFFIXES and not p.name.startswith(".")]
    report.add("fact", "pictures beside them that no caption names", sorted(extra))


def check_ids(report: Report, splits: Mapping[str, Sequence[CaptionRecord]]) -> None:
    """Whether an id stands for one picture, in all splits."""
    seen: dict[int | str, tuple[str, CaptionRecord]] = {}
    clash = []
    for split, records in splits.items():
        for record in records:
            other, first = seen.setdefault(record.image_id, (split, record))
            if first is not record and first.image != record.image:
                both = (f"{one.image} ({where})" for one, where in ((first, other), (record, split)))
                clash.append(f"{record.image_id}: {' and '.join(both)}")
    report.add("warning", "image ids that stand for two files", clash)


def check_classes(report: Report, names: Sequence[str], splits: Mapping[str, Sequence[CaptionRecord]]) -> None:
    """Which classes a split lacks, and which have hardly a picture to learn from. names: of the classes, by label."""
    for split, records in splits.items():
        counts = Counter(record.label for record in records)
        report.splits[split] |= {"classes": len(counts)}
        report.splits[split]["pictures of a class"] = {name: counts[label] for label, name in enumerate(names)}
        lacking = [name for label, name in enumerate(names) if not counts[label]]
        report.add("warning", "classes without a picture", lacking, split=split)
        few = [f"{name}: {counts[i]}" for i, name in enumerate(names) if 0 < counts[i] < FEWEST_OF_CLASS]
        if split in ("train", "all"):
            report.add("warning", f"classes with fewer than {FEWEST_OF_CLASS} pictures", few, split=split)
    report.facts["classes"] = len(names)


def _loose(root: Path, known: set[Any]) -> dict[str, list[CaptionRecord]]:
    records = [CaptionRecord(str(path), path, ()) for path in find_images(root) if path not in known]
    return {LOOSE: records} if records else {}


def _check_pairs(report: Report, source: PairsSource, options: TextOptions) -> None:
    source.on_bad = "skip"
    sides: dict[str, dict[str, list[str]]] = {"sources": {}, "targets": {}}
    try:
        for split in source.splits():
            records = source.split(split)
            sides["sources"][split] = [record.source for record in records]
            sides["targets"][split] = [text for record in records for text in record.targets]
            report.splits[split] = {what: len(texts[split]) for what, texts in sides.items()}
    except (ValueError, OSError) as error:
        report.add("error", STOPS, [str(error)])
    for what, count in source.report.items():
        report.add("warning" if "skipped" in what else "fact", what, count=count)
    for what, texts in sides.items():
        check_texts(report, texts, options, what=what)
