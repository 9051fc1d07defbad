"""`vitcap classify`: the likeliest classes of photos, printed or written as JSON lines."""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vitcap.cli.caption import dump
from vitcap.cli.options import UsageError, add_model, load, number
from vitcap.cli.pictures import picture_paths, progress, results_of


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap classify`."""
    add_model(parser, captions=False)
    top = "classes of each picture, the likeliest first (default: 5)"
    parser.add_argument("--top", type=number(int, 1), default=5, metavar="K", help=top)
    parser.add_argument("--out", metavar="FILE", help="write JSON lines to a new file")
    parser.add_argument("--batch-size", type=number(int, 1), default=16, metavar="N", help="pictures at a time")


def run(arguments: argparse.Namespace) -> int:
    """Name the classes of photos, or of all photos in folders.

    Prints a line "path<TAB>class probability, class probability, ..." for each picture, or writes a JSON line for each
    as soon as it is done.
    """
    quiet, out = arguments.quiet, None if arguments.out is None else Path(arguments.out)
    if out is not None and out.exists():
        raise UsageError(f"{out} is there already: name another --out, or remove it")
    paths = picture_paths(arguments.photos, lambda text: None if quiet else print(f"vitcap: {text}", file=sys.stderr))
    classifier = load(arguments, "classify")
    if out is not None:
        out.parent.mkdir(parents=True, exist_ok=True)
    failed = 0
    with (
        nullcontext() if out is None else open(out, "x", encoding="utf-8", newline="\n") as file,
        progress(len(paths), quiet, out is None) as advance,
    ):
        for path, _, found in results_of(classifier.classify, paths, arguments.batch_size, top=arguments.top):
            if isinstance(found, Exception):
                failed += 1
                print(f"vitcap: skipped {found}", file=sys.stderr)
            if out is not None:
                print(dump(record(path, found)), file=file, flush=True)
            elif not isinstance(found, Exception):
                classes = ", ".join(f"{one.name} {one.probability:.4f}" for one in found)
                print(f"{path}\t{classes}", flush=True)
            advance()
    if failed:
        print(f"vitcap: {failed} of {len(paths)} pictures could not be read", file=sys.stderr)
    return 1 if failed else 0


def record(path: str, found: Any) -> dict[str, Any]:
    """What the JSON line of one picture holds: its classes, best first, or the error that reading it gave."""
    if isinstance(found, Exception):
        return {"image": path, "error": str(found)}
    return {"image": path, "classes": [vars(one) | {"probability": round(one.probability, 6)} for one in found]}
