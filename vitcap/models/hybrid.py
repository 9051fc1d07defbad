"""The hybrid encoder: a CNN's grid through ViT blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitcap.models.backbones import TimmEncoder
from vitcap.models.receptive_field import Box
from vitcap.models.weights import Size, Trainable
from vitcap.nn.blocks import EncoderBlock, init_transformer
from vitcap.nn.position import Position, make_position, plane
from vitcap.types import Memory


class HybridEncoder(nn.Module):
    """A CNN's grid through ViT blocks (Dosovitskiy et al. 2021, section 3.1, "Hybrid Architecture").

    The backbone (arguments as in TimmEncoder, frozen by default) is the trunk. A 1x1 projection to `width`, positions,
    `depth` encoder blocks and a final norm train on top. Departs from the paper in having no class token: `pooled` is
    the mean.

    width, depth, heads, mlp_ratio: of the ViT blocks. dropout: after the positions and on the branches of the blocks.
    drop_path: stochastic depth of the last block, rising linearly from 0.
    position: "learned" (one vector per cell), "sinusoidal", "rotary", "alibi" or "none".
    """

    coordinates: Tensor

    def __init__(
        self,
        name: str,
        *,
        pretrained: bool = False,
        weights: str | Path | None = None,
        image_size: Size | None = None,
        layer: int | str = -1,
        trainable: Trainable = "none",
        width: int = 512,
        depth: int = 2,
        heads: int = 8,
        mlp_ratio: float = 4.0,
        dropout: float = 0.1,
        drop_path: float = 0.0,
        position: str = "learned",
    ) -> None:
        super().__init__()
        self.width = width
        rates = torch.linspace(0, drop_path, depth).tolist()
        self.backbone = TimmEncoder(
            name, pretrained=pretrained, weights=weights, image_size=image_size, layer=layer, trainable=trainable
        )
        self.preprocess: dict[str, Any] = self.backbone.preprocess
        self.cacheable = self.backbone.cacheable
        self.grid = self.backbone.grid
        self.position: Position = make_position(position, width=width, heads=heads, size=self.grid)
        self.register_buffer("coordinates", plane(*self.grid), persistent=False)
        self.project = nn.Linear(self.backbone.width, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(width, heads, mlp_ratio=mlp_ratio, dropout=dropout, drop_path=rate, position=self.position)
            for rate in rates
        )
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.project.apply(init_transformer)
        self.blocks.apply(init_transformer)

    @property
    def grid_box(self) -> Box:
        """See vitcap.types.Encoder; the blocks leave each cell where it is."""
        return self.backbone.grid_box

    def trunk(self, images: Tensor) -> Tensor:
        """(B, 3, height, width) normalised -> backbone tokens (B, N, C)."""
        return self.backbone.trunk(images)

    def head(self, features: Tensor, need_attention: bool = False) -> Memory:
        """(B, N, C) -> memory; attention (B, H, N, N) of each ViT block when asked."""
        memory = self.backbone.head(features)
        x = self.project(memory.tokens[:, memory.prefix :])  # the hybrid's E (equation 1), acting on 1x1 "patches"
        x = self.drop(self.position.add(x, self.coordinates))
        maps = []
        for block in self.blocks:
            x, weights = block(x, coordinates=self.coordinates, need_weights=need_attention)
            maps.append(weights)
        x = self.norm(x)
        return Memory(x, grid=self.grid, pooled=x.mean(1), attentions=tuple(maps) if need_attention else None)

    def forward(self, images: Tensor, need_attention: bool = False) -> Memory:
        """(B, 3, height, width) normalised -> memory."""
        return self.head(self.trunk(images), need_attention)

    def fingerprint(self) -> str:
        """Hash of what decides the trunk's output; the key of cached features."""
        return self.backbone.fingerprint()
