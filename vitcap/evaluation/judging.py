"""Scores of captions and sentences by name: what training watches, and evaluation reports."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from vitcap.data.pictures import CaptionData
from vitcap.data.records import Source
from vitcap.data.sentences import SentenceData
from vitcap.metrics.bleu import bleu
from vitcap.metrics.captions import score

Id = int | str
Judge = Callable[[Mapping[Id, str]], dict[str, float]]


def truth_judge(source: Source) -> Judge | None:
    """For drawn scenes: shares (0..1) of captions that are true in every claim, by what training has shown.

    true_seen: scenes whose (colour, shape) pairs all occur in training; true_held_out: scenes with a pair that does
    not; coverage: mean share of a scene's objects that the caption truly names. None for photographs.
    """
    truth: Any = getattr(source, "truth", None)
    held_out: Any = getattr(source, "held_out", None)
    if truth is None or held_out is None:
        return None

    def judge(captions: Mapping[Id, str]) -> dict[str, float]:
        shares: dict[str, list[float]] = {}
        for id_, caption in captions.items():
            verdict = truth(id_, caption)
            shares.setdefault("true_held_out" if held_out(id_) else "true_seen", []).append(float(verdict.ok))
            shares.setdefault("coverage", []).append(verdict.coverage)
        return {name: sum(values) / len(values) for name, values in sorted(shares.items())}

    return judge


def caption_judge(data: CaptionData, split: str) -> Judge:
    """Caption metrics of a split, where they are defined, and the truth about drawn scenes."""
    references, truth = data.references(split), truth_judge(data.source)

    def judge(captions: Mapping[Id, str]) -> dict[str, float]:
        card = score(captions, {id_: references[id_] for id_ in captions})
        figures = {name: value for name, value in card.corpus.items() if value is not None}
        return figures | (truth(captions) if truth is not None else {})

    return judge


def sentence_judge(data: SentenceData, split: str) -> Judge:
    """exact: share (0..1) of sentences that equal one of their targets. BLEU-1 to BLEU-4: 0..1, of the whole set.

    All over the tokens that the target tokenizer keeps, joined by blanks.
    """
    clean = data.tokenizer.clean
    references = {id_: tuple(map(clean, targets)) for id_, targets in data.references(split).items()}

    def judge(sentences: Mapping[Id, str]) -> dict[str, float]:
        wanted = [references[id_] for id_ in sentences]
        exact = sum(text in targets for text, targets in zip(sentences.values(), wanted, strict=True))
        figures = bleu(list(sentences.values()), wanted)[0]
        return {"exact": exact / len(sentences)} | {f"BLEU-{n}": float(v) for n, v in enumerate(figures, start=1)}

    return judge
