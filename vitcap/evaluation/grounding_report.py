"""Figures of grounding out of what was gathered, with intervals, as plain JSON types."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitcap.checkpoint import plain_view
from vitcap.evaluation.grounding_tally import BASIC, FULL, Tally
from vitcap.evaluation.grounding_work import OTHER, RANDOM
from vitcap.evaluation.objects import Mentioned
from vitcap.metrics.bootstrap import class_ratio, interval, ratio, resamples
from vitcap.metrics.grounding import hallucination, hallucination_parts
from vitcap.metrics.grounding_f1 import GroundedF1, Sentence
from vitcap.metrics.regions import Floats
from vitcap.record import View

GROUPS = ("nouns", "any object", "attributes", "function words")
ENOUGH = 10
"""A category has intervals where at least so many pictures name it: what fewer vary by says little."""
_OF_CATEGORIES = ("correctness", "area", "mean_lift", "pointing", "above_area", "iou", "box_hit")
_AREA, _POINTING = FULL.index("area"), FULL.index("pointing")
_IOU, _BOX = FULL.index("iou"), FULL.index("box_hit")


def make_report(
    tally: Tally,
    captions: Sequence[Mentioned],
    *,
    views: Mapping[str, View],
    shown: str,
    seed: int,
    facts: dict[str, Any],
) -> dict[str, Any]:
    """The content of grounding.json: for every group of words and every row of maps each figure with its 95 % interval,
    and lift by layer and head; likewise F1, box accuracy and hallucination of the nouns; categories, under the shown
    view and its controls; the verdict on the shown view."""
    samples = resamples(len(captions), seed=seed)
    groups = {
        group: {row: _figures(tally, group, row, samples) for of, row in tally.words if of == group} for group in GROUPS
    }
    rows = [row for of, row in tally.words if of == "nouns"]
    methods = tuple(dict.fromkeys(view.method for view in views.values()))
    layers_heads = {
        method: {group: _by_view(tally.views[group, method]) for group in GROUPS if (group, method) in tally.views}
        for method in methods
        if ("nouns", method) in tally.views
    }
    about_f1 = {row: _f1(tally, row, captions, samples) for row in rows}
    return {
        "verdict": _verdict(tally, shown, samples),
        "shown": {"row": shown, **plain_view(views[shown])},
        "words": groups,
        "best": _best(groups, layers_heads, views),
        "layers_heads": layers_heads,
        "f1": about_f1,
        "box_accuracy": {row: _box_accuracy(tally, row, samples) for row in rows},
        "hallucination": {
            row: _hallucination([[s for _, s in one] for one in _states(tally, row, captions)], samples) for row in rows
        },
        "categories": _categories(tally, [row for row in (shown, *_controls(shown)) if row in rows], captions, samples),
        "facts": facts,
    }


def _figures(tally: Tally, group: str, row: str, samples: NDArray[np.int64]) -> dict[str, Any]:
    pictures, _, figures = tally.table(group, row)
    names = FULL if group == "nouns" else BASIC
    return {"words": len(pictures), **_means(pictures, figures, names, samples)}


def _means(
    pictures: NDArray[np.int64], figures: Floats, names: Sequence[str], samples: NDArray[np.int64]
) -> dict[str, Any]:
    """Each figure's mean over words, and `lift`, mean correctness / mean area, with intervals over pictures. pictures
    (W,), figures (W, F) as of `Tally.table`; names: which of FULL."""
    own, at = np.unique(pictures, return_inverse=True)
    samples = samples[:, own]
    sums, counts = np.zeros((len(own), figures.shape[1])), np.zeros((len(own), figures.shape[1]))
    np.add.at(sums, at, np.nan_to_num(figures))
    np.add.at(counts, at, ~np.isnan(figures))
    columns = {name: FULL.index(name) for name in names}
    result = {name: _with_interval(*ratio(sums[:, k], counts[:, k], samples)) for name, k in columns.items()}
    return result | {"lift": _with_interval(*ratio(sums[:, 0], sums[:, _AREA], samples))}


def _controls(shown: str) -> tuple[str, ...]:
    """The rows that the shown view stands beside."""
    return ("uniform", "centre", OTHER + shown, RANDOM + shown)


def _verdict(tally: Tally, shown: str, samples: NDArray[np.int64]) -> dict[str, Any]:
    """The gain in attention correctness on nouns of the shown view over each of its controls, word by word, pictures
    resampled; ok where that over random weights is above 0."""
    pictures, _, own = tally.table("nouns", shown)
    gains: dict[str, Any] = {}
    for control in _controls(shown):
        where, _, other = tally.table("nouns", control)
        if len(where):
            sums = np.zeros((samples.shape[1], 3))
            np.add.at(sums[:, 0], pictures, own[:, 0])
            np.add.at(sums[:, 1], where, other[:, 0])
            np.add.at(sums[:, 2], pictures, 1)
            gains[control] = _with_interval(*ratio(sums[:, 0] - sums[:, 1], sums[:, 2], samples))
    better = [control for control, gain in gains.items() if gain["low"] is not None and gain["low"] > 0]
    shares = [f"{100 * tally.table('nouns', row)[2][:, 0].mean():.1f} %" for row in (shown, RANDOM + shown)]
    told = f"{shares[0]} of it on the object, {shares[1]} with random weights"
    if RANDOM + shown in better:
        text = f"the trained map ({shown}) is better on nouns than that of random weights: {told}"
    else:
        text = f"the trained map ({shown}) is NO BETTER on nouns than that of random weights: {told}"
    return {"ok": RANDOM + shown in better, "shown": shown, "text": text, "gain_over": gains, "better_than": better}


def _by_view(sums: dict[str, Any]) -> dict[str, Any]:
    """lift and pointing (L + 1, H + 1), the last of each the map averaged over them."""
    return {
        "lift": (sums["correctness"] / sums["area"]).tolist(),
        "pointing": (sums["pointing"] / sums["words"]).tolist(),
    }


def _best(groups: dict[str, Any], layers_heads: dict[str, Any], views: Mapping[str, View]) -> list[dict[str, Any]]:
    """Methods, layers and heads by lift on nouns, best first, and their lift on function words; layer or head None: the
    mean of all."""
    nouns, functions = groups["nouns"], groups["function words"]
    found: list[dict[str, Any]] = []
    for row, method in ((row, view.method) for row, view in views.items() if view.method not in layers_heads):
        figures = {name: nouns[row][name]["value"] for name in ("lift", "pointing")}
        other = functions[row]["lift"]["value"] if row in functions else None
        found.append({"method": method, "layer": None, "head": None, **figures, "function_words_lift": other})
    for method, groups_of in layers_heads.items():
        lift, pointing = (np.array(groups_of["nouns"][name]) for name in ("lift", "pointing"))
        others = groups_of.get("function words", {}).get("lift")
        for layer, head in np.ndindex(lift.shape):
            place = [None if i == n - 1 else i for i, n in zip((layer, head), lift.shape, strict=True)]
            values: dict[str, Any] = {"lift": float(lift[layer, head]), "pointing": float(pointing[layer, head])}
            values["function_words_lift"] = others and others[layer][head]
            found.append({"method": method, "layer": place[0], "head": place[1], **values})
    return sorted(found, key=lambda one: -one["lift"])


def _by_caption(tally: Tally, row: str, captions: Sequence[Mentioned]) -> list[list[tuple[str, list[float] | None]]]:
    """Of each caption its mentions in order, with the noun's figures, or None where the model saw no such object."""
    waiting: dict[int, list[list[float]]] = defaultdict(list)
    for picture, _, figures in tally.words.get(("nouns", row), []):
        waiting[picture].append(figures)
    result = []
    for number, caption in enumerate(captions):
        own = iter(waiting[number])
        result.append([(name, next(own, None) if there else None) for name, there in caption.said])
    return result


