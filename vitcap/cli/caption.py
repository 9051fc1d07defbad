"""`vitcap caption`: captions of photos, printed or written as JSON lines."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitcap.cli.options import MOST, UsageError, add_model, add_search, build_search, load, number, require_model
from vitcap.cli.pictures import picture_paths, progress, results_of


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap caption`."""
    add_model(parser)
    parser.add_argument("--out", metavar="FILE", help="write JSON lines; pictures that it already has are skipped")
    parser.add_argument(
        "--n-best",
        type=number(int, 1, MOST),
        default=1,
        metavar="N",
        help="captions for each picture; above 1 with a beam search",
    )
    parser.add_argument("--batch-size", type=number(int, 1), default=16, metavar="N", help="pictures at a time")
    add_search(parser)


def run(arguments: argparse.Namespace) -> int:
    """Caption photos, or all photos in folders.

    Without --out, prints a line "path<TAB>caption" for each picture. With it, appends a JSON line for each as soon as
    it is done, so that an interrupted run goes on where it stopped; pictures that failed are tried again.
    """
    require_model(arguments)
    paths = picture_paths(arguments.photos, note := _notes(arguments.quiet))
    done: list[str] = []
    if arguments.out is not None:
        done = prepare(Path(arguments.out))
        seen = set(done)
        todo = [path for path in paths if path not in seen]
        if len(todo) < len(paths):
            note(f"{len(paths) - len(todo)} of {len(paths)} pictures are already in {arguments.out} and are skipped")
    else:
        todo = paths
    if not todo:
        return 0
    captioner = load(arguments)
    search = build_search(arguments, captioner.search, arguments.n_best)
    failed = 0
    with _sink(arguments.out) as write, progress(len(todo), arguments.quiet, arguments.out is None) as advance:
        options = {"search": search, "seed": arguments.seed}
        for path, _, caption in results_of(captioner.caption, todo, arguments.batch_size, **options):
            if isinstance(caption, Exception):
                failed += 1
                print(f"vitcap: skipped {caption}", file=sys.stderr)
                if arguments.out is not None:
                    write(dump({"image": path, "error": str(caption)}))
            elif arguments.out is not None:
                write(dump(record(path, caption, captioner.tokenizer)))
            else:
                write(f"{path}\t{caption.text}")
            advance()
    if arguments.out is not None:
        put_in_order(Path(arguments.out), paths)
    if failed:
        print(f"vitcap: {failed} of {len(todo)} pictures could not be read", file=sys.stderr)
    return 1 if failed else 0


def record(path: str, caption: Any, tokenizer: Any) -> dict[str, Any]:
    """What the JSON line of one picture holds. Log-probabilities are natural logarithms."""
    from vitcap.types import EOS  # here, as it imports torch, and `vitcap --help` need not wait for that

    def entry(one: Any) -> dict[str, Any]:
        texts = ["<eos>" if token == EOS else tokenizer.decode([token]) for token in one.tokens]
        return {
            "caption": one.text,
            "score": round(one.score, 6),
            "finished": one.finished,
            "tokens": [
                {"text": text, "log_prob": round(value, 6)} for text, value in zip(texts, one.log_probs, strict=True)
            ],
        }

    return {"image": path, **entry(caption), "n_best": [entry(one) for one in (caption, *caption.alternatives)]}


def dump(values: dict[str, Any]) -> str:
    """One line of JSON; readable letters, unless a file name has bytes that are no UTF-8."""
    line = json.dumps(values, ensure_ascii=False)
    try:
        line.encode("utf-8")
    except UnicodeEncodeError:
        return json.dumps(values)
    return line


def prepare(out: Path) -> list[str]:
    """Make `out` ready to be appended to; returns the pictures it has captions of.

    A last line that was cut, and lines of pictures that failed, are taken out. Raises UsageError, and changes nothing,
    if the file holds anything else.
    """
    if not out.exists():
        out.parent.mkdir(parents=True, exist_ok=True)
        return []
    kept, images = [], []
    content = out.read_bytes()
    lines = content.splitlines(keepends=True)
    for place, line in enumerate(lines, 1):
        image, good = _parse(line)
        if good:
            kept.append(line.rstrip(b"\r\n") + b"\n")
            images.append(image)
        cut = place == len(lines) and not line.endswith(b"\n") and line[:8] == b'{"image"'[: len(line)]
        if not image and not cut:
            raise UsageError(
                f"{out}, line {place}: not a caption record, so nothing was written; give another --out, or remove it"
            )
    _replace(out, kept, content)
    return images


def put_in_order(out: Path, paths: Sequence[str]) -> None:
    """Sort the lines of `out` by `paths`; lines of other pictures come first, as they were."""
    content = out.read_bytes()
    order = {path: place for place, path in enumerate(paths)}
    _replace(out, sorted(content.splitlines(keepends=True), key=lambda line: order.get(_parse(line)[0], -1)), content)


def _parse(line: bytes) -> tuple[str, bool]:
    """(picture of a line, whether it has a caption); the picture is empty if the line is no record."""
    try:
        value = json.loads(line)
    except ValueError:
        return "", False
    image = value.get("image") if isinstance(value, dict) else None
    return (image, "caption" in value) if isinstance(image, str) else ("", False)


def _replace(out: Path, lines: Sequence[bytes], content: bytes) -> None:
    """Give `out` other lines, at once, so that it is never half written."""
    if b"".join(lines) != content:
        temporary = out.with_name(f".{out.name}.{os.getpid()}")
        temporary.write_bytes(b"".join(lines))
        os.replace(temporary, out)


@contextmanager
def _sink(out: str | None) -> Iterator[Any]:
    """A function that writes one line, which is on disk (or on screen) when it returns."""
    if out is None:
        yield lambda line: print(line, flush=True)
        return
    with open(out, "a", encoding="utf-8", newline="\n") as file:

        def write(line: str) -> None:
            file.write(line + "\n")
            file.flush()

        yield write


def _notes(quiet: bool) -> Any:
    return lambda text: None if quiet else print(f"vitcap: {text}", file=sys.stderr)
