"""Does a map show what a model uses? Take patches away in the order of the map, and see what the model's score does.

Letters: N patches, K steps. A map gives a value to every patch; `kept` are boolean masks (K, N) of the patches that are
left, and a score f gives a number for each mask: the log-probability of a word, or the probability of a class. What
stands in the place of a removed patch is the caller's choice; `road_impute` is one.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike, NDArray

Kept = NDArray[np.bool_]
Score = Callable[[Kept], NDArray[np.float64]]


def removal_order(values: ArrayLike, *, least: bool = False, ties: ArrayLike | None = None) -> NDArray[np.int64]:
    """Patches (N,) by falling value, MoRF ("most relevant first"), or by rising value if `least`, LeRF.

    ties: (N,) rank of each patch among those of equal value, in both orders; None: row-major. So the two orders of a
    constant map are one, whose LeRF - MoRF is exactly 0; and with a random permutation it scores as random order does.
    Row-major ties would remove the sky first, which no map asked for.
    """
    flat = np.asarray(values, dtype=np.float64).ravel()
    if not len(flat) or not np.isfinite(flat).all():
        raise ValueError(f"a map of {len(flat)} values: one or more finite values are wanted")
    second = np.arange(len(flat)) if ties is None else np.asarray(ties).ravel()
    if second.shape != flat.shape:
        raise ValueError(f"ties: {len(second)} ranks for a map of {len(flat)} values")
    return np.lexsort((second, flat if least else -flat))


def step_counts(patches: int, steps: int | None = None) -> NDArray[np.int64]:
    """Numbers of patches after each step, from 0 to all: in `steps` about equal steps, or one by one (None)."""
    steps = patches if steps is None else steps
    if steps < 1:
        raise ValueError(f"steps={steps}: at least 1 is wanted")
    return np.unique(np.round(np.linspace(0, patches, steps + 1)).astype(np.int64))


def deletion_masks(order: ArrayLike, counts: ArrayLike) -> Kept:
    """(K, N): all but the first counts[k] patches of the order are left."""
    return ~insertion_masks(order, counts)


def insertion_masks(order: ArrayLike, counts: ArrayLike) -> Kept:
    """(K, N): only the first counts[k] patches of the order are left."""
    ranks = np.argsort(np.asarray(order))
    return ranks[None] < np.asarray(counts)[:, None]


def deletion_curve(score: Score, order: ArrayLike, counts: ArrayLike | None = None) -> NDArray[np.float64]:
    """f after removing the first 0 .. N patches of an order (Petsiuk et al. 2018, RISE): low is good."""
    return score(deletion_masks(order, step_counts(len(np.ravel(order))) if counts is None else counts))


def insertion_curve(score: Score, order: ArrayLike, counts: ArrayLike | None = None) -> NDArray[np.float64]:
    """f after adding the first 0 .. N patches of an order to nothing (Petsiuk et al. 2018): high is good."""
    return score(insertion_masks(order, step_counts(len(np.ravel(order))) if counts is None else counts))


def curve_area(curve: ArrayLike, counts: ArrayLike | None = None) -> float:
    """Area under a curve by trapezoids over the fraction of patches, 0..1, in units of f.

    counts: patches at each point, None for equal steps.
    """
    y = np.asarray(curve, dtype=np.float64)
    x = np.arange(len(y)) if counts is None else np.asarray(counts, dtype=np.float64)
    if len(y) < 2 or x.shape != y.shape:
        raise ValueError(f"a curve of {len(y)} points at {len(x)} counts: the same number is wanted, at least 2")
    return float((np.diff(x) * (y[1:] + y[:-1]) / 2).sum() / (x[-1] - x[0]))


def aopc(curve: ArrayLike) -> float:
    """Area over the perturbation curve, mean of f(x) - f(x_k) over k = 0 .. K (Samek et al. 2017)."""
    y = np.asarray(curve, dtype=np.float64)
    return float((y[0] - y).mean())


def comprehensiveness(score: Score, order: ArrayLike, top: int) -> float:
    """f(x) - f(x without the first `top` patches): high is good (DeYoung et al. 2020, equation 1)."""
    full, without = score(deletion_masks(order, [0, top]))
    return float(full - without)


def sufficiency(score: Score, order: ArrayLike, top: int) -> float:
    """f(x) - f(only the first `top` patches): low is good (DeYoung et al. 2020, equation 2)."""
    full, only = score(insertion_masks(order, [np.size(order), top]))
    return float(full - only)


def combined(least: ArrayLike, most: ArrayLike) -> float:
    """(LeRF - MoRF) / 2 of two curves at the same steps, by the mean of each: high is good.

    Either alone flatters a map that says nothing: whatever is removed, a score falls. Of such a map both fall alike.
    """
    return float(np.asarray(least, dtype=np.float64).mean() - np.asarray(most, dtype=np.float64).mean()) / 2


def road_impute(
    image: ArrayLike,
    known: ArrayLike,
    *,
    noise: float = 0.0,
    generator: np.random.Generator | None = None,
    start: ArrayLike | None = None,
    tolerance: float = 1e-10,
) -> NDArray:
    """Noisy linear imputation (Rong et al. 2022, ROAD): a missing pixel is the weighted mean of its
    neighbours, 1/6 each of the four direct ones and 1/12 each of the diagonal ones, over those that are inside.

    image: (C, H, W) or (H, W), its missing pixels unread. known: (K, H, W) or (H, W) bool. Returns (K, C, H, W) in the
    image's floating type, with the axes that were given; known pixels are unchanged. noise: standard deviation of what
    is added to the missing ones, drawn from `generator`; the same draw in all K, so that they differ by their masks.

    All missing pixels together are one linear system, solved by conjugate gradients until the residual is `tolerance`
    of the right side, from `start` (K, C, H, W), or None for the mean of what is known. Raises ValueError for shapes
    that do not fit, or a mask that knows no pixel.
    """
    pixels, masks = np.asarray(image), np.asarray(known, dtype=bool)
    pixels = pixels if np.issubdtype(pixels.dtype, np.floating) else pixels.astype(np.float64)
    if pixels.shape[-2:] != masks.shape[-2:] or pixels.ndim not in (2, 3) or masks.ndim not in (2, 3):
        raise ValueError(f"image of shape {pixels.shape} and mask of shape {masks.shape}: one height and width wanted")
    if not masks.any((-2, -1)).all():
        raise ValueError("no pixel is known, so there is nothing to impute the others from")
    if noise and generator is None:
        raise ValueError("noise needs a generator")
    one, grey = masks.ndim == 2, pixels.ndim == 2
    pixels, masks = pixels.reshape(-1, *pixels.shape[-2:]), masks.reshape(-1, 1, *masks.shape[-2:])
    missing = (~masks).astype(pixels.dtype)
    weight = _neighbours(np.ones_like(pixels[:1]))
    seen = np.where(masks, pixels, 0)
    right = missing * _neighbours(seen)
    goal = (right**2).sum((-2, -1), keepdims=True) * tolerance**2
    level = seen.sum((-2, -1), keepdims=True) / masks.sum((-2, -1), keepdims=True)
    found = missing * (level if start is None else np.asarray(start)).astype(pixels.dtype)
    rest = right - missing * (weight * found - _neighbours(found))
    step, size = rest, (rest**2).sum((-2, -1), keepdims=True)
    for _ in range(missing[0].size + 50):
        if not (active := size > goal).any():
            break
        image_of = missing * (weight * step - _neighbours(step))
        length = np.where(active, size / np.where(active, (step * image_of).sum((-2, -1), keepdims=True), 1), 0)
        found, rest = found + length * step, rest - length * image_of
        before, size = size, (rest**2).sum((-2, -1), keepdims=True)
        step = rest + np.where(active, size / np.where(active, before, 1), 0) * step
    if noise and generator is not None:
        found = found + missing * (noise * generator.standard_normal(pixels.shape)).astype(pixels.dtype)
    filled = np.where(masks, pixels, found)
    filled = filled[:, 0] if grey else filled
    return filled[0] if one else filled


def _neighbours(x: NDArray) -> NDArray:
    """Weighted sum of the eight neighbours, 0 beyond the border: ([1 2 1] down times [1 2 1] across - 4) / 12."""
    down = 2 * x
    down[..., 1:, :] += x[..., :-1, :]
    down[..., :-1, :] += x[..., 1:, :]
    both = 2 * down
    both[..., 1:] += down[..., :-1]
    both[..., :-1] += down[..., 1:]
    return (both - 4 * x) / 12


def average_drop(full: ArrayLike, masked: ArrayLike) -> float:
    """Mean of max(0, Y - O) / Y over samples, 0..1, low is good: Y of the picture, O of what the map keeps of it
    (Chattopadhay et al. 2018, Grad-CAM++)."""
    y, o = np.asarray(full, dtype=np.float64), np.asarray(masked, dtype=np.float64)
    return float((np.maximum(0, y - o) / y).mean())


def increase(full: ArrayLike, masked: ArrayLike) -> float:
    """Share (0..1) of samples with O > Y: high is good; see `average_drop`."""
    return float((np.asarray(masked) > np.asarray(full)).mean())


def average_gain(full: ArrayLike, masked: ArrayLike) -> float:
    """Mean of max(0, O - Y) / (1 - Y) over samples, of probabilities: high is good (Zhang et al. 2024, Opti-CAM)."""
    y, o = np.asarray(full, dtype=np.float64), np.asarray(masked, dtype=np.float64)
    return float((np.maximum(0, o - y) / (1 - y)).mean())


def infidelity(values: ArrayLike, perturbations: ArrayLike, drops: ArrayLike) -> float:
    """Mean of (I . map - (f(x) - f(x - I)))^2 over perturbations I, from 0, low is good (Yeh et al. 2019).
    values: (N,). perturbations: (M, N). drops: (M,) of f."""
    predicted = np.asarray(perturbations, dtype=np.float64) @ np.asarray(values, dtype=np.float64).ravel()
    return float(((predicted - np.asarray(drops, dtype=np.float64)) ** 2).mean())


def arcc(coherency: float, complexity: float, road: float) -> float:
    """Harmonic mean of coherency, 1 - complexity and twice the combined ROAD score, each cut to 0..1; high is good."""
    parts = np.clip([coherency, 1 - complexity, 2 * road], 0, 1)
    return 3 / float((1 / parts).sum()) if parts.all() else 0.0
