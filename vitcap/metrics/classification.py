"""The score card of a classifier: accuracy, likelihood, calibration, confusion, and signs of trouble.

Letters: N samples, C classes. `Predictions.of` keeps a few numbers of every sample, so that scores are exact over any
number of batches and processes; `score` counts them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from vitcap.metrics.relabelling import best_relabelling

BINS = 15
_SCALES = "top-k and ReaL accuracy and ECE are fractions of 1; NLL is in nats; Brier sums over the classes, 0..2"


@dataclass(frozen=True)
class Predictions:
    """What is kept of N samples; every array has length N and the order of `ids`.

    labels, predicted: class indices. rank: classes that the model puts before the label, 0 if it is right.
    nll: -ln of the label's probability, in nats. confidence: of the predicted class, 0..1. brier: squared distance of
    the probabilities from the one-hot label. classes: C. among: how many classes the model chose from.
    repeated: samples that were left out because their id was there already.
    """

    ids: tuple[int | str, ...]
    labels: NDArray[np.int64]
    predicted: NDArray[np.int64]
    rank: NDArray[np.int64]
    nll: NDArray[np.float64]
    confidence: NDArray[np.float64]
    brier: NDArray[np.float64]
    classes: int
    among: int
    repeated: int = 0

    @classmethod
    def of(
        cls, logits: Tensor, labels: Tensor, ids: Sequence[int | str], *, subset: Sequence[int] | None = None
    ) -> Predictions:
        """From logits (N, C) and labels (N,).

        subset: class indices that the data has (200 of ImageNet-A and -R): only their logits take part.
        Of equal logits the first class counts as the higher one. ValueError, naming the ids, for labels that are no
        class (of the subset) and for logits that are not finite.
        """
        classes = logits.shape[1]
        check_labels(labels, ids, classes)
        logits, labels = logits.detach().double().cpu(), labels.detach().cpu()
        if bad := [i for i, ok in zip(ids, torch.isfinite(logits).all(1).tolist(), strict=True) if not ok]:
            raise ValueError(f"the logits of {_some(bad)} are not finite: the weights are damaged, or overflow in fp16")
        kept = torch.arange(classes) if subset is None else torch.tensor(sorted(set(subset)))
        place = torch.full((classes,), -1)
        place[kept] = torch.arange(len(kept))
        column = place[labels]
        if bad := [i for i, c in zip(ids, column.tolist(), strict=True) if c < 0]:
            raise ValueError(f"the labels of {_some(bad)} are not among the {len(kept)} classes of the subset")
        logits = logits[:, kept]
        own = logits.gather(1, column[:, None])
        before = torch.arange(len(kept)) < column[:, None]
        rank = ((logits > own) | ((logits == own) & before)).sum(1)
        log_probs = logits.log_softmax(1)
        probs = log_probs.exp()
        best = (logits == logits.amax(1, keepdim=True)).int().argmax(1)  # the first of equals, which argmax leaves open
        true = log_probs.gather(1, column[:, None])[:, 0]
        return cls(
            ids=tuple(ids),
            labels=labels.numpy().astype(np.int64),
            predicted=kept[best].numpy(),
            rank=rank.numpy(),
            nll=-true.numpy(),
            confidence=probs.gather(1, best[:, None])[:, 0].numpy(),
            brier=(probs.square().sum(1) - 2 * true.exp() + 1).numpy(),
            classes=classes,
            among=len(kept),
        )

    @classmethod
    def join(cls, parts: Sequence[Predictions]) -> Predictions:
        """One after the other; an id that was there already (padding of a sampler) counts once, as it came first."""
        if not parts:
            raise ValueError("no predictions to join: the split is empty")
        if len(sizes := {(part.classes, part.among) for part in parts}) > 1:
            raise ValueError(f"predictions over different classes cannot be joined: {sorted(sizes)}")
        ids = [i for part in parts for i in part.ids]
        first = {i: n for n, i in reversed(list(enumerate(ids)))}
        keep = np.array(sorted(first.values()), dtype=np.int64)
        arrays = {
            name: np.concatenate([getattr(part, name) for part in parts])[keep]
            for name in (f.name for f in fields(cls))
            if name not in ("ids", "classes", "among", "repeated")
        }
        repeated = len(ids) - len(keep) + sum(part.repeated for part in parts)
        return cls(
            tuple(ids[n] for n in keep), **arrays, classes=parts[0].classes, among=parts[0].among, repeated=repeated
        )

    def __len__(self) -> int:
        return len(self.ids)


def check_labels(labels: Tensor | None, ids: Sequence[int | str], classes: int) -> None:
    """ValueError that names the first records without a label or with one outside 0..classes - 1."""
    if labels is None or len(labels) != len(ids):
        have = "no labels" if labels is None else f"{len(labels)} labels"
        raise ValueError(f"{len(ids)} records ({_some(list(ids))}) with {have}: a classifier needs one for each")
    wrong = [(i, label) for i, label in zip(ids, labels.tolist(), strict=True) if not 0 <= label < classes]
    if wrong:
        raise ValueError(
            f"record {wrong[0][0]!r} has label {wrong[0][1]}, the model has classes 0 to {classes - 1} "
            f"({len(wrong)} such records in the batch): the data's class list is not the model's"
        )


def calibration(confidence: ArrayLike, correct: ArrayLike, *, bins: int = BINS) -> tuple[float, float]:
    """(expected, maximum) calibration error of N predictions (Guo et al. 2017, equations 3 and 5), fractions of 1.

    Samples fall into `bins` intervals of equal width (lo, hi] of their confidence; the error of an interval is the
    distance of its mean confidence from its accuracy, and the expected error weights it with its share of samples.
    """
    sure, right = np.asarray(confidence, dtype=np.float64), np.asarray(correct, dtype=np.float64)
    edges = np.linspace(0, 1, bins + 1)
    index = np.clip(np.searchsorted(edges, sure, side="left") - 1, 0, bins - 1)
    count = np.bincount(index, minlength=bins)
    gap = np.abs(np.bincount(index, sure, bins) - np.bincount(index, right, bins))
    return float(gap.sum() / len(sure)), float((gap[count > 0] / count[count > 0]).max())


def confusion(labels: ArrayLike, predicted: ArrayLike, classes: int) -> NDArray[np.int64]:
    """(C, C) counts: row = true class, column = predicted class."""
    flat = np.asarray(labels, dtype=np.int64) * classes + np.asarray(predicted, dtype=np.int64)
    return np.bincount(flat, minlength=classes * classes).reshape(classes, classes)


def real_accuracy(predictions: Predictions, real: Mapping[Any, Set[int]]) -> tuple[float | None, int]:
    """Share of images whose prediction is one of their ReaL labels, and the number of images with such labels.

    real: id -> reassessed labels; images with none are left out (Beyer et al. 2020, section 4).
    """
    if missing := [i for i in predictions.ids if i not in real]:
        raise ValueError(f"there are no ReaL labels for {_some(missing)}")
    pairs = [(int(p) in real[i]) for i, p in zip(predictions.ids, predictions.predicted, strict=True) if real[i]]
    return (sum(pairs) / len(pairs) if pairs else None), len(pairs)


@dataclass(frozen=True)
class ClassScores:
    """corpus: "top-1", "top-5", "NLL", "ECE", "Brier", and "ReaL" if asked for -> score, None where not defined.

    Of fewer than five classes the second is "top-2" to "top-4", and always 1. per_class: class name -> accuracy, None
    without samples. confusion: (C, C) counts, true class by predicted class. facts: how the figures came about.
    """

    corpus: dict[str, float | None]
    per_class: dict[str, float | None]
    confusion: NDArray[np.int64]
    facts: dict[str, Any]

    def table(self) -> str:
        """Scores and facts as text: percent, but for NLL (nats) and Brier."""
        lines = []
        for name, value in self.corpus.items():
            plain = name in ("NLL", "Brier")
            shown = "-" if value is None else f"{value:.4f}" if plain else f"{100 * value:.2f}"
            lines.append(f"  {name:<8} {shown:>8} {'nats' if name == 'NLL' else '' if plain else '%'}".rstrip())
        facts = {k: _readable(v) for k, v in self.facts.items() if v not in (None, [], {})}
        width = max(map(len, facts))
        return "\n".join([*lines, "", *(f"{name.replace('_', ' '):<{width}}  {text}" for name, text in facts.items())])

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types: scale, scores, per-class accuracy and facts (not the confusion matrix)."""
        return {"scale": _SCALES, "scores": self.corpus, "per_class": self.per_class, "facts": self.facts}


