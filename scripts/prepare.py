"""Prepare data on disk. `python scripts/prepare.py shapes --out DIR` writes the synthetic scenes in COCO's format."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from rich.progress import track

from vitcap.data.shapes import SPLITS, ShapesSource, export_coco


def shapes(options: argparse.Namespace) -> None:
    sizes = {f"{s}_size": n for s in SPLITS if (n := getattr(options, f"{s}_size")) is not None}
    source = ShapesSource(seed=options.seed, image_size=options.image_size, **sizes)
    for split in options.split or SPLITS:
        export_coco(source, options.out, split, suffix=f".{options.format}", progress=lambda r, s=split: track(r, s))
        print(f"{split}: {source.sizes[split]} pictures in {options.out / split}, with their annotations beside it")


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    command = commands.add_parser("shapes", help="write the synthetic scenes as a COCO data set")
    command.add_argument("--out", type=Path, required=True, help="folder to write to; made if it is not there")
    command.add_argument("--split", choices=SPLITS, action="append", help="may be repeated (default: all)")
    command.add_argument("--seed", type=int, default=0)
    command.add_argument("--image-size", type=int, default=64, help="side in pixels (default: 64)")
    command.add_argument("--format", choices=("png", "jpg"), default="png", help="png keeps every pixel (default)")
    for split in SPLITS:
        command.add_argument(f"--{split}-size", type=int, help=f"number of {split} pictures")
    command.set_defaults(run=shapes)
    options = parser.parse_args(arguments)
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
