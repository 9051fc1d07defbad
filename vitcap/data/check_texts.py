"""The part of a check that reads texts: the vocabulary that training would have, unknown words, lengths, cuts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from vitcap.data.check_report import Report
from vitcap.data.tokenizer import Tokenizer
from vitcap.types import UNK

MOST_UNKNOWN, MOST_CUT = 0.1, 0.05
"""Shares of unknown words and of texts that are cut above which a split is reported."""


@dataclass(frozen=True)
class TextOptions:
    """How training will read texts: see CaptionData. tokenizer: None where there are none to be read."""

    tokenizer: str | None = "word"
    min_count: int = 5
    vocab_size: int = 10000
    max_length: int = 40


def check_texts(
    report: Report,
    texts: Mapping[str, Sequence[str]],
    options: TextOptions,
    *,
    what: str = "captions",
    tokenizer: Tokenizer | None = None,
    sample: int | None = None,
) -> None:
    """Add the vocabulary of the training texts, and of every split the share of unknown words and the lengths.

    texts: split -> clean texts; those of "all" are trained on where there is no train. what: a word for them.
    tokenizer: the vocabulary, made of the training texts if left out. sample: look at about so many texts of a split,
    evenly spread; at all if left out.
    Lengths are in tokens, start and end included, as data.max_length counts them.
    """
    if tokenizer is None:
        training = texts.get("train") or texts.get("all")
        if options.tokenizer is None or not training:
            return
        kind, least, most = options.tokenizer, options.min_count, options.vocab_size
        try:
            tokenizer = Tokenizer.train(training, kind=kind, min_count=least, vocab_size=most)
        except ValueError as error:
            report.add("error", f"vocabulary of the {what} that cannot be made", [str(error)])
            return
    report.facts[f"vocabulary of the {what}"] = tokenizer.vocab_size
    for split, all_texts in texts.items():
        chosen = all_texts[:: max(len(all_texts) // sample, 1)] if sample else all_texts
        lengths: Counter[int] = Counter()
        words = unknown = 0
        blank = []
        for text in chosen:
            ids = tokenizer.encode(text)
            lengths[len(ids) + 2] += 1
            words += len(ids)
            unknown += ids.count(UNK)
            if not ids:
                blank.append(text)
        if not words:
            continue
        share, cut = unknown / words, sum(n for length, n in lengths.items() if length > options.max_length)
        report.add("warning", f"{what} of which no token is left", blank, split=split)
        told = f"{what} longer than max_length={options.max_length} tokens and cut ({100 * cut / len(chosen):.2f} %)"
        report.add("warning" if cut > MOST_CUT * len(chosen) else "fact", told, count=cut, split=split)
        told = f"unknown words in the {what}, {100 * share:.2f} % of all (min_count={options.min_count})"
        report.add("warning" if share > MOST_UNKNOWN else "fact", told, count=unknown, split=split)
        report.add("fact", f"{what}, by length: {_histogram(lengths)}", count=len(chosen), split=split)
        report.splits.setdefault(split, {}).setdefault("texts", {})[what] = {
            "looked at": len(chosen),
            "unknown share": share,
            "cut share": cut / len(chosen),
            "lengths": {str(length): lengths[length] for length in sorted(lengths)},
        }


def _histogram(lengths: Counter[int], bars: int = 6) -> str:
    """Such as "5-9 tokens 40 %, 10-14 60 %": at most so many ranges of equal width that hold everything."""
    low, high = min(lengths), max(lengths)
    width = -(-(high - low + 1) // bars)
    total = lengths.total()
    told: list[str] = []
    for start in range(low, high + 1, width):
        count = sum(lengths[length] for length in range(start, start + width))
        last = min(start + width - 1, high)
        label = str(start) if last == start else f"{start}-{last}"
        told.append(f"{label} {'tokens ' if not told else ''}{100 * count / total:.3g} %")
    return ", ".join(told)
