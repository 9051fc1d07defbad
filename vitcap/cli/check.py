"""`vitcap check`: what is wrong with data, before hours of training on them."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitcap.cli.options import UsageError, number
from vitcap.files import whole

FORMATS = ("coco", "karpathy", "flickr", "table", "imagenet", "pairs", "folder")
TEXT = {"tokenizer": str, "min_count": int, "vocab_size": int, "max_length": int}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap check`."""
    parser.add_argument("data", metavar="DATA", help="data folder, or one annotation file")
    more = "options of the data as training takes them, such as source.val_fraction=0.1 or min_count=3"
    parser.add_argument("options", nargs="*", metavar="KEY=VALUE", help=more)
    parser.add_argument("--data", dest="format", choices=FORMATS, help="its format; told by its files if left out")
    parser.add_argument("--json", metavar="FILE", help="write the whole report there, with all names")
    parser.add_argument("--jobs", type=number(int, 1, 1024), metavar="N", help="processes; left out, one a core")
    kept = "where what is known of the pictures is kept, so that the next check is quick and a broken off one goes on"
    parser.add_argument("--resume", metavar="FILE", help=f"{kept}; left out, a file in the user's cache folder")
    parser.add_argument("--fresh", action="store_true", help="look at all pictures anew")
    parser.add_argument("--strict", action="store_true", help="exit status 1 for warnings, too")
    parser.add_argument("--names", type=number(int, 0), default=5, metavar="N", help="names shown of each finding (5)")
    parser.add_argument("--quiet", action="store_true", help="no progress bar, and no report where nothing is wrong")
    plain = parser.parse_known_args

    def gather(args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # KEY=VALUE may also follow options
        found, rest = plain(args, namespace)
        found.options += [word for word in rest if "=" in word and not word.startswith("-")]
        return found, [word for word in rest if word not in found.options]

    parser.parse_known_args = gather  # type: ignore[method-assign]


def run(arguments: argparse.Namespace) -> int:
    """Check a data folder: pictures, captions, ids, splits, vocabulary, classes.

    Exit status 0: no error (nor warning, with --strict); 1: some; 2: DATA or an option is wrong. Errors are what would
    stop training or make its scores wrong: pictures that cannot be read or are in two splits, files that no reader
    takes, and the like.
    """
    if not arguments.data:
        raise UsageError("DATA is an empty name, where a folder or file is wanted")
    path = Path(arguments.data).expanduser()
    if not path.exists():
        raise FileNotFoundError(f"{path}: no such file or folder")
    if arguments.json is not None and not Path(arguments.json).absolute().parent.is_dir():
        raise UsageError(f"--json {arguments.json}: there is no folder of that name")
    if arguments.json is not None and Path(arguments.json).is_dir():
        raise UsageError(f"--json {arguments.json}: a folder; the report is one file, such as report.json")
    report = _report(arguments, path)
    bad = bool(report.of("error") or (arguments.strict and report.of("warning")))
    if bad or report.of("warning") or not arguments.quiet:
        print(report.text(first=arguments.names))
    if arguments.json is not None:
        with whole(arguments.json) as part:
            part.write_text(json.dumps(report.to_dict(), indent=1) + "\n", encoding="ascii")
    return 1 if bad else 0


def _report(arguments: argparse.Namespace, path: Path) -> Any:
    from vitcap.data.check import check_folder, check_source  # here, as they load torch, and --help need not wait
    from vitcap.data.check_texts import TextOptions
    from vitcap.data.detect import FOLDER, SOURCES, detect, options_of
    from vitcap.data.survey import Results, results_file

    source_options, text_options = split_options(arguments.options)
    name, root, told = detect(path, arguments.format)
    if arguments.format is None and not arguments.quiet:
        print(f"vitcap: {path}: read as {name} (--data chooses another)", file=sys.stderr)
    if unknown := sorted(set(source_options) - set(known := options_of(name))):
        raise UsageError(f"source.{unknown[0]}: {name} has no such option; it has {', '.join(known) or 'none'}")
    results = Results(arguments.resume or results_file(root), fresh=arguments.fresh)
    usual = {"min_count": 2, "max_length": 41} if name == "pairs" else {}  # as in conf/data/pairs.yaml
    with _silent("vitcap.data"), _progress(arguments.quiet) as move:  # what readers log is in the report
        options: dict[str, Any] = {"jobs": arguments.jobs, "results": results, "progress": move}
        try:
            if name == FOLDER:
                return check_folder(root, **options)
            try:
                source = SOURCES[name](root, **(told | source_options))
            except (ValueError, OSError) as error:
                return check_folder(root, kind=name, refused=str(error), **options)
            return check_source(source, TextOptions(**(usual | text_options)), **options)
        finally:
            results.close()


@contextmanager
def _silent(name: str) -> Iterator[None]:
    logger = logging.getLogger(name)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


@contextmanager
def _progress(quiet: bool) -> Iterator[Callable[[int, int], None]]:
    """A bar on a terminal; gives the function of (done, total) that moves it."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("pictures"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    shown = not quiet and sys.stderr.isatty()
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, disable=not shown) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def split_options(given: list[str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """KEY=VALUE arguments as options of the source and of the texts; values are JSON, or text as it stands."""
    source: dict[str, Any] = {}
    text: dict[str, Any] = {}
    for argument in given:
        key, equals, raw = argument.partition("=")
        key = key.removeprefix("data.")
        if not equals or not key:
            raise UsageError(f"{argument!r}: KEY=VALUE is wanted, such as source.val_fraction=0.1")
        value = _value(raw)
        parts = key.split(".")
        if parts[0] == "source" and 2 <= len(parts) <= 3 and all(parts):
            if len(parts) == 2:
                source[parts[1]] = value
            else:  # source.annotations.train=FILE
                inner = source.setdefault(parts[1], {})
                if not isinstance(inner, dict):
                    raise UsageError(f"{argument}: source.{parts[1]} is given already")
                inner[parts[2]] = value
        elif key in TEXT:
            if not isinstance(value, TEXT[key]) or isinstance(value, bool):
                raise UsageError(f"{argument}: {'a word' if TEXT[key] is str else 'a whole number'} is wanted")
            text[key] = value
        else:
            raise UsageError(f"{key}: no such option; there are source.KEY=VALUE, {', '.join(TEXT)}")
    return source, text


def _value(raw: str) -> Any:
    try:
        return json.loads(raw)
    except ValueError:
        pass
    if raw.startswith("{") and raw.endswith("}"):  # as Hydra takes it: {train: FILE}
        pairs = [part.partition(":") for part in raw[1:-1].split(",")]
        if all(colon and key.strip() for key, colon, _ in pairs):
            return {key.strip(): value.strip() for key, _, value in pairs}
    return raw
