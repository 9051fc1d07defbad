"""The embedded data set: synthetic scenes with captions, labels, boxes and masks, made when they are asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random

import numpy as np
from PIL import Image

from vitcap.data.records import CaptionRecord
from vitcap.data.scene_drawing import box, draw, mask
from vitcap.data.scene_language import describe
from vitcap.data.scene_truth import Truth, check
from vitcap.data.scenes import SHAPES, Scene, sample_scene
from vitcap.files import whole
from vitcap.types import require_number

SPLITS = ("train", "val", "test")
_FIRST_ID = {"train": 1, "val": 10_000_001, "test": 20_000_001}
_MAX_SIZE = 10_000_000
_HELD_OUT_EVERY = 4


@dataclass(frozen=True)
class Drawing:
    """A picture yet to be drawn: calling it gives the RGB picture, image_size pixels square. Small; can be pickled."""

    seed: int
    split: str
    index: int
    image_size: int

    def scene(self) -> Scene:
        """The scene, a function of seed, split and index alone."""
        held_out = self.split != "train" and self.index % _HELD_OUT_EVERY == _HELD_OUT_EVERY - 1
        return sample_scene(Random(f"{self.seed}/{self.split}/{self.index}"), held_out=held_out)

    def __call__(self) -> Image.Image:
        return draw(self.scene(), self.image_size)


class ShapesSource:
    """Scenes of one to four shapes; a source like the readers of photographs, with nothing on disk.

    root: must stay empty. seed: another seed, other scenes. train_size, val_size, test_size: scenes of each split.
    image_size: side of the pictures in pixels, 32 or more; the scenes do not depend on it.

    Every fourth scene of val and test contains a (colour, shape) pair of `scenes.HELD_OUT`, which no training scene and
    no other scene of val and test has. A record's label is the shape of the scene's main object (see `scenes.Scene`):
    the larger one; of two equally large ones the left, or the upper where they stand above each other. Its name is
    `classes[label]`.
    """

    name = "shapes"
    classes = SHAPES

    def __init__(
        self,
        root: str | Path | None = None,
        *,
        seed: int = 0,
        train_size: int = 40_000,
        val_size: int = 1_000,
        test_size: int = 1_000,
        image_size: int = 64,
    ) -> None:
        if root is not None:
            raise ValueError(f"data.root={root}: the shapes are drawn, not read; leave data.root empty for data=shapes")
        self.sizes = {"train": train_size, "val": val_size, "test": test_size}
        for split, size in self.sizes.items():
            require_number(f"data.source.{split}_size", size, 1, _MAX_SIZE, whole=True)
        require_number("data.source.seed", seed, -math.inf, whole=True)
        require_number("data.source.image_size", image_size, -math.inf, 4096, whole=True)
        if image_size < 32:
            raise ValueError(
                f"data.image_size={image_size}: must be at least 32 pixels, or small shapes cannot be told apart"
            )
        self.seed, self.image_size = seed, image_size

    def splits(self) -> tuple[str, ...]:
        return SPLITS

    def split(self, name: str) -> list[CaptionRecord]:
        """The records of train, val or test."""
        if name not in SPLITS:
            raise ValueError(f"no split '{name}' in the shapes: choose one of {', '.join(SPLITS)}")
        return [self._record(Drawing(self.seed, name, i, self.image_size)) for i in range(self.sizes[name])]

    def scene(self, record: CaptionRecord | int | str) -> Scene:
        """The scene of a record, or of its image id."""
        return self._drawing(record).scene()

    def truth(self, record: CaptionRecord | int | str, caption: str) -> Truth:
        """Which of the claims of a caption, in any wording that can be read, are true of the record's scene."""
        return check(self.scene(record), caption)

    def coverage(self, record: CaptionRecord | int | str, caption: str) -> float:
        """Share (0..1) of the scene's objects that the caption names truly; 0 if it cannot be read."""
        return self.truth(record, caption).coverage

    def held_out(self, record: CaptionRecord | int | str) -> bool:
        """Whether the record's scene has a (colour, shape) pair that training never shows."""
        return self.scene(record).held_out

    def _record(self, drawing: Drawing) -> CaptionRecord:
        scene = drawing.scene()
        image_id = _FIRST_ID[drawing.split] + drawing.index
        return CaptionRecord(image_id, drawing, describe(scene), SHAPES.index(scene.objects[0].shape))

    def _drawing(self, record: CaptionRecord | int | str) -> Drawing:
        image_id = record.image_id if isinstance(record, CaptionRecord) else record
        for split, first in _FIRST_ID.items():
            if isinstance(image_id, int) and first <= image_id < first + self.sizes[split]:
                return Drawing(self.seed, split, image_id - first, self.image_size)
        raise ValueError(f"image id {image_id!r} is not in the shapes with sizes {self.sizes}")


