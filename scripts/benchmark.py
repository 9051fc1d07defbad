"""Measure: python scripts/benchmark.py [GROUP ...] [--quick] [--device cuda]; a table, a JSON and a figure per group.

Candidates of one comparison take turns in one process, after a check that those that must agree do; peak memory is
that of a fresh process (bench/memory.py). Times depend on the machine and on what else runs; read the ratios.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

GROUPS = {
    "attention": "attention by its formula and by the fused kernel: time and peak memory against the length",
    "layers": "recurrent, convolution and self-attention layers (Vaswani et al. 2017, table 1)",
    "metrics": "caption metrics and tokenisation, against pycocoevalcap",
}
"""Name -> what it measures. A group is the module bench/NAME.py with `PACKAGES` (whose versions its results depend on),
`METHOD` (one sentence: what one call is), `measure(options)`, which yields the measurements and statements of
bench/frame.py, and, if it has a figure, `draw(rows, path)`."""


def run_group(name: str, options: Any, out: Path, *, command: str = "", **sizes: Any) -> dict[str, Any]:
    """Run one group, print its table, write OUT/NAME.json and OUT/NAME.png; returns what the JSON holds.

    options: bench.frame.Options. sizes: passed to the group's `measure`, to leave its own sizes.
    """
    from bench import report

    group = import_module(f"bench.{name}")
    result = report.collect(_told(name, group.measure(options, **sizes)), group, options, command)
    print(report.table(result), flush=True)
    report.write(result, out / f"{name}.json")
    print(f"\nwritten: {out / name}.json", flush=True)
    if hasattr(group, "draw"):
        try:
            group.draw(result["rows"], out / f"{name}.png")
            print(f"written: {out / name}.png", flush=True)
        except ModuleNotFoundError as missing:
            print(f"no figure: {missing.name} is not installed (pip install -e '.[bench]')", file=sys.stderr)
    return result


def _told(name: str, results: Iterator[Any]) -> Iterator[Any]:
    """The same results; each is named on stderr as it comes, because a group takes minutes."""
    for result in results:
        print(f"{name}: {result}", file=sys.stderr, flush=True)
        yield result


def parse(arguments: list[str] | None) -> argparse.Namespace:
    listed = "\n".join(f"  {name:<11}{text}" for name, text in GROUPS.items())
    parser = argparse.ArgumentParser(
        "benchmark.py",
        description=f"{__doc__}\ngroups (default: all):\n{listed}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    types = ("float32", "bfloat16")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="what to measure")
    parser.add_argument("--quick", action="store_true", help="small sizes, few rounds: under a minute a group")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu", help="where to measure (default: cpu)")
    parser.add_argument("--dtype", choices=types, default=types[0], help="of tensors (default: float32)")
    parser.add_argument("--threads", type=int, help="threads of torch (default: its own choice)")
    out = "folder of the JSON files and figures (default: runs/benchmark)"
    parser.add_argument("--out", type=Path, default=Path("runs/benchmark"), help=out)
    return parser.parse_args(arguments)


def main(arguments: list[str] | None = None) -> int:
    chosen = parse(arguments)
    try:
        if unknown := [name for name in chosen.groups if name not in GROUPS]:
            raise ValueError(f"no group {', '.join(map(repr, unknown))}: the groups are {', '.join(GROUPS)}")
        from bench.frame import Options

        options = Options.of(
            device=chosen.device, dtype=chosen.dtype, threads=chosen.threads, quick=chosen.quick, tune=True
        )
        command = shlex.join(["python", "scripts/benchmark.py", *(sys.argv[1:] if arguments is None else arguments)])
        chosen.out.mkdir(parents=True, exist_ok=True)  # now, and not after minutes, if it cannot be made
        for name in dict.fromkeys(chosen.groups or GROUPS):
            run_group(name, options, chosen.out, command=command)
    except (ValueError, OSError) as error:
        print(f"benchmark.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