def _f1(tally: Tally, row: str, captions: Sequence[Mentioned], samples: NDArray[np.int64]) -> dict[str, Any]:
    """coco: every visible category is wanted. named: as Zhou et al. 2019, those that people's captions name; to name
    others of theirs, which are not annotated, is no error."""
    said = [
        [(name, None if figures is None else figures[_IOU]) for name, figures in mentions]
        for mentions in _by_caption(tally, row, captions)
    ]
    variants = {
        "coco": [Sentence(s, sorted(c.visible)) for s, c in zip(said, captions, strict=True)],
        "named": [
            Sentence(s, sorted(c.visible & c.told), sorted(c.told - c.visible))
            for s, c in zip(said, captions, strict=True)
        ],
    }
    result: dict[str, Any] = {}
    for variant, sentences in variants.items():
        f1 = GroundedF1(sentences)
        drawn = [f1.scores(weights) for weights in samples[:200]]
        result[variant] = {"classes": len(f1.classes)} | {
            name: _with_interval(value, interval([one[name] for one in drawn])) for name, value in f1.scores().items()
        }
    return result


def _box_accuracy(tally: Tally, row: str, samples: NDArray[np.int64]) -> dict[str, Any]:
    """Localisation of given words (Zhou et al. 2019), the share whose box hits: by_class, the mean over categories of
    their means; by_word, of all words alike."""
    pictures, categories, figures = tally.table("nouns", row)
    names = sorted(set(categories))
    hits, counts = np.zeros((2, samples.shape[1], len(names)))
    where = pictures, np.array([names.index(name) for name in categories], dtype=np.int64)
    np.add.at(hits, where, figures[:, _BOX])
    np.add.at(counts, where, 1)
    return {
        "by_class": _with_interval(*class_ratio(hits, counts, samples)),
        "by_word": _with_interval(*ratio(hits.sum(1), counts.sum(1), samples)),
    }


