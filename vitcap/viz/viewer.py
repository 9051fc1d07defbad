"""One HTML file that shows records of attention: the photo, its words, and the map of the word that is looked at.

The file needs nothing else: it opens from disk, and its own content security policy forbids it the network. Maps are
stored in one byte a value, photos as JPEG. NumPy and Pillow only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import io
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.resources import files
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from PIL import Image

from vitcap.record import AttentionRecord, View, Window
from vitcap.viz.alignment import describe_alignment
from vitcap.viz.heatmap import FLAT
from vitcap.viz.overlay import LEAST
from vitcap.viz.shown import (
    cells_of,
    describe_record,
    method_title,
    of_classes,
    probability,
    show,
    size_of,
    window_of,
)
from vitcap.viz.style import INFERNO

Box = tuple[str, Window]
"""A known object: its name, and (x0, y0, x1, y1) in pixels of the upright original photo."""

PHOTO_SIDE = 1024
"""Longest side in pixels of the photos in the file."""

SCRIPTS = ("viewer_maps.js", "viewer_elements.js", "viewer_pane.js", "viewer.js")
_ENTRY_BYTES = 960_000  # that one photo takes in the file, with its maps, in base64: under 1 MB with a page around it
_PHOTO_BYTES = 100_000, 480_000  # of its JPEG: what maps leave it at least, and as much as it ever needs
_THUMB = 208


def viewer_html(
    records: Sequence[AttentionRecord],
    *,
    title: str = "Attention",
    boxes: Sequence[Sequence[Box] | None] | None = None,
    beside: Sequence[AttentionRecord] | None = None,
    names: Sequence[str] = (),
    about: Mapping[str, str] | None = None,
) -> str:
    """The page, as text to be written in UTF-8.

    records: one for each photo (or sentence), in the order of the strip of photos.
    boxes: for each record the known objects, or None where nothing is known of it.
    beside: records of the same photos by a second model, shown beside the first.
    names: a heading for each of the models. about: a line of explanation for each method.

    Raises ValueError for no records, numbers that do not fit, values that are not finite, or a record of a picture
    without its photo.
    """
    if not records:
        raise ValueError("no records to show: at least one is wanted")
    for what, given in (("boxes", boxes), ("beside", beside)):
        if given is not None and len(given) != len(records):
            raise ValueError(f"{what}: {len(given)} entries for {len(records)} records; one for each is wanted")
    panes = list(zip(records, beside, strict=True)) if beside is not None else [(record,) for record in records]
    known = boxes if boxes is not None else [None] * len(records)
    text = "\n\n".join("\n".join(_lines(record)) for pair in panes for record in pair)
    photos = [viewer_entry(pair, given, names, about or {}) for pair, given in zip(panes, known, strict=True)]
    return compose(title, photos, text=text)[0]


def compose(
    title: str,
    photos: Sequence[Mapping[str, Any]],
    *,
    text: str = "",
    start: str = "",
    style: str = "",
    script: str = "",
    policy: str = "",
) -> tuple[str, str]:
    """The page of entries of `viewer_entry`, and its content security policy, which it also states itself.

    text: for browsers without scripts. start, style, script: HTML, CSS and JavaScript that another page adds to the
    viewer's own; policy: more sources of pictures, and directives, for its policy.
    """
    folder = files("vitcap.viz")
    style = folder.joinpath("viewer.css").read_text(encoding="utf-8") + style
    script = "\n".join(folder.joinpath(name).read_text(encoding="utf-8") for name in SCRIPTS) + script
    policy = f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; img-src data:{policy}"
    data = {"colours": INFERNO.tolist(), "flat": FLAT, "least": LEAST, "photos": photos}
    parts = {
        "title": html.escape(title),
        "policy": policy,
        "style": style,
        "script": script,
        "start": start,
        "text": html.escape(text),
        "data": _json(data),
    }
    page = folder.joinpath("viewer.html").read_text(encoding="utf-8")
    page = re.sub(r"\{\{(\w+)\}\}", lambda match: parts[match[1]], page)
    return page.encode("utf-8", "replace").decode("utf-8"), policy  # of lone surrogates, which no file can hold


def quantise(maps: ArrayLike) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.float32]]:
    """Maps (..., N) in one byte a value: codes (..., N), low (...), step (...), with value = low + step * code.

    Every map has a scale of its own, from its lowest value to its highest, so the error is at most step / 2, which is
    1/510 of the map's range; a flat map is exact. Raises ValueError for values that are not finite.
    """
    values = np.asarray(maps, dtype=np.float64)
    if not np.isfinite(values).all():
        raise ValueError("maps hold values that are not finite (NaN or infinity), so they cannot be shown")
    low = values.min(-1).astype(np.float32)
    step = ((values.max(-1) - low) / 255).astype(np.float32)
    scaled = (values - low[..., None]) / np.where(step > 0, step, 1)[..., None]
    return scaled.round().clip(0, 255).astype(np.uint8), low, step


def viewer_entry(
    pair: Sequence[AttentionRecord], boxes: Sequence[Box] | None, names: Sequence[str], about: Mapping[str, str]
) -> dict[str, Any]:
    """One entry of the strip of photos, in plain JSON types: the photo, and what each model attended to in it.

    pair: its record, or those of two models. The others: see `viewer_html`, whose ValueErrors these are.
    """
    first = pair[0]
    if any((record.grid is None) != (first.grid is None) for record in pair):
        raise ValueError(f"{first.source}: records side by side are all of a photo, or all of a sentence")
    name = first.source or "photo"
    entry: dict[str, Any] = {"name": name, "image": "", "thumb": "", "boxes": None}
    if boxes is not None:
        entry["boxes"] = [[label, [float(edge) for edge in box]] for label, box in boxes]
    headings = [names[index] if index < len(names) else name for index in range(len(pair))]
    room = (_ENTRY_BYTES - 2 * _PHOTO_BYTES[0]) * 3 // 4 // len(pair)
    records = [_record(_fitting(record, room), heading, about) for record, heading in zip(pair, headings, strict=True)]
    entry["records"] = records
    if first.grid is not None:
        if first.photo is None:
            raise ValueError(f"{name}: the record holds no photo to draw maps over")
        image = Image.fromarray(first.photo)
        entry["thumb"] = _jpeg(image, _THUMB, most=_PHOTO_BYTES[0], quality=70)
        left = (_ENTRY_BYTES - len(_json(entry).encode("utf-8", "replace"))) * 3 // 4
        entry["image"] = _jpeg(image, PHOTO_SIDE, most=min(max(left, _PHOTO_BYTES[0]), _PHOTO_BYTES[1]))
    return entry


def _fitting(record: AttentionRecord, room: int) -> AttentionRecord:
    """The record in at most `room` bytes of maps, if averaging heads, and then layers, can do it. The method that is
    shown comes last, and keeps the heads or layers of its view; the facts say what is a mean."""
    maps, shown, told = dict(record.maps), record.shown, []
    sizes = {name: len(record.words) * values[0].size for name, values in maps.items()}
    for axis, kind in ((2, "heads"), (1, "layers")):
        for name in sorted(sizes, key=lambda name: (name == shown.method, -sizes[name])):
            if sum(sizes.values()) <= room or (count := maps[name].shape[axis]) == 1:
                continue
            chosen = (getattr(shown, kind) if name == shown.method else None) or range(count)
            maps[name] = maps[name].take([index % count for index in chosen], axis).mean(axis, keepdims=True)
            sizes[name] //= count
            told.append(f"{name}: mean of {len(chosen)} of {count} {kind}")
            if name == shown.method:
                shown = replace(shown, **{kind: None})  # type: ignore[arg-type]
    facts = {**record.facts, "to save space": "; ".join(told)} if told else record.facts
    return replace(record, maps=maps, shown=shown, facts=facts)


def _record(record: AttentionRecord, heading: str, about: Mapping[str, str]) -> dict[str, Any]:
    facts = dict(record.facts) | ({"transforms": list(record.transforms)} if record.transforms else {})
    methods = []
    for method, values in record.maps.items():
        words = [values[word.start : word.stop].astype(np.float64).mean(0) for word in record.words]
        merged = np.stack(words) if words else np.zeros((0, *values.shape[1:]))
        codes, low, step = quantise(merged[..., record.prefix :])
        shown = show(record, View(method)) if record.grid else None
        attention = shown is None or shown.attention
        methods.append(
            {
                "name": method,
                "title": method_title(record, method),
                "about": about.get(method, ""),
                "layers": values.shape[1],
                "heads": values.shape[2],
                "attention": attention,
                "unit": shown.unit if shown else "all attention",
                "clamped": shown is not None and shown.clamped,
                "one": "all patches alike" if attention else "the mean over all words and patches",
                "codes": _base64(codes.tobytes()),
                "low": _base64(low.astype("<f4").tobytes()),
                "step": _base64(step.astype("<f4").tobytes()),
            }
        )
    size = size_of(record) if record.grid else None
    return {
        "name": heading,
        "classes": of_classes(record),
        "kind": "Classes" if of_classes(record) else "Words of the caption" if record.grid else "Words written",
        "text": record.text,
        "words": [{"text": word.text, "p": probability(record, i)} for i, word in enumerate(record.words)],
        "grid": record.grid,
        "prefix": record.prefix,
        "places": record.places,
        "size": size,
        "window": window_of(record, *size) if size else None,
        "cells": cells_of(record, *size) if size else None,
        "methods": methods,
        "shown": _view(record),
        "facts": [[key, value if isinstance(value, str) else _plain(value)] for key, value in facts.items()],
    }


def _view(record: AttentionRecord) -> dict[str, Any]:
    """The view that is shown first, its layers and heads counted from 0."""
    method, (layers, heads) = record.shown.method, record.maps[record.shown.method].shape[1:3]

    def count(chosen: tuple[int, ...] | None, size: int) -> list[int] | None:
        return None if chosen is None else [index % size for index in chosen]

    return {"method": method, "layers": count(record.shown.layers, layers), "heads": count(record.shown.heads, heads)}


def _lines(record: AttentionRecord) -> list[str]:
    """The maps in words, for a browser without scripts."""
    if record.grid is not None:
        return [record.source, *describe_record(record)]
    if not record.words:
        return [record.source]
    view: View = record.shown
    maps = record.maps[view.method]
    words = np.stack([maps[word.start : word.stop].mean((0, 1, 2)) for word in record.words])
    return [record.source, *describe_alignment(words, record.places, [word.text for word in record.words])]


def _jpeg(image: Image.Image, side: int, *, most: int, quality: int = 86) -> str:
    """A data URL of the picture, at most `side` pixels long; coarser where it would take more than `most` bytes."""
    small = image.convert("RGB")
    small.thumbnail((side, side), Image.Resampling.LANCZOS)
    while True:
        buffer = io.BytesIO()
        small.save(buffer, "JPEG", quality=quality, optimize=True)
        if len(buffer.getvalue()) <= most:
            return f"data:image/jpeg;base64,{_base64(buffer.getvalue())}"
        if quality > 60:
            quality -= 10
        else:  # noise: no quality helps
            small = small.resize((max(1, small.width * 3 // 4), max(1, small.height * 3 // 4)))


def _base64(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")


def _hash(text: str) -> str:
    """The name by which a content security policy allows exactly this text."""
    return f"sha256-{_base64(hashlib.sha256(text.encode()).digest())}"


def _plain(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _json(data: Any) -> str:
    """JSON that no text in it can end early: HTML looks for "</script" and "<!--" whatever the quotes."""
    return json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
