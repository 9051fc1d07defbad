"""Attention rollout (Abnar and Zuidema 2020): how much of each input token each output token is made of, if attention
and the residual connections were all that mixes them.

Letters: L layers, H heads, N tokens; ... any batch axes. NumPy only.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

FUSIONS: dict[str, Callable[..., Any]] = {"mean": np.mean, "max": np.max, "min": np.min}
"""How the heads of a layer become one matrix."""


def rollout(attentions: Sequence[ArrayLike], *, fusion: str = "mean", discard: float = 0.0) -> NDArray[np.floating]:
    """R = A_L ... A_1, where A_l is the attention of layer l with its heads fused, plus the identity for the residual
    connection, each row divided by its sum (Abnar and Zuidema 2020, equation 1 and section 3).

    attentions: of each layer, first layer first, (..., H, N, N): row = query, column = key.
    fusion: one of FUSIONS.
    discard: 0 <= share < 1 of entries off the diagonal that are set to 0 after fusion, the lowest ones of each layer
        and each batch item on its own (of equal ones the first by row). The diagonal, what a token keeps of itself,
        always stays.

    Returns (..., N, N): row = output token, column = input token; every row sums to 1. Doubles stay doubles, the rest
    is computed in single precision. Raises ValueError for shapes or options that do not fit, and for values that are
    negative or not finite.
    """
    if fusion not in FUSIONS:
        raise ValueError(f"fusion={fusion!r}: choose one of {', '.join(FUSIONS)}")
    if isinstance(discard, bool) or not isinstance(discard, int | float) or not 0 <= discard < 1:
        raise ValueError(f"discard={discard}: the share of entries to leave out, from 0 to below 1, is wanted")
    if not len(attentions):
        raise ValueError("no layers to roll out: give the attention of at least one")
    layers = [np.asarray(layer) for layer in attentions]
    shape = layers[0].shape
    if len(shape) < 3 or shape[-1] != shape[-2] or any(layer.shape != shape for layer in layers):
        shapes = sorted({layer.shape for layer in layers})
        raise ValueError(f"attention of the shapes {shapes}: (..., heads, tokens, tokens), the same in all, is wanted")
    kind = np.float64 if layers[0].dtype == np.float64 else np.float32
    own = np.eye(shape[-1], dtype=kind)
    result = np.broadcast_to(own, (*shape[:-3], *own.shape))
    for number, layer in enumerate(layers):
        if not (np.isfinite(layer).all() and (layer >= 0).all()):
            raise ValueError(f"the attention of layer {number} holds values that are negative or not finite")
        mixed = _thin(FUSIONS[fusion](layer.astype(kind), axis=-3), discard) + own
        result = (mixed / mixed.sum(-1, keepdims=True)) @ result
    return result


def _thin(fused: NDArray, discard: float) -> NDArray:
    """(..., N, N) with the lowest entries off the diagonal of each item set to 0."""
    count = fused.shape[-1]
    if not (drop := int(discard * count * (count - 1))):
        return fused
    # Infinity keeps the diagonal out of the lowest entries, whichever item of the batch it is.
    flat = np.where(np.eye(count, dtype=bool), np.inf, fused).reshape(*fused.shape[:-2], -1)
    lowest = flat.argsort(-1, kind="stable")[..., :drop]
    thinned = fused.reshape(flat.shape).copy()
    np.put_along_axis(thinned, lowest, 0.0, axis=-1)
    return thinned.reshape(fused.shape)
