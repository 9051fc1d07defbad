"""Random pictures for training classifiers: crop, flip, RandAugment, random erasing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms import InterpolationMode, RandAugment, RandomErasing

from vitcap.data.transforms import Augment
from vitcap.types import require_number


@contextmanager
def seeded(generator: torch.Generator | None) -> Iterator[None]:
    """Draws from torch's global CPU generator are a function of `generator` inside, and undisturbed outside.

    torchvision draws from the global generator only. `torch.manual_seed` would also seed the GPU, and with it dropout.
    """
    seed = int(torch.randint(2**63 - 1, (), generator=generator))
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield


@dataclass(frozen=True)
class ClassifyAugment:
    """Training pictures for classification, where neither place nor colour is the answer.

    size, interpolation, scale, ratio, flip: see Augment; by default as much as Inception crops (Szegedy et al. 2015).
    operations, magnitude: of RandAugment (Cubuk et al. 2020), torchvision's with 31 magnitudes; 0 operations for none.
    erase: probability of random erasing (Zhong et al. 2020): a part of 2 to 33 % of the picture becomes noise, 0..255.
    """

    size: tuple[int, int] = (224, 224)
    scale: tuple[float, float] = (0.08, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: bool = True
    operations: int = 2
    magnitude: int = 9
    erase: float = 0.0
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        require_number("operations", self.operations, 0, whole=True)
        require_number("magnitude", self.magnitude, 0, 30, whole=True)
        require_number("erase", self.erase, 0, 1)
        self._crop()  # its own checks

    def _crop(self) -> Augment:
        return Augment(self.size, self.scale, self.ratio, self.flip, self.interpolation)

    def __call__(self, image: Image.Image, generator: torch.Generator | None = None) -> Tensor:
        """RGB picture -> (3, height, width) uint8, not normalised. Every draw comes from `generator`."""
        picture = self._crop()(image, generator)
        with seeded(generator):
            if self.operations:
                grey = [128.0] * 3
                policy = RandAugment(
                    self.operations, self.magnitude, interpolation=InterpolationMode.BILINEAR, fill=grey
                )
                picture = policy(picture)
            if self.erase and torch.rand(()).item() < self.erase:
                box = RandomErasing.get_params(picture, scale=(0.02, 1 / 3), ratio=(0.3, 1 / 0.3), value=[0.0])
                top, left, height, width = box[:4]
                if (height, width) != self.size:  # the whole picture stands for: no part was found that fits
                    part = picture[:, top : top + height, left : left + width]
                    part.copy_(torch.randint_like(part, 256))
        return picture
