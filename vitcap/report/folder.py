"""What the folder of a run holds, as far as a report reads it."""

from __future__ import annotations

import csv
import io
import json
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitcap.metrics.bleu import bleu
from vitcap.report.environment import read_environment

CLASSES = ("id", "class", "predicted", "probability")
SENTENCES = ("id", "source", "output", "target")
"""Columns of predictions.csv and translations.tsv."""


@dataclass(frozen=True)
class RunFolder:
    """scores: of scores.json. each: id -> its caption and scores, or its prediction, or its translation with exact,
    BLEU-1 and BLEU-4; in the order of the split. curves: column of metrics.csv -> (step, value) pairs. config: text of
    config.yaml. environment: of environment.json. unreadable: split -> id -> why. grounding: of grounding.json.
    """

    path: Path
    kind: str
    scores: dict[str, Any]
    each: dict[str, dict[str, Any]]
    curves: dict[str, list[tuple[float, float]]]
    config: str
    environment: dict[str, Any]
    unreadable: dict[str, dict[str, str]]
    grounding: dict[str, Any]

    @property
    def facts(self) -> dict[str, Any]:
        """How the scores were obtained."""
        return self.scores["facts"]


def read_run(path: str | Path) -> RunFolder:
    """Read a run, or what scripts/evaluate.py wrote. Raises FileNotFoundError or ValueError that names the file."""
    path = Path(path)
    scores = _json(path / "scores.json")
    if not scores:
        raise FileNotFoundError(f"{path / 'scores.json'}: no such file; name the folder of a finished run")
    if not isinstance(scores.get("scores"), dict) or not isinstance(scores.get("facts"), dict):
        raise ValueError(f"{path / 'scores.json'}: no scores and facts in it; score the run again with evaluate.py")
    if (path / "predictions.csv").exists():
        kind, each = "classify", _table(path / "predictions.csv", CLASSES)
    elif (path / "translations.tsv").exists():
        kind, each = "translate", _scored(_table(path / "translations.tsv", SENTENCES))
    else:
        kind, each = "caption", _captions(path / "per_image.json")
    config = path / "config.yaml"
    return RunFolder(
        path=path,
        kind=kind,
        scores=scores,
        each=each,
        curves=_curves(path / "metrics.csv"),
        config=config.read_text(encoding="utf-8", errors="replace") if config.exists() else "",
        environment=read_environment(path),
        unreadable=_json(path / "unreadable.json"),
        grounding=_json(path / "grounding.json"),
    )


def _json(file: Path) -> dict[str, Any]:
    if not file.exists():
        return {}
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file}: damaged ({error}); score the run again with scripts/evaluate.py") from None
    if not isinstance(found, dict):
        raise ValueError(f"{file}: {type(found).__name__}, where an object is wanted")
    return found


def _captions(file: Path) -> dict[str, dict[str, Any]]:
    """Of what evaluation wrote of each picture."""
    each = _json(file).get("images", {})
    if not isinstance(each, dict):
        raise ValueError(f"{file}: images is no object; score the run again with scripts/evaluate.py")
    for id_, one in each.items():
        if not isinstance(one, dict) or not isinstance(one.get("caption"), str):
            raise ValueError(f"{file}: {id_} has no caption; score the run again with scripts/evaluate.py")
    return each


def _table(file: Path, columns: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    """Rows by their id, the first of `columns`. Of a file with tabs every line is a row, and quotes are letters."""
    text = file.read_text(encoding="utf-8", errors="replace")
    if file.suffix == ".tsv":
        cells = [line.split("\t") for line in text.split("\n") if line]
    else:
        cells = list(csv.reader(io.StringIO(text, newline="")))
    head = cells[0] if cells else []
    if not set(columns) <= set(head):
        raise ValueError(f"{file}: no columns {', '.join(columns)}; score the run again with scripts/evaluate.py")
    rows = [dict(zip(head, row, strict=True)) for row in cells[1:] if len(row) == len(head)]
    return {row[columns[0]]: row for row in rows}


def _scored(each: dict[str, dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Translations with the scores of each."""
    words = [one["output"].split() for one in each.values()]
    wanted = [one["target"].split() for one in each.values()]
    figures = bleu([" ".join(w) for w in words], [[" ".join(w)] for w in wanted])[1] if each else ()
    scores = zip(words, wanted, *figures, strict=True) if each else ()
    return {
        id_: one | {"exact": w == t, "BLEU-1": float(scored[0]), "BLEU-4": float(scored[3])}
        for (id_, one), (w, t, *scored) in zip(each.items(), scores, strict=True)
    }


def _curves(file: Path) -> dict[str, list[tuple[float, float]]]:
    """A row that is no row, as a killed run may leave one at the end, is left out."""
    curves: dict[str, list[tuple[float, float]]] = {}
    if file.exists():
        with open(file, encoding="utf-8", errors="replace", newline="") as opened, suppress(csv.Error):
            for row in csv.DictReader(opened):
                for name, value in row.items():
                    if name in ("step", "epoch", None) or not value:
                        continue
                    try:
                        curves.setdefault(name, []).append((float(row["step"]) + 1, float(value)))
                    except (KeyError, TypeError, ValueError):
                        continue
    return {name: points for name, points in curves.items() if points}
