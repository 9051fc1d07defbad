"""`vitcap caption`: captions of photos, printed, written as JSON lines or CSV, and put beside or into the photos."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from vitcap.cli import caption_shards
from vitcap.cli.beside import Beside
from vitcap.cli.captions import captions_of
from vitcap.cli.options import MOST, UsageError, add_loading, add_search, build_search, load, number
from vitcap.cli.outputs import Output, output
from vitcap.cli.pictures import picture_paths, progress, read_list
from vitcap.cli.prefetch import Twins
from vitcap.cli.rows import FIELDS, Template, dump, record, spell
from vitcap.data.survey import cores
from vitcap.machine import keep_freed_memory

__all__ = ["add_options", "dump", "record", "run"]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap caption`."""
    photos = (
        "photos, folders to look for photos in, patterns in quotes ('photos/**/*.jpg'), or - for a list of paths on "
    )
    photos += "standard input; after --, names may begin with a dash"
    parser.add_argument("photos", nargs="*", metavar="PHOTO_OR_FOLDER", help=photos)
    listed = "also the photos in this list: one path a line, or separated by NUL bytes (find -print0)"
    parser.add_argument("--from-file", metavar="LIST", help=listed)
    add_loading(parser)
    parser.add_argument("--quiet", action="store_true", help="no progress and no notes; errors are still shown")
    out = "write JSON lines, or CSV if FILE ends in .csv; photos that it already has are skipped, so that the same "
    out += "command goes on where it stopped"
    parser.add_argument("--out", metavar="FILE", help=out)
    best = "captions for each picture; above 1 with a beam search"
    parser.add_argument("--n-best", type=number(int, 1, MOST), default=1, metavar="N", help=best)
    template = f"what is made of a caption, such as 'a photo of {{caption}}'; fields: {', '.join(FIELDS)}"
    parser.add_argument("--template", metavar="TEXT", help=template)
    least = "report captions with a lower probability, and put them nowhere but into --out, as below_confidence. The "
    least += "probability of a caption is the geometric mean of the probabilities of its tokens, 0 to 1"
    parser.add_argument("--min-confidence", type=number(float, 0, 1), metavar="P", help=least)
    group = parser.add_argument_group("beside and into the photos")
    sidecar = "write the caption of photo.jpg to photo.txt beside it, as trainers of image generators want it"
    group.add_argument("--sidecar", action="store_true", help=sidecar)
    metadata = "write the caption into the photo, as IPTC Caption-Abstract and XMP description; its pixels stay as "
    metadata += 'they are (pip install "vitcap[metadata]")'
    group.add_argument("--write-metadata", action="store_true", help=metadata)
    group.add_argument("--overwrite", action="store_true", help="replace texts and descriptions that are there already")
    size = "pictures at a time (default: 16)"
    parser.add_argument("--batch-size", type=number(int, 1), default=16, metavar="N", help=size)
    workers = f"threads that read pictures ahead (default: one for each processor, here {min(cores(), 16)})"
    parser.add_argument("--workers", type=number(int, 1, 256), default=min(cores(), 16), metavar="N", help=workers)
    add_search(parser)
    caption_shards.add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """Caption photos, or all photos in folders.

    Without --out, prints a line "path<TAB>caption" for each picture. With it, appends a line for each as soon as it is
    done, so that an interrupted run goes on where it stopped; pictures that failed are tried again. Pictures of the
    same bytes are captioned once.
    """
    keep_freed_memory()
    if caption_shards.wanted(arguments):
        return caption_shards.run(arguments)
    template = Template(arguments.template)
    if arguments.overwrite and not (arguments.sidecar or arguments.write_metadata):
        raise UsageError("--overwrite is for --sidecar and --write-metadata")
    note = _notes(arguments.quiet)
    paths = _named(arguments, note)
    beside = Beside(
        paths,
        sidecar=arguments.sidecar,
        metadata=arguments.write_metadata,
        overwrite=arguments.overwrite,
        spare=[name for name in (arguments.out, arguments.from_file) if name is not None],
        note=note,
    )
    out = None if arguments.out is None else output(Path(arguments.out), arguments.n_best)
    todo, done = _left(paths, out, beside, note)
    if not todo and not done:
        return 0
    captioner = load(arguments)
    search = build_search(arguments, captioner.search, arguments.n_best) or captioner.search
    twins = Twins(paths)
    made: dict[str, Any] = {}
    if out is not None:
        wanted = {"template": template.text, "min_confidence": arguments.min_confidence, "seed": arguments.seed}
        made = {"model": captioner.fingerprint, "options": spell(search, **wanted)}
        out.require(made)
        out.clean()
        _take_up(out, set(done).intersection(paths), todo, beside, template, twins)
    failed, unsure, same = 0, 0, 0
    with (
        nullcontext() if out is None else out.writer() as write,
        progress(len(todo), arguments.quiet, out is None) as advance,
    ):
        for item, row in captions_of(
            captioner,
            todo,
            search=search,
            seed=arguments.seed,
            batch_size=arguments.batch_size,
            workers=arguments.workers,
            twins=twins,
            min_confidence=arguments.min_confidence,
        ):
            same += item.twin_of is not None
            if "error" in row:
                failed += 1
                print(f"vitcap: skipped {row['error']}", file=sys.stderr)
            else:
                text = template(row)
                if template.text is not None:
                    row["text"] = text
                if below := row.get("below_confidence", False):
                    unsure += 1
                    sure = float(row["probability"])  # a text where an earlier run wrote it into CSV
                    print(f"vitcap: {item.path}: not sure ({sure:.3f}): {row['caption']}", file=sys.stderr)
                else:
                    beside(item.path, text)
                if write is None and not below:
                    print(f"{item.path}\t{text}", flush=True)
            if write is not None:
                write(row if "error" in row else row | made)
            advance()
    if out is not None:
        out.put_in_order(paths)
    if same:
        note(f"{same} pictures have the bytes of another, whose caption they share")
    if beside.kept:
        note(f"{beside.kept} texts or descriptions that were there are kept")
    for count, what in (
        (failed, f"of {len(todo)} pictures could not be read"),
        (unsure, f"of {len(todo)} captions are below --min-confidence {arguments.min_confidence}"),
        (beside.failed, "texts or descriptions could not be written"),
    ):
        if count:
            print(f"vitcap: {count} {what}", file=sys.stderr)
    return 1 if failed or beside.failed else 0


