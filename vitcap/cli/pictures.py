"""Which pictures a command reads, and their captions in order, however many there are."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitcap.cli.options import UsageError
from vitcap.cli.prefetch import read_ahead
from vitcap.data.images import IMAGE_SUFFIXES, find_images, load_image
from vitcap.record import AttentionRecord

_PIXELS = 100_000_000  # a batch of large photos is cut short here: 300 MB of RGB
_LOG_EVERY = 30.0  # seconds between two lines of progress in a log


def picture_paths(given: Sequence[str], note: Callable[[str], None], listed: Sequence[str] = ()) -> list[str]:
    """The pictures to read, in the order given, folders and patterns replaced by the pictures in them; each one once.

    A file that does not exist stays in the list: reading it reports it. listed: more of them, none of them a pattern.
    """
    paths = []
    for place, name in enumerate((*given, *listed)):
        if os.path.isdir(name):
            found = find_images(name)
            if not found:
                raise UsageError(f"{name}: no pictures in this folder")
            paths += [str(path) for path in found]
        elif place < len(given) and not set("*?[").isdisjoint(name) and not os.path.lexists(name):
            paths += _matches(name)
        else:
            paths.append(name)
    unique = list(dict.fromkeys(paths))
    if len(unique) < len(paths):
        note(f"{len(paths) - len(unique)} pictures were given more than once and are taken once")
    return unique


def _matches(pattern: str) -> list[str]:
    """The pictures that a pattern with *, ?, [...] or ** (folders at any depth) names, sorted, and those in folders
    that it names. Hidden ones are passed over, as they are in folders, unless the pattern spells their dot."""
    path = Path(pattern).expanduser()
    base = Path(path.anchor)
    try:  # pathlib, as it follows no links under **, which could lead around in circles
        found = sorted(base.glob(str(path.relative_to(base))))
    except (ValueError, NotImplementedError, IndexError) as error:
        raise UsageError(f"{pattern}: no pattern for files ({error})") from None
    dots = sum(part.startswith(".") and part != ".." for part in path.parts)
    shown = [one for one in found if sum(part.startswith(".") and part != ".." for part in one.parts) <= dots]
    pictures = {str(one) for one in shown if one.suffix.lower() in IMAGE_SUFFIXES and not one.is_dir()}
    real = set(map(os.path.realpath, pictures))
    for folder in (one for one in shown if one.is_dir()):
        for inside in map(str, find_images(folder)):
            if os.path.realpath(inside) not in real:  # in a folder in a folder, both of which match
                real.add(os.path.realpath(inside))
                pictures.add(inside)
    if not pictures:
        raise UsageError(f"{pattern}: there is no such file, and as a pattern it matches no picture")
    return sorted(pictures)


def read_list(name: str) -> list[str]:
    """The paths in a list: one a line, or separated by NUL bytes (`find -print0`); "-" is standard input. Blank lines
    are passed over. Raises UsageError for an empty list."""
    content = sys.stdin.buffer.read() if name == "-" else Path(name).read_bytes()
    what = "standard input" if name == "-" else name
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):
        raise UsageError(f"{what}: a list in UTF-16; save it as UTF-8")
    content = content.removeprefix(b"\xef\xbb\xbf")
    lines = content.split(b"\0") if b"\0" in content else [line.rstrip(b"\r") for line in content.split(b"\n")]
    if not (paths := [os.fsdecode(line) for line in lines if line.strip()]):
        raise UsageError(f"{what}: no path in this list")
    return paths


def is_record(path: str) -> bool:
    """Whether a file is a record of attention, by its name."""
    return Path(path).suffix == ".npz"


def load_record(path: str) -> AttentionRecord | Exception:
    """The record in a file, or why it cannot be read."""
    try:
        return AttentionRecord.load(path)
    except (ValueError, OSError) as error:
        return error


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
    for item in read_ahead(paths, load_image, workers=2, ahead=4):
        picture = item.found
        batch.append((item.path, picture))
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
    """Progress on stderr, with the speed and the time left; gives the function that moves it on by one picture.

    A bar on a terminal, unless the command prints a line for each picture to the same screen; in a log a line now and
    then.
    """
    if quiet or not sys.stderr.isatty():
        yield (lambda: None) if quiet else _log(total)
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
    from rich.text import Text

    class Speed(ProgressColumn):
        def render(self, task: Any) -> Text:
            speed = task.finished_speed or task.speed
            return Text("" if speed is None else f"{speed:.1f}/s", style="progress.data.speed")

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), Speed(), TimeRemainingColumn())
    shown = not (prints and sys.stdout.isatty())
    with Progress(*columns, console=Console(stderr=True), redirect_stdout=False, disable=not shown) as bar:
        task = bar.add_task("pictures", total=total)
        yield lambda: bar.advance(task)


def _log(total: int) -> Callable[[], None]:
    """Counts pictures, and says every half minute how far it is; nothing at all of what takes less."""
    from vitcap.tasks.bars import clock  # here, as it imports rich

    begin = last = time.monotonic()
    done, said = 0, False

    def advance() -> None:
        nonlocal last, done, said
        done, now = done + 1, time.monotonic()
        if now - last >= _LOG_EVERY or (said and done == total):
            last, said, speed = now, True, done / max(now - begin, 1e-9)
            ends = f"{clock((total - done) / speed)} left" if done < total else f"in {clock(now - begin)}"
            print(f"vitcap: {done} of {total} pictures, {speed:.1f}/s, {ends}", file=sys.stderr, flush=True)

    return advance
