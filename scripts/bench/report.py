"""What a group measured, as a plain dictionary, as JSON and as a table of text."""

from __future__ import annotations

import json
import platform
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

import vitcap
from bench import memory
from bench.frame import Measurement, Options, Statement
from vitcap.files import whole


def collect(
    results: Iterable[Measurement | Statement], group: ModuleType, options: Options, command: str
) -> dict[str, Any]:
    """Plain JSON types: conditions of the run, one entry of "rows" for each measurement, the statements."""
    rows, statements = [], []
    for result in results:
        if isinstance(result, Statement):
            statements.append(vars(result))
        else:
            rows.append(_row(result))
    return {
        "group": group.__name__.rpartition(".")[2],
        "title": (group.__doc__ or "").splitlines()[0],
        "command": command,
        "method": {"one call": group.METHOD, "peak_bytes": memory.method(options.device)},
        "device": options.device,
        "device_name": torch.cuda.get_device_name() if options.device == "cuda" else _processor(),
        "threads": options.threads,
        "dtype": options.dtype,
        "quick": options.quick,
        "versions": {name: _version(name) for name in ("python", "torch", "numpy", *group.PACKAGES)},
        "rows": rows,
        "statements": statements,
    }


def _row(result: Measurement) -> dict[str, Any]:
    return {
        "case": result.case,
        "candidate": result.candidate,
        "peer": result.peer,
        "median_s": result.median,
        "quartiles_s": list(result.quartiles),
        "rounds": len(result.seconds),
        "ratio_to_best_peer": result.ratio,
        "best_peer": result.best_peer,
        "peak_bytes": result.peak_bytes,
        "difference": result.difference,
        "other_cores": result.other_cores,
    }


def _version(name: str) -> str | None:
    if name == "python":
        return platform.python_version()
    if name == "vitcap":  # also where it is on the path and not installed
        return vitcap.__version__
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]}, {len(names)} logical cores" if names else platform.processor() or platform.machine()


def write(result: dict[str, Any], path: Path) -> None:
    with whole(path) as part:
        part.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def table(result: dict[str, Any]) -> str:
    """The conditions in two lines, a column for every part of the case and every figure, the statements."""
    have = ", ".join(f"{name} {v or 'not installed'}" for name, v in result["versions"].items())
    threads = "1 thread" if result["threads"] == 1 else f"{result['threads']} threads"
    lines = [
        "",
        f"{result['group']}: {result['title']}",
        f"{result['device_name']}, {threads}, {result['dtype']}; {have}",
    ]
    rows = result["rows"]
    case = list(dict.fromkeys(key for row in rows for key in row["case"]))
    head = [*case, "candidate", "median ms", "quartiles ms", "peak MiB", "x best peer", "difference", "other cores"]
    cells = [head] + [[_text(row["case"].get(key)) for key in case] + _figures(row) for row in rows]
    shown = [i for i in range(len(head)) if any(line[i] not in ("", "-") for line in cells[1:])]
    widths = {i: max(len(line[i]) for line in cells) for i in shown}
    name = len(case)
    for line in cells:
        lines.append("  ".join(line[i].ljust(widths[i]) if i == name else line[i].rjust(widths[i]) for i in shown))
    return "\n".join([*lines, *(f"* {Statement(**statement)}" for statement in result["statements"])])


def _figures(row: dict[str, Any]) -> list[str]:
    low, high = row["quartiles_s"]
    space, ratio = row["peak_bytes"], row["ratio_to_best_peer"]
    return [
        row["candidate"],
        _number(1e3 * row["median_s"]),
        f"{_number(1e3 * low)}-{_number(1e3 * high)}",
        "-" if space is None else _number(space / 2**20),
        "-" if ratio is None else f"{ratio:.2f}",
        "-" if row["difference"] is None else f"{row['difference']:.1e}",
        "-" if row["other_cores"] is None else f"{row['other_cores']:.1f}",
    ]


def _number(value: float) -> str:
    """Three digits, without an exponent."""
    return f"{value:,.0f}" if value >= 99.95 else f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def _text(value: Any) -> str:
    return "-" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
