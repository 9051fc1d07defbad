"""F1 of grounded object words (Zhou et al. 2019). NumPy only."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

HIT = 0.5
"""A box hits where its intersection over union is above this."""


@dataclass(frozen=True)
class Sentence:
    """The object words of one picture's sentence, and what is true of the picture.

    said: (class, IoU of the word's box with the object's; of several the largest; None where the picture has none), in
    order. wanted: the classes that are annotated. excused: classes that are in the picture (or its true sentence) but
    not annotated, so that naming them is no error.
    """

    said: Sequence[tuple[str, float | None]]
    wanted: Collection[str]
    excused: Collection[str] = ()


class GroundedF1:
    """F1_all, F1_loc and their means over sentences, as the scripts of Zhou et al. 2019 compute them.

    all: every mention counts, so that objects named wrongly cost precision and objects left out cost recall. loc: only
    objects named rightly count, so that it is about places alone. Precision and recall are means over a class, summed
    and divided by the number of `classes` (None: all that any sentence wants), named or not. Of several mentions of
    one class, recall asks the first.
    """

    def __init__(self, sentences: Sequence[Sentence], classes: Collection[str] | None = None) -> None:
        self.classes = sorted({c for s in sentences for c in s.wanted} if classes is None else set(classes))
        index = {name: i for i, name in enumerate(self.classes)}
        shape = (len(sentences), len(self.classes))
        # [precision or recall][sentence, class]: sums of hits, and how many there are.
        self._hits = {mode: np.zeros((2, *shape)) for mode in ("all", "loc")}
        self._counts = {mode: np.zeros((2, *shape)) for mode in ("all", "loc")}
        self.per_sentence: dict[str, list[float | None]] = {"all": [], "loc": []}
        for row, sentence in enumerate(sentences):
            for mode in ("all", "loc"):
                named, found = _judge(sentence, mode)
                for which, judged in enumerate((named, found)):
                    for name, hit in judged:
                        if name in index:  # a class outside adds nothing to the sum, and is in no denominator
                            self._hits[mode][which, row, index[name]] += hit
                            self._counts[mode][which, row, index[name]] += 1
                self.per_sentence[mode].append(_sentence_f1([h for _, h in named], [h for _, h in found]))

    def scores(self, weights: ArrayLike | None = None) -> dict[str, float]:
        """F1_all, F1_loc, precision_all, ..., F1_all_per_sentence, F1_loc_per_sentence: 0..1, NaN if nothing is wanted.

        weights: (sentences,) how often each counts; 1 each if None.
        """
        some: NDArray = next(iter(self._hits.values()))
        weight = np.ones(some.shape[1]) if weights is None else np.asarray(weights, dtype=np.float64)
        result: dict[str, float] = {}
        for mode in ("all", "loc"):
            hits, counts = weight @ self._hits[mode], weight @ self._counts[mode]
            means = np.divide(hits, counts, out=np.zeros_like(hits), where=counts > 0)
            precision, recall = means.sum(1) / len(self.classes) if self.classes else (np.nan, np.nan)
            result |= {f"precision_{mode}": float(precision), f"recall_{mode}": float(recall)}
            result[f"F1_{mode}"] = _harmonic(float(precision), float(recall))
            each = np.array([np.nan if f1 is None else f1 for f1 in self.per_sentence[mode]])
            total = weight @ ~np.isnan(each)
            result[f"F1_{mode}_per_sentence"] = float(weight @ np.nan_to_num(each) / total) if total else float("nan")
        return result


def _judge(sentence: Sentence, mode: str) -> tuple[list[tuple[str, bool]], list[tuple[str, bool]]]:
    """(class, hit) of every mention that precision asks for, and of every class that recall asks for."""
    every = mode == "all"
    named, found = [], []
    for name, iou in sentence.said:
        if name in sentence.wanted:
            named.append((name, iou is not None and iou > HIT))
        elif every and name not in sentence.excused:
            named.append((name, False))
    for name in sentence.wanted:
        ious = [iou for said, iou in sentence.said if said == name]
        if ious:
            found.append((name, ious[0] is not None and ious[0] > HIT))
        elif every:
            found.append((name, False))
    return named, found


def _sentence_f1(named: list[bool], found: list[bool]) -> float | None:
    """None for a sentence of which nothing is wanted."""
    return _harmonic(float(np.mean(named)) if named else 0.0, float(np.mean(found))) if found else None


def _harmonic(precision: float, recall: float) -> float:
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0
