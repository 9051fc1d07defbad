"""Where the cells of an encoder's grid lie in its input: around the centres of what they read.

A convolution of stride 2 with a padding of 1 reads around the first of two pixels, one with TensorFlow's padding "same"
around the second, a patch embedding all of its patch. A stack of them moves the grid against the picture, by up to half
a cell, and lets it cover more or less than the picture (Araujo, Norris and Sim 2019, "Computing Receptive Fields of
Convolutional Neural Networks"). Training makes up for it: kernels become heavier on the other side (Alsallakh et al.
2021, "Mind the Pad", section 3). So the centre of a kernel is here that of its squared weights, by which the squared
gradients of a stack spread (Luo et al. 2016, "Understanding the Effective Receptive Field", section 2).

Measured on a trained EfficientNet-Lite0 (cells of 32 pixels, trained on 224) by pasting 32 x 32 pixels of one photo
into another, about 100 times for each size: the cell that changes most lies beside the paste, on average over both
axes, by 1, 1 and -2 pixels at 224, 260 and 304 pixels a side; if the kernels' middles counted it would be by 15, 15 and
12, and if the cells shared out the picture evenly by 0, 12 and 4 (standard error 1 to 2).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from vitcap.types import Grid

log = logging.getLogger(__name__)

Box = tuple[float, float, float, float]
"""(x0, y0, x1, y1) in pixels of the model input, where pixel i reaches from i to i + 1."""


@dataclass(frozen=True)
class Axis:
    """Rows (or columns) of a tensor: what row i of `size` reads of the picture has its centre in pixel
    start + i * step, a half between two of them; padding counts like picture."""

    start: float
    step: Fraction
    size: int

    def reduced(self, size: int, *, centre: float = 0, stride: int = 1, before: int = 0) -> Axis:
        """After a convolution or pooling with a padding of `before`. centre: of the kernel, from its first row."""
        return Axis(self.start + (centre - before) * float(self.step), self.step * stride, size)

    def merged(self, size: int) -> Axis | None:
        """After neighbours were put together, to `size` rows; None if they do not share out evenly."""
        count, rest = divmod(self.size, size)
        return None if rest or not count else self.reduced(size, centre=(count - 1) / 2, stride=count)

    def resized(self, size: int) -> Axis:
        """After an interpolation between the same edges."""
        step = self.step * self.size / size
        return Axis(self.start + float(step - self.step) / 2, step, size)

    def joined(self, others: Sequence[Axis]) -> Axis:
        """After a sum of several ways from the picture. They count alike: a half of the shortcut of a ResNet-D block
        reads half a pixel beside what the other way reads. A way with other steps does not move the rows."""
        starts = [axis.start for axis in others if (axis.step, axis.size) == (self.step, self.size)]
        return replace(self, start=sum(starts) / len(starts))

    def ends(self) -> tuple[float, float]:
        """Where the first row begins and the last one ends, if each is a step long, around its centre."""
        first = self.start + float(1 - self.step) / 2
        return first, first + float(self.size * self.step)


Field = tuple[Axis, Axis]
"""Of the rows and of the columns."""


@dataclass(frozen=True)
class Followed:
    """What an encoder made of an empty picture (1, 3, height, width), and its field, None where it could not be
    followed."""

    output: Tensor
    size: tuple[int, int]
    field: Field | None

    def box(self, grid: Grid) -> Box:
        """The rectangle of the input that a grid of so many (rows, columns) covers, all cells together.

        A cell is as large as the stride, around the centre of what it reads, so the box may reach beyond the picture
        or end before its edge. The whole picture, and a warning, for a model that cannot be followed.
        """
        if self.field is not None:
            rows, columns = (axis.merged(count) for axis, count in zip(self.field, grid, strict=True))
            if rows is not None and columns is not None:
                (y0, y1), (x0, x1) = rows.ends(), columns.ends()
                return x0, y0, x1, y1
        log.warning("this model's cells cannot be followed to the picture: they are taken to share it out evenly")
        return 0.0, 0.0, float(self.size[1]), float(self.size[0])


def grid_box(module: nn.Module, run: Callable[[Tensor], Tensor], size: tuple[int, int], grid: Grid) -> Box:
    """The rectangle of the input that an encoder's grid covers with the weights that it has now; see `Followed.box`.

    run: what a part `module` of the encoder makes of a picture: the grid. It runs once, in evaluation mode.
    """
    modes = {part: part.training for part in module.modules()}
    try:
        return follow(run, size, like=next(module.eval().parameters())).box(grid)
    finally:
        for part, training in modes.items():
            part.training = training


def follow(run: Callable[[Tensor], Tensor], size: tuple[int, int], *, like: Tensor | None = None) -> Followed:
    """Run an encoder, or its part from the picture to the grid, on an empty picture of (height, width) pixels.

    What reads all of the grid or any part of it, such as attention, gates and norms, leaves the cells where they are.
    Neighbours that a reshaping puts together become one cell. like: has the number type and the device of the picture.
    """
    picture = torch.zeros(1, 3, *size) if like is None else like.new_zeros(1, 3, *size)
    setattr(picture, _FIELD, tuple(Axis(0.0, Fraction(1), side) for side in size))
    with torch.no_grad(), _Following():
        output = run(picture)
    return Followed(output, size, _field(output))


_FIELD = "_vitcap_field"  # of a tensor; a table of tensors would keep all of them in memory
_PADS = ("constant_pad_nd", "reflection_pad2d", "replication_pad2d")
_POOLS = ("max_pool2d_with_indices", "max_pool2d", "avg_pool2d")
_JOINS = ("add", "add_", "cat")


class _Following(TorchDispatchMode):
    """Within this context, every tensor made of others that have a field has one."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = [(x.shape, found) for x in _tensors(args) if (found := _field(x))]
        result = func(*args, **(kwargs or {}))
        for output in _tensors([result]):
            if given:
                setattr(output, _FIELD, _after(func.__name__.partition(".")[0], args, given, output))
        return result


