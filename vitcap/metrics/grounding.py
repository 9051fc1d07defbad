"""Whether a map of a word lies on what the word names: measures of one map, and figures over many. NumPy only.

A map is (rows, columns) of values of 0 or more, over the rectangle `window` of the photo; only its shares count, so
prefix tokens and scale do not matter. Spread evenly over each patch, and cut to the part of the photo that the model
saw (padding of a letterbox is no part of the photo), it is compared with a region in pixels of the original photo.
`cells`, where given, is the rectangle that the patches share out evenly in place of the window; see
vitcap.metrics.regions.edges.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from vitcap.metrics.regions import Box, Floats, Region, coverage, edges, seen

STATES = ("grounded", "ungrounded", "absent", "told")
"""Of a mentioned object: in the picture with the map on it or not; not in the picture; not annotated, but told of by
people who described the picture."""


def correctness(maps: ArrayLike, cover: ArrayLike, sight: ArrayLike = 1.0) -> Floats:
    """Attention correctness (Liu et al. 2017, section 3.2): the share (0..1) of a word's map that lies in its region.

    maps: (..., rows, columns). cover: (rows, columns), `coverage` of the region (of the part that the model saw).
    sight: likewise of the part of the photo that the model saw; 1 without padding. Returns (...); a map without mass
    points nowhere and is worth as much as a uniform one. The baseline, a uniform map, is `area`.
    """
    values, inside, there = (np.asarray(a, dtype=np.float64) for a in (maps, cover, sight))
    mass = np.sum(values * there, (-2, -1))
    share = np.divide(np.sum(values * inside, (-2, -1)), mass, out=np.full(values.shape[:-2], np.nan), where=mass > 0)
    return np.where(mass > 0, share, area(cover, sight))


def area(cover: ArrayLike, sight: ArrayLike = 1.0) -> float:
    """The share of what the model saw that the region takes: the correctness of a uniform map."""
    return float(np.sum(cover) / np.sum(np.broadcast_to(sight, np.shape(cover))))


def phrase_correctness(of_words: ArrayLike) -> Floats:
    """(words, ...) -> (...): of a phrase, the largest of its words' (Liu et al. 2017)."""
    return np.max(np.asarray(of_words, dtype=np.float64), 0)


def hits(region: Region, cells: Box, grid: tuple[int, int], *, tolerance: float = 0.0) -> NDArray[np.bool_]:
    """(rows, columns): whether a map with its peak there wins the pointing game (Zhang et al. 2016).

    The centre of the patch is inside the region, or its squared distance to it is below tolerance ** 2 (TorchRay's
    rule; pixels). cells: the rectangle of the photo that the patches share out evenly.
    """
    x0, y0, x1, y1 = cells
    rows, columns = grid
    xs = x0 + (np.arange(columns) + 0.5) * ((x1 - x0) / columns)
    ys = y0 + (np.arange(rows) + 0.5) * ((y1 - y0) / rows)
    return np.array(
        [[region.contains(x, y) or region.squared_distance(x, y) < tolerance**2 for x in xs] for y in ys], dtype=bool
    )


def pointing(maps: ArrayLike, hit: ArrayLike, *, ties: str = "first") -> Floats:
    """Of maps (..., rows, columns), 1 where the peak hits and 0 where not; a map without mass misses. hit: of `hits`.

    ties: "first" takes the first of equal peaks in row-major order; "mean" their mean, for baselines that are
    symmetric by nature.
    """
    values = np.asarray(maps, dtype=np.float64)
    flat, wins = values.reshape(*values.shape[:-2], -1), np.asarray(hit, dtype=np.float64).ravel()
    top = flat.max(-1, keepdims=True)
    if ties == "first":
        return np.where(top[..., 0] > 0, wins[flat.argmax(-1)], 0.0)
    if ties != "mean":
        raise ValueError(f"ties is {ties!r}; choose 'first' or 'mean'")
    peaks = np.isclose(flat, top, rtol=1e-9, atol=0)
    return np.where(top[..., 0] > 0, (peaks * wins).sum(-1) / peaks.sum(-1), 0.0)


