"""What stands in a report, in which order, and in which words."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from vitcap.metrics.bootstrap import mean_interval
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
from vitcap.report.charts import charts
from vitcap.report.folder import RunFolder
from vitcap.report.settings import settings, surroundings

KINDS = {"caption": "captions of pictures", "translate": "translations", "classify": "classes of pictures"}
TRUTHS = {
    "true_seen": "captions true in every claim, combinations that training shows",
    "true_held_out": "captions true in every claim, combinations that it never shows",
    "coverage": "objects of a scene that its caption names",
}
PLAIN = ("NLL", "Brier")
"""Scores that are no shares."""
FACTS = {
    "caption_length": "words of a caption",
    "vocabulary_used": "different words in all captions",
    "vocabulary_of_references": "the same of the references",
    "unique_captions": "different captions, of all",
    "most_frequent_caption": "the most frequent caption",
    "novel_captions": "captions that no training caption equals",
    "repeated_word_rate": "captions with a word twice in a row",
    "bad_ending_rate": 'captions that break off, such as after "a" or "of"',
    "empty_captions": "captions without a word",
    "CIDEr-D_of_other_images": "CIDEr-D against the references of other pictures",
    "mean_per_class": "mean accuracy of the classes",
    "MCE": "largest calibration error of a bin",
    "most_confused": "most confused",
    "cut_by_maximum_length": "translations that the maximum length cut",
    "cut_sources": "sources that were cut",
}
SHARES = ("unique_captions", "novel_captions", "repeated_word_rate", "bad_ending_rate", "mean_per_class", "MCE")
MOST = 10_000
"""Records of which intervals are drawn: of more they are too narrow to tell."""


def contents(
    run: RunFolder,
    *,
    best: list[Example],
    worst: list[Example],
    ranked: str,
    parameters: str = "",
    trouble: str = "",
) -> Document:
    """The report of a run. best, worst, ranked: see vitcap.report.examples. parameters: of the model, in words.
    trouble: why pictures lack, if they do."""
    blocks = [*_headline(run), *_warnings(run, trouble), *_truth(run)]
    if curves := charts(run.curves):
        blocks += [Heading("Learning curves"), Charts(curves)]
    for title, found in (("Best examples", best), ("Worst examples", worst)):
        if found:
            blocks += [Heading(title), *([Paragraph(ranked)] if ranked and found is (best or worst) else []), *found]
    blocks += [*_by_length(run), *_classes(run), *_grounding(run), *_about(run)]
    if rows := settings(run, parameters):
        blocks += [Heading("Model and training"), Table((), rows)]
    if rows := surroundings(run.environment):
        blocks += [Heading("Environment"), Table((), rows)]
    if run.config:
        blocks += [Details("config.yaml, all options", run.config)]
    name = run.path.resolve().name
    made = f"Made by vitcap report {name}; the numbers are those of scores.json, per picture or sentence in the files "
    blocks.append(Paragraph(made + "beside this one."))
    started = f", {run.environment['started'][:16]}" if run.environment.get("started") else ""
    return Document(f"Run {name}", f"{KINDS[run.kind]}; data {run.facts.get('data', 'unknown')}{started}", blocks)


def points(name: str, value: float | None) -> str:
    """A score as tables print it: times 100, but for those that are no shares."""
    return "-" if value is None else f"{value:.4f}" if name in PLAIN else f"{100 * value:.1f}"


def _headline(run: RunFolder) -> Iterator[Block]:
    order = ("CIDEr-D", "SPICE", "METEOR", "BLEU-4", "ROUGE-L", "exact", "top-1")
    scores = run.scores["scores"]
    names = [*(n for n in order if n in scores), *(n for n in scores if n not in order)]
    rows = [(name, points(name, scores[name]), _interval(run, name)) for name in names]
    if (alignment := run.scores.get("alignment")) is not None:
        error = f"{100 * alignment['AER']:.1f} %"
        rows.append(
            ("alignment error", error, f"{alignment['words']} words, each with the source word it attends to most")
        )
    yield Figures(rows)
    facts = run.facts
    count = next((facts[n] for n in ("images", "sentences", "samples") if n in facts), len(run.each))
    what = {"caption": "pictures", "translate": "sentences", "classify": "pictures"}[run.kind]
    text = f"Scored on {count:,} {what} of data={facts.get('data')}, split {facts.get('split')}"
    if (each := facts.get("references_per_image")) is not None:
        span = f"{each['min']}" if each["min"] == each["max"] else f"{each['min']} to {each['max']}"
        text += f", {span} references each"
    if facts.get("decoding"):
        decoding = facts["decoding"]
        rest = ", ".join(f"{n.replace('_', ' ')} {v}" for n, v in decoding.items() if n not in ("search", "forbid"))
        text += f"; decoded by {decoding.get('search')} search ({rest})"
    text += f"; seed {facts['seed']}" if "seed" in facts else ""
    text += ". "
    text += "Accuracies and ECE are times 100; NLL is in nats." if run.kind == "classify" else "Scores are times 100."
    text += " 95 %: interval by drawing the records again." if any(note.startswith("95 %") for *_, note in rows) else ""
    if (chosen := facts.get("checkpoint")) is not None:
        text += f" Checkpoint {str(chosen).replace(chr(92), '/').rpartition('/')[2]}"
        text += f", chosen by {facts['chosen_by']}." if facts.get("chosen_by") else "."
    yield Paragraph(text)


def _interval(run: RunFolder, name: str) -> str:
    """The 95 % interval of a score that is the mean of those of the pictures."""
    if run.kind == "classify" and name == "top-1":
        values = [float(one["class"] == one["predicted"]) for one in run.each.values()]
    elif run.kind == "caption" and name in ("CIDEr-D", "ROUGE-L", "SPICE"):
        values = [float(v) for one in run.each.values() if isinstance(v := one.get(name), int | float)]
    elif run.kind == "translate" and name == "exact" and all("exact" in one for one in run.each.values()):
        values = [float(one["exact"]) for one in run.each.values()]
    else:
        return ""
    score = run.scores["scores"][name]
    if score is None or not 10 <= len(values) <= MOST or not math.isclose(np.mean(values), score, abs_tol=5e-4):
        return ""
    low, high = mean_interval(values, seed=0, rounds=1000)
    return f"95 %: {points(name, low)} to {points(name, high)}"


def _warnings(run: RunFolder, trouble: str) -> Iterator[Block]:
    facts = run.facts
    for text in facts.get("warnings") or ():
        yield Paragraph(str(text), loud=True)
    if skipped := facts.get("skipped_steps"):
        yield Paragraph(
            f"{skipped} of {facts.get('steps', '?')} steps were left out: loss or gradient not finite.", loud=True
        )
    for split, bad in run.unreadable.items():
        few = "; ".join(list(bad.values())[:3])
        yield Paragraph(f"{len(bad)} records of {split} could not be read and are left out: {few}", loud=True)
    if trouble:
        yield Paragraph(trouble, loud=True)


def _truth(run: RunFolder) -> Iterator[Block]:
    if truth := run.scores.get("truth"):
        rows = [(TRUTHS.get(name, name), f"{100 * value:.1f} %") for name, value in truth.items()]
        yield Table(("what is known of drawn scenes", "share"), rows, (1,))


def _by_length(run: RunFolder) -> Iterator[Block]:
    if rows := run.scores.get("by_length"):
        yield Heading("By length of the source")
        made = [
            (f"{r['low']} to {r['high']}", str(r["count"]), f"{100 * r['exact']:.1f}", f"{100 * r['bleu']:.1f}")
            for r in rows
        ]
        yield Table(("words", "sentences", "without a mistake, %", "BLEU-4"), made, (1, 2, 3))


def _classes(run: RunFolder) -> Iterator[Block]:
    if run.kind != "classify":
        return
    yield Heading("Classes")
    tally: dict[str, list[int]] = {}
    for one in run.each.values():
        tally.setdefault(one["class"], []).append(one["class"] == one["predicted"])
    worst = sorted(tally, key=lambda name: sum(tally[name]) / len(tally[name]))[:10]
    rows = [(name, f"{100 * sum(tally[name]) / len(tally[name]):.1f}", str(len(tally[name]))) for name in worst]
    yield Table(
        (f"class ({len(rows)} worst of {len(tally)})" if len(tally) > 10 else "class", "accuracy, %", "pictures"),
        rows,
        (1, 2),
    )
    yield from _picture(run, "confusion", "confusion matrix: rows are true classes, columns predicted ones")


def _grounding(run: RunFolder) -> Iterator[Block]:
    if not run.grounding:
        return
    yield Heading("Do words look at what they name?")
    verdict, words = run.grounding.get("verdict", {}), run.grounding.get("words", {}).get("nouns", {})
    told = str(verdict.get("text", ""))
    yield Paragraph(f"{told[:1].upper()}{told[1:]}.", loud=not verdict.get("ok", True))
    rows = []
    for name, row in words.items():
        rows.append(
            (name, _figure(row.get("lift"), 1), _figure(row.get("correctness"), 100), _figure(row.get("pointing"), 100))
        )
    if rows:
        yield Table(("map of nouns", "lift", "share on the object, %", "peak on the object, %"), rows, (1, 2, 3))
        about = run.grounding.get("facts", {})
        yield Paragraph(
            f"{about.get('pictures', '?')} pictures. Lift is the share of the map on the object by the object's share "
            "of the picture; in brackets 95 % intervals by drawing pictures again."
        )
    yield from _picture(run, "grounding", "lift on nouns, by method, layer and head")


def _figure(figure: Any, times: float) -> str:
    if not isinstance(figure, dict) or figure.get("value") is None:
        return "-"
    digits = 2 if times == 1 else 1
    told = f"{times * figure['value']:.{digits}f}"
    if figure.get("low") is not None:
        told += f" ({times * figure['low']:.{digits}f} to {times * figure['high']:.{digits}f})"
    return told


def _picture(run: RunFolder, name: str, alt: str) -> Iterator[Block]:
    file = run.path / f"{name}.png"
    if file.exists():
        try:
            with Image.open(file) as opened:
                image = opened.convert("RGB")
        except (OSError, ValueError, SyntaxError) as error:
            yield Paragraph(f"{file.name} cannot be read ({' '.join(str(error).split())})", loud=True)
            return
        image.thumbnail((1000, 1000))
        yield Picture(name, image, alt)


def _about(run: RunFolder) -> Iterator[Block]:
    rows = []
    for name, told in FACTS.items():
        value = run.facts.get(name)
        if value is None or value == {}:
            continue
        if name == "most_frequent_caption":
            text = f"{value['caption']} ({100 * value['share']:.1f} %)"
        elif name == "caption_length":
            text = f"{value['mean']:.1f} ({value['min']} to {value['max']})"
        elif name == "most_confused":
            text = "; ".join(f"{pair}: {count}" for pair, count in value.items())
        elif name == "CIDEr-D_of_other_images":
            text = f"{100 * value:.1f}"
        else:
            text = f"{100 * value:.1f} %" if name in SHARES else f"{value:,}" if isinstance(value, int) else str(value)
        rows.append((told, text))
    if rows:
        yield Heading("The answers as a whole")
        yield Table((), rows)