def score(
    predictions: Predictions,
    *,
    classes: Sequence[str] | None = None,
    real: Mapping[Any, Set[int]] | None = None,
    diagnose: bool = True,
    about: Mapping[str, Any] | None = None,
) -> ClassScores:
    """Scores of the predictions of a whole split.

    classes: names in index order, default the indices. real: id -> ReaL labels. diagnose: look for a class order that
    differs where the accuracy is poor. about: further facts to keep (split, checkpoint, preprocessing).
    """
    if not len(predictions):
        raise ValueError("no predictions to score: the split is empty")
    size = predictions.classes
    names = [str(i) for i in range(size)] if classes is None else list(classes)
    if len(names) != size:
        raise ValueError(f"{len(names)} class names for {size} classes")
    names = [name if names.count(name) == 1 else f"{name} ({i})" for i, name in enumerate(names)]
    p = predictions
    k = min(5, p.among)
    ece, mce = calibration(p.confidence, p.rank == 0)
    top1 = float((p.rank == 0).mean())
    corpus: dict[str, float | None] = {"top-1": top1}
    if k > 1:
        corpus[f"top-{k}"] = float((p.rank < k).mean())
    corpus |= {"NLL": float(p.nll.mean()), "ECE": ece, "Brier": float(p.brier.mean())}
    facts = dict(about or {}) | {"samples": len(p), "repeated_samples_left_out": p.repeated, "classes": size}
    if p.among < size:
        facts["subset"] = f"the model chose among the {p.among} classes of the data"
    if k < 5:
        facts["top_k"] = f"top-{k}, since there are {p.among} classes"
    if real is not None:
        corpus["ReaL"], facts["real_images"] = real_accuracy(p, real)
    matrix = confusion(p.labels, p.predicted, size)
    count = matrix.sum(1)
    per_class = {n: float(matrix[i, i] / count[i]) if count[i] else None for i, n in enumerate(names)}
    facts |= {"classes_without_samples": int((count == 0).sum()), "mean_per_class": _mean(per_class.values())}
    facts |= {"calibration_bins": f"{BINS} of equal width", "MCE": mce, "most_confused": _confused(matrix, names)}
    facts["warnings"] = _diagnose(p, top1, names) if diagnose else []
    return ClassScores(corpus, per_class, matrix, facts)