def _field(x: Tensor) -> Field | None:
    return getattr(x, _FIELD, None)


def _tensors(values: Iterable[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, list | tuple):
            yield from _tensors(value)


def _after(name: str, args: Sequence[Any], given: Sequence[tuple[torch.Size, Field]], output: Tensor) -> Field | None:
    """The field of what an operation of ATen gives. given: shape and field of each of its tensors that have one."""
    shape, field = given[0]
    if name in ("convolution", *_POOLS) and len(shape) == 4 and not (name == "convolution" and args[6]):
        met = [axis.merged(size) for axis, size in zip(field, shape[2:], strict=True)]
        if name == "convolution":
            stride, padding, dilation = args[3:6]
            centres = _centres(args[1], stride)
        else:
            kernel, *rest = args[1:]
            stride, padding, dilation = (*rest, *(None, 0, 1)[len(rest) :])[:3]
            stride, dilation = stride or kernel, 1 if name == "avg_pool2d" else dilation  # there it is another option
            centres = [(count - 1) / 2 for count in _pair(kernel)]
        options = zip(centres, *(_pair(value) for value in (stride, padding, dilation)), strict=True)
        return _both(
            axis and axis.reduced(size, centre=d * centre, stride=s, before=p)
            for axis, size, (centre, s, p, d) in zip(met, output.shape[2:], options, strict=True)
        )
    if (name == "convolution" and len(shape) == 4) or name.lstrip("_").startswith(("upsample_", "adaptive_")):
        return _both(axis.resized(size) for axis, size in zip(field, output.shape[-2:], strict=True))
    if "mm" in name or "attention" in name:  # rows of a product are those of the first
        return field
    shape, field = next((one for one in given if one[0] == output.shape), given[0])  # the picture, not its gate
    if name in _JOINS:
        return _both(axis.joined([other[i] for _, other in given]) for i, axis in enumerate(field))
    sizes = tuple(axis.size for axis in field)
    for first in (2, 1):  # channels before the places, or after them
        if len(shape) == 4 and shape[first : first + 2] == sizes and (name in _PADS or name == "slice"):
            return _both(_cut(axis, name, args, first + i, output.shape[first + i]) for i, axis in enumerate(field))
    return field


def _centres(weight: Tensor, stride: Sequence[int]) -> list[float]:
    """Of kernels (outputs, inputs, rows, columns), from the first row and column: the mean over the outputs. Those that
    do not overlap are patches, with the middle as their centre."""
    power = weight.detach().cpu().double().square().sum(1)
    power = (power / power.sum((1, 2), keepdim=True)).nan_to_num().sum(0)  # kernels of zeros read nothing
    found = []
    for axis, (count, step) in enumerate(zip(power.shape, _pair(stride), strict=True)):
        line = power.sum(1 - axis)
        places = torch.arange(count, dtype=line.dtype)
        found.append(float(line @ places / line.sum()) if count > step and line.sum() > 0 else (count - 1) / 2)
    return found


def _cut(axis: Axis, name: str, args: Sequence[Any], dim: int, size: int) -> Axis:
    """After padding, or after a slice."""
    if name == "slice":
        options: list[Any] = [*args[1:], *(0, None, None, 1)[len(args) - 1 :]]
        of, start, step = options[0], options[1] or 0, options[3]
        if of % args[0].ndim != dim:
            return axis
        return axis.reduced(size, stride=step, before=-start - (axis.size if start < 0 else 0))
    behind = 2 * (args[0].ndim - 1 - dim)  # the last dimension comes first
    return axis.reduced(size, before=args[1][behind] if behind < len(args[1]) else 0)


def _both(axes: Iterable[Axis | None]) -> Field | None:
    rows, columns = tuple(axes)
    return None if rows is None or columns is None else (rows, columns)


def _pair(value: Any) -> tuple[int, int]:
    first, *more = value if isinstance(value, Sequence) else (value,)
    return first, more[0] if more else first