def spread(heat: ArrayLike, window: Box, size: tuple[int, int], *, cells: Box | None = None) -> Floats:
    """The map at each pixel of a (width, height) photo: (height, width) values of the nearest patch; NaN where the
    model saw nothing. Not rescaled."""
    values = np.asarray(heat, dtype=np.float64)
    xs, ys = edges(values.shape, window, cells)
    x, y = np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5
    column, row = np.searchsorted(xs[1:-1], x, side="right"), np.searchsorted(ys[1:-1], y, side="right")
    x0, y0, x1, y1 = window
    there = ((y >= y0) & (y < y1))[:, None] & ((x >= x0) & (x < x1))
    return np.where(there, values[row][:, column], np.nan)


def rank_accuracy(values: ArrayLike, truth: ArrayLike) -> float:
    """Relevance rank accuracy: the share of the K highest pixels that lie in the region, which has K of them.

    values, truth: the same shape; NaN values (not seen) are left out. Equal values rank in row-major order. NaN if no
    pixel that was seen is in the region.
    """
    flat, inside = np.asarray(values, dtype=np.float64).ravel(), np.asarray(truth).ravel() != 0
    known = ~np.isnan(flat)
    flat, inside = flat[known], inside[known]
    count = int(inside.sum())
    return float(inside[np.argsort(-flat, kind="stable")[:count]].mean()) if count else float("nan")


def segmentation(values: ArrayLike, truth: ArrayLike, weights: ArrayLike = 1.0) -> dict[str, float]:
    """The map as a segmentation (Chefer et al. 2021): foreground is what lies above its mean.

    values, truth, weights: the same shape, of pixels or patches; truth is the share (0..1) of each that is in the
    region, weights its size; NaN values are left out. foreground_iou, background_iou, mean_iou, accuracy (of all that
    was seen), average_precision (of the values as a ranking): 0..1, NaN where not defined.
    """
    heat = np.asarray(values, dtype=np.float64)
    known = ~np.isnan(heat)
    size = np.broadcast_to(np.asarray(weights, dtype=np.float64), heat.shape)[known]
    heat, inside = heat[known], np.asarray(truth, dtype=np.float64)[known] * size
    chosen = heat > (heat * size).sum() / size.sum()
    total, right = size.sum(), inside[chosen].sum()
    wrong, missed = size[chosen].sum() - right, inside[~chosen].sum()
    back = total - right - wrong - missed
    order = np.argsort(-heat, kind="stable")
    precision = np.cumsum(inside[order]) / np.cumsum(size[order])
    front_iou, back_iou = _share(right, right + wrong + missed), _share(back, back + wrong + missed)
    return {
        "foreground_iou": front_iou,
        "background_iou": back_iou,
        "mean_iou": (front_iou + back_iou) / 2,
        "accuracy": float((right + back) / total),
        "average_precision": _share((precision * inside[order]).sum(), inside.sum()),
    }


def map_box(heat: ArrayLike, window: Box, *, cells: Box | None = None, threshold: float = 0.5) -> Box | None:
    """Box around the largest connected part (4 neighbours) of the patches of at least `threshold` times the peak.

    Of equally large parts, the one with more mass, then the first in row-major order. None for a map without mass.
    """
    values = np.asarray(heat, dtype=np.float64)
    if not values.max() > 0:
        return None
    best = max(_parts(values >= threshold * values.max()), key=lambda part: (len(part), _mass(values, part)))
    (top, left), (bottom, right) = np.min(best, 0), np.max(best, 0)
    xs, ys = edges(values.shape, window, cells)
    return float(xs[left]), float(ys[top]), float(xs[right + 1]), float(ys[bottom + 1])


def sights(
    region: Region, window: Box, grid: tuple[int, int], size: tuple[int, int], *, cells: Box | None = None
) -> tuple[Floats, Floats]:
    """(cover, sight) of `correctness`, for a region in a photo of (width, height) pixels."""
    view = seen(window, size)
    cover, sight = (coverage(r, window, grid, cells=cells) for r in (region.clip(view), Region.of_boxes([view])))
    return cover, sight