def run_lengths(mask: np.ndarray) -> list[int]:
    """Run lengths of an (H, W) bool mask in COCO's order: column by column, beginning with the zeros (may be 0)."""
    flat = mask.ravel(order="F")
    changes = np.flatnonzero(flat[1:] != flat[:-1]) + 1
    edges = [0, *changes.tolist(), flat.size]
    runs = [b - a for a, b in pairwise(edges)]
    return [0, *runs] if flat[0] else runs


def export_coco(
    source: ShapesSource,
    root: str | Path,
    split: str,
    *,
    suffix: str = ".png",
    progress: Callable[[Iterable[CaptionRecord]], Iterable[CaptionRecord]] = iter,
) -> None:
    """Write one split in COCO's layout: `{root}/{split}/*.png`, `{root}/annotations/{captions,instances}_{split}.json`.

    Masks are uncompressed run lengths, boxes (x, y, width, height); the categories are the shapes, numbered from 1.
    Instances also carry colour, size and texture, images their held-out flag and class label. suffix: ".png"
    (exact pixels) or ".jpg". progress: wraps the loop over the records.
    """
    if suffix not in (".png", ".jpg"):
        raise ValueError(f"suffix {suffix!r}: choose .png or .jpg")
    root, size = Path(root), source.image_size
    (root / split).mkdir(parents=True, exist_ok=True)
    (root / "annotations").mkdir(exist_ok=True)
    images: list[dict] = []
    captions: list[dict] = []
    instances: list[dict] = []
    for record in progress(source.split(split)):
        scene, image_id = source.scene(record), record.image_id
        name = f"{image_id:012d}{suffix}"
        record.open().save(root / split / name, quality=95, subsampling=0)  # PNG ignores both
        images.append(
            {"id": image_id, "file_name": name, "width": size, "height": size}
            | {"label": record.label, "held_out": scene.held_out}
        )
        captions += [
            {"id": len(captions) + i, "image_id": image_id, "caption": c} for i, c in enumerate(record.captions, 1)
        ]
        for item in scene.objects:
            pixels = mask(item, size)
            instances.append(
                {"id": len(instances) + 1, "image_id": image_id, "category_id": SHAPES.index(item.shape) + 1}
                | {"bbox": list(box(item, size)), "area": int(pixels.sum()), "iscrowd": 0}
                | {"segmentation": {"size": [size, size], "counts": run_lengths(pixels)}}
                | {"colour": item.colour, "size": item.size, "texture": item.texture}
            )
    made = {"description": f"vitcap shapes, split {split}", "seed": source.seed, "split_size": source.sizes[split]}
    categories = [{"id": i, "name": s, "supercategory": "shape"} for i, s in enumerate(SHAPES, 1)]
    files = {
        "captions": {"info": made, "licenses": [], "images": images, "annotations": captions},
        "instances": {
            "info": made,
            "licenses": [],
            "images": images,
            "annotations": instances,
            "categories": categories,
        },
    }
    for kind, content in files.items():
        with whole(root / "annotations" / f"{kind}_{split}.json") as part:
            part.write_text(json.dumps(content), encoding="utf-8")
