"""Transformer blocks: feed-forward layer, stochastic depth, layer scale, encoder and decoder block.

Parameter names of the encoder block are timm's. Letters: B images, G sequences per image, T tokens, N memory, D width.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitcap.nn.attention import MultiHeadAttention
from vitcap.nn.position import Position

ACTIVATIONS = {"gelu": nn.GELU, "relu": nn.ReLU}


class Mlp(nn.Module):
    """fc2(act(fc1(x))). activation: "relu" (Vaswani et al. 2017, equation 2) or "gelu" (ViT)."""

    def __init__(self, width: int, hidden: int, activation: str = "gelu") -> None:
        super().__init__()
        if hidden < 1:
            raise ValueError(f"a hidden layer of {hidden} (mlp_ratio times the width of {width}): raise mlp_ratio")
        if activation not in ACTIVATIONS:
            raise ValueError(f"activation must be one of {', '.join(ACTIVATIONS)}, got {activation!r}")
        self.fc1 = nn.Linear(width, hidden)
        self.act = ACTIVATIONS[activation]()
        self.fc2 = nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return self.fc2(self.act(self.fc1(x)))


class DropPath(nn.Module):
    """Stochastic depth: drops a residual branch for a whole sample with probability `rate` (Huang et al. 2016)."""

    def __init__(self, rate: float = 0.0) -> None:
        super().__init__()
        if not 0.0 <= rate < 1.0:
            raise ValueError(f"drop path rate must be in [0, 1), got {rate}")
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, ...) -> (B, ...); survivors are scaled by 1 / (1 - rate)."""
        if not self.training or not self.rate:
            return x
        keep = torch.rand(x.shape[0], *([1] * (x.ndim - 1)), device=x.device) >= self.rate
        return x * (keep / (1.0 - self.rate)).to(x.dtype)


class LayerScale(nn.Module):
    """A trained factor per channel on a residual branch (Touvron et al. 2021, CaiT equation 4)."""

    def __init__(self, width: int, initial: float) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.full((width,), float(initial)))

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) -> (..., D)"""
        return x * self.gamma


def _check_norm(norm: str) -> bool:
    if norm not in ("pre", "post"):
        raise ValueError(f"norm must be 'pre' or 'post', got {norm!r}")
    return norm == "pre"


class EncoderBlock(nn.Module):
    """Self-attention and feed-forward layer, each with a residual connection (Dosovitskiy et al. 2021, equations 2, 3).

    norm: "pre" (ViT) or "post" (the original of Vaswani et al. 2017). activation: as in Mlp. layer_scale: initial
    value, None for none. dropout: on the output of each of the two branches (Vaswani et al. 2017, section 5.4).
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        mlp_ratio: float = 4.0,
        qkv_bias: bool = True,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        norm: str = "pre",
        activation: str = "gelu",
        eps: float = 1e-6,
        position: Position | None = None,
    ) -> None:
        super().__init__()
        self.pre = _check_norm(norm)
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.attn = MultiHeadAttention(width, heads, bias=qkv_bias, position=position)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, int(width * mlp_ratio), activation)
        self.ls1 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.ls2 = nn.Identity() if layer_scale is None else LayerScale(width, layer_scale)
        self.drop, self.drop_path = nn.Dropout(dropout), DropPath(drop_path)

    def forward(
        self, x: Tensor, *, mask: Tensor | None = None, coordinates: Tensor | None = None, need_weights: bool = False
    ) -> tuple[Tensor, Tensor | None]:
        """x: (B, N, D), mask: (B, N) or broadcastable to (B, H, N, N) -> (B, N, D), weights (B, H, N, N) or None."""
        if mask is not None and mask.ndim == 2:
            mask = mask[:, None, None, :]
        a, weights, _ = self.attn(
            self.norm1(x) if self.pre else x, mask=mask, coordinates=coordinates, need_weights=need_weights
        )
        x = x + self.drop_path(self.ls1(self.drop(a)))
        x = x if self.pre else self.norm1(x)
        x = x + self.drop_path(self.ls2(self.drop(self.mlp(self.norm2(x) if self.pre else x))))
        return x if self.pre else self.norm2(x), weights


class DecoderBlock(nn.Module):
    """Masked self-attention, cross-attention and feed-forward layer (Vaswani et al. 2017, section 3.1).

    The G sequences of an image attend to one memory: its keys and values are projected once and never repeated.
    norm, activation: as in EncoderBlock.
    dropout: on the output of each of the three branches (section 5.4); masks are a fifth of a training step on a CPU,
    so weights and hidden units have none.
    """

    def __init__(
        self,
        width: int,
        heads: int,
        *,
        memory_width: int,
        kv_heads: int | None = None,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        norm: str = "pre",
        activation: str = "gelu",
        eps: float = 1e-5,
        position: Position | None = None,
    ) -> None:
        super().__init__()
        self.pre = _check_norm(norm)
        self.norm1 = nn.LayerNorm(width, eps=eps)
        self.self_attn = MultiHeadAttention(width, heads, kv_heads=kv_heads, position=position)
        self.norm2 = nn.LayerNorm(width, eps=eps)
        self.cross_attn = MultiHeadAttention(width, heads, memory_width=memory_width)
        self.norm3 = nn.LayerNorm(width, eps=eps)
        self.mlp = Mlp(width, int(width * mlp_ratio), activation)
        self.drop = nn.Dropout(dropout)

    def forward(
        self,
        x: Tensor,
        memory: tuple[Tensor, Tensor],
        *,
        memory_mask: Tensor | None = None,
        past: tuple[Tensor, Tensor] | None = None,
        coordinates: Tensor,
        past_coordinates: Tensor | None = None,
        need_weights: bool = False,
    ) -> tuple[Tensor, Tensor | None, tuple[Tensor, Tensor]]:
        """x: (B, G, T, D); memory: keys and values (B, H, N, K) of `cross_attn.project_memory`; memory_mask: (B, N).

        past: keys and values (B * G, H', S, K) of the tokens before x. Returns (B, G, T, D), cross-attention weights
        (B, G, H, T, N) or None, and the keys and values (B * G, H', S + T, K) for the next step.
        """
        batch, groups, length, _ = x.shape
        a, _, cache = self.self_attn(
            (self.norm1(x) if self.pre else x).flatten(0, 1),
            past=past,
            causal=True,
            coordinates=coordinates,
            past_coordinates=past_coordinates,
        )
        x = x + self.drop(a).unflatten(0, (batch, groups))
        x = x if self.pre else self.norm1(x)
        a, weights, _ = self.cross_attn(
            (self.norm2(x) if self.pre else x).flatten(1, 2),
            memory=memory,
            mask=None if memory_mask is None else memory_mask[:, None, None, :],
            need_weights=need_weights,
        )
        x = x + self.drop(a).unflatten(1, (groups, length))
        x = x if self.pre else self.norm2(x)
        x = x + self.drop(self.mlp(self.norm3(x) if self.pre else x))
        x = x if self.pre else self.norm3(x)
        if weights is not None:
            weights = weights.unflatten(2, (groups, length)).transpose(1, 2)
        return x, weights, cache


def init_transformer(module: nn.Module) -> None:
    """Truncated normal of 0.02 for weights, zero biases (ViT and BERT practice); to be used with Module.apply."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Embedding):
        nn.init.trunc_normal_(module.weight, std=0.02)
