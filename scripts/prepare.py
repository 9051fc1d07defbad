"""Prepare data on disk.

python scripts/prepare.py shapes --out DIR                            the drawn scenes in COCO's format
python scripts/prepare.py shards --data flickr FOLDER --out SHARDS    any data as tar shards, see docs/shards.md
"""

from __future__ import annotations

import argparse
import logging
import sys
from pathlib import Path
from typing import Any

from rich.progress import track

from vitcap.data.shapes import SPLITS, ShapesSource, export_coco


def shapes(options: argparse.Namespace) -> None:
    sizes = {f"{s}_size": n for s in SPLITS if (n := getattr(options, f"{s}_size")) is not None}
    source = ShapesSource(seed=options.seed, image_size=options.image_size, **sizes)
    for split in options.split or SPLITS:
        export_coco(source, options.out, split, suffix=f".{options.format}", progress=lambda r, s=split: track(r, s))
        print(f"{split}: {source.sizes[split]} pictures in {options.out / split}, with their annotations beside it")


def shards(options: argparse.Namespace) -> None:
    from vitcap.cli.check import split_options
    from vitcap.data.detect import FOLDER, SOURCES, detect, options_of
    from vitcap.data.images import find_images
    from vitcap.data.records import CaptionRecord
    from vitcap.data.shards_write import Plan, write_shards
    from vitcap.progress import bar

    logging.basicConfig(format="%(message)s", level=logging.INFO)
    given, rest = split_options(options.options)
    source: Any = None
    if rest or options.data == "pairs":
        raise ValueError(
            f"{next(iter(rest), '--data pairs')}: shards hold pictures; options of readers are source.KEY="
        )
    if options.data == "shapes":
        name, source = "shapes", ShapesSource(options.root, **given)
    elif options.root is None:
        raise ValueError("no data given: name its folder, or --data shapes")
    else:
        name, root, told = detect(Path(options.root).expanduser(), options.data)
        if unknown := sorted(set(given) - set(known := options_of(name))):
            raise ValueError(f"source.{unknown[0]}: {name} has no such option; it has {', '.join(known) or 'none'}")
        if name == FOLDER:
            if options.split:
                raise ValueError(f"--split {options.split[0]}: a folder of photos without captions has no splits")
            found = [CaptionRecord(p.relative_to(root).as_posix(), p, ()) for p in find_images(root)]
            splits = {"all": found}
        else:
            source = SOURCES[name](root, **(told | given))
    if source is not None:
        splits = {split: list(source.split(split)) for split in options.split or source.splits()}
    classes = getattr(source, "classes", None)
    pairs = None if classes is None else list(zip(classes, getattr(source, "class_names", classes), strict=True))
    for split, records in splits.items():
        plan = Plan(
            split,
            per_shard=options.per_shard,
            megabytes=options.shard_size,
            resize=options.resize,
            seed=options.seed if split == "train" else None,
            on_bad=options.on_bad,
        )
        label = f"{name} {split}"
        index = write_shards(
            records, options.out, plan, data=name, classes=pairs, workers=options.workers, progress=bar(label)
        )
        told_bad = f", {len(bad)} left out" if (bad := index.about.get("left_out")) else ""
        print(f"{split}: {index.samples} pictures in {len(index.shards)} shards in {options.out}{told_bad}")
        for id_, reason in list((bad or {}).items())[:10]:
            print(f"  {id_}: {reason}", file=sys.stderr)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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

    from vitcap.cli.check import FORMATS
    from vitcap.cli.options import number
    from vitcap.data.survey import cores

    command = commands.add_parser("shards", help="write the pictures and captions of any data as WebDataset tar shards")
    command.add_argument("root", nargs="?", metavar="FOLDER", help="the data, or one annotation file")
    command.add_argument("options", nargs="*", metavar="source.KEY=VALUE", help="options of the reader, as in training")
    kinds = [*(name for name in FORMATS if name != "pairs"), "shapes"]
    command.add_argument("--data", choices=kinds, help="its format; told by its files if left out")
    command.add_argument("--out", type=Path, required=True, help="folder to write to; made if it is not there")
    command.add_argument("--split", action="append", help="may be repeated (default: all that the data has)")
    size = command.add_mutually_exclusive_group()
    size.add_argument("--per-shard", type=number(int, 1), metavar="N", help="pictures of a shard (default: 1000)")
    size.add_argument("--shard-size", type=number(float, 0.001), metavar="MB", help="in place of it, about its size")
    resize = "make the shorter side of larger pictures N pixels, and all JPEG; left out, files stay as they are"
    command.add_argument("--resize", type=number(int, 1), metavar="N", help=resize)
    command.add_argument("--seed", type=int, default=0, help="of the order of train; other splits keep theirs")
    command.add_argument("--workers", type=number(int, 1), default=cores(), metavar="N", help="default: one a core")
    command.add_argument("--on-bad", choices=("error", "skip"), default="error", help="pictures that cannot be read")
    command.set_defaults(run=shards)

    options, more = parser.parse_known_args(arguments)  # source.KEY=VALUE may also follow options
    if unknown := [word for word in more if "=" not in word or word.startswith("-") or options.run is not shards]:
        parser.error(f"unrecognized arguments: {' '.join(unknown)}")
    if options.run is shards:
        options.options += more
        if options.root is not None and "=" in options.root and options.root.startswith("source."):
            options.options, options.root = [options.root, *options.options], None
        if options.per_shard is None and options.shard_size is None:
            options.per_shard = 1000
    try:
        options.run(options)
    except (ValueError, OSError) as error:
        print(f"prepare.py: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("prepare.py: interrupted; the same command goes on", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
