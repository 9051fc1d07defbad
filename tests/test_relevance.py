"""Relevance rules and Grad-CAM: published worked values, and loops over scalars."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitcap.viz.relevance import cross_relevance, grad_cam, normalise, self_relevance, weigh

A1 = np.array(
    [[[0.6, 0.3, 0.1], [0.2, 0.5, 0.3], [0.1, 0.1, 0.8]], [[0.2, 0.4, 0.4], [0.4, 0.4, 0.2], [0.3, 0.3, 0.4]]]
)
A2 = np.array(
    [[[0.5, 0.25, 0.25], [0.1, 0.8, 0.1], [0.2, 0.2, 0.6]], [[0.1, 0.7, 0.2], [0.3, 0.3, 0.4], [0.2, 0.6, 0.2]]]
)
G1 = np.array([[[0.1, 0.2, -0.3], [0, 0.1, 0.1], [0.2, 0, -0.1]], [[-0.1, 0.4, 0.1], [0.1, -0.2, 0.3], [0, 0.1, 0.2]]])
G2 = np.zeros((2, 3, 3))
G2[:, 0] = [[0.3, 0.5, -0.2], [-0.4, 0.6, 0.1]]
R_II = np.array([[1.2, 0.1], [0.3, 1.4]])
CROSS = np.array([[0.05, 0.1], [0.2, 0.0]])


def normalise_by_hand(relevance: np.ndarray) -> np.ndarray:
    n = len(relevance)
    found = np.zeros((n, n))
    for i in range(n):
        total = sum(relevance[i][k] - (i == k) for k in range(n))
        for j in range(n):
            found[i][j] = (i == j) + ((relevance[i][j] - (i == j)) / total if total > 0 else 0.0)
    return found


def by_hand(encoder: np.ndarray, crosses: list[np.ndarray], selves: list[np.ndarray] | None) -> np.ndarray:
    """R_qi with every sum written out."""
    queries, places = crosses[0].shape
    inner, of_queries, found = normalise_by_hand(encoder), np.eye(queries), np.zeros((queries, places))
    for layer, cross in enumerate(crosses):
        if selves is not None:
            own, before, before_queries = selves[layer], found.copy(), of_queries.copy()
            for i in range(queries):
                for j in range(queries):
                    found[i] += own[i, j] * before[j]
                    of_queries[i] += own[i, j] * before_queries[j]
        outer = normalise_by_hand(of_queries)
        for q in range(queries):
            for n in range(places):
                found[q, n] += sum(
                    outer[a, q] * cross[a, b] * inner[b, n] for a in range(queries) for b in range(places)
                )
    return found


def test_worked_values_of_self_attention():
    first, second = weigh(A1, G1), weigh(A2, G2)
    np.testing.assert_allclose(first, [[0.03, 0.11, 0.02], [0.02, 0.025, 0.045], [0.01, 0.015, 0.04]], atol=1e-12)
    np.testing.assert_allclose(second[0], [0.075, 0.2725, 0.01], atol=1e-12)
    found = self_relevance([first, second])
    np.testing.assert_allclose(found[0], [1.1128, 0.3977125, 0.0441625], atol=1e-12)
    # Gradients of the last layer with the attention of the first: what must not happen.
    wrong = self_relevance([weigh(A1, G2), weigh(A2, G1)])
    np.testing.assert_allclose(wrong[0, 1:], [0.364875, 0.0305], atol=1e-12)


def test_worked_values_of_the_encoder_decoder_rule():
    np.testing.assert_allclose(normalise(R_II), [[1.666667, 0.333333], [0.428571, 1.571429]], atol=5e-7)
    r_qq = np.array([[1, 0], [0.2, 1.1]])
    np.testing.assert_allclose(normalise(r_qq), [[1, 0], [0.666667, 1.333333]], atol=5e-7)
    # Self-attention A takes R_qq from 1 to 1 + A: with A = R_qq - 1 the worked R_qq meets cross-attention.
    found = cross_relevance(R_II, [CROSS], [r_qq - np.eye(2)])
    np.testing.assert_allclose(found, [[0.348413, 0.218254], [0.444444, 0.088889]], atol=5e-7)


@pytest.mark.parametrize("recurrent", [False, True])
def test_equals_loops(recurrent):
    random = np.random.default_rng(0)
    encoder = self_relevance([random.random((5, 5)) * 0.3 for _ in range(2)])
    crosses = [random.random((3, 5)) * (random.random((3, 5)) > 0.4) for _ in range(3)]
    selves = None if recurrent else [np.tril(random.random((3, 3))) for _ in range(3)]
    np.testing.assert_allclose(cross_relevance(encoder, crosses, selves), by_hand(encoder, crosses, selves), rtol=1e-12)


def test_an_encoder_without_attention_passes_cross_attention_on():
    np.testing.assert_array_equal(cross_relevance(np.eye(2), [CROSS]), CROSS)


def test_worked_values_of_attention_times_gradient():
    attention = np.array([[0.1, 0.2, 0.3, 0.4], [0.4, 0.3, 0.2, 0.1]])
    gradient = np.array([[0.4, 0, 0.2, 0.2], [-0.1, 0.1, -0.2, -0.2]])
    np.testing.assert_allclose(grad_cam(attention, gradient), [0, 0.01, 0.04, 0.07], atol=1e-12)
    np.testing.assert_allclose(weigh(attention[:, None], gradient[:, None])[0], [0.02, 0.015, 0.03, 0.04], atol=1e-12)
    tensors = torch.from_numpy(attention), torch.from_numpy(gradient)
    np.testing.assert_allclose(grad_cam(*tensors).numpy(), [0, 0.01, 0.04, 0.07], atol=1e-12)
    np.testing.assert_array_equal(weigh(*(x[:, None] for x in tensors)), weigh(attention[:, None], gradient[:, None]))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: weigh(A1, G1[:1]), r"attention \(2, 3, 3\) and gradient \(1, 3, 3\)"),
        (lambda: grad_cam(R_II, R_II[:1]), r"activations \(2, 2\) and gradients \(1, 2\)"),
        (lambda: self_relevance([]), "one or more"),
        (lambda: self_relevance([R_II, np.eye(3)]), r"shapes \[\(2, 2\), \(3, 3\)\]"),
        (lambda: cross_relevance(R_II, []), "0 layers of cross-attention"),
        (lambda: cross_relevance(R_II, [CROSS], [R_II, R_II]), "1 layers of cross-attention and 2 of self-attention"),
        (lambda: cross_relevance(np.eye(3), [CROSS]), r"relevance \(3, 3\) of the encoder"),
        (lambda: cross_relevance(R_II, [CROSS], [np.eye(3)]), r"self-attention \[\(3, 3\)\]: \(2, 2\) is wanted"),
    ],
)
def test_input_that_does_not_fit(call, message):
    with pytest.raises(ValueError, match=message):
        call()
