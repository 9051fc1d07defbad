"""What makes a record of attention sound, whoever made or edited it. NumPy only."""

from __future__ import annotations

import math
from collections.abc import Mapping
from numbers import Real
from typing import Any

import numpy as np


def check_record(record: Any) -> None:
    """Raises ValueError, naming the field, for an AttentionRecord that no renderer could draw and no metric measure."""
    grid = record.grid
    _want(_whole(record.prefix, 0), "prefix", record.prefix, "a count")
    if grid is not None:
        _want(_list(grid, 2) and all(_whole(n, 1) for n in grid), "grid", grid, "(rows, columns), 1 or more each")
    _want(_list(record.places) and _texts(record.places), "places", record.places, "texts")
    for name in ("text", "source"):
        _want(isinstance(getattr(record, name), str), name, getattr(record, name), "a text")
    _want(isinstance(record.facts, dict), "facts", record.facts, "an object")
    size = record.size
    sound = size is None or (_list(size, 2) and all(_whole(n, 1) for n in size))
    _want(sound, "size", size, "(width, height) in pixels, 1 or more each, or nothing")
    for name in ("window", "cells"):
        box = getattr(record, name)
        sound = box is None or (_list(box, 4) and all(map(_number, box)) and box[0] < box[2] and box[1] < box[3])
        _want(sound, name, box, "(x0, y0, x1, y1) with x0 < x1 and y0 < y1, or nothing")
    for word in record.words:
        span = (word.start, word.stop)
        _want(isinstance(word.text, str), "word", word.text, "a text")
        _want(all(_whole(n, 0) for n in span) and span[0] < span[1], f"span of {word.text!r}", span, "a span of tokens")
        sound = isinstance(word.log_prob, Real) and word.log_prob <= 1e-3  # rounding takes a sure word above 0
        _want(sound, f"log-probability of {word.text!r}", word.log_prob, "a number of at most 0")
    _check_maps(record.maps, record.shown)
    photo = record.photo
    if photo is not None:
        sound = photo.dtype == np.uint8 and photo.ndim == 3 and photo.shape[2] == 3 and photo.size > 0
        _want(sound, "photo", f"{photo.dtype} {photo.shape}", "uint8 (height, width, 3)")


def _check_maps(maps: Mapping[str, Any], shown: Any) -> None:
    for method, values in maps.items():
        _want(values.dtype.kind in "fiu", f"maps of {method}", values.dtype, "real numbers")
        if values.ndim == 4:  # what else is wrong with a shape is told with the number of places
            _want(min(values.shape[1:3]) > 0, f"maps of {method}", values.shape, "1 or more layers and heads")
    for axis, name in ((1, "layers"), (2, "heads")):
        chosen = getattr(shown, name)
        if chosen is None or shown.method not in maps or maps[shown.method].ndim != 4:
            continue
        count = maps[shown.method].shape[axis]
        sound = _list(chosen) and chosen and all(_whole(n, -count) and n < count for n in chosen)
        _want(sound, f"shown {name}", chosen, f"some of 0 to {count - 1} (-1 is the last)")


def _want(sound: Any, what: str, value: Any, wanted: str) -> None:
    if not sound:
        told = repr(value)
        raise ValueError(f"{what} {told if len(told) < 80 else told[:76] + '...'}: {wanted} is wanted")


def _list(values: Any, count: int | None = None) -> bool:
    return isinstance(values, list | tuple) and count in (None, len(values))


def _texts(values: Any) -> bool:
    return all(isinstance(value, str) for value in values)


def _whole(value: Any, low: int) -> bool:
    return isinstance(value, int | np.integer) and not isinstance(value, bool) and bool(value >= low)


def _number(value: Any) -> bool:
    return isinstance(value, Real) and math.isfinite(value)