def _states(tally: Tally, row: str, captions: Sequence[Mentioned]) -> list[list[tuple[str, str | float]]]:
    """(category, state) of every mention, as `hallucination` reads them; grounded: the peak of the map is on the
    object."""
    result = []
    for caption, mentions in zip(captions, _by_caption(tally, row, captions), strict=True):
        known = caption.annotated | caption.told
        result.append(
            [
                (name, ("told" if name in known else "absent") if figures is None else figures[_POINTING])
                for name, figures in mentions
            ]
        )
    return result


def _hallucination(states: Sequence[Sequence[str | float]], samples: NDArray[np.int64]) -> dict[str, Any]:
    parts = hallucination_parts(states).items()
    shares = {name: _with_interval(*ratio(top, bottom, samples)) for name, (top, bottom) in parts}
    return hallucination(states) | shares


def _categories(
    tally: Tally, rows: Sequence[str], captions: Sequence[Mentioned], samples: NDArray[np.int64]
) -> dict[str, Any]:
    """Of each category, the most named first: how often it is mentioned, and under `maps` the figures of each row."""
    tables = {row: tally.table("nouns", row) for row in rows}
    states = {row: _states(tally, row, captions) for row in rows}
    said = [[name for name, _ in caption.said] for caption in captions]
    mentions = Counter(name for names in said for name in names)
    result = {}
    for name in sorted(mentions, key=lambda name: (-mentions[name], name)):
        where = [number for number, names in enumerate(said) if name in names]
        drawn = _enough(samples, len(where))[:, where]
        told, maps, found = {}, {}, []
        for row, (pictures, categories, figures) in tables.items():
            told = _hallucination([[s for n, s in states[row][number] if n == name] for number in where], drawn)
            chosen = np.array(categories) == name
            found = pictures[chosen].tolist()
            if found:
                means = _means(pictures[chosen], figures[chosen], _OF_CATEGORIES, _enough(samples, len(set(found))))
                maps[row] = means | {key: told[key] for key in ("grounded", "ungrounded", "present_and_grounded")}
        # What is not about maps is the same in every row.
        of_all = {key: told[key] for key in ("mentions", "absent", "told", "CHAIR_i")}
        result[name] = {"words": len(found), "pictures": len(set(found)), **of_all, "maps": maps}
    return result


def _enough(samples: NDArray[np.int64], pictures: int) -> NDArray[np.int64]:
    """The samples, or none of them where too few pictures are to be drawn."""
    return samples if pictures >= ENOUGH else samples[:0]


def _with_interval(value: float, limits: tuple[float, float] | None) -> dict[str, float | None]:
    low, high = limits if limits is not None else (None, None)
    return {"value": value if math.isfinite(value) else None, "low": low, "high": high}
