"""`vitcap viewer`: a page on which to look at what the model attended to, word by word."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from vitcap.cli.options import (
    UsageError,
    add_model,
    add_rollout,
    add_search,
    build_search,
    load,
    model_name,
    number,
    output_folder,
    rollout_options,
    search_options,
)
from vitcap.cli.pictures import is_record, load_record, picture_paths, progress, tell_unknown
from vitcap.files import whole
from vitcap.record import AttentionRecord
from vitcap.viz.viewer import Box, viewer_html

_OF_PHOTOS = ("model", "model2", "methods", "caption", "top_classes", "fusion", "discard")


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap viewer`."""
    add_model(parser, more="; or records that `vitcap overlay --save-record` wrote (.npz), which need no model")
    parser.add_argument("--out", metavar="FILE", default="attention.html", help="the page (default: %(default)s)")
    parser.add_argument("--model2", metavar="FILE", help="a second model, shown beside the first on the same words")
    methods = "attention, rollout, relevance, grad-cam; several joined by commas (default: all that the model has)"
    parser.add_argument("--methods", metavar="NAMES", help=methods)
    add_rollout(parser)
    parser.add_argument("--annotations", metavar="FILE", help="COCO instance file: the boxes of known objects")
    parser.add_argument("--caption", metavar="TEXT", help="show this caption in place of the model's own")
    classes = "classes to show, of a model that classifies, the likeliest first (default: 5)"
    parser.add_argument("--top-classes", type=number(int, 1), metavar="N", help=classes)
    parser.add_argument("--title", metavar="TEXT", help="headline of the page")
    add_search(parser)


def run(arguments: argparse.Namespace) -> int:
    """Write one HTML file that shows what the model attended to for every word, and opens without a network.

    Prints the name of the file.
    """
    out = Path(arguments.out)
    if out.is_dir():
        raise UsageError(f"--out {out}: a folder; the page is one file, such as attention.html")
    if out.exists() and out.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"--out {out}: is there already and is no page by its name; name another, or remove it")
    paths = picture_paths(arguments.photos, lambda text: None)
    saved = [is_record(path) for path in paths]
    given = [name for name in _OF_PHOTOS if getattr(arguments, name) is not None] + search_options(arguments)
    if all(saved) and given:
        raise UsageError(f"--{given[0].replace('_', '-')} is for photos; these are records of what a model saw")
    if any(saved) and arguments.model2 is not None:
        raise UsageError("--model2 is for photos only: a record holds no picture that a model could read again")
    output_folder(str(out.parent))
    known = None if arguments.annotations is None else _instances(arguments.annotations)
    records: list[AttentionRecord] = []
    beside: list[AttentionRecord] = []
    boxes: list[list[Box] | None] = []
    with progress(len(paths), arguments.quiet, False) as advance:
        for path, pair in _records(arguments, paths, saved):
            advance()
            if isinstance(pair, Exception):
                print(f"vitcap: skipped {pair}", file=sys.stderr)
                continue
            tell_unknown(path, pair[0])
            records.append(pair[0])
            beside += pair[1:]
            boxes.append(None if known is None else _boxes(known, path, pair[0]))
    failed = len(paths) - len(records)
    if failed:
        noun = "files" if any(saved) else "pictures"
        print(f"vitcap: {failed} of {len(paths)} {noun} could not be read", file=sys.stderr)
    if not records:
        return 1
    page = viewer_html(
        records,
        title=arguments.title or "What the model attended to",
        boxes=None if known is None else boxes,
        beside=beside or None,
        names=[] if all(saved) else [Path(name).name for name in (model_name(arguments), arguments.model2) if name],
        about=_about(records[0]),
    )
    with whole(out) as part:
        part.write_text(page, encoding="utf-8")
    print(out)
    return 1 if failed else 0


def _records(
    arguments: argparse.Namespace, paths: list[str], saved: list[bool]
) -> Iterator[tuple[str, tuple[AttentionRecord, ...] | Exception]]:
    """Each path with its record, or two records side by side, or why its picture cannot be read."""
    doors, options = ([], {}) if all(saved) else _doors(arguments)
    for path, is_saved in zip(paths, saved, strict=True):
        if is_saved:
            found = load_record(path)
            yield path, found if isinstance(found, Exception) else (found,)
            continue
        from vitcap.data.images import ImageError
        from vitcap.explain import explain

        try:
            first = explain(doors[0], path, **options)
            yield path, (first, *(_again(door, doors[0], path, first, options) for door in doors[1:]))
        except ImageError as error:
            yield path, error


def _doors(arguments: argparse.Namespace) -> tuple[list[Any], dict[str, Any]]:
    """The models, and the options of `explain` for the first of them."""
    doors = [load(arguments, "caption", "classify")]
    writes = hasattr(doors[0], "caption")
    kind = "caption" if writes else "classify"
    if arguments.model2 is not None:
        doors.append(load(argparse.Namespace(model=arguments.model2, device=arguments.device), kind))
    methods = "all" if arguments.methods in (None, "all") else arguments.methods.split(",")
    rollout = rollout_options(arguments, methods)
    search = search_options(arguments)
    if writes and arguments.top_classes:
        raise UsageError("--top-classes is for models that classify; this one writes captions")
    if search and (not writes or arguments.caption is not None):
        why = "--caption gives one" if writes else "this one classifies"
        raise UsageError(f"--{search[0].replace('_', '-')} is for captions that the model writes; {why}")
    if not writes:
        if arguments.caption is not None:
            raise UsageError("--caption is for models that write captions; this one classifies")
        return doors, {"methods": methods, "top": arguments.top_classes or 5, **rollout}
    options = {"methods": methods, "caption": arguments.caption, **rollout}
    if arguments.caption is None:
        options |= {"search": build_search(arguments, doors[0].search), "seed": arguments.seed}
    return doors, options


def _again(door: Any, of: Any, path: str, first: AttentionRecord, options: dict[str, Any]) -> AttentionRecord:
    """What a second model attends to for the words (or classes) of the first, `of`; names of classes may recur."""
    from vitcap.explain import explain

    if "caption" in options:
        words: dict[str, Any] = {"caption": first.text or None}
    else:
        words = {"classes": [of.classes[index] for index in first.facts["classes"]]}
    return explain(door, path, methods=options["methods"], rollout=options.get("rollout"), **words)


def _about(record: AttentionRecord) -> dict[str, str]:
    """A line of explanation for each method of a record."""
    from vitcap.explain.methods import CAPTION_METHODS, CLASS_METHODS
    from vitcap.viz.shown import of_classes

    texts = CLASS_METHODS if of_classes(record) else CAPTION_METHODS
    return {name: f"{text[:1].upper()}{text[1:]}." for name, text in texts.items()}


def _instances(path: str) -> Any:
    from vitcap.data.instances import CocoInstances

    return CocoInstances(path)


def _boxes(known: Any, path: str, record: AttentionRecord) -> list[Box] | None:
    """The known objects of a photo, without crowds; None, with a note, where the file says nothing of this photo."""
    name = record.source or Path(path).name
    found = known.find(known.ids.get(Path(name).name))
    if found is None:
        print(f"vitcap: {name}: not in {known.named}, so no boxes are shown", file=sys.stderr)
        return None
    if found.size != record.size:
        wrong = f"{known.named} describes a picture of {found.size[0]} x {found.size[1]} pixels"
        print(f"vitcap: {name}: {wrong}, which this is not, so no boxes are shown", file=sys.stderr)
        return None
    return [(one.category, one.box) for one in found.instances if not one.crowd]
