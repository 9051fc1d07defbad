"""Intervals of figures over pictures, by drawing the pictures again (Efron 1979). NumPy only."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray


def resamples(count: int, *, seed: int, rounds: int = 1000) -> NDArray[np.int64]:
    """(rounds, count) bootstrap samples of pictures (Efron 1979): how often each is drawn."""
    return np.random.default_rng(seed).multinomial(count, np.full(count, 1 / count), rounds)


def interval(values: ArrayLike, *, level: float = 0.95) -> tuple[float, float] | None:
    """Percentile interval of a figure over bootstrap samples; None where it is defined for none of them."""
    known = np.asarray(values, dtype=np.float64)
    known = known[np.isfinite(known)]
    if not len(known):
        return None
    low, high = np.quantile(known, [(1 - level) / 2, (1 + level) / 2])
    return float(low), float(high)


def ratio(top: ArrayLike, bottom: ArrayLike, samples: ArrayLike) -> tuple[float, tuple[float, float] | None]:
    """Sum of `top` over sum of `bottom`, both (pictures,), and its bootstrap interval; a mean over words where `bottom`
    counts them."""
    a, b, drawn = (np.asarray(x, dtype=np.float64) for x in (top, bottom, samples))
    with np.errstate(divide="ignore", invalid="ignore"):
        return float(np.divide(a.sum(), b.sum())), interval((drawn @ a) / (drawn @ b))


def class_ratio(top: ArrayLike, bottom: ArrayLike, samples: ArrayLike) -> tuple[float, tuple[float, float] | None]:
    """Mean over classes of each one's `ratio`, and its bootstrap interval; both (pictures, classes). A class that has
    nothing to divide by, in all pictures or in a sample, is left out there."""
    a, b, drawn = (np.asarray(x, dtype=np.float64) for x in (top, bottom, samples))
    tops, bottoms = (np.concatenate((x.sum(0, keepdims=True), drawn @ x)) for x in (a, b))
    each = np.divide(tops, bottoms, out=np.zeros_like(tops), where=bottoms > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        means = each.sum(1) / (bottoms > 0).sum(1)
    return float(means[0]), interval(means[1:])


def mean_interval(values: ArrayLike, *, seed: int, rounds: int = 2000) -> tuple[float, float]:
    """Interval of the mean of (pictures,) finite values.

    The same seed draws the same pictures, so that intervals of paired differences need only their differences.
    """
    each = np.asarray(values, dtype=np.float64)
    found = interval(resamples(len(each), seed=seed, rounds=rounds) @ each / len(each))
    assert found is not None
    return found
