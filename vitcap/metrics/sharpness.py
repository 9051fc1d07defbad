"""How sharp a map is, and how alike two maps are.

A map is an array of N values of any shape, none of them negative, with some mass: its values over their sum are the
distribution p. Every function raises ValueError for an array that is none; a map without mass says nothing, and is
neither sharp nor flat.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


def distribution(values: ArrayLike) -> NDArray[np.float64]:
    """(N,) values over their sum."""
    p = np.asarray(values, dtype=np.float64).ravel()
    if not len(p) or not np.isfinite(p).all() or p.min() < 0:
        raise ValueError(f"a map of {len(p)} values: one or more finite values are wanted, none below 0")
    if not p.sum():
        raise ValueError("the map is 0 everywhere, so there is no distribution to measure")
    return p / p.sum()


def entropy(values: ArrayLike, *, base: float = math.e) -> float:
    """H = -sum of p log p with 0 log 0 = 0: from 0 (one patch has it all) to log N (uniform). base: e for nats, 2 for
    bits."""
    p = distribution(values)
    p = p[p > 0]
    return max(0.0, -float((p * np.log(p)).sum()) / math.log(base))


def normalised_entropy(values: ArrayLike) -> float:
    """H / log N, 0..1; 1 is uniform. A map of one patch has 0."""
    return entropy(values) / math.log(size) if (size := np.size(values)) > 1 else 0.0


def effective_patches(values: ArrayLike) -> float:
    """e^H, 1..N: as many patches, equally weighted, have the same entropy."""
    return math.exp(entropy(values))


def gini(values: ArrayLike) -> float:
    """Gini coefficient, sum of (2 i - N - 1) p_i / N over ascending p_i, i from 1: from 0 (uniform) to 1 - 1/N."""
    p = np.sort(distribution(values))
    return float(((2 * np.arange(1, len(p) + 1) - len(p) - 1) * p).sum() / len(p))


def hoyer(values: ArrayLike) -> float:
    """Sparseness (sqrt N - |p|_1 / |p|_2) / (sqrt N - 1), 0..1 (Hoyer 2004, equation 1); a map of one patch has 0."""
    p = distribution(values)
    root = math.sqrt(len(p))
    return float((root - 1 / np.sqrt((p**2).sum())) / (root - 1)) if len(p) > 1 else 0.0


def top_mass(values: ArrayLike, k: int) -> float:
    """Share (0..1) of the mass that the k largest values hold."""
    p = distribution(values)
    if not 1 <= k <= len(p):
        raise ValueError(f"top k={k}: the map has {len(p)} values, so 1 to {len(p)} are wanted")
    return min(1.0, float(np.sort(p)[::-1][:k].sum()))


def cells_for_mass(values: ArrayLike, share: float) -> int:
    """Number of cells in the smallest set that holds at least this share (above 0, at most 1) of the mass."""
    if not 0 < share <= 1:
        raise ValueError(f"share {share}: above 0 and at most 1 is wanted")
    held = np.cumsum(np.sort(distribution(values))[::-1])
    return int(np.searchsorted(held, share - 1e-12) + 1)  # the sum of shares that are 0.6 may be a rounding below it


@dataclass(frozen=True)
class Sharpness:
    """Figures of one map: normalised entropy, effective patches, Gini, Hoyer, and the mass of its largest tenth."""

    entropy: float
    patches: float
    gini: float
    hoyer: float
    top_tenth: float

    @classmethod
    def of(cls, values: ArrayLike) -> Sharpness:
        """Of a map; the tenth is of its cells, rounded up."""
        top = top_mass(values, math.ceil(np.size(values) / 10))
        return cls(normalised_entropy(values), effective_patches(values), gini(values), hoyer(values), top)


def kl_divergence(a: ArrayLike, b: ArrayLike) -> float:
    """Sum of p_a log(p_a / p_b) in nats, from 0; infinite where b is 0 and a is not."""
    p, q = distribution(a), distribution(b)
    _same(p, q)
    if (q[p > 0] == 0).any():
        return math.inf
    some = p > 0
    return max(0.0, float((p[some] * np.log(p[some] / q[some])).sum()))


def js_divergence(a: ArrayLike, b: ArrayLike) -> float:
    """Jensen-Shannon divergence in nats: the mean divergence from the mean of both, from 0 to log 2."""
    p, q = distribution(a), distribution(b)
    _same(p, q)
    middle = (p + q) / 2
    return (kl_divergence(p, middle) + kl_divergence(q, middle)) / 2


def pearson(a: ArrayLike, b: ArrayLike) -> float:
    """Correlation of two arrays of any finite values, -1..1; NaN where one of them is constant."""
    x, y = (np.asarray(v, dtype=np.float64).ravel() for v in (a, b))
    _same(x, y)
    x, y = x - x.mean(), y - y.mean()
    # A constant's deviations are rounding errors of the size of its values, not of theirs.
    if any(
        np.abs(d).max(initial=0) <= 1e-12 * np.abs(v).max(initial=0) for d, v in ((x, np.ravel(a)), (y, np.ravel(b)))
    ):
        return math.nan
    x, y = x / np.abs(x).max(), y / np.abs(y).max()
    return float(np.clip((x * y).sum() / math.sqrt((x**2).sum() * (y**2).sum()), -1, 1))


def spearman(a: ArrayLike, b: ArrayLike) -> float:
    """Correlation of the ranks, where equal values share their mean rank, -1..1; NaN where one array is constant."""
    return pearson(_ranks(a), _ranks(b))


def _ranks(values: ArrayLike) -> NDArray[np.float64]:
    _, inverse, counts = np.unique(np.ravel(values), return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse.ravel()]


def _same(a: NDArray, b: NDArray) -> None:
    if a.shape != b.shape:
        raise ValueError(f"maps of {len(a)} and {len(b)} values cannot be compared: both must be of one grid")
