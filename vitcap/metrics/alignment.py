"""How well attention aligns words, and how translation quality changes with sentence length.

Links are pairs (source word, target word), 0-based. Attention weights of a sentence are (T, S): a row for each target
word, a column for each source word.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitcap.metrics.bleu import bleu, check
from vitcap.types import require_number

Link = tuple[int, int]


class AlignmentScores(NamedTuple):
    """In 0..1; error_rate is 0 for a perfect alignment, precision and recall are 1."""

    precision: float
    recall: float
    error_rate: float


def alignment_scores(
    predicted: Sequence[Collection[Link]],
    sure: Sequence[Collection[Link]],
    possible: Sequence[Collection[Link]] | None = None,
) -> AlignmentScores:
    """Precision, recall and alignment error rate (Och and Ney 2003, section 5) of a corpus.

    predicted (A), sure (S), possible (P): the links of each sentence. Sure links are possible ones too; possible=None
    means no others. Over all sentences together, precision = |A and P| / |A|, recall = |A and S| / |S|,
    error rate = 1 - (|A and S| + |A and P|) / (|A| + |S|). A ratio with nothing below the line is 0.

    Raises ValueError for lists of different lengths, or without any sure or predicted link.
    """
    possible = sure if possible is None else possible
    if not len(predicted) == len(sure) == len(possible):
        raise ValueError(
            f"alignments of {len(predicted)} sentences against {len(sure)} with sure and {len(possible)} with "
            "possible links"
        )
    links = hits_sure = hits_possible = wanted = 0
    for place, (given, certain, allowed) in enumerate(zip(predicted, sure, possible, strict=True)):
        for link in (*given, *certain, *allowed):
            if not (isinstance(link, tuple) and len(link) == 2):
                raise ValueError(f"sentence {place}: {link!r} is no link: pairs (source word, target word) are wanted")
        a, s = set(given), set(certain)
        links, wanted = links + len(a), wanted + len(s)
        hits_sure, hits_possible = hits_sure + len(a & s), hits_possible + len(a & (s | set(allowed)))
    if not links + wanted:
        raise ValueError(f"no links in the {len(predicted)} sentences, so there is no error rate")
    return AlignmentScores(
        hits_possible / links if links else 0.0,
        hits_sure / wanted if wanted else 0.0,
        1 - (hits_sure + hits_possible) / (links + wanted),
    )


def links_from_attention(weights: ArrayLike, *, threshold: float | None = None) -> frozenset[Link]:
    """Links of one sentence: each target word with the source word it attends to most (the first among equals).

    weights: (T, S). threshold: instead, every pair whose weight is at least this; a word may then have several links
    or none.
    """
    matrix = _matrix(weights)
    if threshold is not None:
        require_number("threshold", threshold, 0, 1)
        return frozenset((int(source), int(target)) for target, source in np.argwhere(matrix >= threshold))
    return frozenset((int(source), target) for target, source in enumerate(matrix.argmax(1)))


def merge_pieces(weights: ArrayLike, source_spans: Sequence[Link], target_spans: Sequence[Link]) -> NDArray[np.float64]:
    """From pieces of words to words.

    weights: (T, S) over tokens. spans: (start, stop) token positions of each word, half-open. Returns (target words,
    source words): the sum over the pieces of a source word, since attention is shared out among them, and the mean over
    the pieces of a target word. Tokens outside all spans (end of sentence) drop out, so a row may sum to less than 1.
    """
    matrix = _matrix(weights)
    for name, spans, size in (("source", source_spans, matrix.shape[1]), ("target", target_spans, matrix.shape[0])):
        for start, stop in spans:
            if not 0 <= start < stop <= size:
                raise ValueError(f"{name} span ({start}, {stop}) is empty or outside the {size} {name} tokens")
    rows = [matrix[start:stop].mean(0) for start, stop in target_spans]
    merged = [[row[start:stop].sum() for start, stop in source_spans] for row in rows]
    return np.array(merged, dtype=np.float64).reshape(len(target_spans), len(source_spans))


def peak_share(weights: Sequence[ArrayLike], columns: Sequence[Sequence[int]]) -> float:
    """Share (0..1) of all target words that attend most to the expected source word.

    weights: (T, S) of each sentence. columns: of each sentence, the source word expected of each of its T target words.
    """
    if len(weights) != len(columns):
        raise ValueError(f"attention of {len(weights)} sentences, but expected columns of {len(columns)}")
    hits = steps = 0
    for one, expected in zip(weights, columns, strict=True):
        matrix = _matrix(one)
        if len(expected) != len(matrix):
            raise ValueError(f"{len(matrix)} rows of attention, but {len(expected)} expected columns")
        hits += int((matrix.argmax(1) == np.asarray(expected)).sum())
        steps += len(matrix)
    if not steps:
        raise ValueError("no steps of attention to judge")
    return hits / steps


def diagonal_share(weights: Sequence[ArrayLike], *, anti: bool = False) -> float:
    """Share (0..1) of steps whose strongest weight lies on the diagonal, as copying needs, or on the anti-diagonal
    (anti=True), as reversing needs. weights: square (T, T) of each sentence, without the end token."""
    columns = []
    for one in weights:
        rows, width = _matrix(one).shape
        if rows != width:
            raise ValueError(f"a diagonal needs as many rows as columns; got {rows} and {width}")
        columns.append(range(rows - 1, -1, -1) if anti else range(rows))
    return peak_share(weights, columns)


@dataclass(frozen=True)
class LengthScore:
    """Scores of the sentences whose source has low..high words; exact and bleu in 0..1."""

    low: int
    high: int
    count: int
    exact: float
    bleu: float


def scores_by_length(
    sources: Sequence[str],
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    bins: Sequence[tuple[int, int]] | None = None,
) -> list[LengthScore]:
    """Share of exact matches with a reference, and corpus BLEU-4, in each range of source lengths that has sentences.

    sources, hypotheses: one sentence each, words separated by blanks. references: the references of each.
    bins: ranges (low, high) of words, both included, that hold every source; None makes up to four ranges with about
    as many sentences each.
    """
    check(hypotheses, references)
    if len(sources) != len(hypotheses):
        raise ValueError(f"{len(sources)} sources but {len(hypotheses)} hypotheses")
    lengths = [len(source.split()) for source in sources]
    bins = equal_bins(lengths) if bins is None else bins
    members: dict[tuple[int, int], list[int]] = {(low, high): [] for low, high in bins}
    for index, length in enumerate(lengths):
        home = next(((low, high) for low, high in bins if low <= length <= high), None)
        if home is None:
            raise ValueError(f"a source of {length} words is in none of the ranges {list(bins)}")
        members[home].append(index)
    scores = []
    for (low, high), chosen in members.items():
        if chosen:
            said, wanted = [hypotheses[i] for i in chosen], [references[i] for i in chosen]
            exact = sum(h.split() in [r.split() for r in rs] for h, rs in zip(said, wanted, strict=True))
            scores.append(LengthScore(low, high, len(chosen), exact / len(chosen), float(bleu(said, wanted)[0][3])))
    return scores


def equal_bins(lengths: Sequence[int], groups: int = 4) -> list[tuple[int, int]]:
    """At most `groups` ranges (low, high), both included, without gaps, that hold about as many of the lengths each."""
    if not lengths:
        raise ValueError("no lengths to make ranges of")
    require_number("groups", groups, 1, whole=True)
    ordered = sorted(lengths)
    highs = sorted({ordered[math.ceil(len(ordered) * part / groups) - 1] for part in range(1, groups + 1)})
    lows = [ordered[0], *(high + 1 for high in highs[:-1])]
    return list(zip(lows, highs, strict=True))


def _matrix(weights: ArrayLike) -> NDArray[np.float64]:
    matrix = np.asarray(weights, dtype=np.float64)
    if matrix.ndim != 2 or not matrix.shape[1]:
        raise ValueError(f"attention has the shape {matrix.shape}; expected (target words, source words)")
    if not np.isfinite(matrix).all():
        raise ValueError("the attention holds values that are not finite (NaN or infinity)")
    return matrix