def _diagnose(p: Predictions, top1: float, names: Sequence[str]) -> list[str]:
    """What is probably wrong when the accuracy is that of guessing, or when one relabelling would repair it."""
    warnings = []
    order = best_relabelling(p.labels, p.predicted, p.classes) if top1 < 0.5 else None
    if order is not None and order.held_out >= max(2 * top1, 3 / p.among, 0.3):
        moved = [f"{names[a]} -> {names[b]}" for a, b in order.moves[:3]]
        warnings.append(
            f"class order differs: top-1 is {100 * top1:.1f} %, but {100 * order.held_out:.1f} % if the classes of the "
            f"model are relabelled one to one (such as {'; '.join(moved)}; found on one half of the samples, "
            "counted on the other): give the class index that the model was trained with"
        )
    elif top1 <= (2 / p.among if p.among >= 5 else 1.2 / p.among):
        warnings.append(
            f"top-1 of {100 * top1:.1f} % is near chance ({100 / p.among:.1f} %): the weights may be untrained, the "
            "preprocessing another one, or the class order not the model's"
        )
    if len(p) > p.classes and len(only := np.unique(p.predicted)) == 1 < len(np.unique(p.labels)):
        warnings.append(f"every prediction is {names[only[0]]}: the model does not look at the pictures")
    return warnings


def _confused(matrix: NDArray[np.int64], names: Sequence[str], count: int = 5) -> dict[str, int]:
    """The most frequent confusions, "true as predicted" -> how often."""
    off = matrix - np.diag(np.diag(matrix))
    largest = np.argsort(-off, axis=None, kind="stable")[:count]
    pairs = [np.unravel_index(flat, off.shape) for flat in largest]
    return {f"{names[a]} as {names[b]}": int(off[a, b]) for a, b in pairs if off[a, b]}


def _mean(values: Any) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None


def _readable(fact: Any) -> str:
    if isinstance(fact, dict):
        return ", ".join(f"{name} {_readable(value)}" for name, value in fact.items())
    if isinstance(fact, list | tuple):
        return "; ".join(map(_readable, fact))
    return f"{fact:.4g}" if isinstance(fact, float) else str(fact)


def _some(ids: Sequence[Any]) -> str:
    return ", ".join(map(repr, ids[:5])) + (f" and {len(ids) - 5} more" if len(ids) > 5 else "")
