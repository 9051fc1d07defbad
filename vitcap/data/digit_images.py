"""Handwritten digits as small pictures: the 8 x 8 test set of Alpaydin and Kaynak (1998) that scikit-learn ships."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from vitcap.data.records import CaptionRecord

SPLITS = ("train", "val")
SIDE, WHITE = 8, 16


@dataclass(frozen=True)
class DigitPicture:
    """A picture yet to be made: calling it gives the RGB picture, 8 pixels square, light ink on black.

    pixels: 64 bytes, row by row, each the 0..16 inked dots of a 4 x 4 block.
    """

    pixels: bytes

    def __call__(self) -> Image.Image:
        values = np.frombuffer(self.pixels, np.uint8).reshape(SIDE, SIDE)
        return Image.fromarray(np.rint(values * (255.0 / WHITE)).astype(np.uint8)).convert("RGB")


class DigitImagesSource:
    """The 1,797 digits of `sklearn.datasets.load_digits`, labelled and without captions; nothing is downloaded.

    root: must stay empty. seed: of the split. val_fraction: share of every class (rounded) that is val; it decides with
    the seed alone which. Digits of one writer are in both, so the scores say nothing about new hands.

    Needs scikit-learn. Raises ValueError without it, and for options out of range.
    """

    name = "digit_images"
    classes = tuple("0123456789")

    def __init__(self, root: str | Path | None = None, *, seed: int = 0, val_fraction: float = 0.2) -> None:
        if root is not None:
            raise ValueError(f"data.root={root}: the digits come with scikit-learn; leave data.root empty")
        if not isinstance(val_fraction, int | float) or not 0 < val_fraction < 1:
            raise ValueError(f"data.source.val_fraction={val_fraction}: a share between 0 and 1 is wanted")
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise ValueError("data=digit_images needs scikit-learn: pip install scikit-learn") from None
        digits = load_digits()
        records = [
            CaptionRecord(index, DigitPicture(image.astype(np.uint8).tobytes()), (), int(label))
            for index, (image, label) in enumerate(zip(digits.images, digits.target, strict=True))
        ]
        of_class: defaultdict[int | None, list[CaptionRecord]] = defaultdict(list)
        for record in records:
            of_class[record.label].append(record)
        held: set[int | str] = set()
        for label, some in of_class.items():
            held |= {r.image_id for r in Random(f"{seed}/{label}").sample(some, round(val_fraction * len(some)))}
        self._records = {
            "train": [record for record in records if record.image_id not in held],
            "val": [record for record in records if record.image_id in held],
        }
        if not all(self._records.values()):
            raise ValueError(f"data.source.val_fraction={val_fraction} leaves a split without pictures")

    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def split(self, name: str) -> list[CaptionRecord]:
        """The records of train or val."""
        if name not in SPLITS:
            raise ValueError(f"no split {name!r} in the digits: choose one of {', '.join(SPLITS)}")
        return list(self._records[name])