def localisation(correct: ArrayLike, areas: ArrayLike, hit: ArrayLike) -> dict[str, float]:
    """Over words whose object is in the picture: correctness, area (means); mean_lift, the mean of each word's
    correctness / area; lift, mean correctness / mean area, which small objects do not rule; pointing, the share of
    hits; above_area, the share of words with more attention on the object than a uniform map has."""
    ac, uniform, won = (np.asarray(a, dtype=np.float64) for a in (correct, areas, hit))
    if not len(ac):
        raise ValueError("no word to judge")
    return {
        "correctness": float(ac.mean()),
        "area": float(uniform.mean()),
        "mean_lift": float((ac / uniform).mean()),
        "lift": float(ac.mean() / uniform.mean()),
        "pointing": float(won.mean()),
        "above_area": float((ac > uniform).mean()),
    }


def hallucination(captions: Sequence[Sequence[str | float]]) -> dict[str, float | int | None]:
    """What captions mention against where the maps look. captions: of each, the STATES of the objects it mentions; of
    one in the picture the chance (0..1) that it is grounded may stand there, for baselines with equal peaks.

    CHAIR_i: share of mentions of what is not there; CHAIR_s: share of captions with such a mention (Rohrbach et al.
    2018; objects that people told of count as there). grounded_given_present: of what is annotated;
    present_and_grounded and the others: of all mentions. None where there is nothing to divide by.
    """
    counts = _state_counts(captions).sum(0)
    numbers = {state: int(n) if n == int(n) else float(n) for state, n in zip(STATES, counts, strict=True)}
    sums = {name: (top.sum(), bottom.sum()) for name, (top, bottom) in hallucination_parts(captions).items()}
    shares = {name: float(top / bottom) if bottom else None for name, (top, bottom) in sums.items()}
    return {"captions": len(captions), "mentions": sum(map(len, captions)), **numbers, **shares}


def hallucination_parts(captions: Sequence[Sequence[str | float]]) -> dict[str, tuple[Floats, Floats]]:
    """The shares of `hallucination` as (top, bottom) of each caption, (captions,) each: what is to be summed and
    divided, over all captions or over a sample of them."""
    counts = _state_counts(captions)
    grounded, ungrounded, absent, _ = counts.T
    mentions = counts.sum(1)
    return {
        "grounded_given_present": (grounded, grounded + ungrounded),
        "present_and_grounded": (grounded, mentions),
        "CHAIR_i": (absent, mentions),
        "CHAIR_s": ((absent > 0).astype(np.float64), np.ones(len(captions))),
    }


def _state_counts(captions: Sequence[Sequence[str | float]]) -> Floats:
    """(captions, STATES): how many objects each caption mentions in each state; see `hallucination`."""
    counts = np.zeros((len(captions), len(STATES)))
    for row, caption in zip(counts, captions, strict=True):
        for state in caption:
            if isinstance(state, str):
                if state not in STATES:
                    raise ValueError(f"states {state}: choose from {', '.join(STATES)}")
                row[STATES.index(state)] += 1
            elif 0 <= state <= 1:
                row[:2] += state, 1 - state
            else:
                raise ValueError(f"states {state}: a chance is from 0 to 1")
    return counts


def _share(part: float, whole: float) -> float:
    return float(part / whole) if whole > 0 else float("nan")


def _parts(chosen: NDArray[np.bool_]) -> list[list[tuple[int, int]]]:
    """The connected parts (4 neighbours) of a grid, each as its cells; in row-major order of their first cells."""
    left = {(int(r), int(c)) for r, c in np.argwhere(chosen)}
    parts = []
    for start in sorted(left):
        if start not in left:
            continue
        left.remove(start)
        part = [start]
        for r, c in part:  # grows while it is walked
            for near in ((r - 1, c), (r + 1, c), (r, c - 1), (r, c + 1)):
                if near in left:
                    left.remove(near)
                    part.append(near)
        parts.append(part)
    return parts


def _mass(values: Floats, part: list[tuple[int, int]]) -> float:
    return float(sum(values[cell] for cell in part))
