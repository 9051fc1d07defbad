"""The check that training makes before its first step: of the records that it will use, and quick the second time."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from vitcap.data.check import check_classes, check_ids
from vitcap.data.check_pictures import check_pictures
from vitcap.data.check_report import Report
from vitcap.data.check_texts import TextOptions, check_texts
from vitcap.data.pairs import PairsSource
from vitcap.data.records import FileSource
from vitcap.data.survey import Results, results_file

log = logging.getLogger(__name__)

SAMPLE = 20_000
"""Texts of a split that are looked at: shares are then known to a fraction of a percent."""


def require_check(value: object) -> bool:
    """Whether data.check asks for the check: "auto" or "off" (which YAML reads as false). ValueError for the rest."""
    if value not in ("auto", "off", True, False):
        raise ValueError(f"data.check={value}: choose auto or off")
    return value in ("auto", True)


def check_training(data: Any, *, progress: Callable[[int, int], None] | None = None) -> dict[str, dict[int | str, str]]:
    """Check the train and val records of a RecordData and log a line or two, and one for each problem.

    What is made, not read, has nothing to be checked. Unreadable pictures follow data.on_bad: with "skip" they are
    returned, split -> id -> why. Raises ValueError for them with "error", and where a split has no other. What
    decodes is remembered, in the user's cache folder, while its size and time of change last.
    """
    source = data.source
    if not data.check or not isinstance(source, FileSource | PairsSource):
        return {}
    begin = time.monotonic()
    splits = {split: data.records(split) for split in ("train", "val")}
    report = Report(str(source.root), source.name)
    report.splits = {split: {} for split in splits}
    options = TextOptions(min_count=data.min_count, max_length=data.max_length)
    if isinstance(source, PairsSource):
        targets = {split: [text for record in records for text in record.targets] for split, records in splits.items()}
        check_texts(report, targets, options, what="targets", tokenizer=data.tokenizer, sample=SAMPLE)
        sources = {split: [record.source for record in records] for split, records in splits.items()}
        check_texts(report, sources, options, what="sources", tokenizer=data.source_tokenizer, sample=SAMPLE)
        bad: dict[str, dict[int | str, str]] = {}
    else:
        check_ids(report, splits)
        if data.tokenizer is not None:
            texts = {split: [text for r in records for text in r.captions] for split, records in splits.items()}
            check_texts(report, texts, options, tokenizer=data.tokenizer, sample=SAMPLE)
        elif hasattr(source, "class_names"):
            check_classes(report, source.class_names, splits)
        bad = _pictures(report, data, splits, progress)
    told = " and ".join(f"{len(records):,} {split}" for split, records in splits.items())
    problems = [finding for level in ("error", "warning") for finding in report.of(level)]
    log.info(
        "data check: %s records in %.1f s%s", told, time.monotonic() - begin, "" if problems else ", nothing is wrong"
    )
    for finding in problems:
        log.warning("data check: %s", finding.line())
    _require_some(data, splits, bad)
    return {split: found for split, found in bad.items() if found}


def _pictures(
    report: Report, data: Any, splits: dict[str, Any], progress: Callable[[int, int], None] | None
) -> dict[str, dict[int | str, str]]:
    try:
        results = Results(results_file(data.source.root))
    except ValueError as error:  # not ours, though where ours would be
        log.warning("%s", error)
        results = Results(None)
    try:
        return check_pictures(report, splits, root=data.source.root, results=results, progress=progress)
    finally:
        results.close()


def _require_some(data: Any, splits: dict[str, Any], bad: dict[str, dict[int | str, str]]) -> None:
    """One error for unreadable pictures, if they are not to be left out or nothing else is there."""
    for split, found in bad.items():
        if found and (data.on_bad == "error" or len(found) == len(splits[split])):
            first = "; ".join(list(found.values())[:3]) + ("; ..." if len(found) > 3 else "")
            remedy = "mend or remove them" + (", or set data.on_bad=skip" if len(found) < len(splits[split]) else "")
            count = f"{len(found):,} of {len(splits[split]):,} {split} pictures cannot be read"
            raise ValueError(f"data={data.source.name}: {count}: {first} ({remedy})")
