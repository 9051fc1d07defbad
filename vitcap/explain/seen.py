"""What a model is shown: a picture with its way from the file to the model's input, or a source sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch.nn.utils.rnn import pad_sequence

from vitcap.data.images import origin
from vitcap.door import Picture, open_picture
from vitcap.explain.options import Explained
from vitcap.record import Window
from vitcap.translator import Translator
from vitcap.types import PAD, Batch


@dataclass(frozen=True)
class Seen:
    """A picture or a source sentence: the model's input, and what the record says of it."""

    batch: Batch
    fields: dict[str, Any]
    spans: tuple[tuple[int, int], ...] | None = None  # of the source words


def see(door: Explained, picture: Picture, photo_side: int) -> Seen:
    """Raises ImageError for a picture that cannot be read, ValueError for a sentence that is none."""
    if isinstance(door, Translator):
        if not isinstance(picture, str):
            raise ValueError(f"{type(picture).__name__}: a Translator reads a source sentence, given as a text")
        batch = door.batch([picture])
        assert batch.source is not None
        words = door.source_tokenizer.words(batch.source[0].tolist())
        places = tuple(word for word, _, _ in words)
        if door.unknown_words(picture):  # their spelling says more than "<unk>"
            places = tuple(door.source_tokenizer.clean(picture).split())
        return Seen(batch, {"places": places, "source": picture}, tuple((start, stop) for _, start, stop in words))
    if not isinstance(picture, Picture):
        raise ValueError(f"{type(picture).__name__}: a picture is wanted, as a path or a PIL picture")
    photo = open_picture(picture)
    batch = Batch(ids=(0,), images=door.preprocess(photo)[None])
    was = origin(picture, photo.size)
    window = door.preprocess.window(*photo.size)
    steps: list[dict[str, Any]] = [{"name": "turn", "orientation": was.orientation, "turn": was.turn}]
    if photo.size != was.size:  # a huge JPEG, of which `load_image` decodes a fraction
        steps.append({"name": "resize", "size": list(photo.size), "interpolation": "decoder"})
        across, down = was.size[0] / photo.width, was.size[1] / photo.height
        window = (window[0] * across, window[1] * down, window[2] * across, window[3] * down)
    steps += door.preprocess.chain(*photo.size)
    if max(photo.size) > photo_side:
        photo = photo.copy()
        photo.thumbnail((photo_side, photo_side), Image.Resampling.LANCZOS)
    fields = {
        "grid": door.grid,
        "prefix": door.prefix,
        "photo": np.array(photo),
        "size": was.size,
        "window": window,
        "cells": on_photo(door.grid_box, door.preprocess.size, window),
        "transforms": tuple(steps),
        "source": "" if isinstance(picture, Image.Image) else Path(str(picture)).name,
    }
    return Seen(batch, fields)


def on_photo(box: Window, size: tuple[int, int], window: Window) -> Window | None:
    """The rectangle of the photo behind a box of the model input of (height, width) pixels; None for all of the input.

    window: the rectangle of the photo that the input shows.
    """
    height, width = size
    if box == (0, 0, width, height):
        return None
    x0, y0, x1, y1 = window
    across, down = (x1 - x0) / width, (y1 - y0) / height
    return x0 + box[0] * across, y0 + box[1] * down, x0 + box[2] * across, y0 + box[3] * down


def join(batches: Sequence[Batch]) -> Batch:
    """One batch of several that hold one record each."""
    ids = tuple(range(len(batches)))
    if batches[0].source is not None:
        return Batch(ids, source=pad_sequence([b.source[0] for b in batches if b.source is not None], True, PAD))
    return Batch(ids, images=torch.cat([b.images for b in batches if b.images is not None]))
