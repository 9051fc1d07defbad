"""Attention: the formula, its fused form, and the multi-head layer.

Letters: B batch, H heads, T queries, S keys, K width of a head, D width of the model.
Masks are boolean everywhere, True = may attend.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitcap.nn.position import AlibiPosition, Position, RotaryPosition
from vitcap.types import require_sizes

# On CPUs two batched products and a softmax in bfloat16 beat the fused kernel up to about this many keys.
CPU_BF16_EXPLICIT_KEYS = 2048


def merge_masks(mask: Tensor | None, causal: bool, queries: int, keys: int, device: torch.device) -> Tensor | None:
    """One boolean mask, broadcastable to (B, H, T, S), out of a given one and causality.

    Causality is aligned at the end: query i of T sees key j of S iff j <= i + S - T, so that one new query sees every
    cached key (`is_causal` of torch's fused function is aligned at the start and would show it key 0 only).
    """
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"attention mask must be boolean (True = may attend), got {mask.dtype}")
    if not causal or queries == 1:
        return mask
    lower = torch.ones(queries, keys, dtype=torch.bool, device=device).tril(keys - queries)
    return lower if mask is None else mask & lower


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    mask: Tensor | None = None,
    causal: bool = False,
    bias: Tensor | None = None,
    dropout: float = 0.0,
    need_weights: bool = False,
    fused: bool | None = None,
) -> tuple[Tensor, Tensor | None]:
    """Scaled dot-product attention, softmax(q k' / sqrt(K) + bias) v (Vaswani et al. 2017, equation 1).

    q: (B, H, T, K). k, v: (B, H', S, K) with H' dividing H (grouped-query attention, Ainslie et al. 2023).
    mask: boolean, broadcastable to (B, H, T, S), True = may attend. A query that may attend to nothing gives zeros,
        with zero gradient.
    bias: added to the scores, broadcastable to (B, H, T, S).
    dropout: probability of dropping a weight; the caller passes 0 outside training.
    need_weights: also return the weights (B, H, T, S), after softmax and before dropout; takes the explicit path.
    fused: force (True) or forbid (False) torch's fused kernel; None chooses.
    Returns (output (B, H, T, K), weights or None). Raises ValueError for shapes that do not fit.
    """
    fits = q.ndim == k.ndim == 4 and q.shape[::3] == k.shape[::3] and k.shape[:-1] == v.shape[:-1]
    if not fits:  # (no len(): it would fix the batch where the model is exported)
        raise ValueError(f"shapes do not fit: q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}")
    if not k.shape[1] or q.shape[1] % k.shape[1]:
        raise ValueError(f"{q.shape[1]} query heads cannot share {k.shape[1]} key heads evenly")
    if bias is not None and not bias.is_floating_point():
        raise ValueError(f"bias must be floating point, to be added to the scores, got {bias.dtype}; a mask is no bias")
    if not 0 <= dropout <= 1:
        raise ValueError(f"dropout must be in 0..1, got {dropout}")
    scores = (*q.shape[:3], k.shape[2])
    for name, x in (("mask", mask), ("bias", bias)):
        if x is not None and (
            x.ndim > 4 or any(n not in (1, m) for n, m in zip(x.shape, scores[4 - x.ndim :], strict=True))
        ):
            raise ValueError(f"{name} {tuple(x.shape)} does not fit the scores {scores}: (B, H, queries, keys)")
    if fused is None:
        small = q.device.type == "cpu" and q.dtype == torch.bfloat16 and k.shape[2] <= CPU_BF16_EXPLICIT_KEYS
        fused = not small
    queries, keys = q.shape[2], k.shape[2]
    if need_weights or not fused:
        mask = merge_masks(mask, causal, queries, keys, q.device)
        return _explicit(q, k, v, mask, bias, dropout, need_weights)

    grouped = q.shape[1] != k.shape[1]
    if causal and mask is None and bias is None and queries == keys:
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout, is_causal=True, enable_gqa=grouped)
        return out, None
    mask = merge_masks(mask, causal, queries, keys, q.device)
    some = None
    if mask is not None:
        some = mask.any(-1, keepdim=True)
        mask = mask | ~some  # an empty row would be 0/0: let it see everything, then zero its result
    if bias is not None:
        # On some CPUs the fused kernel wants bias and query in one type and no broadcast over the queries.
        mask = bias.to(q.dtype) if mask is None else bias.to(q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, dropout_p=dropout, enable_gqa=grouped)
    return out if some is None else out * some, None


def _explicit(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, bias: Tensor | None, dropout: float, need_weights: bool
) -> tuple[Tensor, Tensor | None]:
    """The specification: scores, softmax, weighted sum."""
    repeat = q.shape[1] // k.shape[1]
    if repeat > 1:
        k, v = k.repeat_interleave(repeat, dim=1), v.repeat_interleave(repeat, dim=1)
    scores = (q * (1.0 / math.sqrt(q.shape[-1]))) @ k.transpose(-2, -1)  # (B, H, T, S)
    # Half-precision softmax would lose the tails; doubles keep their precision.
    scores = scores if scores.dtype == torch.float64 else scores.float()
    if bias is not None:
        scores = scores + bias
    if mask is None:
        weights = scores.softmax(-1)
    else:
        # The lowest finite number, not -inf: a row of -inf has NaN gradients even when its result is thrown away.
        weights = scores.masked_fill(~mask, torch.finfo(scores.dtype).min).softmax(-1) * mask
    kept = F.dropout(weights, dropout) if dropout else weights
    return kept.to(v.dtype) @ v, weights if need_weights else None


class MultiHeadAttention(nn.Module):
    """Multi-head attention with one fused projection (Vaswani et al. 2017, section 3.2.2).

    Self-attention (`memory_width=None`) keeps timm's parameter names `qkv` and `proj`; cross-attention projects
    queries with `q` and the memory with `kv`, so that keys and values are projected once per memory.

    width: D, a multiple of heads. memory_width: width of the attended memory. kv_heads: fewer key/value heads
    (grouped-query attention). bias: bias of the input projections. dropout: of the weights, in training.
    position: rotary and ALiBi positions act inside the layer.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        memory_width: int | None = None,
        kv_heads: int | None = None,
        bias: bool = True,
        dropout: float = 0.0,
        position: Position | None = None,
    ) -> None:
        super().__init__()
        kv_heads = heads if kv_heads is None else kv_heads
        require_sizes(width=width)
        if heads < 1 or width % heads:
            raise ValueError(f"width {width} is not a multiple of {heads} heads")
        if kv_heads < 1 or heads % kv_heads:
            raise ValueError(f"{heads} heads are not a multiple of {kv_heads} key/value heads")
        self.width, self.memory_width = width, memory_width
        self.heads, self.kv_heads, self.head_width = heads, kv_heads, width // heads
        self.dropout = dropout
        self.position = position if position is not None else Position()
        kv_width = 2 * kv_heads * self.head_width
        if memory_width is None:
            self.qkv = nn.Linear(width, width + kv_width, bias=bias)
        else:
            self.q = nn.Linear(width, width, bias=bias)
            self.kv = nn.Linear(memory_width, kv_width, bias=bias)
        self.proj = nn.Linear(width, width)

    def _split(self, x: Tensor, heads: int) -> Tensor:
        """(B, T, heads * K) -> (B, heads, T, K)"""
        return x.unflatten(-1, (heads, self.head_width)).transpose(1, 2)

    def project_memory(self, memory: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values (B, H', S, K) of a memory (B, S, memory_width), to be used for any number of queries."""
        if self.memory_width is None:
            raise ValueError("this layer attends to its own tokens; a memory needs one that is built with memory_width")
        if memory.shape[-1] != self.memory_width:
            raise ValueError(f"memory of width {memory.shape[-1]} for an attention layer built for {self.memory_width}")
        k, v = self.kv(memory).chunk(2, dim=-1)
        return self._split(k, self.kv_heads), self._split(v, self.kv_heads)

    def forward(
        self,
        x: Tensor,
        *,
        memory: tuple[Tensor, Tensor] | None = None,
        past: tuple[Tensor, Tensor] | None = None,
        coordinates: Tensor | None = None,
        past_coordinates: Tensor | None = None,
        mask: Tensor | None = None,
        causal: bool = False,
        need_weights: bool = False,
        fused: bool | None = None,
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor]]:
        """x: (B, T, D) -> (output (B, T, D), weights (B, H, T, S) or None, (keys, values) (B, H', S, K)).

        memory: projected keys and values for cross-attention. past: keys and values of earlier tokens (KV cache), put
        before those of x. coordinates: (T, axes) places of the tokens of x, past_coordinates (S - T, axes) of the
        cached ones, for rotary and ALiBi positions. mask: boolean, broadcastable to (B, H, T, S).
        """
        if x.shape[-1] != self.width:
            raise ValueError(f"tokens of width {x.shape[-1]} for an attention layer of width {self.width}")
        if (memory is None) != (self.memory_width is None):
            raise ValueError(
                "a layer with memory_width attends to a memory: give memory=layer.project_memory(...)"
                if memory is None
                else "this layer attends to its own tokens; a memory needs one that is built with memory_width"
            )
        if memory is None and coordinates is None and isinstance(self.position, RotaryPosition | AlibiPosition):
            raise ValueError(f"{type(self.position).__name__} acts inside the layer: give coordinates of the tokens")
        bias = None
        if memory is None:
            kv = self.kv_heads * self.head_width
            q, k, v = self.qkv(x).split((self.heads * self.head_width, kv, kv), dim=-1)
            q, k, v = self._split(q, self.heads), self._split(k, self.kv_heads), self._split(v, self.kv_heads)
            if coordinates is not None:
                q, k = self.position.rotate(q, coordinates), self.position.rotate(k, coordinates)
                before = coordinates if past_coordinates is None else torch.cat((past_coordinates, coordinates))
                bias = self.position.bias(coordinates, before)
            if past is not None:
                for name, one in zip(("keys", "values"), past, strict=True):
                    if one.ndim != 4 or one.shape[:2] != k.shape[:2] or one.shape[-1] != k.shape[-1]:
                        raise ValueError(f"past {name} {tuple(one.shape)} before new ones {tuple(k.shape)}")
                k, v = torch.cat((past[0], k), dim=2), torch.cat((past[1], v), dim=2)
            if bias is not None and bias.shape[-2:] != (q.shape[2], k.shape[2]):
                given = f"coordinates of {bias.shape[-2]} tokens and {bias.shape[-1]} keys"
                raise ValueError(f"{given} for {q.shape[2]} tokens and {k.shape[2]} keys: give past_coordinates, too")
        else:
            q, (k, v) = self._split(self.q(x), self.heads), memory
        out, weights = attend(
            q,
            k,
            v,
            mask=mask,
            causal=causal,
            bias=bias,
            dropout=self.dropout if self.training else 0.0,
            need_weights=need_weights,
            fused=fused,
        )
        return self.proj(out.transpose(1, 2).flatten(2)), weights, (k, v)
