"""`vitcap overlay`: where the model looked for each word, drawn over the photo."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from vitcap.cli.options import add_model, add_search, build_search, indices, load, number, require_model
from vitcap.cli.pictures import picture_paths, progress, results_of
from vitcap.drawing import overlay_sheet, save_sheet, unique_names


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap overlay`."""
    add_model(parser)
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for the pictures; made if it is missing")
    choice = "numbered from 0, -1 is the last; several as 0,2; the mean over all if left out"
    parser.add_argument("--layer", type=indices, metavar="N", help=f"decoder layer to show, {choice}")
    parser.add_argument("--head", type=indices, metavar="N", help=f"attention head to show, {choice}")
    parser.add_argument(
        "--top", type=number(float, 0, above=True), metavar="X", help="end of the colour scale, in multiples of uniform"
    )
    parser.add_argument("--font", metavar="FILE", help="TrueType or OpenType font for the words")
    add_search(parser)


def run(arguments: argparse.Namespace) -> int:
    """Draw what the model looked at for every word of its caption.

    Writes DIR/NAME.png for each photo, and DIR/NAME.txt with the same in words; prints "photo<TAB>png".
    """
    require_model(arguments)
    paths = picture_paths(arguments.photos, lambda text: None)
    folder = Path(arguments.out)
    folder.mkdir(parents=True, exist_ok=True)
    names = dict(zip(paths, unique_names(paths), strict=True))
    captioner = load(arguments)
    options = {"search": build_search(arguments, captioner.search), "seed": arguments.seed, "need_attention": True}
    failed = 0
    with progress(len(paths), arguments.quiet, True) as advance:
        for path, photo, caption in results_of(captioner.caption, paths, 1, **options):
            if isinstance(caption, Exception):
                failed += 1
                print(f"vitcap: skipped {caption}", file=sys.stderr)
            else:
                target = folder / f"{names[path]}.png"
                page = overlay_sheet(
                    captioner,
                    photo,
                    caption,
                    layers=arguments.layer,
                    heads=arguments.head,
                    top=arguments.top,
                    font=arguments.font,
                )
                save_sheet(target, *page)
                print(f"{path}\t{target}", flush=True)
            advance()
    if failed:
        print(f"vitcap: {failed} of {len(paths)} pictures could not be read", file=sys.stderr)
    return 1 if failed else 0
