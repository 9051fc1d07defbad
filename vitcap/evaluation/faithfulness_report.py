"""Methods ranked by how faithful their maps are, against controls, with intervals; as JSON and for people."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitcap.evaluation.report import headline
from vitcap.metrics.bootstrap import mean_interval

FIGURES = {
    "road": "(LeRF - MoRF) / 2, ROAD imputation, mean over the steps; high is good",
    "morf": "f with the most relevant patches removed first, ROAD imputation, mean over the steps; low is good",
    "lerf": "f with the least relevant patches removed first, likewise; high is good",
    "deletion": "area under f while the patches are removed, on the substrate; low is good",
    "insertion": "area under f while the patches are put back, on the substrate; high is good",
    "comprehensiveness": "f of the picture - f without the top quarter of the patches, on the substrate; high is good",
    "sufficiency": "f of the picture - f of the top quarter alone, on the substrate; low is good",
}
FEW = 20
"""Images below which bootstrap intervals are too narrow to mean much."""

RANDOM, CENTRE, OCCLUSION = "random order", "centre", "occlusion"
CONTROLS = {
    RANDOM: "two random orders of each picture and their reverses, so that road is 0; a uniform map has no other",
    CENTRE: "a Gaussian in the middle, the same for all words",
    OCCLUSION: "patches by how much f falls when each is removed alone: it knows the score that it is judged by",
}
UNTRAINED, OTHER = "random weights", "another picture"
SUFFIXES = {
    UNTRAINED: "the map of the same architecture with weights drawn anew, for the same words",
    OTHER: "the model's map of the same words over another picture of the split",
}


def summarise(
    each: Mapping[str, Mapping[str, Mapping[str, float]]],
    looks: Sequence[Mapping[str, Mapping[str, float]]],
    views: Collection[str],
    shown: str,
    *,
    seed: int,
) -> dict[str, Any]:
    """Means, intervals, the ranking by "road" and the verdict.

    each: picture -> row -> figure -> value. looks: sharpness and agreement of each picture's maps.
    """
    images = list(each.values())

    def of(row: str, figure: str = "road") -> NDArray[np.float64]:
        return np.array([image[row][figure] for image in images])

    def estimate(values: NDArray[np.float64]) -> dict[str, float]:
        low, high = mean_interval(values, seed=seed)
        return {"mean": float(values.mean()), "low": low, "high": high}

    rows: dict[str, Any] = {}
    for name in sorted(images[0], key=lambda row: -of(row).mean()):
        rows[name] = {"figures": {figure: estimate(of(name, figure)) for figure in FIGURES}}
        if name in views:
            baselines = {RANDOM: RANDOM, CENTRE: CENTRE} | {control: f"{name}, {control}" for control in SUFFIXES}
            rows[name]["above"] = {control: estimate(of(name) - of(row)) for control, row in baselines.items()}
            rows[name]["looks"] = {key: mean([look[name][key] for look in looks]) for key in looks[0][name]}
    better = {
        control: [name for name in rows if name in views and rows[name]["above"][control]["low"] > 0]
        for control in (RANDOM, CENTRE, *SUFFIXES)
    }
    worse = [control for control in (RANDOM, UNTRAINED) if shown not in better[control]]
    told = f"not better than {' and '.join(worse)}" if worse else f"better than {RANDOM} and {UNTRAINED}"
    return {
        "verdict": {
            "ok": not worse,
            "text": f"the map that is shown by default ({shown}) is {told}",
            "shown": shown,
            "best": next(name for name in rows if name in views),
            "better_than": better,
        },
        "ranking": rows,
    }


def table(report: Mapping[str, Any]) -> str:
    """The report for people, best row first."""
    facts, rows, verdict = report["facts"], report["ranking"], report["verdict"]
    lines = [
        headline(facts, f"{facts['images']} of {facts['images_of_split']} images") + "; faithfulness of maps",
        f"f: {facts['f']}",
        f"f of the picture {facts['f_of_the_picture']:.3f}, of the substrate alone "
        f"{facts['f_of_the_substrate_alone']:.3f}; {facts['patches']} patches, {facts['steps']} steps",
        "",
    ]
    width = max(map(len, rows))
    lines.append(
        " " * width + "     road  [95 % interval]  " + "".join(f"{name[:10]:>11}" for name in list(FIGURES)[1:])
    )
    for name, row in rows.items():
        road = row["figures"]["road"]
        others = "".join(f"{row['figures'][figure]['mean']:11.3f}" for figure in list(FIGURES)[1:])
        lines.append(f"{name:{width}}  {road['mean']:7.3f}  [{road['low']:6.3f}, {road['high']:6.3f}] {others}")
    lines += ["", *(f"{name}: {text}" for name, text in FIGURES.items())]
    lines += ["", *(f"{name}: {text}" for name, text in CONTROLS.items())]
    lines += [f"METHOD, {name}: {text}" for name, text in SUFFIXES.items()]
    lines += [
        "",
        "mean over maps: entropy, gini, top tenth and empty of 0..1, patches: as many, all alike, are as sharp;",
        "~ is the agreement with a control, Spearman's, near 0 where the map depends on weights and picture",
    ]
    heads = ("entropy", "patches", "gini", "top tenth", "~ random weights", "~ another picture", "empty")
    lines.append(" " * width + "".join(f"{head:>19}" for head in heads))
    for name in (name for name in rows if "looks" in rows[name]):
        looks = rows[name]["looks"]
        keys = ("entropy", "patches", "gini", "top_tenth", UNTRAINED, OTHER, "empty")
        cells = ("-" if looks[key] is None else f"{looks[key]:.3f}" for key in keys)
        lines.append(f"{name:{width}}" + "".join(f"{cell:>19}" for cell in cells))
    lines += [f"{name}: not available, {why}" for name, why in report["unavailable"].items()]
    if facts["images"] < FEW:
        lines += ["", f"only {facts['images']} images: intervals over fewer than {FEW} are not to be trusted"]
    return "\n".join([*lines, "", *_verdict(verdict)])


def _verdict(verdict: Mapping[str, Any]) -> list[str]:
    better = verdict["better_than"]
    lines = ["better than a control, where the 95 % interval of the paired difference in road is above 0:"]
    lines += [f"  than {control}: {', '.join(names) or 'none'}" for control, names in better.items()]
    if not better[RANDOM]:
        lines.append("NO METHOD IS BETTER THAN RANDOM ORDER on these pictures: no map shows what the model uses.")
    if not better[UNTRAINED]:
        lines.append("NO METHOD IS BETTER THAN WITH RANDOM WEIGHTS: the maps show nothing of what was trained.")
    return [*lines, verdict["text"] if verdict["ok"] else f"FAILED: {verdict['text']}"]


def mean(values: Sequence[float]) -> float | None:
    """Mean of the numbers among the values, None if there are none."""
    numbers = [v for v in values if not math.isnan(v)]
    return float(np.mean(numbers)) if numbers else None
