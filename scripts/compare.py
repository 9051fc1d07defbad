"""Compare runs on the same records: python scripts/compare.py RUN RUN [...] [--out FILE.png]

Runs are the folders of scripts/train.py or scripts/evaluate.py. Of captioners and classifiers it prints the scores of
each, their mean and standard deviation, and how much better each other run is than the first, with an interval. Of
sequence-to-sequence models, exact matches and BLEU-4 of each range of source lengths, with the lead of the first run
over each other one, and it draws BLEU-4 against length.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

SCORES = (("exact", "exact"), ("bleu", "BLEU-4"))


def read(folder: str) -> dict[str, Any]:
    """scores.json of a run; ValueError if it is none of a sequence-to-sequence model."""
    file = Path(folder) / "scores.json"
    if not file.exists():
        raise ValueError(f"{file}: no such file; name the folder of a finished run")
    try:
        report = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{file}: damaged ({error}); score the run again with scripts/evaluate.py") from None
    if not isinstance(report, dict) or "by_length" not in report:
        raise ValueError(f"{file}: no scores by length; the run is not of a sequence-to-sequence model")
    if not isinstance(report.get("facts"), dict) or not report["by_length"]:
        raise ValueError(f"{file}: no facts or no lengths in it; score the run again with scripts/evaluate.py")
    return report


def sentences(folder: str) -> list[list[str]] | None:
    """(source, target) of each line of a run's translations.tsv; None without that file."""
    file = Path(folder) / "translations.tsv"
    if not file.exists():
        return None
    rows = [line.split("\t") for line in file.read_text(encoding="utf-8", errors="replace").split("\n") if line]
    return sorted([row[1], row[-1]] for row in rows if len(row) > 1)


def compare(folders: list[str]) -> tuple[str, dict[str, list[tuple[int, int, float, int]]]]:
    """The table as text, and for each run the rows (low, high, BLEU-4, sentences) of its curve.

    Raises ValueError where the runs were scored on different sentences.
    """
    if len({Path(folder).resolve() for folder in folders}) < len(folders):
        raise ValueError("a run is named twice; name different runs")
    reports = {
        Path(folder).name if len({Path(f).name for f in folders}) == len(folders) else folder: read(folder)
        for folder in folders
    }
    names = list(reports)
    about = {
        name: (r["facts"]["data"], r["facts"]["split"], [(b["low"], b["high"], b["count"]) for b in r["by_length"]])
        for name, r in reports.items()
    }
    texts = [sentences(folder) for folder in folders]
    for name, other in zip(names[1:], texts[1:], strict=True):
        if about[name] != about[names[0]] or (None not in (other, texts[0]) and other != texts[0]):
            raise ValueError(f"{names[0]} and {name} were scored on different sentences, so they do not compare")
    data, split, bins = about[names[0]]
    lines = [f"{data}, split {split}; the lead is that of {names[0]}, in points of 100"]
    for key, title in SCORES:
        lines.append("")
        head = [f"{title:<8} {'words':>7} {'sentences':>10}", *(f"{name:>14}" for name in names)]
        lines.append(" ".join([*head, *(f"lead over {name}" for name in names[1:])]))
        for row, (low, high, count) in enumerate(bins):
            values = [100 * reports[name]["by_length"][row][key] for name in names]
            cells = [f"{'':<8} {f'{low}-{high}':>7} {count:>10}", *(f"{value:>14.1f}" for value in values)]
            leads = [
                f"{values[0] - value:>{len(f'lead over {name}')}.1f}"
                for name, value in zip(names[1:], values[1:], strict=True)
            ]
            lines.append(" ".join(cells + leads))
    for name, report in reports.items():
        if report.get("alignment"):
            lines += ["", f"{name}: alignment error rate {100 * report['alignment']['AER']:.1f} %"]
    curves = {
        name: [(b["low"], b["high"], 100 * b["bleu"], b["count"]) for b in r["by_length"]]
        for name, r in reports.items()
    }
    return "\n".join(lines), curves


def _has_scores_alone(folder: str) -> bool:
    """Whether a run has scores, but none by length."""
    try:
        report = json.loads((Path(folder) / "scores.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False  # `read` says why
    return isinstance(report, dict) and "scores" in report and "by_length" not in report


def main(arguments: list[str] | None = None) -> int:
    """The command line; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+", metavar="RUN")
    parser.add_argument(
        "--out", metavar="FILE", help="the figure by length (default: compare.png in the folder of the first run)"
    )
    options = parser.parse_args(arguments)
    out = options.out or Path(options.runs[0]) / "compare.png"
    if _has_scores_alone(options.runs[0]):
        from vitcap.report.compare import score_table

        try:
            if options.out:
                raise ValueError(f"--out {options.out}: only runs that translate have a figure; leave it out")
            print(score_table(options.runs))
        except (ValueError, OSError) as error:
            print(f"compare: error: {error}", file=sys.stderr)
            return 2
        return 0
    from vitcap.files import whole
    from vitcap.viz.curves import length_curves

    try:
        text, curves = compare(options.runs)
        print(text)
        with whole(out) as part:
            length_curves(curves, ylabel="BLEU-4", title="Translation quality by sentence length").save(part, "PNG")
    except (ValueError, OSError) as error:
        print(f"compare: error: {error}", file=sys.stderr)
        return 2
    print(f"\nfigure: {out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
