"""Attention weights out of layers that keep them to themselves: timm's blocks, and our own layers while they run fused.

Letters: B images, H heads, N memory tokens, T tokens of the caption.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from vitcap.nn.alignment import AdditiveAttention, DotAttention
from vitcap.nn.attention import MultiHeadAttention


def global_layers(model: Any) -> list[Any]:
    """The attention layers of a timm model's blocks, first block first; empty if they do not show their weights, as
    those that attend within windows, or not at all."""
    layers: list[Any] = [getattr(block, "attn", None) for block in getattr(model, "blocks", ())]
    shown = all(hasattr(layer, "fused_attn") and hasattr(layer, "attn_drop") for layer in layers)
    return layers if shown else []


@contextmanager
def explicit_attention(model: Any) -> Iterator[list[Tensor]]:
    """Within the context timm's blocks compute attention explicitly and append their weights (B, H, N, N) to the list.

    A fused block never forms the weights, and a hook on it stays silently empty. Raises ValueError for a model whose
    blocks have no attention over the whole picture.
    """
    layers = global_layers(model)
    if not layers:
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


@dataclass
class Recorded:
    """Weights of one forward pass, in the order in which the layers ran; the very tensors that the output is made of.

    encoder: self-attention of each block, (B, H, N, N). queries: decoder self-attention of each block (B * G, H, T, S),
    or of each step and block when decoding step by step. cross: cross-attention, (B, H, G * T, N); of a recurrent
    decoder (B, G, N) for each step (hard attention: the distribution, not the place that was read).
    """

    encoder: list[Tensor] = field(default_factory=list)
    queries: list[Tensor] = field(default_factory=list)
    cross: list[Tensor] = field(default_factory=list)


@contextmanager
def recorded_attention(model: Any, *, gradients: bool = False) -> Iterator[Recorded]:
    """Within the context every attention layer of the model's encoder and decoder takes the explicit path, and its
    weights are recorded, whatever the caller asks for. Afterwards the model is as it was, and the record empty, so that
    no graph outlives the context.

    model: has an `encoder`, and perhaps a `decoder`. Of an encoder that builds on another model (a hybrid) only its own
    blocks are recorded: those attend over the memory tokens.
    gradients: let the weights have gradients even if no parameter trains: what enters an attention layer then counts as
        a leaf of the graph if it has no gradient yet. Values do not change.
    """
    record = Recorded()

    def enter(_: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        return (with_gradient(inputs[0]), *inputs[1:]) if gradients else inputs, options

    def enter_heads(
        module: nn.Module, inputs: tuple[Any, ...], options: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        inputs, options = enter(module, inputs, options)
        return inputs, options | {"need_weights": True}

    def keep(weights: list[Tensor]) -> Any:
        return lambda _, inputs, outputs: weights.append(outputs[1])

    with ExitStack() as stack:

        def hook(module: Any, before: Any, after: Any = None) -> None:
            stack.callback(module.register_forward_pre_hook(before, with_kwargs=True).remove)
            if after is not None:
                stack.callback(module.register_forward_hook(after).remove)

        for part, own in ((model.encoder, record.encoder), (getattr(model, "decoder", None), record.queries)):
            for module in part.modules() if part is not None else ():
                if isinstance(module, MultiHeadAttention):
                    hook(module, enter_heads, keep(own if module.memory_width is None else record.cross))
                elif isinstance(module, AdditiveAttention | DotAttention):
                    hook(module, enter, keep(record.cross))
        timm = getattr(model.encoder, "model", None)
        for layer in (layers := global_layers(timm)):
            hook(layer, enter)
        if layers:
            record.encoder = stack.enter_context(explicit_attention(timm))
        try:
            yield record
        finally:
            for weights in (record.encoder, record.queries, record.cross):
                weights.clear()


def with_gradient(x: Tensor) -> Tensor:
    """x, or a leaf of the graph with its values if x has no gradient and gradients are on."""
    return x if x.requires_grad or not torch.is_grad_enabled() else x.detach().requires_grad_()
