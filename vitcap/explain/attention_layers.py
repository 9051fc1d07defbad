"""The attention layers of a model along both of their paths: the one that the model takes, and the explicit one.

Letters: L layers, H heads, T tokens of a caption, N memory tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from vitcap.nn.attention import MultiHeadAttention


def attention_layers(model: nn.Module) -> dict[str, Any]:
    """Name -> every layer that computes attention as softmax of scores, ours and timm's (also in windows)."""
    return {name: m for name, m in model.named_modules() if isinstance(m, MultiHeadAttention) or _of_timm(m)}


def _of_timm(module: Any) -> bool:
    return hasattr(module, "fused_attn") and isinstance(getattr(module, "attn_drop", None), nn.Module)


@contextmanager
def explicit_layers(model: nn.Module) -> Iterator[None]:
    """Within the context every attention layer of the model takes the explicit path."""
    with ExitStack() as stack:
        for layer in attention_layers(model).values():
            if isinstance(layer, MultiHeadAttention):
                force: Callable[..., Any] = lambda _, args, kwargs: (args, {**kwargs, "fused": False})  # noqa: E731
                stack.callback(layer.register_forward_pre_hook(force, with_kwargs=True).remove)
            else:
                stack.callback(setattr, layer, "fused_attn", layer.fused_attn)
                layer.fused_attn = False
        yield


@dataclass(frozen=True)
class Call:
    """One call of an attention layer, as it happened."""

    name: str
    layer: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    output: Tensor


@contextmanager
def recorded(model: nn.Module) -> Iterator[dict[Any, Call]]:
    """Attention layer -> its last call within the context, in the order of the layers."""
    calls: dict[Any, Call] = {}
    with ExitStack() as stack:
        for name, layer in attention_layers(model).items():

            def record(layer: Any, args: Any, kwargs: Any, output: Any, name: str = name) -> None:
                calls[layer] = Call(name, layer, args, kwargs, output[0] if isinstance(output, tuple) else output)

            stack.callback(layer.register_forward_hook(record, with_kwargs=True).remove)
        yield calls


def specify(call: Call) -> tuple[Tensor, Tensor]:
    """A call again: (output as explicit weights times values, weights (1, H, queries, keys))."""
    layer = call.layer
    if isinstance(layer, MultiHeadAttention):
        _, weights, (_, values) = layer(*call.args, **call.kwargs | {"need_weights": True})
        assert weights is not None
        values = values.repeat_interleave(layer.heads // layer.kv_heads, dim=1)
        return layer.proj((weights.to(values.dtype) @ values).transpose(1, 2).flatten(2)), weights
    found: list[Tensor] = []  # what enters timm's dropout are the weights themselves
    hook = layer.attn_drop.register_forward_pre_hook(lambda _, inputs: found.append(inputs[0]))
    try:
        with explicit_layers(layer):
            return layer(*call.args, **call.kwargs), found[-1]
    finally:
        hook.remove()


def handed_out(model: Any, maps: Sequence[Tensor] | None, cross: Tensor | None) -> dict[Any, Tensor]:
    """Attention layer -> its weights (1, H, queries, keys) as encoder and decoder hand them out."""
    found: dict[Any, Tensor] = {}
    if maps is not None:
        owner = model.encoder if hasattr(model.encoder, "blocks") else model.encoder.model
        found = dict(zip((block.attn for block in owner.blocks), maps, strict=True))
    if cross is not None:
        for i, block in enumerate(getattr(model.decoder, "blocks", ())):
            found[block.cross_attn] = cross[:, 0, :, i].transpose(1, 2)
    return found