def _named(arguments: argparse.Namespace, note: Callable[[str], None]) -> list[str]:
    """All photos of the command line and its lists."""
    lists = ["-"] * ("-" in arguments.photos) + [arguments.from_file] * (arguments.from_file is not None)
    if not arguments.photos and not lists:
        raise UsageError("no photos: name a PHOTO_OR_FOLDER, a pattern in quotes, - or --from-file LIST")
    listed = [path for name in dict.fromkeys(lists) for path in read_list(name)]
    return picture_paths([name for name in arguments.photos if name != "-"], note, listed)


def _left(
    paths: Sequence[str], out: Output | None, beside: Beside, note: Callable[[str], None]
) -> tuple[list[str], list[str]]:
    """(pictures that are still to be captioned, those that the output has already)."""
    if out is not None:
        done = out.scan()
        seen = set(done)
        todo = [path for path in paths if path not in seen]
        if len(todo) < len(paths):
            note(f"{len(paths) - len(todo)} of {len(paths)} pictures are already in {out.path} and are skipped")
        return todo, done
    todo = [path for path in paths if beside.lacks(path)] if beside else list(paths)
    if len(todo) < len(paths):
        note(f"{len(paths) - len(todo)} of {len(paths)} pictures have their text and are skipped (--overwrite: all)")
    return todo, []


def _take_up(
    out: Output, done: set[str], todo: Sequence[str], beside: Beside, template: Template, twins: Twins
) -> None:
    """What an earlier run knew: texts beside pictures that lack them, and captions for pictures of the same bytes."""
    sizes = twins.sizes(todo)
    for row in out.rows() if beside or sizes else ():
        if row["image"] in done:
            if beside and not row.get("below_confidence"):
                beside(row["image"], template(row))
            key = twins.key(row["image"], sizes) if sizes else None
            if key is not None and twins.first(key, row["image"]) is None:
                twins.keep(key, row)


def _notes(quiet: bool) -> Callable[[str], None]:
    return lambda text: None if quiet else print(f"vitcap: {text}", file=sys.stderr)
