"""Synthetic scenes: coloured shapes on a background, and where they stand.

Lengths are shares of the side of the (square) picture, x to the right and y downwards, so that one scene can be drawn
at any size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from typing import TypeVar

T = TypeVar("T")

SHAPES = ("circle", "square", "triangle", "star", "cross", "diamond")
COLOURS = {
    "red": (218, 32, 38),
    "orange": (245, 130, 20),
    "yellow": (248, 218, 30),
    "green": (40, 160, 60),
    "cyan": (50, 205, 222),
    "blue": (42, 76, 214),
    "purple": (145, 50, 175),
}
TEXTURES = ("solid", "striped", "dotted")
SIZES = {"small": 0.125, "large": 0.1875}
"""Half the side of an object's square cell, in shares of the picture's side."""
TONES = {"light": (175, 235), "dark": (18, 70)}
"""Grey levels of the backgrounds."""

HELD_OUT = (("green", "star"), ("purple", "circle"), ("yellow", "triangle"), ("cyan", "cross"))
"""(colour, shape) pairs that no training scene has: 4 of 42. Each colour and each shape is seen in other pairs."""
SEEN = tuple((c, s) for c in COLOURS for s in SHAPES if (c, s) not in HELD_OUT)

OPPOSITE = {"left": "right", "right": "left", "above": "below", "below": "above"}
_LATTICE = 8  # centres stand on a lattice of 1/8: a model sees each shape in few places, and learns fast
_GAP = 0.02  # free space between cells, and between a cell and the border
_MIN_OFFSET = 0.1
_MAX_ANGLE = math.radians(60)
_CLEAR_ANGLE = math.radians(40)
_CUMULATIVE_COUNT = (0.30, 0.75, 0.90, 1.0)  # 30 % one object, 45 % two, 15 % three, 10 % four


@dataclass(frozen=True)
class SceneObject:
    """One object. x, y: centre; radius: half the side of its square cell, in shares of the picture's side."""

    shape: str
    colour: str
    size: str
    texture: str
    x: float
    y: float
    radius: float


@dataclass(frozen=True)
class Background:
    """kind: plain, gradient or noise. tone: light or dark. start, end: RGB. angle: radians. seed: of the noise."""

    kind: str
    tone: str
    start: tuple[int, int, int]
    end: tuple[int, int, int]
    angle: float
    seed: int


@dataclass(frozen=True)
class Scene:
    """One to four objects that do not overlap, the main one first.

    Order: the larger of two; of two equally large the left one, or the upper one where they stand above each other;
    of three or four the only large one, then the small ones from left to right. twins: the last two objects are alike.
    variant: chooses among caption wordings.
    """

    objects: tuple[SceneObject, ...]
    background: Background
    twins: bool
    variant: int

    @property
    def held_out(self) -> bool:
        """Whether any object has a (colour, shape) pair that training never shows."""
        return any((o.colour, o.shape) in HELD_OUT for o in self.objects)


def relation(a: SceneObject, b: SceneObject) -> str:
    """Where a is, seen from b, along the axis that separates them more: left, right, above or below."""
    dx, dy = a.x - b.x, a.y - b.y
    if abs(dx) >= abs(dy):
        return "left" if dx < 0 else "right"
    return "above" if dy < 0 else "below"


def holds(name: str, a: SceneObject, b: SceneObject, *, max_angle: float = _MAX_ANGLE) -> bool:
    """Whether "a is `name` b" is true: a tenth of the picture or more apart that way, within 60 degrees of straight."""
    dx, dy = a.x - b.x, a.y - b.y
    along, across = {"left": (-dx, dy), "right": (dx, dy), "above": (-dy, dx), "below": (dy, dx)}[name]
    return along >= _MIN_OFFSET and abs(across) <= along * math.tan(max_angle)


