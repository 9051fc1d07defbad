"""Runs side by side: their scores, how far seeds spread, and whether one is better on the same records."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from pathlib import Path

from vitcap.metrics.bootstrap import mean_interval
from vitcap.report.contents import MOST, PLAIN, points
from vitcap.report.folder import RunFolder, read_run

PAIRED = ("CIDEr-D", "top-1")
"""Scores that are the mean of those of single records, the first that there is."""


def score_table(folders: Sequence[str | Path], *, seed: int = 0) -> str:
    """Scores of runs of one kind on the same records, as text: a line for each run, their mean and standard deviation,
    and by how much each other run is better than the first, with a 95 % interval by drawing records again, in pairs.

    Raises ValueError, naming the runs, where they were scored on different records, or FileNotFoundError.
    """
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise ValueError("a run is named twice; name different runs")
    runs = [read_run(folder) for folder in folders]
    first = runs[0]
    for run in runs[1:]:
        if _scored_on(run) != _scored_on(first):
            raise ValueError(f"{first.path} and {run.path} were scored on different records, so they do not compare")
    titles = [name for name in first.scores["scores"] if all(name in run.scores["scores"] for run in runs)]
    rows = [(str(run.path), *(points(name, run.scores["scores"][name]) for name in titles)) for run in runs]
    known = {n: [v for run in runs if (v := run.scores["scores"][n]) is not None] for n in titles}
    if len(runs) > 1:
        full = {name: values for name, values in known.items() if len(values) == len(runs)}
        for told, of in (("mean", statistics.fmean), ("standard deviation", statistics.stdev)):
            rows.append((told, *(points(name, of(full[name])) if name in full else "-" for name in titles)))
    wide = [max(map(len, column)) for column in zip(("", *titles), *rows, strict=True)]
    lines = [f"{first.facts.get('data')}, split {first.facts.get('split')}, {len(first.each)} records; times 100"]
    lines[0] += f", but for {' and '.join(plain)}" if (plain := [name for name in titles if name in PLAIN]) else ""
    for row in (("", *titles), *rows):
        cells = [row[0].ljust(wide[0]), *(cell.rjust(width) for cell, width in zip(row[1:], wide[1:], strict=True))]
        lines.append("  ".join(cells).rstrip())
    return "\n".join([*lines, *_differences(runs, seed)])


def _scored_on(run: RunFolder) -> tuple[object, ...]:
    facts = run.facts
    return (run.kind, facts.get("data"), facts.get("split"), facts.get("references_sha256"), tuple(sorted(run.each)))


def _differences(runs: Sequence[RunFolder], seed: int) -> list[str]:
    name = next((n for n in PAIRED if all(run.scores["scores"].get(n) is not None for run in runs)), None)
    ids = sorted(runs[0].each)
    if name is None or len(runs) < 2 or not 10 <= len(ids) <= MOST:
        return []
    each = [[_figure(run, id_, name) for id_ in ids] for run in runs]
    lines = ["", f"{name} in comparison with {runs[0].path}, 95 % interval by drawing the same records again for both:"]
    for run, figures in zip(runs[1:], each[1:], strict=True):
        gains = [b - a for a, b in zip(each[0], figures, strict=True)]
        low, high = mean_interval(gains, seed=seed)
        told = f"{100 * statistics.fmean(gains):+.1f} ({100 * low:+.1f} to {100 * high:+.1f})"
        lines.append(f"  {run.path}: {told}")
    return lines


def _figure(run: RunFolder, id_: str, name: str) -> float:
    one = run.each[id_]
    return float(one["class"] == one["predicted"]) if name == "top-1" else float(one[name])
