"""Did a model learn another class order? The one-to-one relabelling of its predictions that fits the labels best."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


def assignment(profit: ArrayLike) -> NDArray[np.int64]:
    """Column of each row of a square matrix (n, n), every column once, of the largest total profit.

    The Hungarian method with shortest augmenting paths (Kuhn 1955; Jonker and Volgenant 1987), O(n^3).
    """
    cost = -np.asarray(profit, dtype=np.float64)
    n = len(cost)
    if cost.shape != (n, n):
        raise ValueError(f"an assignment wants a square matrix, got {cost.shape}")
    # Potentials of rows and columns; column n is a place for the row that is being added.
    rows, columns = np.zeros(n), np.zeros(n + 1)
    owner = np.full(n + 1, -1)
    for row in range(n):
        owner[n], here = row, n
        shortest, before, done = np.full(n, np.inf), np.full(n, n), np.zeros(n + 1, dtype=bool)
        while owner[here] >= 0:
            done[here] = True
            reduced = cost[owner[here]] - rows[owner[here]] - columns[:n]
            closer = ~done[:n] & (reduced < shortest)
            shortest[closer], before[closer] = reduced[closer], here
            open_ = np.where(done[:n], np.inf, shortest)
            nearest = int(open_.argmin())
            step = open_[nearest]
            rows[owner[done]] += step
            columns[done] -= step
            shortest[~done[:n]] -= step
            here = nearest
        while here != n:  # hand every column on the path to the row of the one before
            owner[here] = owner[before[here]]
            here = before[here]
    found = np.empty(n, dtype=np.int64)
    found[owner[:n]] = np.arange(n)
    return found


@dataclass(frozen=True)
class Relabelling:
    """held_out: accuracy (0..1) after relabelling, on samples that the relabelling was not found on.

    moves: (class as the model calls it, class that it is here), of those that differ, most frequent first.
    """

    held_out: float
    moves: tuple[tuple[int, int], ...]


def best_relabelling(labels: ArrayLike, predicted: ArrayLike, classes: int) -> Relabelling | None:
    """The relabelling of the predicted classes that is right most often.

    It is found on every other sample of each label and scored on the rest: on the samples it was found on, even random
    predictions gain. None if no class has two samples.
    """
    true, said = np.asarray(labels, dtype=np.int64), np.asarray(predicted, dtype=np.int64)
    order = np.argsort(true, kind="stable")
    true, said = true[order], said[order]
    starts = np.flatnonzero(np.r_[True, true[1:] != true[:-1]])
    turn = (np.arange(len(true)) - np.repeat(starts, np.diff(np.r_[starts, len(true)]))) % 2
    if not turn.any():
        return None
    seen = np.bincount(said[turn == 0] * classes + true[turn == 0], minlength=classes * classes)
    seen = seen.reshape(classes, classes)
    # Classes that occur on neither side change no total, and of 1,000 most are such in a small sample.
    rows, columns = np.flatnonzero(seen.any(1)), np.flatnonzero(seen.any(0))
    size = max(len(rows), len(columns))
    profit = np.zeros((size, size))
    profit[: len(rows), : len(columns)] = seen[np.ix_(rows, columns)]
    place = np.r_[columns, np.full(size - len(columns), -1)]
    meant = np.full(classes, -1)
    meant[rows] = place[assignment(profit)[: len(rows)]]
    known = [int(c) for c in rows if meant[c] not in (c, -1) and seen[c, meant[c]]]
    often = sorted(known, key=lambda c: -seen[c, meant[c]])
    held_out = float((meant[said[turn == 1]] == true[turn == 1]).mean())
    return Relabelling(held_out, tuple((c, int(meant[c])) for c in often))
