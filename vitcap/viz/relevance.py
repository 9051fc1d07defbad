"""Relevance by attention and its gradient (Chefer, Gur and Wolf 2021, "Generic Attention-model Explainability for
Interpreting Bi-Modal and Encoder-Decoder Transformers"), and Grad-CAM (Selvaraju et al. 2017).

Letters: H heads, N memory tokens (of the encoder), T query tokens (of the decoder), C channels. NumPy; `weigh` and
`grad_cam` take tensors of torch just as well. Equation numbers are those of the first paper.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray


def weigh(attention: Any, gradient: Any) -> Any:
    """Mean over the heads of what is positive in attention times gradient (equation 5): what a query's attention to a
    key did for the score, in units of the score.

    attention, gradient: (..., H, T, N), arrays or tensors -> (..., T, N). Raises ValueError for shapes that differ.
    """
    if attention.shape != gradient.shape or len(attention.shape) < 3:
        raise ValueError(
            f"attention {tuple(attention.shape)} and gradient {tuple(gradient.shape)}: "
            "(..., heads, queries, keys), the same in both, is wanted"
        )
    return (attention * gradient).clip(min=0).mean(-3)


def self_relevance(layers: Sequence[NDArray]) -> NDArray:
    """R of a stack of self-attention: R = identity, then R <- R + A R for each layer (equation 6).

    layers: weighed attention (`weigh`), each (N, N), first layer first; at least one. Returns (N, N): row = output
    token, column = input token. Raises ValueError for shapes that do not fit.
    """
    if not len(layers) or any(a.ndim != 2 or a.shape != (len(layers[0]), len(layers[0])) for a in layers):
        raise ValueError(f"layers of the shapes {[a.shape for a in layers]}: one or more (tokens, tokens) are wanted")
    relevance = np.eye(len(layers[0]), dtype=layers[0].dtype)
    for layer in layers:
        relevance = relevance + layer @ relevance
    return relevance


def normalise(relevance: NDArray) -> NDArray:
    """Rows of R without the identity, divided by their sums, plus the identity again (equations 8 and 9); a row that is
    zero without the identity stays that of the identity. (N, N) -> (N, N)."""
    own = np.eye(len(relevance), dtype=relevance.dtype)
    gained = relevance - own
    total = gained.sum(-1, keepdims=True)
    return np.divide(gained, total, out=np.zeros_like(gained), where=total > 0) + own


def cross_relevance(encoder: NDArray, crosses: Sequence[NDArray], selves: Sequence[NDArray] | None = None) -> NDArray:
    """Relevance of memory tokens to the query tokens of a decoder (equations 6, 7 and 10).

    Layer by layer, from R_qq = identity and R_qi = 0: self-attention gives R_qi <- R_qi + A R_qi and R_qq <- R_qq +
    A R_qq; cross-attention gives R_qi <- R_qi + N(R_qq)' A N(R_ii), N being `normalise`.

    encoder: R_ii (N, N), `self_relevance` of the encoder; the identity for an encoder without attention.
    crosses: weighed cross-attention (T, N) of each decoder layer, first layer first. selves: weighed self-attention
        (T, T) of each; None for a decoder that has none, such as a recurrent one.
    Returns R_qi (T, N). In a causal decoder the word after query t depends on the queries up to t alone, and row t is
    that word's. Raises ValueError for shapes that do not fit.
    """
    if not len(crosses) or (selves is not None and len(selves) != len(crosses)):
        own = "none" if selves is None else len(selves)
        raise ValueError(f"{len(crosses)} layers of cross-attention and {own} of self-attention: as many are wanted")
    queries, places = crosses[0].shape
    if encoder.shape != (places, places) or any(a.shape != (queries, places) for a in crosses):
        raise ValueError(
            f"relevance {encoder.shape} of the encoder and cross-attention {[a.shape for a in crosses]}: "
            f"({places}, {places}) and ({queries}, {places}) are wanted"
        )
    if selves is not None and any(a.shape != (queries, queries) for a in selves):
        raise ValueError(f"self-attention {[a.shape for a in selves]}: ({queries}, {queries}) is wanted in each layer")
    of_memory, of_queries = normalise(encoder), np.eye(queries, dtype=encoder.dtype)
    relevance = np.zeros((queries, places), dtype=encoder.dtype)
    for layer, cross in enumerate(crosses):
        if selves is not None:
            relevance = relevance + selves[layer] @ relevance
            of_queries = of_queries + selves[layer] @ of_queries
        relevance = relevance + normalise(of_queries).T @ cross @ of_memory
    return relevance


def grad_cam(activations: Any, gradients: Any) -> Any:
    """What is positive in the sum over channels of activation times the channel's mean gradient (Selvaraju et al. 2017,
    equations 1 and 2). With the heads of an attention row as channels, attention Grad-CAM.

    activations, gradients: (..., C, N), arrays or tensors -> (..., N), not rescaled. Raises ValueError for shapes that
    differ.
    """
    if activations.shape != gradients.shape or len(activations.shape) < 2:
        raise ValueError(
            f"activations {tuple(activations.shape)} and gradients {tuple(gradients.shape)}: "
            "(..., channels, places), the same in both, is wanted"
        )
    return (gradients.mean(-1)[..., None] * activations).sum(-2).clip(min=0)
