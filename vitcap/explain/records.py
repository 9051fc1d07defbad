"""From a model and a picture (or a sentence) to the record of what was attended to."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

import numpy as np
import torch

from vitcap import __version__
from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.data.images import ImageError
from vitcap.decoding import Sample
from vitcap.door import Picture, PictureDoor
from vitcap.explain.options import Explained, Options, choose, require_fit
from vitcap.explain.seen import Seen, join, see
from vitcap.explain.words import Found, of_caption, of_classes, read, write
from vitcap.record import AttentionRecord, View
from vitcap.translator import Translator
from vitcap.types import Batch
from vitcap.writer import Caption, Search, Writer, require_counts

Skip = Callable[[Picture, ImageError], None]
_KINDS = {Captioner: "caption", Translator: "translate", Classifier: "classify"}


def explain(
    door: Explained,
    picture: Picture,
    *,
    caption: Caption | str | None = None,
    classes: Sequence[str | int] | None = None,
    methods: Sequence[str] | str = ("attention",),
    search: Search | None = None,
    seed: int | None = None,
    top: int = 5,
    photo_side: int = 1600,
    rollout: Mapping[str, Any] | None = None,
) -> AttentionRecord:
    """What the model attended to for every word (or class), over one picture (or source sentence).

    picture: a path or a PIL picture; the source sentence for a Translator, whose words are then the places.
    caption: None lets the model write with `search` (None: its own) and `seed`; else the words that are given: a
        Caption as the door gave it, or a text. Words of a text that the vocabulary lacks are read as unknown, keep
        their spelling, and are listed under "unknown_words" of the facts.
    classes: of a Classifier: names, classes or indices; None: the `top` likeliest, best first.
    methods: one or more of vitcap.explain.methods, or "all" that this model has. That of the model file's view is
        added; the view is what is shown by default, or else "attention", or else the first method.
    photo_side: longest side in pixels of the copy of the photo that the record keeps.
    rollout: options of vitcap.viz.rollout.rollout: {"fusion": "mean", "max" or "min", "discard": share}.

    The record's transforms begin with {"name": "turn", "orientation": EXIF tag, "turn": Pillow's name or None}; the
    others are those of `Preprocess.chain`. Its facts: kind ("caption", "translate", "classify"), model (fingerprint),
    words ("generated", "given" or "likeliest"), log_prob (its unit), versions, preprocess (of pictures); tokens,
    finished, decoding and seed of what was generated, unknown_words, unknown_source_words; classes (indices).

    Raises ImageError for a picture that cannot be read, and ValueError for a method that this model lacks (with the
    reason), a text of which no word is known, a class that is not there, or options out of range.
    """
    options = Options(caption, classes, methods, search, seed, top, photo_side, rollout)
    return next(_records(door, [picture], options, skip=None, batch_size=1))


def explain_all(
    door: Explained,
    pictures: Iterable[Picture],
    *,
    skip: Skip | None = None,
    batch_size: int = 16,
    **options: Any,
) -> Iterator[AttentionRecord]:
    """The records of many pictures (or sentences), in their order, as they are made. options: those of `explain`.

    skip: called with a picture that cannot be read, which then has no record; None raises the ImageError.
    batch_size: pictures that are captioned at a time; a sampling search takes one, so that each draws from `seed`.
    """
    return _records(door, pictures, Options(**options), skip=skip, batch_size=batch_size)


def _records(
    door: Explained,
    pictures: Iterable[Picture],
    options: Options,
    *,
    skip: Skip | None,
    batch_size: int,
) -> Iterator[AttentionRecord]:
    require_counts(batch_size=batch_size)
    options.check(door)
    methods, shown = choose(door, options.methods)
    search = None
    if isinstance(door, Writer) and options.caption is None:
        search = door.choose_search(options.search, 1)
    if search is None or isinstance(search, Sample):
        batch_size = 1
    seen = _seen(door, pictures, options.photo_side, skip)
    while waiting := list(islice(seen, batch_size)):
        found = _found(door, [one.batch for one in waiting], options, methods, search)
        for words, one in zip(found, waiting, strict=True):
            yield record_of(door, words, shown, one, options.rollout)


def _seen(door: Explained, pictures: Iterable[Picture], photo_side: int, skip: Skip | None) -> Iterator[Seen]:
    for picture in pictures:
        try:
            yield see(door, picture, photo_side)
        except ImageError as error:
            if skip is None:
                raise
            skip(picture, error)


def _found(
    door: Explained, batches: Sequence[Batch], options: Options, methods: Sequence[str], search: Search | None
) -> Iterator[Found]:
    """Words and maps of each picture or sentence. search: writes the words of all of them at once."""
    wants = "attention" in methods
    if isinstance(door, Classifier):
        chosen, top, rollout = options.classes, options.top, options.rollout
        yield from (of_classes(door, batch, chosen, top, methods, rollout) for batch in batches)
    elif search is None:
        assert options.caption is not None
        given = options.caption
        for batch in batches:
            yield of_caption(door, batch, read(door, batch, given, need_attention=wants), methods, options.rollout)
    else:
        written = write(door, join(batches), search=search, seed=options.seed, need_attention=wants)
        for batch, one in zip(batches, written, strict=True):
            yield of_caption(door, batch, one, methods, options.rollout)


def record_of(
    door: Explained, found: Found, shown: View, seen: Seen, rollout: Mapping[str, Any] | None = None
) -> AttentionRecord:
    """The record of what was found in what the model has seen. rollout: options that its maps were made with."""
    maps = found.maps
    if seen.spans is not None:  # the pieces of a source word share its attention out among them
        maps = {name: np.stack([v[..., a:b].sum(-1) for a, b in seen.spans], -1) for name, v in maps.items()}
    require_fit(shown, maps[shown.method].shape)
    kind = next(kind for of, kind in _KINDS.items() if isinstance(door, of))
    facts: dict[str, Any] = {"kind": kind, "model": door.fingerprint, **found.facts}
    if isinstance(door, PictureDoor):
        facts["preprocess"] = door.preprocess.to_dict()
    if isinstance(door, Translator) and (unknown := door.unknown_words(seen.fields["source"])):
        facts["unknown_source_words"] = sorted(set(unknown))
    if rollout and "rollout" in maps:
        facts["rollout"] = dict(rollout)
    facts["versions"] = {"vitcap": __version__, "torch": str(torch.__version__)}
    return AttentionRecord(found.words, found.text, maps, shown, facts=facts, **seen.fields)
