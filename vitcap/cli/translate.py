"""`vitcap translate`: translations of sentences, and which words each of their words was read from."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from vitcap.cli.options import MOST, UsageError, add_loading, add_search, build_search, load, number
from vitcap.drawing import alignment_page, save_sheet


def add_options(parser: argparse.ArgumentParser) -> None:
    """Options of `vitcap translate`."""
    sentences = "sentences, each in quotation marks; none, or -, for standard input, one a line"
    parser.add_argument("sentences", nargs="*", metavar="SENTENCE", help=sentences)
    add_loading(parser, captions=False)
    out = "also draw the alignment of the words of sentence 1 to DIR/0001.png, in words to DIR/0001.txt, and so on"
    parser.add_argument("--out", metavar="DIR", help=out)
    best = "translations of each sentence, in as many columns; above 1 with a beam search"
    parser.add_argument("--n-best", type=number(int, 1, MOST), default=1, metavar="N", help=best)
    parser.add_argument("--batch-size", type=number(int, 1), default=64, metavar="N", help="sentences at a time")
    add_search(parser, "translation")


def run(arguments: argparse.Namespace) -> int:
    """Translate sentences, or the lines of standard input.

    Prints a line "sentence<TAB>translation" for each, in order; the translation is empty where there is none. Tabs and
    line breaks inside a sentence are printed as blanks.
    """
    folder = None if arguments.out is None else Path(arguments.out)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
    translator = load(arguments, "translate")
    options = {"search": build_search(arguments, translator.search, arguments.n_best), "seed": arguments.seed}
    options["need_attention"] = folder is not None
    search = options["search"] or translator.search
    limit = getattr(translator.model.decoder, "max_length", None)
    if limit is not None and search.max_length > limit:
        raise UsageError(f"--max-length {search.max_length}: the model's decoder ends at {limit}")
    sentences, size = iter(arguments.sentences), arguments.batch_size
    if arguments.sentences in ([], ["-"]):
        sentences = _lines()
        size = 1 if sys.stdin.isatty() else size  # who types a sentence waits for its translation
    total = failed = puzzling = 0
    unknown: Counter[str] = Counter()
    while part := list(islice(sentences, size)):
        for sentence, found in zip(part, _translate(translator, part, options), strict=True):
            total += 1
            texts = [""]
            if isinstance(found, Exception):
                failed += 1
                print(f"vitcap: sentence {total}: {found}", file=sys.stderr)
            else:
                texts = [found.text, *(other.text for other in found.alternatives)]
                words = translator.unknown_words(sentence)
                unknown.update(words)
                puzzling += bool(words)
                if folder is not None:
                    _draw(translator, sentence, found, folder, total)
            print("\t".join(" ".join(text.split()) for text in (sentence, *texts)), flush=True)
    if puzzling:
        words = ", ".join(word for word, _ in unknown.most_common(5)) + (", ..." if len(unknown) > 5 else "")
        print(
            f"vitcap: {puzzling} of {total} sentences have words that the model does not know: {words}", file=sys.stderr
        )
    if failed:
        print(f"vitcap: {failed} of {total} sentences could not be translated", file=sys.stderr)
    return 1 if failed else 0


def _lines() -> Iterator[str]:
    """Lines of standard input, UTF-8 whatever the locale."""
    if hasattr(sys.stdin, "reconfigure"):
        sys.stdin.reconfigure(encoding="utf-8-sig", errors="surrogateescape")
    if sys.stdin.isatty():
        print("vitcap: a sentence a line; Ctrl-D ends", file=sys.stderr)
    for line in sys.stdin:
        yield line.rstrip("\n")


def _translate(translator: Any, sentences: Sequence[str], options: dict[str, Any]) -> list[Any]:
    """A Caption for each sentence, or the ValueError of one that the model cannot take: empty, or too long for it."""
    try:
        return translator.translate(sentences, batch_size=len(sentences), **options)
    except ValueError as error:
        if len(sentences) == 1:
            return [error]
    middle = len(sentences) // 2
    halves = (sentences[:middle], sentences[middle:])
    return [found for half in halves for found in _translate(translator, half, options)]


def _draw(translator: Any, sentence: str, found: Any, folder: Path, place: int) -> None:
    """Write one alignment matrix. ValueError for a model without attention, or a folder that cannot be written to."""
    if found.attention is not None and not found.words:
        print(f"vitcap: sentence {place}: the model gave no words, so there is no alignment to draw", file=sys.stderr)
        return
    try:
        save_sheet(folder / f"{place:04d}.png", *alignment_page(translator, sentence, found))
    except ValueError as error:
        if found.attention is None:
            raise
        print(f"vitcap: sentence {place}: not drawn, {error}", file=sys.stderr)
