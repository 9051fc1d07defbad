"""A captioner's maps against the objects of the pictures: does it look at what it names?"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from vitcap.captioner import Captioner
from vitcap.data.instances import open_instances
from vitcap.data.pictures import CaptionData
from vitcap.data.records import CaptionRecord
from vitcap.evaluation.controls import random_weights
from vitcap.evaluation.grounding_report import make_report
from vitcap.evaluation.grounding_table import picture, summary, table
from vitcap.evaluation.grounding_work import Work
from vitcap.evaluation.report import describe_search, write_json
from vitcap.evaluation.subjects import choose_views, shown_view
from vitcap.explain import explain, explain_all
from vitcap.explain.methods import unavailable
from vitcap.files import whole
from vitcap.record import AttentionRecord, View
from vitcap.types import require_number
from vitcap.writer import Caption, Search

log = logging.getLogger(__name__)

PROTOCOLS = {
    "generated": "the captions that the model writes",
    "given": "the first reference caption of each picture, read by the model word by word",
}
REGIONS = ("boxes", "masks")
_PART = 16  # pictures that are captioned at a time


def evaluate_grounding(
    door: Captioner,
    data: CaptionData,
    split: str,
    *,
    methods: Sequence[str | View] | str = "all",
    out: Path,
    seed: int = 0,
    limit: int | None = None,
    progress: Callable[[int, int], None] | None = None,
    facts: dict[str, Any] | None = None,
    instances: str | Path | None = None,
    protocol: str = "generated",
    regions: str = "boxes",
    search: Search | None = None,
) -> tuple[str, dict[str, Any]]:
    """Compare the maps of a captioner's words with where the objects are that they name, and write `grounding.json`,
    `grounding.txt` and `grounding.png`.

    methods: names of vitcap.explain.methods, or Views with layers and heads, or "all" that the model has; the view that
        is shown by default is added. limit: the first so many records only.
    instances: COCO's instance file; see `open_instances`. protocol: one of PROTOCOLS. regions: whether an object is its
    "boxes" or its "masks". search, seed: of the captions; the seed also draws the random weights and the resamples.

    Every figure stands beside those of a uniform map, of a Gaussian in the middle, of the maps of another picture, and
    of the same architecture with random weights, with 95 % intervals by resampling pictures. Returns a summary as text
    and the content of grounding.json; its `verdict` says whether the shown view puts more of its map on the objects
    than random weights do. Raises ValueError or FileNotFoundError, saying what to give.
    """
    if protocol not in PROTOCOLS:
        raise ValueError(f"protocol={protocol}: choose {' or '.join(PROTOCOLS)}")
    if regions not in REGIONS:
        raise ValueError(f"regions={regions}: choose {' or '.join(REGIONS)}")
    if limit is not None:
        require_number("limit", limit, 1, whole=True)
    views = choose_views(door, methods)
    chosen, shown = tuple(dict.fromkeys(view.method for view in views.values())), shown_view(door, views)
    truth = open_instances(data.source, split, instances)
    records = data.records(split)[:limit]
    search = door.search if search is None else search
    work, control = Work(truth, views, masks=regions == "masks"), random_weights(door, seed)
    done = bad = 0
    options = {"methods": chosen, "search": search, "seed": seed, "photo_side": 32}
    for start in range(0, len(records), _PART):
        for record, found in _explained(door, records[start : start + _PART], data, split, protocol, options):
            annotated = truth.find(record.image_id)
            if annotated is None:
                work.counts["pictures that are not annotated"] += 1
            else:
                given = Caption(found.text, found.words, tuple(found.facts["tokens"]), (), 0.0, True)
                blank = explain(control, _source(record), caption=given, methods=chosen, photo_side=32)
                work.add(record, annotated, found, blank)
        done = min(start + _PART, len(records))
        bad = sum(record.image_id in data.bad[split] for record in records[:done])
        if progress is not None:
            progress(done, len(records))
    work.finish()
    if not work.nouns:
        counts, read = dict(work.counts) | {"unreadable pictures": bad}, done - bad
        told = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
        if not read:
            raise ValueError(f"data={data.source.name}, split {split}: none of {done} pictures can be read")
        raise ValueError(
            f"data={data.source.name}, split {split}: none of {read} captions names an object of its picture "
            f"({told or 'no object is named at all'}; objects: {truth.named})"
        )
    about = {
        "data": data.source.name,
        "split": split,
        "instances": truth.named,
        "pictures": len(work.captions),
        "left_out": dict(work.counts) | {"unreadable pictures": len(data.bad[split])},
        "protocol": f"{protocol}: {PROTOCOLS[protocol]}",
        **({"decoding": describe_search(search)} if protocol == "generated" else {}),
        "regions": regions,
        "tolerance_px": truth.tolerance,
        "seed": seed,
        "model": door.fingerprint,
        "random_weights": f"the same architecture, weights drawn from seed {seed}, the same words",
        "unavailable": unavailable(door.model),
        **(facts or {}),
    }
    report = make_report(work.tally, work.captions, views=views, shown=shown, seed=seed, facts=about)
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / "grounding.json", report)
    with whole(out / "grounding.txt") as part:
        part.write_text(table(report).strip("\n") + "\n", encoding="utf-8")
    with whole(out / "grounding.png") as part:
        picture(report).save(part, "PNG")
    return summary(report, out), report


_MEAN = "the view that overlays show stays the mean of all layers and heads"


def choose_view(
    door: Captioner, data: CaptionData, split: str, *, out: Path, search: Search, seed: int = 0, limit: int = 200
) -> View | None:
    """The layer of the decoder's attention, its heads averaged (or the mean of all layers), that looks most at the
    objects which nouns name, by lift over the first `limit` pictures of a split. What it was chosen by is written to
    `out`; see `evaluate_grounding`. A single head may look at them more, and tell less of what other words depend on.

    None, the mean of all, where nobody knows the objects of the pictures, no caption names one, the model has no such
    attention, or that of random weights looks at the objects as much.
    """
    options: dict[str, Any] = {"search": search, "seed": seed, "limit": limit}
    try:
        _, report = evaluate_grounding(door, data, split, methods=("attention",), out=out, **options)
    except (ValueError, FileNotFoundError) as error:  # most data know no objects
        log.debug("%s: %s", _MEAN, error)
        return None
    if not report["verdict"]["ok"]:
        log.info("%s: %s", _MEAN, report["verdict"]["text"])
        return None
    best = next(one for one in report["best"] if one["head"] is None)
    return View("attention", None if best["layer"] is None else (best["layer"],))


def _explained(
    door: Captioner,
    records: Sequence[CaptionRecord],
    data: CaptionData,
    split: str,
    protocol: str,
    options: dict[str, Any],
) -> Iterator[tuple[CaptionRecord, AttentionRecord]]:
    """The records that can be read, with the maps of the model's caption or of their first reference."""
    bad: dict[int, Exception] = {}
    pictures = [_source(record) for record in records]
    numbers = {id(picture): number for number, picture in enumerate(pictures)}

    def skip(picture: Any, error: Exception) -> None:
        if data.on_bad == "error":
            raise error
        bad[numbers[id(picture)]] = error

    if protocol == "generated":
        found: Iterator[AttentionRecord] = explain_all(door, pictures, skip=skip, batch_size=_PART, **options)
    else:
        rest = {name: value for name, value in options.items() if name not in ("search", "seed")}
        found = (
            one
            for record, picture in zip(records, pictures, strict=True)
            for one in explain_all(door, [picture], skip=skip, caption=record.captions[0], **rest)
        )
    made = list(found)
    data.bad[split].update({records[number].image_id: str(error) for number, error in bad.items()})
    yield from zip([r for i, r in enumerate(records) if i not in bad], made, strict=True)


def _source(record: CaptionRecord) -> Any:
    return record.image if isinstance(record.image, Path) else record.image()
