"""ROUGE-L (Lin 2004) as the COCO caption evaluation computes it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from vitcap.metrics.bleu import check

BETA = 1.2
"""Weight of recall against precision."""


def _common(words: list[str], others: list[list[str]]) -> list[int]:
    """Length of the longest common subsequence of `words` with each of `others`.

    The row of the dynamic programme is one integer, a bit for each of `words` that is 0 where the row rises (Hyyrö
    2004, "Bit-parallel LCS-length computation revisited"); a word that does not occur in `words` leaves it as it is.
    """
    places: dict[str, int] = {}
    for i, word in enumerate(words):
        places[word] = places.get(word, 0) | 1 << i
    full = (1 << len(words)) - 1
    lengths = []
    for other in others:
        row = full
        for word in other:
            if word in places:
                rise = row & places[word]
                row = (row + rise | row - rise) & full
        lengths.append(len(words) - row.bit_count())
    return lengths


def rouge_l(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> tuple[float, NDArray[np.float64]]:
    """ROUGE-L in 0..1: the mean over the images, and the score of each image (I,).

    hypotheses: one tokenised caption per image, words separated by single blanks. references: the tokenised reference
    captions of each image, at least one. Precision and recall are each the best over the references, which need not be
    the same one. As in COCO's program an empty caption counts as one (empty) word.
    """
    check(hypotheses, references)
    scores = np.zeros(len(hypotheses))
    for i, (hypothesis, captions) in enumerate(zip(hypotheses, references, strict=True)):
        words, others = hypothesis.split(" "), [caption.split(" ") for caption in captions]
        common = _common(words, others)
        precision = max(common) / len(words)
        recall = max(length / len(other) for length, other in zip(common, others, strict=True))
        if precision and recall:
            scores[i] = (1 + BETA**2) * precision * recall / (recall + BETA**2 * precision)
    return float(scores.mean()), scores
