"""The Vision Transformer (Dosovitskiy et al. 2021, "An Image is Worth 16x16 Words") as an encoder, from scratch.

Parameter names are timm's, so that ViT, DeiT and DINOv2 weights load. Letters: B images, N tokens, P prefix tokens
(class, registers), D width, H heads.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from vitcap.models.weights import (
    Size,
    Trainable,
    adapt_vit,
    check_size,
    fingerprint,
    grid_of,
    keep_frozen_in_eval,
    load_strictly,
    read_weights,
    size_pair,
    trained_blocks,
)
from vitcap.nn.blocks import EncoderBlock, init_transformer
from vitcap.nn.position import make_position, plane
from vitcap.types import Memory

log = logging.getLogger(__name__)

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class PatchEmbed(nn.Module):
    """Flattened patches times E (equation 1), written as a convolution whose stride is its kernel."""

    def __init__(self, patch: tuple[int, int], width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, kernel_size=patch, stride=patch)

    def forward(self, images: Tensor) -> Tensor:
        """(B, 3, rows * p, columns * p) -> (B, rows * columns, D), row by row."""
        return self.proj(images).flatten(2).transpose(1, 2)


class VisionTransformer(nn.Module):
    """ViT encoder.

    image_size, patch_size: pixels, int or (height, width); the patch must divide the image.
    width: D. depth: number of blocks. heads: must divide the width. mlp_ratio: hidden width of the MLP over D.
    dropout: on the branches and after the positions. drop_path: stochastic depth of the last block, rising
        linearly from 0. layer_scale: initial value (DeiT III, DINOv2 have it), None for none.
    class_token, registers: prefix tokens (registers: Darcet et al. 2024). position: "learned" (equation 1),
        "sinusoidal", "rotary", "alibi" (over rows and columns) or "none". prefix_positions: the learned table has rows
        for the prefix tokens, as in ViT and DeiT; not so in DeiT III and DINOv2 with registers.
    pool: "token" (equation 4) or "mean" over patches; "mean" norms after pooling and names the norm `fc_norm`, as timm.
    weights: safetensors or torch file, or "package:NAME"; must match but for classification heads and the position
        table, which is resampled. weights_size: picture size the file was trained at, needed only if not square.
    trainable: "all", "none", or the number of last blocks (with the final norm) that train.
    mean, std: per channel, of pixel values in 0..1, that the weights expect.
    """

    coordinates: Tensor

    def __init__(
        self,
        *,
        image_size: Size = 224,
        patch_size: Size = 16,
        width: int = 384,
        depth: int = 12,
        heads: int = 6,
        mlp_ratio: float = 4.0,
        dropout: float = 0.0,
        drop_path: float = 0.0,
        layer_scale: float | None = None,
        class_token: bool = True,
        registers: int = 0,
        position: str = "learned",
        prefix_positions: bool = True,
        pool: str = "token",
        weights: str | Path | None = None,
        weights_size: Size | None = None,
        trainable: Trainable = "all",
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        size, patch = size_pair(image_size), size_pair(patch_size, "patch_size")
        if pool not in ("token", "mean"):
            raise ValueError(f"pool must be 'token' or 'mean', got {pool!r}")
        if pool == "token" and not class_token:
            raise ValueError("pool='token' needs class_token=True; without a class token use pool='mean'")
        self.width, self.pool, self.grid = width, pool, grid_of(size, patch)
        self.grid_box = (0.0, 0.0, float(size[1]), float(size[0]))
        self.preprocess: dict[str, Any] = {
            "size": size,
            "mode": "crop",
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": tuple(mean),
            "std": tuple(std),
        }
        self.prefix = int(class_token) + registers
        self.table_prefix = self.prefix if prefix_positions else 0

        self.patch_embed = PatchEmbed(patch, width)
        self.cls_token = nn.Parameter(torch.empty(1, 1, width)) if class_token else None
        self.reg_token = nn.Parameter(torch.empty(1, registers, width)) if registers else None
        rows = self.table_prefix + self.grid[0] * self.grid[1]
        # timm's table, prefix rows included, in place of LearnedPosition's; the other schemes act on coordinates.
        self.pos_embed = nn.Parameter(torch.empty(1, rows, width)) if position == "learned" else None
        scheme = "none" if position == "learned" else position
        self.position = make_position(scheme, width=width, heads=heads, size=self.grid)
        self.register_buffer("coordinates", plane(*self.grid, prefix=self.prefix), persistent=False)
        self.pos_drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(
            EncoderBlock(
                width,
                heads,
                mlp_ratio=mlp_ratio,
                dropout=dropout,
                drop_path=rate,
                layer_scale=layer_scale,
                position=self.position,
            )
            for rate in torch.linspace(0, drop_path, depth).tolist()
        )
        self.norm = nn.LayerNorm(width, eps=1e-6) if pool == "token" else nn.Identity()
        self.fc_norm = nn.LayerNorm(width, eps=1e-6) if pool == "mean" else nn.Identity()
        self._initialise()
        if weights is not None:
            self.load_file(weights, weights_size)

        count = trained_blocks(trainable, depth)
        self.cacheable = count is not None
        self.split = 0 if count is None else depth - count
        if count is not None:
            self.requires_grad_(False)
            for block in self.blocks[self.split :]:
                block.requires_grad_(True)
            self.norm.requires_grad_(count > 0)
            self.fc_norm.requires_grad_(count > 0)
        self.configuration = (size, patch, heads, registers, position, self.table_prefix, self.split)
        self.train(self.training)

    def _initialise(self) -> None:
        self.apply(init_transformer)
        for parameter, std in ((self.pos_embed, 0.02), (self.cls_token, 1e-6), (self.reg_token, 1e-6)):
            if parameter is not None:
                nn.init.trunc_normal_(parameter, std=std)

    def load_file(self, path: str | Path, weights_size: Size | None = None) -> None:
        """Load a ViT, DeiT or DINOv2 weights file; ValueError names the entries that do not fit.

        A file of a deeper model gives its first blocks: in the middle of a ViT tokens may say more than at its end.
        """
        patch = self.patch_embed.proj.kernel_size
        known = None if weights_size is None else grid_of(weights_size, patch, "weights_size")
        state = read_weights(path)
        state = adapt_vit(state, self, grid=self.grid, prefix=self.table_prefix, known=known, source=path)
        blocks = {name: int(name.split(".")[1]) for name in state if name.startswith("blocks.")}
        if max(blocks.values(), default=0) >= len(self.blocks):
            log.info("%s: the first %d of %d blocks", path, len(self.blocks), max(blocks.values()) + 1)
            state = {name: tensor for name, tensor in state.items() if blocks.get(name, 0) < len(self.blocks)}
        load_strictly(self, state, path)

    def train(self, mode: bool = True) -> VisionTransformer:
        """Training mode for the trainable part only."""
        super().train(mode)
        for part in self.children():
            keep_frozen_in_eval(part)
        if self.cacheable:
            self.pos_drop.eval()
        return self

    def trunk(self, images: Tensor) -> Tensor:
        """(B, 3, height, width) normalised -> (B, P + rows * columns, D): equation 1 and the frozen blocks."""
        check_size(images, self.preprocess["size"])
        x, _ = self._blocks(self._embed(images), slice(0, self.split), False)
        return x

    def head(self, features: Tensor, need_attention: bool = False) -> Memory:
        """(B, N, D) -> memory. Attention maps exist here only if no block is in the trunk: ask `forward` otherwise."""
        if need_attention and self.split:
            raise ValueError("features of the trunk carry no attention maps: call the encoder on images to have them")
        return self._memory(*self._blocks(features, slice(self.split, None), need_attention))

    def forward(self, images: Tensor, need_attention: bool = False) -> Memory:
        """(B, 3, height, width) normalised -> memory, with the (B, H, N, N) attention of every block when asked."""
        if not need_attention:
            return self.head(self.trunk(images))
        return self._memory(*self._blocks(self._embed(images), slice(None), True))

    def _embed(self, images: Tensor) -> Tensor:
        x = self.patch_embed(images)
        prefix = [token.expand(x.shape[0], -1, -1) for token in (self.cls_token, self.reg_token) if token is not None]
        if self.pos_embed is not None and not self.table_prefix:
            x = x + self.pos_embed
        x = torch.cat((*prefix, x), dim=1)
        if self.pos_embed is not None and self.table_prefix:
            x = x + self.pos_embed
        return self.pos_drop(self.position.add(x, self.coordinates))

    def _blocks(self, x: Tensor, part: slice, need_weights: bool) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        x = x.to(self.patch_embed.proj.weight.dtype)
        coordinates = self.coordinates if self.pos_embed is None else None
        maps = []
        for block in self.blocks[part]:
            x, weights = block(x, coordinates=coordinates, need_weights=need_weights)
            maps.append(weights)
        return x, tuple(maps) if need_weights else None

    def _memory(self, x: Tensor, maps: tuple[Tensor, ...] | None) -> Memory:
        x = self.norm(x)
        pooled = x[:, 0] if self.pool == "token" else self.fc_norm(x[:, self.prefix :].mean(1))
        # With pool="mean" the norm stands after the pooling; a decoder wants normalised tokens all the same.
        return Memory(self.fc_norm(x), grid=self.grid, pooled=pooled, attentions=maps)

    def fingerprint(self) -> str:
        """Hash of what decides the trunk's output; the key of cached features."""
        after = (*(f"blocks.{i}." for i in range(self.split, len(self.blocks))), "norm.", "fc_norm.")
        trunk = [(k, v) for k, v in self.state_dict().items() if not k.startswith(after)]
        return fingerprint(trunk, self.configuration)
