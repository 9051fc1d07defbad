"""A small convolutional encoder, from scratch.

Letters: B images, N = rows * columns memory tokens, C channels of the last stage, D width.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from vitcap.models.receptive_field import Box, grid_box
from vitcap.models.vit import IMAGENET_MEAN, IMAGENET_STD
from vitcap.models.weights import Size, check_size, size_pair
from vitcap.types import Memory


def _convolution(inputs: int, outputs: int, stride: int) -> list[nn.Module]:
    """3x3 convolution, group norm (Wu and He 2018), ReLU."""
    # Unlike batch statistics, groups do not care how small a batch is, and are the same in training and evaluation.
    norm = nn.GroupNorm(math.gcd(8, outputs), outputs)
    return [nn.Conv2d(inputs, outputs, 3, stride=stride, padding=1, bias=False), norm, nn.ReLU(inplace=True)]


class ConvEncoder(nn.Module):
    """Stages of two 3x3 convolutions (Simonyan and Zisserman 2015), the first of which halves the grid, and a
    projection; a token of the memory is one place of the last grid.

    image_size: pixels, int or (height, width), a multiple of 2^stages. channels: of each stage. width: D.
    dropout: on the last grid. mean, std: per channel, of pixel values in 0..1.
    """

    cacheable = False  # everything trains

    def __init__(
        self,
        *,
        image_size: Size = 64,
        channels: Sequence[int] = (32, 64, 128),
        width: int = 128,
        dropout: float = 0.0,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
    ) -> None:
        super().__init__()
        height, across = size_pair(image_size)
        if not channels or min(channels) < 1:
            raise ValueError(f"channels must be one positive number for each stage, got {list(channels)}")
        stride = 2 ** len(channels)
        if height % stride or across % stride:
            stages = f"the stride of {len(channels)} stages"
            raise ValueError(f"image_size {height}x{across} is not a multiple of {stride}x{stride}, {stages}")
        self.width, self.grid = width, (height // stride, across // stride)
        self.preprocess: dict[str, Any] = {
            "size": (height, across),
            "mode": "crop",
            "crop_pct": 1.0,
            "interpolation": "bicubic",
            "mean": tuple(mean),
            "std": tuple(std),
        }
        stages_in = (3, *channels[:-1])
        self.stages = nn.Sequential(
            *(
                nn.Sequential(*_convolution(inputs, outputs, 2), *_convolution(outputs, outputs, 1))
                for inputs, outputs in zip(stages_in, channels, strict=True)
            )
        )
        self.drop = nn.Dropout(dropout)
        self.project = nn.Linear(channels[-1], width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        for module in self.stages.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    @property
    def grid_box(self) -> Box:
        """See vitcap.types.Encoder."""
        return grid_box(self.stages, self.stages, self.preprocess["size"], self.grid)

    def trunk(self, images: Tensor) -> Tensor:
        """(B, 3, height, width) normalised -> places of the last grid, row by row (B, N, C)."""
        check_size(images, self.preprocess["size"])
        return self.stages(images).flatten(2).transpose(1, 2)

    def head(self, features: Tensor, need_attention: bool = False) -> Memory:
        """(B, N, C) -> memory; pooled (B, D) = mean. Raises ValueError for need_attention: there is none."""
        if need_attention:
            raise ValueError("a convolutional encoder has no self-attention, so there are no attention maps to give")
        tokens = self.norm(self.project(self.drop(features)))
        return Memory(tokens, grid=self.grid, pooled=tokens.mean(1))

    def forward(self, images: Tensor, need_attention: bool = False) -> Memory:
        """(B, 3, height, width) normalised -> memory."""
        return self.head(self.trunk(images), need_attention)
