"""Pictures to model input: the fixed preprocessing of evaluation and captioning, and the random one of training."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

_FILTERS = {filter_.name.lower(): filter_ for filter_ in Image.Resampling}
_MODES = ("crop", "squash", "letterbox")
_LARGEST_RESIZE = 32  # times the area of the output


@dataclass(frozen=True)
class Preprocess:
    """How a picture becomes the model's input: resize, then crop or pad at the centre.

    size: (height, width) of the output in pixels.
    mode: "crop" keeps the aspect ratio and loses what overhangs, "squash" changes the aspect ratio, "letterbox" keeps
        both and fills the rest with the mean colour, `round(255 * mean)`, which the normalised input sees as 0.
    crop_pct: in (0, 1]; the picture is resized to `floor(size / crop_pct)` and `size` is cut from the middle.
    interpolation: nearest, box, bilinear, hamming, bicubic or lanczos; Pillow's, thus antialiased.
    mean, std: of the RGB channels in 0..1. The model normalises with them; here they only choose the fill colour.

    Sizes are rounded as timm's evaluation transform rounds them (crop modes "center", "squash", "border"), so that
    published weights see the pixels they were measured with.
    """

    size: tuple[int, int] = (224, 224)
    mode: str = "crop"
    crop_pct: float = 1.0
    interpolation: str = "bicubic"
    mean: tuple[float, float, float] = (0.485, 0.456, 0.406)
    std: tuple[float, float, float] = (0.229, 0.224, 0.225)

    def __post_init__(self) -> None:
        _freeze(self, "size", "mean", "std")
        _check_size(self.size)
        _check_filter(self.interpolation)
        if self.mode not in _MODES:
            raise ValueError(f"mode {self.mode!r}: choose one of {', '.join(_MODES)}")
        if not isinstance(self.crop_pct, int | float) or not 0 < self.crop_pct <= 1:
            raise ValueError(f"crop_pct {self.crop_pct}: a fraction above 0 and at most 1 is wanted")
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise ValueError(f"mean {self.mean}, std {self.std}: three numbers each are wanted, std above 0")

    def __call__(self, image: Image.Image) -> Tensor:
        """RGB picture -> (3, height, width) uint8, not normalised."""
        _check_rgb(image)
        (height, width), (columns, rows, left, top) = self.size, self._layout(*image.size)
        resample = _FILTERS[self.interpolation]
        canvas = Image.new("RGB", (width, height), self._fill)
        if columns * rows <= _LARGEST_RESIZE * width * height:
            canvas.paste(image.resize((columns, rows), resample), (-left, -top))
            return _to_tensor(canvas)
        # A long thin picture resized whole can take gigabytes. Resize only what is kept: equal within rounding.
        x0, x1 = max(0, left), min(columns, left + width)
        y0, y1 = max(0, top), min(rows, top + height)
        from_x, to_x, box_x0, box_x1 = _needed(x0, x1, image.width / columns, image.width)
        from_y, to_y, box_y0, box_y1 = _needed(y0, y1, image.height / rows, image.height)
        near = image.crop((from_x, from_y, to_x, to_y))
        part = near.resize((x1 - x0, y1 - y0), resample, box=(box_x0, box_y0, box_x1, box_y1))
        canvas.paste(part, (x0 - left, y0 - top))
        return _to_tensor(canvas)

    def window(self, width: int, height: int) -> tuple[float, float, float, float]:
        """The rectangle (x0, y0, x1, y1) of a width x height photo, in its pixels, that the model input shows.

        Inside the photo for crop, the photo itself for squash (with crop_pct 1), beyond it for letterbox. Input pixel
        (x, y) shows the photo at (x0 + (x + .5) * (x1 - x0) / input width, y0 + (y + .5) * (y1 - y0) / input height).
        """
        columns, rows, left, top = self._layout(width, height)
        across, down = width / columns, height / rows
        return left * across, top * down, (left + self.size[1]) * across, (top + self.size[0]) * down

    def chain(self, width: int, height: int) -> tuple[dict[str, Any], ...]:
        """What is done to a width x height picture, in order, in plain JSON types: "resize" to `size`, [width, height];
        "crop" to `box`, [x0, y0, x1, y1] of the resized picture; "pad" by [left, top, right, bottom] pixels of the RGB
        colour `fill`. A step that would do nothing is left out."""
        columns, rows, left, top = self._layout(width, height)
        right, bottom = left + self.size[1], top + self.size[0]
        steps: list[dict[str, Any]] = []
        if (columns, rows) != (width, height):
            steps.append({"name": "resize", "size": [columns, rows], "interpolation": self.interpolation})
        box = [max(0, left), max(0, top), min(columns, right), min(rows, bottom)]
        if box != [0, 0, columns, rows]:
            steps.append({"name": "crop", "box": box})
        pad = [max(0, -left), max(0, -top), max(0, right - columns), max(0, bottom - rows)]
        if any(pad):
            steps.append({"name": "pad", "by": pad, "fill": list(self._fill)})
        return tuple(steps)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON types; `from_dict` is the inverse."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocess:
        """From `to_dict` or from the keys of a config; missing keys keep their defaults, unknown ones are errors."""
        known = {field.name for field in fields(cls)}
        if unknown := sorted(set(values) - known):
            raise ValueError(f"preprocessing has no {', '.join(unknown)}; known are {', '.join(sorted(known))}")
        return cls(**values)

    @property
    def _fill(self) -> tuple[int, ...]:
        return tuple(round(255 * value) for value in self.mean)

    def _layout(self, width: int, height: int) -> tuple[int, int, int, int]:
        """(columns, rows) of the resized picture and (left, top) of the output in it; negative where it is padded."""
        if width < 1 or height < 1:
            raise ValueError(f"a picture of {width}x{height} pixels")
        rows, columns = (math.floor(side / self.crop_pct) for side in self.size)
        if self.mode == "crop" and rows == columns:  # torchvision's rule for the shorter side truncates
            if width <= height:
                rows = int(rows * height / width)
            else:
                columns = int(columns * width / height)
        elif self.mode != "squash":
            pick = min if self.mode == "crop" else max
            ratio = pick(height / rows, width / columns)
            rows, columns = max(1, round(height / ratio)), max(1, round(width / ratio))
        return columns, rows, _offset(columns, self.size[1]), _offset(rows, self.size[0])


@dataclass(frozen=True)
class Augment:
    """Training pictures: a random part of the picture, resized, and flipped half of the time if wanted.

    size: (height, width) of the output in pixels.
    scale: range of the part's area, as a fraction of the picture's.
    ratio: range of the part's width / height.
    flip: mirror left and right with probability one half. Off by default: "left of" would become false.

    The part is drawn as in Szegedy et al. 2015 (Inception), in the order of torchvision's RandomResizedCrop.
    """

    size: tuple[int, int] = (224, 224)
    scale: tuple[float, float] = (0.5, 1.0)
    ratio: tuple[float, float] = (0.75, 4 / 3)
    flip: bool = False
    interpolation: str = "bicubic"

    def __post_init__(self) -> None:
        _freeze(self, "size", "scale", "ratio")
        _check_size(self.size)
        _check_filter(self.interpolation)
        if not 0 < self.scale[0] <= self.scale[1] <= 1:
            raise ValueError(f"scale {self.scale}: fractions of the area are wanted, 0 < smallest <= largest <= 1")
        if not 0 < self.ratio[0] <= self.ratio[1]:
            raise ValueError(f"ratio {self.ratio}: 0 < smallest <= largest is wanted")

    def __call__(self, image: Image.Image, generator: torch.Generator | None = None) -> Tensor:
        """RGB picture -> (3, height, width) uint8, not normalised. Every draw comes from `generator`."""
        _check_rgb(image)
        box = self.box(*image.size, generator)
        image = image.resize((self.size[1], self.size[0]), _FILTERS[self.interpolation], box=box)
        if self.flip and torch.rand(1, generator=generator).item() < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return _to_tensor(image)

    def box(self, width: int, height: int, generator: torch.Generator | None = None) -> tuple[int, int, int, int]:
        """A random part (x0, y0, x1, y1) of a width x height picture; the middle of it if ten draws do not fit."""
        low, high = torch.log(torch.tensor(self.ratio)).tolist()
        for _ in range(10):
            area = width * height * torch.empty(1).uniform_(*self.scale, generator=generator).item()
            ratio = torch.exp(torch.empty(1).uniform_(low, high, generator=generator)).item()
            w, h = round(math.sqrt(area * ratio)), round(math.sqrt(area / ratio))
            if 0 < w <= width and 0 < h <= height:
                y = int(torch.randint(0, height - h + 1, (1,), generator=generator).item())
                x = int(torch.randint(0, width - w + 1, (1,), generator=generator).item())
                return x, y, x + w, y + h
        ratio = min(max(width / height, self.ratio[0]), self.ratio[1])
        w, h = max(1, min(width, round(height * ratio))), max(1, min(height, round(width / ratio)))
        x, y = (width - w) // 2, (height - h) // 2
        return x, y, x + w, y + h


def _offset(have: int, want: int) -> int:
    return round((have - want) / 2) if have >= want else -((want - have) // 2)


def _needed(start: int, stop: int, step: float, length: int) -> tuple[int, int, float, float]:
    """Pixels of a side of `length` that output pixels start..stop of `step` source pixels each are made from.

    Returns the whole pixels to cut out, with a margin wider than any filter, and the exact interval inside the cut:
    Pillow takes that in 32-bit floats, which are exact only near 0.
    """
    margin = 4 * math.ceil(max(1, step))
    first, last = max(0, int(start * step) - margin), min(length, math.ceil(stop * step) + margin)
    return first, last, start * step - first, min(stop * step, length) - first


def _to_tensor(image: Image.Image) -> Tensor:
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def _freeze(owner: Any, *names: str) -> None:
    """Lists, as JSON and YAML have them, to tuples."""
    for name in names:
        value = getattr(owner, name)
        if isinstance(value, str) or not hasattr(value, "__iter__"):
            raise ValueError(f"{name} {value!r}: a list of numbers is wanted")
        object.__setattr__(owner, name, tuple(value))


def _check_rgb(image: Image.Image) -> None:
    if image.mode != "RGB":
        raise ValueError(f"a picture of mode {image.mode}: RGB is wanted; open files with load_image")


def _check_size(size: tuple[int, ...]) -> None:
    if len(size) != 2 or min(size) < 1:
        raise ValueError(f"size {size}: (height, width) in pixels is wanted")


def _check_filter(name: str) -> None:
    if name not in _FILTERS:
        raise ValueError(f"interpolation {name!r}: choose one of {', '.join(sorted(_FILTERS))}")
