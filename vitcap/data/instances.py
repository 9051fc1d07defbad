"""Where the objects of a picture are: COCO's instance files, and the drawn scenes.

Lengths are pixels of the upright picture; boxes are (x0, y0, x1, y1).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from vitcap.data.coco import decode_mask
from vitcap.data.reading import read_json
from vitcap.data.scene_drawing import box, mask
from vitcap.data.scenes import COLOURS, SHAPES, SIZES, TEXTURES
from vitcap.data.shapes import ShapesSource

Id = int | str


@dataclass(frozen=True)
class Instance:
    """One object. mask: gives its (height, width) pixels. crowd: several objects that were outlined as one.
    attributes: such as {"colour": "red"}, where the data tell."""

    category: str
    box: tuple[float, float, float, float]
    mask: Callable[[], NDArray[np.bool_]]
    crowd: bool = False
    attributes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Annotated:
    """A picture of (width, height) pixels and its objects."""

    size: tuple[int, int]
    instances: tuple[Instance, ...]


class Instances(Protocol):
    """Objects of the pictures of a data set. categories, attributes: every name and value. named: where they are from.
    tolerance: pixels by which the pointing game may miss in its lenient form."""

    @property
    def categories(self) -> tuple[str, ...]: ...
    @property
    def attributes(self) -> frozenset[str]: ...
    @property
    def named(self) -> str: ...
    @property
    def tolerance(self) -> float: ...

    def find(self, image_id: Id) -> Annotated | None:
        """The objects of a picture; None where it is not annotated."""
        ...


class CocoInstances:
    """An instance file of COCO (`instances_val2017.json`), or one in its format.

    Texts of an annotation beside COCO's own keys, such as "colour", are attributes. Raises FileNotFoundError or
    ValueError that names the file and the annotation.
    """

    tolerance = 15.0  # TorchRay's

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self.named = self.path.name
        data = read_json(self.path)
        keys = ("images", "annotations", "categories")
        if not isinstance(data, dict) or not all(isinstance(data.get(key), list) for key in keys):
            raise ValueError(f"{path}: no COCO instance file (an object with lists of {', '.join(keys)})")
        try:
            names = {category["id"]: str(category["name"]) for category in data["categories"]}
            self._sizes = {i["id"]: (int(i["width"]), int(i["height"])) for i in data["images"]}
        except (KeyError, TypeError, ValueError, OverflowError) as error:
            raise ValueError(
                f"{path}: an image without id, width and height, or a category without a name: {error}"
            ) from None
        self.categories = tuple(names.values())
        self.ids: dict[str, Id] = {Path(str(i["file_name"])).name: i["id"] for i in data["images"] if "file_name" in i}
        """Image ids by the name of the picture file."""
        self._found: dict[Id, list[Instance]] = {image_id: [] for image_id in self._sizes}
        for number, row in enumerate(data["annotations"]):
            try:
                self._found[row["image_id"]].append(self._instance(row, names))
            except (KeyError, TypeError, ValueError, OverflowError) as error:
                hint = " (a captions file?)" if isinstance(row, dict) and "caption" in row else ""
                what = f"{type(error).__name__} {error}"
                raise ValueError(
                    f"{path}: annotation {number} lacks an image of the file, a category or a box{hint}: {what}"
                ) from None

        found = (item for items in self._found.values() for item in items)
        self.attributes = frozenset(value for item in found for value in item.attributes.values())

    def _instance(self, row: dict[str, Any], names: dict[Any, str]) -> Instance:
        left, top, width, height = (float(number) for number in row["bbox"])
        if not all(map(math.isfinite, (left, top, width, height))):
            raise ValueError(f"bbox {row['bbox']}")
        across, down = self._sizes[row["image_id"]]
        return Instance(
            names[row["category_id"]],
            (left, top, left + width, top + height),
            partial(decode_mask, row.get("segmentation"), down, across),
            bool(row.get("iscrowd", 0)),
            {key: value for key, value in row.items() if isinstance(value, str) and key not in ("id", "image_id")},
        )

    def find(self, image_id: Id) -> Annotated | None:
        """See Instances."""
        size = self._sizes.get(image_id)
        return None if size is None else Annotated(size, tuple(self._found[image_id]))


class SceneInstances:
    """The objects of drawn scenes, with their colour, size and texture."""

    categories = SHAPES
    attributes = frozenset((*COLOURS, *SIZES, *TEXTURES))
    named = "the scenes' own objects"

    def __init__(self, source: ShapesSource) -> None:
        self.source = source
        self.tolerance = source.image_size / 16

    def find(self, image_id: Id) -> Annotated | None:
        """See Instances."""
        side, found = self.source.image_size, []
        for item in self.source.scene(image_id).objects:
            x, y, width, height = box(item, side)
            about = {"colour": item.colour, "size": item.size, "texture": item.texture}
            place = (float(x), float(y), float(x + width), float(y + height))
            found.append(Instance(item.shape, place, partial(mask, item, side), False, about))
        return Annotated((side, side), tuple(found))


def open_instances(source: Any, split: str, path: str | Path | None = None) -> Instances:
    """The objects of a source's pictures: those of the file at `path`, of the scenes, or of the instance file beside
    the captions that a COCO source reads for the split. Raises FileNotFoundError or ValueError, saying what to give."""
    if path is not None:
        return CocoInstances(path)
    if isinstance(source, ShapesSource):
        return SceneInstances(source)
    captions = getattr(source, "annotations", None)
    if not isinstance(captions, dict):
        raise ValueError(
            f"ground=true wants to know where objects are, and data={source.name} does not say: give instances=FILE "
            "(COCO's instances_val2017.json, with the same image ids), or use data=shapes or data=coco"
        )
    said = captions.get(split, captions.get("train"))
    beside = None if said is None else said.with_name(said.name.replace("captions", "instances"))
    if beside is None or beside == said or not beside.is_file():
        raise FileNotFoundError(f"{beside or source.root}: no such file; give instances=FILE, COCO's instance file")
    return CocoInstances(beside)
