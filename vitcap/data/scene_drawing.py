"""Scenes as pictures: antialiased drawing with Pillow, exact masks and boxes."""

from __future__ import annotations

import math
from functools import lru_cache
from random import Random

import numpy as np
from PIL import Image, ImageChops, ImageDraw

from vitcap.data.scenes import COLOURS, Background, Scene, SceneObject

_OUTLINES = {  # corners in the cell [-1, 1] x [-1, 1]
    "square": [(-0.84, -0.84), (0.84, -0.84), (0.84, 0.84), (-0.84, 0.84)],
    "triangle": [(0.0, -0.98), (0.98, 0.84), (-0.98, 0.84)],
    "star": [
        (r * math.sin(k * math.pi / 5), 0.09 - r * math.cos(k * math.pi / 5))
        for k, r in enumerate([1.04, 0.46] * 5)
    ],
    "cross": [
        (-0.34, -0.96), (0.34, -0.96), (0.34, -0.34), (0.96, -0.34), (0.96, 0.34), (0.34, 0.34),
        (0.34, 0.96), (-0.34, 0.96), (-0.34, 0.34), (-0.96, 0.34), (-0.96, -0.34), (-0.34, -0.34),
    ],
    "diamond": [(0.0, -1.0), (0.76, 0.0), (0.0, 1.0), (-0.76, 0.0)],
}  # fmt: skip
_SUPERSAMPLING = 6
_EDGE, _WHITE = (24, 24, 24), (255, 255, 255)


def draw(scene: Scene, size: int) -> Image.Image:
    """The scene as an antialiased RGB picture of size x size pixels."""
    image = _draw_background(scene.background, size)
    for item in scene.objects:
        outline, rim, body, pattern = _stamp(item.shape, item.texture, item.radius, size)
        corner = _corner(item, size, outline.width)
        image.paste(_EDGE, corner, outline)
        image.paste(_WHITE, corner, rim)
        image.paste(COLOURS[item.colour], corner, body)
        if pattern is not None:
            image.paste(_WHITE, corner, pattern)
    return image


def mask(item: SceneObject, size: int) -> np.ndarray:
    """(size, size) bool: the pixels that the object covers by at least half."""
    outline, *_ = _stamp(item.shape, item.texture, item.radius, size)
    x, y = _corner(item, size, outline.width)
    full = np.zeros((size, size), bool)
    full[y : y + outline.width, x : x + outline.width] = np.asarray(outline) >= 128
    return full


def box(item: SceneObject, size: int) -> tuple[int, int, int, int]:
    """(x, y, width, height) in pixels of the smallest box around the object's mask (COCO's convention)."""
    full = mask(item, size)
    rows, columns = np.flatnonzero(full.any(1)), np.flatnonzero(full.any(0))
    return int(columns[0]), int(rows[0]), int(columns[-1] - columns[0] + 1), int(rows[-1] - rows[0] + 1)


def _corner(item: SceneObject, size: int, width: int) -> tuple[int, int]:
    # Whole pixels, so that one stamp serves every place.
    return round(item.x * size - width / 2), round(item.y * size - width / 2)


@lru_cache(maxsize=1024)
def _stamp(
    shape: str, texture: str, radius: float, size: int
) -> tuple[Image.Image, Image.Image, Image.Image, Image.Image | None]:
    """Coverage (0..255, "L") of the object in its cell, of its white rim, of its coloured body, and of the white
    pattern on it; drawn large, then reduced."""
    width = 2 * math.ceil(radius * size)
    scale = _SUPERSAMPLING * radius * size
    side = width * _SUPERSAMPLING

    def filled(share: float) -> Image.Image:
        layer = Image.new("L", (side, side))
        pen = ImageDraw.Draw(layer)
        if shape == "circle":
            reach = 0.95 * scale * share
            pen.ellipse([side / 2 - reach, side / 2 - reach, side / 2 + reach, side / 2 + reach], fill=255)
        else:
            middle = 0.22 if shape == "triangle" else 0.09 if shape == "star" else 0.0  # shrink towards the mass
            pen.polygon(
                [
                    (side / 2 + x * share * scale, side / 2 + (middle + (y - middle) * share) * scale)
                    for x, y in _OUTLINES[shape]
                ],
                fill=255,
            )
        return layer

    # Dark edge and white rim show the same contour on any background and around any colour, as on a sticker.
    outline, rim, body = (filled(share).reduce(_SUPERSAMPLING) for share in (1.0, 0.91, 0.74))
    if texture == "solid":
        return outline, rim, body, None
    pattern = Image.new("L", (side, side))
    pen = ImageDraw.Draw(pattern)
    pitch = scale * (0.50 if texture == "striped" else 0.62)
    if texture == "striped":
        for k in range(-4, 5):
            middle = side / 2 + (k + 0.5) * pitch
            pen.rectangle([0, middle - 0.24 * pitch, side, middle + 0.24 * pitch], fill=255)
    else:
        reach = 0.27 * pitch
        for row in range(-4, 5):
            for column in range(-4, 5):
                x, y = side / 2 + (column + row % 2 / 2) * pitch, side / 2 + row * 0.87 * pitch
                pen.ellipse([x - reach, y - reach, x + reach, y + reach], fill=255)
    return outline, rim, body, ImageChops.darker(pattern, filled(0.62)).reduce(_SUPERSAMPLING)


def _draw_background(background: Background, size: int) -> Image.Image:
    if background.kind == "plain":
        return Image.new("RGB", (size, size), background.start)
    start = np.asarray(background.start, np.float32)
    if background.kind == "gradient":
        axis = np.linspace(-0.5, 0.5, size, dtype=np.float32)
        run = axis * np.float32(math.cos(background.angle)) + axis[:, None] * np.float32(math.sin(background.angle))
        share = np.clip(run + 0.5, 0, 1)[..., None]
        pixels = start + share * (np.asarray(background.end, np.float32) - start)
    else:
        grain = np.frombuffer(Random(background.seed).randbytes(size * size), np.uint8).reshape(size, size, 1)
        pixels = np.clip(start + (grain.astype(np.float32) - 127.5) * 0.14, 0, 255)
    return Image.fromarray(pixels.astype(np.uint8))
