"""Rollout: published worked values, and loops over scalars."""

from __future__ import annotations

import numpy as np
import pytest

from vitcap.record import word_map
from vitcap.viz.rollout import rollout

A1 = np.array(
    [[[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], [[0.2, 0.4, 0.4], [0.4, 0.4, 0.2], [0.3, 0.3, 0.4]]]
)
A2 = np.array(
    [[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], [[0.1, 0.7, 0.2], [0.3, 0.3, 0.4], [0.2, 0.6, 0.2]]]
)
HEADS, TOKENS = 3, 5


def layers(batch: tuple[int, ...] = (), count: int = 3, seed: int = 0) -> list[np.ndarray]:
    random = np.random.default_rng(seed)
    return [random.dirichlet(np.full(TOKENS, 0.5), (*batch, HEADS, TOKENS)) for _ in range(count)]


def by_hand(attentions: list[np.ndarray], fusion: str, discard: float) -> list[list[float]]:
    """One item, every sum and product written out."""
    n = len(attentions[0][0])
    result = [[float(i == j) for j in range(n)] for i in range(n)]
    for attention in attentions:
        fused = {}
        for i in range(n):
            for j in range(n):
                values = [head[i][j] for head in attention]
                fused[i, j] = {"mean": sum(values) / len(values), "max": max(values), "min": min(values)}[fusion]
        others = sorted((ij for ij in fused if ij[0] != ij[1]), key=lambda ij: fused[ij])
        for ij in others[: int(discard * len(others))]:
            fused[ij] = 0.0
        mixed = [[fused[i, j] + (i == j) for j in range(n)] for i in range(n)]
        mixed = [[x / sum(row) for x in row] for row in mixed]
        result = [[sum(mixed[i][k] * result[k][j] for k in range(n)) for j in range(n)] for i in range(n)]
    return result


@pytest.mark.parametrize(
    ("fusion", "row"),
    [
        ("mean", [0.501875, 0.2971875, 0.2009375]),
        ("max", [0.472866, 0.309601, 0.217532]),
        ("min", [0.558244, 0.266577, 0.175179]),
    ],
)
def test_worked_values(fusion, row):
    found = rollout([A1, A2], fusion=fusion)
    np.testing.assert_allclose(found[0], row, atol=5e-7)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-12)  # columns divided by row sums give .999447 for max
    if fusion == "mean":
        np.testing.assert_allclose(found[0, 1:] / found[0, 1:].sum(), [0.596612, 0.403388], atol=5e-7)
    assert not np.allclose(rollout([A2, A1], fusion=fusion)[0], row, atol=1e-3)  # the order of the layers counts


def test_worked_value_of_the_raw_last_layer():
    last = np.array(A2)[:, 0][None, None]  # the class token's row: (T, L, H, N)
    raw = word_map(last, (0, 1), grid=(1, 2), prefix=1)[0]
    np.testing.assert_allclose(raw, [0.475, 0.225], atol=1e-12)
    np.testing.assert_allclose(raw / raw.sum(), [0.678571, 0.321429], atol=5e-7)


@pytest.mark.parametrize("discard", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("fusion", ["mean", "max", "min"])
def test_equals_loops_for_every_item_of_a_batch(fusion, discard):
    stack = layers((2, 4))
    found = rollout(stack, fusion=fusion, discard=discard)
    assert found.shape == (2, 4, TOKENS, TOKENS)
    np.testing.assert_allclose(found.sum(-1), 1, atol=1e-12)
    for i in range(2):
        for j in range(4):
            np.testing.assert_allclose(found[i, j], by_hand([a[i, j] for a in stack], fusion, discard), atol=1e-12)
            np.testing.assert_array_equal(
                found[i, j], rollout([a[i, j] for a in stack], fusion=fusion, discard=discard)
            )


def test_discarding_keeps_what_a_token_keeps_of_itself_and_the_strongest_links():
    """The diagonal holds the lowest values of all, and row 0 nothing but low ones: no token loses itself."""
    attention = np.array([[[0.0, 0.1, 0.2], [0.6, 0.0, 0.4], [0.3, 0.7, 0.0]]])
    found = rollout([attention], discard=0.5)
    np.testing.assert_allclose(found, [[1, 0, 0], [0.6 / 2, 1 / 2, 0.4 / 2], [0, 0.7 / 1.7, 1 / 1.7]], rtol=1e-12)
    heavy = np.array([[[0.01, 0.5, 0.49], [0.5, 0.01, 0.49], [0.5, 0.49, 0.01]]])
    found = rollout([heavy], discard=0.99)
    # 5 of the 6 links go, equal ones by row: the last of the strongest stays.
    np.testing.assert_allclose(found, [[1, 0, 0], [0, 1, 0], [0.5 / 1.51, 0, 1.01 / 1.51]], rtol=1e-12)


def test_single_precision_stays_single_and_doubles_stay_doubles():
    stack = layers()
    single = rollout([a.astype(np.float32) for a in stack])
    assert single.dtype == np.float32
    assert rollout(stack).dtype == np.float64
    np.testing.assert_allclose(single, rollout(stack), atol=1e-6)


@pytest.mark.parametrize(
    ("attentions", "options", "message"),
    [
        ([], {}, "no layers"),
        ([A1], {"fusion": "median"}, "fusion='median': choose one of mean, max, min"),
        ([A1], {"discard": 1.0}, "discard=1.0: the share"),
        ([A1], {"discard": -0.1}, "discard=-0.1"),
        ([A1], {"discard": True}, "discard=True"),
        ([A1[0]], {}, r"attention of the shapes \[\(3, 3\)\]"),
        ([A1, A2[:, :2]], {}, "the same in all"),
        ([A1, A2 * np.nan], {}, "layer 1 holds values that are negative or not finite"),
        ([A1 - 0.5], {}, "layer 0 holds values that are negative"),
    ],
)
def test_input_that_does_not_fit(attentions, options, message):
    with pytest.raises(ValueError, match=message):
        rollout(attentions, **options)
