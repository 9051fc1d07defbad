"""Positional encodings over one axis (text) or two (patches).

A position scheme acts at one of three places, each the identity by default: `add` to the tokens, `rotate` queries and
keys, `bias` on the scores. All take coordinates (T, axes); a row of NaN marks a token without a place (class token,
registers), which every scheme leaves alone. Cached decoding passes the coordinates of the new tokens only.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn


def line(length: int, *, start: int = 0, device: torch.device | None = None) -> Tensor:
    """Coordinates (length, 1) of tokens start, start + 1, ..."""
    return torch.arange(start, start + length, dtype=torch.float32, device=device)[:, None]


def plane(rows: int, columns: int, *, prefix: int = 0, device: torch.device | None = None) -> Tensor:
    """Coordinates (prefix + rows * columns, 2) of a grid in row-major order, after `prefix` tokens without a place."""
    y, x = torch.meshgrid(torch.arange(rows), torch.arange(columns), indexing="ij")
    grid = torch.stack((y, x), dim=-1).reshape(-1, 2).float()
    return torch.cat((torch.full((prefix, 2), math.nan), grid)).to(device)


class Position(nn.Module):
    """No positions: attention then cannot tell orders apart. Base class of the others."""

    def add(self, x: Tensor, coordinates: Tensor) -> Tensor:
        """Tokens (..., T, D) with positions added."""
        return x

    def rotate(self, x: Tensor, coordinates: Tensor) -> Tensor:
        """Queries or keys (..., T, K) turned by their positions."""
        return x

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor | None:
        """Score bias (H, T, S) of query against key coordinates, or None."""
        return None


class LearnedPosition(Position):
    """One trained vector per place (Gehring et al. 2017; BERT, ViT). Knows no place beyond its table.

    size: length for text, or (rows, columns) for a grid. width: D.
    """

    def __init__(self, size: int | tuple[int, int], width: int) -> None:
        super().__init__()
        self.size = (size,) if isinstance(size, int) else tuple(size)
        self.table = nn.Parameter(torch.zeros(*self.size, width))
        nn.init.trunc_normal_(self.table, std=0.02)

    def add(self, x: Tensor, coordinates: Tensor) -> Tensor:
        """Raises ValueError beyond the table, naming both numbers."""
        _check(x, coordinates, self.table.shape[-1], len(self.size))
        known = ~coordinates.isnan().any(-1)
        index = coordinates.nan_to_num(0.0).long()
        for axis, size in enumerate(self.size):
            last = int(index[:, axis].max()) if len(index) else 0
            if len(index) and int(index[:, axis].min()) < 0:
                raise ValueError(f"position {int(index[:, axis].min())} is before the learned table, which starts at 0")
            if last >= size:
                raise ValueError(f"position {last} is beyond the learned table of {size}: raise the maximum length")
        return x + self.table[tuple(index.unbind(-1))] * known[:, None]


def _check(x: Tensor, coordinates: Tensor, width: int, axes: int) -> None:
    """ValueError unless x is (..., T, width) and coordinates are (T, axes)."""
    if x.shape[-1] != width:
        raise ValueError(f"tokens of width {x.shape[-1]} for positions of width {width}")
    if coordinates.shape != (x.shape[-2], axes):
        raise ValueError(
            f"coordinates {tuple(coordinates.shape)} of {x.shape[-2]} tokens in {axes} axes: {(x.shape[-2], axes)} are "
            "wanted"
        )


def frequencies(width: int, base: float = 10000.0) -> Tensor:
    """Angular frequencies base^(-2i/width), i = 0 .. width/2 - 1 (Vaswani et al. 2017, section 3.5)."""
    return base ** (-torch.arange(0, width, 2, dtype=torch.float32) / width)


class SinusoidalPosition(Position):
    """Sines and cosines of geometric wavelengths (Vaswani et al. 2017, section 3.5).

    PE[p, 2i] = sin(p * w_i), PE[p, 2i+1] = cos(p * w_i). With two axes each takes half of the width.
    """

    def __init__(self, width: int, axes: int = 1) -> None:
        super().__init__()
        if width < 1 or width % (2 * axes):
            raise ValueError(f"sinusoidal positions of {axes} axes need a width divisible by {2 * axes}, got {width}")
        self.frequency: Tensor
        self.width, self.axes = width, axes
        self.register_buffer("frequency", frequencies(width // axes), persistent=False)

    def add(self, x: Tensor, coordinates: Tensor) -> Tensor:
        """Any position works, also beyond the training length."""
        _check(x, coordinates, self.width, self.axes)
        angle = coordinates.nan_to_num(0.0)[..., None] * self.frequency  # (T, axes, D / (2 axes))
        table = torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)
        return x + (table * ~coordinates.isnan().any(-1, keepdim=True)).to(x.dtype)


class RotaryPosition(Position):
    """Queries and keys turned by angles proportional to their place, so that scores depend on offsets (Su et al. 2021).

    Pairs are (2i, 2i+1), as in the paper. With two axes each turns half of the head (axial).
    """

    def __init__(self, head_width: int, axes: int = 1, base: float = 10000.0) -> None:
        super().__init__()
        if head_width < 1 or head_width % (2 * axes):
            raise ValueError(f"rotary positions of {axes} axes need a head width divisible by {2 * axes}: {head_width}")
        self.frequency: Tensor
        self.head_width, self.axes = head_width, axes
        self.register_buffer("frequency", frequencies(head_width // axes, base), persistent=False)

    def rotate(self, x: Tensor, coordinates: Tensor) -> Tensor:
        """A token without a place is turned by angle 0, that is, not at all."""
        _check(x, coordinates, self.head_width, self.axes)
        angle = (coordinates.nan_to_num(0.0)[..., None] * self.frequency).flatten(1)  # (T, K / 2)
        cos, sin = angle.cos().to(x.dtype), angle.sin().to(x.dtype)
        even, odd = x.unflatten(-1, (-1, 2)).unbind(-1)
        return torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1).flatten(-2)


def alibi_slopes(heads: int) -> Tensor:
    """Slopes 2^(-8h/H), h = 1..H, for H a power of two; otherwise those of the next lower power of two, then every
    second one of the next higher (Press et al. 2022, section 3 and its published code's rule)."""
    if heads < 1:
        raise ValueError(f"slopes of {heads} heads: at least 1 is wanted")
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    slopes += [2 ** (-4 * h / power) for h in range(1, 2 * power, 2)][: heads - power]
    return torch.tensor(slopes)


class AlibiPosition(Position):
    """Scores lowered in proportion to the distance (Press et al. 2022); on a grid, to the Euclidean distance."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.slopes: Tensor
        self.register_buffer("slopes", alibi_slopes(heads), persistent=False)

    def bias(self, queries: Tensor, keys: Tensor) -> Tensor:
        """(H, T, S); 0 against a token without a place."""
        distance = (queries[:, None] - keys[None]).nan_to_num(0.0).norm(dim=-1)
        return -self.slopes[:, None, None] * distance


POSITIONS = ("none", "learned", "sinusoidal", "rotary", "alibi")


def make_position(name: str, *, width: int, heads: int, size: int | tuple[int, int]) -> Position:
    """Position scheme by name (one of POSITIONS) for text (`size` = maximum length) or a grid (rows, columns).

    width: D; heads: H. Raises ValueError for an unknown name, or a width that the scheme cannot divide.
    """
    axes = 1 if isinstance(size, int) else 2
    if heads < 1:
        raise ValueError(f"positions of {heads} heads: at least 1 is wanted")
    match name:
        case "none":
            return Position()
        case "learned":
            return LearnedPosition(size, width)
        case "sinusoidal":
            return SinusoidalPosition(width, axes)
        case "rotary":
            return RotaryPosition(width // heads, axes)
        case "alibi":
            return AlibiPosition(heads)
    raise ValueError(f"unknown position scheme {name!r}; choose one of {', '.join(POSITIONS)}")
