"""`vitcap report`: one page about a finished run, made again from its files."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vitcap.cli.options import UsageError, number


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap report`."""
    parser.add_argument("folder", metavar="RUN", help="folder of a run of scripts/train.py, or of scripts/evaluate.py")
    parser.add_argument(
        "--examples", type=number(int, 0, 100), default=6, metavar="N", help="best and worst examples each (default: 6)"
    )
    parser.add_argument("--data-root", metavar="FOLDER", help="the data, if training found them elsewhere")
    parser.add_argument("--no-pictures", action="store_true", help="texts alone, without model and data")
    parser.add_argument("--device", metavar="NAME", help="cpu, cuda, cuda:1; chosen by itself if left out")


def run(arguments: argparse.Namespace) -> int:
    """Write the report of a run into its folder: report.html, and report.md with pictures.

    Model or data that cannot be opened are told on stderr and in the report, which then has no photos.
    """
    folder = Path(arguments.folder)
    if not folder.is_dir():
        raise UsageError(f"{folder}: no such folder; name that of a finished run")
    from vitcap.report.folder import read_run
    from vitcap.report.make import write_report

    door = data = None
    trouble = ""
    if not arguments.no_pictures and arguments.examples:
        from vitcap.build import data_of_run
        from vitcap.cli.options import load

        arguments.model = arguments.folder
        split = str(read_run(folder).facts.get("split"))
        try:
            data = data_of_run(folder, root=arguments.data_root)
            data.records(split)
            door = load(arguments, "caption", "translate", "classify")
        except (ValueError, OSError) as error:
            if isinstance(error, UsageError):
                raise
            data = None
            trouble = f"Without photos and references: {' '.join(str(error).split())}"
            print(f"vitcap: {trouble}; --data-root names another folder of the data", file=sys.stderr)
    print(write_report(folder, door=door, data=data, count=arguments.examples, trouble=trouble))
    return 0
