"""Which pictures a command reads, and their captions in order, however many there are."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

from vitcap.cli.options import UsageError
from vitcap.data.images import ImageError, find_images, load_image
from vitcap.record import AttentionRecord

_AHEAD = 4  # pictures decoded before they are needed
_PIXELS = 100_000_000  # a batch of large photos is cut short here: 300 MB of RGB


def picture_paths(given: Sequence[str], note: Callable[[str], None]) -> list[str]:
    """The pictures to read, in the order given, folders replaced by the pictures in them; each one once.

    A file that does not exist stays in the list: reading it reports it.
    """
    paths = []
    for name in given:
        if not os.path.isdir(name):
            paths.append(name)
            continue
        found = find_images(name)
        if not found:
            raise UsageError(f"{name}: no pictures in this folder")
        paths += [str(path) for path in found]
    unique = list(dict.fromkeys(paths))
    if len(unique) < len(paths):
        note(f"{len(paths) - len(unique)} pictures were given more than once and are taken once")
    return unique


def is_record(path: str) -> bool:
    """Whether a file is a record of attention, by its name."""
    return Path(path).suffix == ".npz"


def load_record(path: str) -> AttentionRecord | Exception:
    """The record in a file, or why it cannot be read."""
    try:
        return AttentionRecord.load(path)
    except (ValueError, OSError) as error:
        return error


def _pictures(paths: Sequence[str]) -> Iterator[tuple[str, Any]]:
    """(path, PIL picture or the ImageError that reading it gave), in order, decoded a little ahead in threads."""
    with ThreadPoolExecutor(2) as pool:
        waiting: deque[tuple[str, Future[Any]]] = deque()
        rest = iter(paths)
        while True:
            waiting += [(path, pool.submit(load_image, path)) for path in islice(rest, _AHEAD - len(waiting))]
            if not waiting:
                return
            path, future = waiting.popleft()
            try:
                yield path, future.result()
            except ImageError as error:
                yield path, error


def results_of(
    read: Callable[..., Any], paths: Sequence[str], batch_size: int, **options: Any
) -> Iterator[tuple[str, Any, Any]]:
    """(path, picture, what `read` gives for it), in order; where a picture cannot be read, (path, None, ImageError).

    read: such as Captioner.caption; called with a list of pictures, batch_size and the options.
    """

    def flush(batch: list[tuple[str, Any]]) -> Iterator[tuple[str, Any, Any]]:
        good = [picture for _, picture in batch if not isinstance(picture, Exception)]
        results = iter(read(good, batch_size=batch_size, **options) if good else [])
        for path, picture in batch:
            bad = isinstance(picture, Exception)
            yield (path, None, picture) if bad else (path, picture, next(results))

    batch: list[tuple[str, Any]] = []
    pixels = 0
    for path, picture in _pictures(paths):
        batch.append((path, picture))
        pixels += 0 if isinstance(picture, Exception) else picture.width * picture.height
        if len(batch) == batch_size or pixels >= _PIXELS:
            yield from flush(batch)
            batch, pixels = [], 0
    yield from flush(batch)


def tell_unknown(path: str, record: Any) -> None:
    """A line on stderr where words of a given caption are none of the model's."""
    if words := record.facts.get("unknown_words"):
        print(f"vitcap: {path}: the model does not know {', '.join(words)}; drawn as unknown words", file=sys.stderr)


@contextmanager
def progress(total: int, quiet: bool, prints: bool) -> Iterator[Callable[[], None]]:
    """A progress bar on stderr; gives the function that moves it on by one picture.

    Not shown where nobody would see it, nor where the command prints a line for each picture to the same screen.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    shown = not quiet and sys.stderr.isatty() and not (prints and sys.stdout.isatty())
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, disable=not shown) as bar:
        task = bar.add_task("pictures", total=total)
        yield lambda: bar.advance(task)
