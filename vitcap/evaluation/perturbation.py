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
from vitcap.metrics.regions import Box, Floats, edges
from vitcap.types import Grid

SUBSTRATES = {
    "mean": "the mean colour, which the normalised input sees as 0",
    "blur": "the picture under a Gaussian blur with the standard deviation of a patch's side",
}
BLOCKS = (2, 4, 8)
"""Blocks along each side of a patch on which ROAD's system is solved, each solution the start of the next."""


class Removal:
    """One picture in the model's input, and the patches that can be taken out of it.

    image: (3, H, W) normalised. grid: (rows, columns) of patches. box: the rectangle (x0, y0, x1, y1) of the input that
    they share out evenly, None for all of it; the outermost go on to the input's edges. substrate: one of SUBSTRATES.
    noise: standard deviation of ROAD's noise, in units of the normalised input, drawn from `generator`.
    """

    def __init__(
        self,
        image: Tensor,
        grid: Grid,
        *,
        box: Box | None = None,
        substrate: str = "mean",
        noise: float = 0.01,
        generator: np.random.Generator,
    ) -> None:
        if substrate not in SUBSTRATES:
            raise ValueError(f"substrate={substrate}: choose {' or '.join(SUBSTRATES)}")
        self.image, self.grid = image, grid
        height, width = image.shape[1:]
        xs, ys = edges(grid, (0.0, 0.0, float(width), float(height)), box)
        self._rows, self._columns = _owners(ys, height), _owners(xs, width)
        self.ground = torch.zeros_like(image)
        if substrate == "blur":
            sides = [max(1.0, size / n) for size, n in zip(image.shape[1:], grid, strict=True)]
            kernel = [2 * min(round(2 * side), size - 1) + 1 for side, size in zip(sides, image.shape[1:], strict=True)]
            self.ground = gaussian_blur(image, kernel[::-1], sides[::-1])
        self.noise = noise * torch.from_numpy(generator.standard_normal(tuple(image.shape))).to(image)
        self.coarse = []
        for blocks in BLOCKS:
            (down, self._up), (across, self._along) = (
                [torch.from_numpy(matrix).to(image) for matrix in _blocks(lines, size, blocks)]
                for lines, size in ((ys, height), (xs, width))
            )
            self.coarse.append((down @ image @ across.mT).cpu().numpy())

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
            start = None
            if filled is not None:
                start = F.interpolate(filled, size=coarse.shape[1:], mode="bilinear", align_corners=False).numpy()
            filled = torch.from_numpy(road_impute(coarse, known, start=start, tolerance=1e-2))
        assert filled is not None
        fine = self._up @ filled.to(self.image) @ self._along.mT
        return torch.where(self._pixels(kept), self.image, fine + self.noise)

    def _pixels(self, kept: Kept) -> Tensor:
        pixels = kept.reshape(-1, 1, *self.grid)[..., self._rows[:, None], self._columns]
        return torch.from_numpy(pixels).to(self.image.device)


def _owners(lines: Floats, size: int) -> NDArray[np.int64]:
    """(size,) the interval between rising lines in which the centre of each pixel lies; the outermost have no end."""
    return np.searchsorted(lines[1:-1], np.arange(size) + 0.5, side="right")


def _blocks(lines: Floats, size: int, blocks: int) -> tuple[Floats, Floats]:
    """Along one side, with each patch between `lines` shared out among so many blocks: (blocks, size) that takes the
    mean of pixels, and (size, blocks) that interpolates between the middles of blocks."""
    inside = lines.clip(0, size)
    fine = np.interp(np.arange(blocks * (len(lines) - 1) + 1) / blocks, np.arange(len(lines)), inside)
    middle = (fine[1:] + fine[:-1]) / 2
    mean = (_owners(fine, size) == np.arange(len(middle))[:, None]).astype(float)
    thin = ~mean.any(1)  # of less than a pixel
    mean[thin, middle[thin].astype(int).clip(0, size - 1)] = 1
    centres = np.arange(size) + 0.5
    return mean / mean.sum(1, keepdims=True), np.stack(
        [np.interp(centres, middle, one) for one in np.eye(len(middle))], 1
    )


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
