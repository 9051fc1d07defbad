"""Attention weights out of timm's blocks, which keep them to themselves."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import Tensor


@contextmanager
def explicit_attention(model: Any) -> Iterator[list[Tensor]]:
    """Within the context timm's blocks compute attention explicitly and append their weights (B, H, N, N) to the list.

    A fused block never forms the weights, and a hook on it stays silently empty. Raises ValueError for a model whose
    blocks have no attention over the whole picture.
    """
    layers: list[Any] = [getattr(block, "attn", None) for block in getattr(model, "blocks", ())]
    if not layers or not all(hasattr(layer, "fused_attn") and hasattr(layer, "attn_drop") for layer in layers):
        raise ValueError(f"{type(model).__name__} has no global self-attention, so there are no attention maps to give")
    maps: list[Tensor] = []
    fused = [layer.fused_attn for layer in layers]
    # What enters the dropout layer are the weights themselves.
    hooks = [layer.attn_drop.register_forward_pre_hook(lambda _, inputs: maps.append(inputs[0])) for layer in layers]
    try:
        for layer in layers:
            layer.fused_attn = False
        yield maps
    finally:
        for layer, flag, hook in zip(layers, fused, hooks, strict=True):
            layer.fused_attn = flag
            hook.remove()
