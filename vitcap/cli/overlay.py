"""`vitcap overlay`: where the model looked for each word or class, drawn over the photo."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from vitcap.cli.options import (
    UsageError,
    add_model,
    add_rollout,
    add_search,
    build_search,
    indices,
    load,
    number,
    output_folder,
    rollout_options,
    search_options,
)
from vitcap.cli.pictures import is_record, load_record, picture_paths, progress, tell_unknown
from vitcap.drawing import FORMATS, draw_record, find_word, unique_names
from vitcap.record import AttentionRecord


def formats(text: str) -> list[str]:
    """A parser of kinds of pictures joined by commas."""
    chosen = text.split(",")
    if wrong := [name for name in chosen if name not in FORMATS]:
        raise argparse.ArgumentTypeError(f"{wrong[0]!r}: choose from {', '.join(FORMATS)}")
    return chosen


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap overlay`."""
    add_model(parser, more="; or records that --save-record wrote (.npz), which need no model")
    parser.add_argument("--out", metavar="DIR", required=True, help="folder for the pictures; made if it is missing")
    kinds = "sheet: a tile for each word (the default); gif: word by word; grid: one word by layer and head; maps: a "
    kinds += "picture for each word. Several as sheet,gif"
    parser.add_argument("--format", type=formats, action="extend", metavar="KIND", help=kinds)
    method = "attention, rollout, relevance or grad-cam, as far as the model has them; the model's own view if left out"
    parser.add_argument("--method", metavar="NAME", help=method)
    choice = "numbered from 0, -1 is the last; several as 0,2; the mean over all if left out"
    add_rollout(parser)
    parser.add_argument("--layer", type=indices, metavar="N", help=f"layer to show, {choice}")
    parser.add_argument("--head", type=indices, metavar="N", help=f"attention head to show, {choice}")
    word = "word of the grid: its number from 0, or its text; that with the highest peak if left out"
    parser.add_argument("--word", metavar="WORD", help=word)
    parser.add_argument("--caption", metavar="TEXT", help="draw this caption in place of the model's own")
    classes = "classes to draw, of a model that classifies, the likeliest first (default: 5)"
    parser.add_argument("--top-classes", type=number(int, 1), metavar="N", help=classes)
    end = "end of the colour scale, in the multiples that its legend names"
    parser.add_argument("--top", type=number(float, 0, above=True), metavar="X", help=end)
    parser.add_argument("--font", metavar="FILE", help="TrueType or OpenType font for the words")
    saved = "also write what is drawn as NAME.npz and NAME.json"
    parser.add_argument("--save-record", action="store_true", help=saved)
    add_search(parser)


def run(arguments: argparse.Namespace) -> int:
    """Draw what the model looked at for every word of its caption, or for the likeliest classes.

    Writes DIR/NAME.png (or another --format) for each photo or record, and the same in words as .txt; prints a line
    "photo<TAB>picture" for each picture.
    """
    paths = picture_paths(arguments.photos, lambda text: None)
    if records := all(map(is_record, paths)):
        names = ("model", "caption", "top_classes", "fusion", "discard", *search_options(arguments))
        _refuse(arguments, "for photos; these are records of what a model saw", *names)
    if arguments.word is not None and "grid" not in (arguments.format or ()):
        raise UsageError("--word is for --format grid")
    folder = output_folder(arguments.out)
    stems = unique_names(paths)
    _spare([path for path in paths if arguments.save_record or not is_record(path)], folder)
    explained = None if records else _explainer(arguments)
    failed = undrawn = 0
    with progress(len(paths), arguments.quiet, True) as advance:
        for path, stem in zip(paths, stems, strict=True):
            record = load_record(path) if is_record(path) or explained is None else explained(path)
            if isinstance(record, Exception):
                failed += 1
                print(f"vitcap: skipped {record}", file=sys.stderr)
            else:
                tell_unknown(path, record)
                try:
                    undrawn += not _draw(arguments, record, folder, path, stem)
                except ValueError as error:
                    raise ValueError(f"{path}: {error}") from error
            advance()
    if failed:
        noun = "files" if any(map(is_record, paths)) else "pictures"
        print(f"vitcap: {failed} of {len(paths)} {noun} could not be read", file=sys.stderr)
    return 1 if failed or undrawn else 0


def _spare(paths: Sequence[str], folder: Path) -> None:
    """UsageError where drawing could write over what it reads: NAME.png, and the caption beside it as NAME.txt."""
    for path in paths:
        if folder.resolve() in (Path(path).parent.resolve(), Path(path).resolve().parent):
            raise UsageError(f"--out {folder}: {path} lies in it and could be written over; name another folder")


def _draw(arguments: argparse.Namespace, record: AttentionRecord, folder: Path, path: str, name: str) -> bool:
    """Whether all that is asked for could be drawn: a caption may lack the word of the grid."""
    view = record.view(arguments.method, arguments.layer, arguments.head)
    kinds, word = list(arguments.format or ["sheet"]), None
    if "grid" in kinds:
        try:
            word = find_word(record, arguments.word, view)
        except ValueError as error:
            print(f"vitcap: {path}: no grid, {error}", file=sys.stderr)
            kinds = [kind for kind in kinds if kind != "grid"]
    if arguments.save_record:
        record.save(folder / name)
    files = draw_record(
        record,
        folder,
        name,
        formats=kinds,
        view=view,
        word=word,
        top=arguments.top,
        font=arguments.font,
    )
    for file in files:
        print(f"{path}\t{file}", flush=True)
    return kinds == (arguments.format or ["sheet"])


def _explainer(arguments: argparse.Namespace) -> Callable[[str], Any]:
    """A function from the path of a photo to its record, or to the ImageError that reading it gave."""
    from vitcap.data.images import ImageError
    from vitcap.explain import explain

    door = load(arguments, "caption", "classify")
    options: dict[str, Any] = {} if arguments.method is None else {"methods": [arguments.method]}
    options |= rollout_options(arguments, options.get("methods"))
    if hasattr(door, "caption"):
        _refuse(arguments, "for models that classify", "top_classes")
        options |= {"caption": arguments.caption}
        if arguments.caption is None:
            options |= {"search": build_search(arguments, door.search), "seed": arguments.seed}
        else:
            _refuse(arguments, "for captions that the model writes; --caption gives one", *search_options(arguments))
    else:
        _refuse(arguments, "for models that write captions", "caption", *search_options(arguments))
        options |= {"top": arguments.top_classes or 5}

    def explained(path: str) -> Any:
        try:
            return explain(door, path, **options)
        except ImageError as error:
            return error

    return explained


def _refuse(arguments: argparse.Namespace, what: str, *names: str) -> None:
    """UsageError for the first of these options that is given."""
    for name in names:
        if getattr(arguments, name) not in (None, False):
            raise UsageError(f"--{name.replace('_', '-')} is {what}")