def sample_scene(rng: Random, *, held_out: bool = False) -> Scene:
    """A random scene; with `held_out` exactly one kind of object has a pair of HELD_OUT, otherwise none.

    Pairs that captions relate are placed within 40 degrees of straight left, right, above or below.
    """
    draw = rng.random()
    count = next(n for n, limit in enumerate(_CUMULATIVE_COUNT, 1) if draw < limit)
    twins = rng.random() < {2: 0.10, 3: 0.25}.get(count, 0)
    kinds = count - twins
    sizes: list[str]
    if count == 1:
        sizes = [_pick(rng, ("small", "large"))]
    elif twins and count == 2:
        sizes = [_pick(rng, ("small", "large"))] * 2
    elif count == 2:
        sizes = _pick(rng, (["large", "large"], ["small", "small"], ["large", "small"], ["large", "small"]))
    else:
        sizes = ["large"] + ["small"] * (count - 1)
    pairs: list[tuple[str, str]] = []
    while len(pairs) < kinds:
        pair = _pick(rng, SEEN)
        if pair not in pairs:
            pairs.append(pair)
    if held_out:
        pairs[int(rng.random() * kinds)] = _pick(rng, HELD_OUT)
    textures = [TEXTURES[max(0, int(rng.random() * 4) - 1)] for _ in pairs]  # half of them solid
    if twins:
        pairs, textures = pairs + pairs[-1:], textures + textures[-1:]
    radii = [SIZES[size] for size in sizes]
    if twins:
        radii[-1] = radii[-2]

    centres = _place(rng, radii)
    objects = [
        SceneObject(shape, colour, size, texture, x, y, radius)
        for (colour, shape), size, texture, radius, (x, y) in zip(pairs, sizes, textures, radii, centres, strict=True)
    ]
    if count == 2 and sizes[0] == sizes[1] and relation(objects[0], objects[1]) in ("right", "below"):
        objects.reverse()
    elif count > 2:
        objects[1:] = sorted(objects[1:], key=lambda o: o.x)
    return Scene(tuple(objects), _background(rng), twins, int(rng.random() * 1000))


def _pick(rng: Random, options: Sequence[T]) -> T:
    # random() is the one method whose stream Python promises to keep between versions.
    return options[int(rng.random() * len(options))]


def _place(rng: Random, radii: list[float]) -> list[tuple[float, float]]:
    """Centres of cells that neither touch nor leave the picture; the first stands clearly to one side of each other."""
    clear = math.tan(_CLEAR_ANGLE)
    centres: list[tuple[float, float]] = []
    tries = 0
    while len(centres) < len(radii):
        tries += 1
        if tries > 60:  # a bad start: begin again
            centres, tries = [], 0
        radius = radii[len(centres)]
        low = math.ceil((radius + _GAP) * _LATTICE)
        x, y = ((low + int(rng.random() * (_LATTICE - 2 * low + 1))) / _LATTICE for _ in range(2))
        for i, ((ox, oy), other) in enumerate(zip(centres, radii, strict=False)):
            dx, dy = abs(x - ox), abs(y - oy)
            if max(dx, dy) < radius + other + _GAP:
                break
            if i == 0 and min(dx, dy) > clear * max(dx, dy):
                break
            if i > 0 and dx < _MIN_OFFSET:  # keeps "from left to right" visible
                break
        else:
            centres.append((x, y))
    return centres


def _background(rng: Random) -> Background:
    tone = _pick(rng, ("light", "dark"))
    low, high = TONES[tone]

    def shade() -> tuple[int, int, int]:
        grey = low + rng.random() * (high - low)
        red, green, blue = (min(max(int(grey + rng.random() * 20 - 10), 0), 255) for _ in range(3))
        return red, green, blue

    start = shade()
    kind = _pick(rng, ("plain", "gradient", "noise"))
    end = shade() if kind == "gradient" else start
    return Background(kind, tone, start, end, rng.random() * 2 * math.pi, int(rng.random() * 2**32))
