"""Pictures with patches taken away, and what a model makes of them.

Letters: N patches of the model's grid, K masks of those that are kept, T scores of a picture.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from torchvision.transforms.functional import gaussian_blur

from vitcap.metrics.faithfulness import Kept, road_impute
from vitcap.types import Grid

SUBSTRATES = {
    "mean": "the mean colour, which the normalised input sees as 0",
    "blur": "the picture under a Gaussian blur with the standard deviation of a patch's side",
}
BLOCKS = (2, 4, 8)
"""Blocks along each side of a patch on which ROAD's system is solved, each solution the start of the next."""


class Removal:
    """One picture in the model's input, and the patches that can be taken out of it.

    image: (3, H, W) normalised. grid: (rows, columns) of equal patches. substrate: one of SUBSTRATES.
    noise: standard deviation of ROAD's noise, in units of the normalised input, drawn from `generator`.
    """

    def __init__(
        self, image: Tensor, grid: Grid, *, substrate: str = "mean", noise: float = 0.01, generator: np.random.Generator
    ) -> None:
        if substrate not in SUBSTRATES:
            raise ValueError(f"substrate={substrate}: choose {' or '.join(SUBSTRATES)}")
        self.image, self.grid = image, grid
        self.ground = torch.zeros_like(image)
        if substrate == "blur":
            sides = [max(1.0, size / n) for size, n in zip(image.shape[1:], grid, strict=True)]
            kernel = [2 * min(round(2 * side), size - 1) + 1 for side, size in zip(sides, image.shape[1:], strict=True)]
            self.ground = gaussian_blur(image, kernel[::-1], sides[::-1])
        self.noise = noise * torch.from_numpy(generator.standard_normal(tuple(image.shape))).to(image)
        sizes = [(grid[0] * blocks, grid[1] * blocks) for blocks in BLOCKS]
        self.coarse = [F.adaptive_avg_pool2d(image, size).cpu().numpy() for size in sizes]

    def on_substrate(self, kept: Kept) -> Tensor:
        """(K, 3, H, W) pictures with the substrate in the place of what is not kept (K, N)."""
        return torch.where(self._pixels(kept), self.image, self.ground)

    def imputed(self, kept: Kept) -> Tensor:
        """(K, 3, H, W) pictures with ROAD's noisy linear imputation in the place of what is not kept (K, N).

        The linear system is that of the means of blocks, and its solution is interpolated to pixels: that of all pixels
        takes ten times as long. On photographs the two differ by a tenth of what either differs from the photograph
        (root mean square over the missing pixels; 7 x 7 and 8 x 8 patches, a ninth to eight ninths of them missing).
        """
        filled: Tensor | None = None
        for blocks, coarse in zip(BLOCKS, self.coarse, strict=True):
            known = kept.reshape(-1, *self.grid).repeat(blocks, 1).repeat(blocks, 2)
            start = None if filled is None else _resize(filled, coarse.shape[1:]).numpy()
            filled = torch.from_numpy(road_impute(coarse, known, start=start, tolerance=1e-2))
        assert filled is not None
        fine = _resize(filled.to(self.image), self.image.shape[1:])
        return torch.where(self._pixels(kept), self.image, fine + self.noise)

    def _pixels(self, kept: Kept) -> Tensor:
        cells = torch.from_numpy(kept.reshape(-1, 1, *self.grid)).to(self.image)
        return F.interpolate(cells, size=self.image.shape[1:], mode="nearest") > 0.5


def _resize(images: Tensor, size: tuple[int, ...]) -> Tensor:
    return F.interpolate(images, size=size, mode="bilinear", align_corners=False)


def score_kept(
    score: Callable[[Tensor], NDArray[np.float64]],
    picture: Callable[[Kept], Tensor],
    kept: Kept,
    *,
    batch_size: int,
) -> NDArray[np.float64]:
    """(K, T) scores of the pictures of K masks; every different mask goes through the model once.

    score: (B, 3, H, W) -> (B, T). picture: a method of Removal.
    """
    packed = np.packbits(kept, axis=1)
    _, first, inverse = np.unique(packed, axis=0, return_index=True, return_inverse=True)
    parts = (first[start : start + batch_size] for start in range(0, len(first), batch_size))
    return np.concatenate([score(picture(kept[part])) for part in parts])[inverse.ravel()]
