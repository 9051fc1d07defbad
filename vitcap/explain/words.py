"""What a record has maps of: the words of a caption, written or given, and the classes of a picture.

Letters for shapes: T tokens (or classes), L layers, H heads, N places.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from vitcap.classifier import Classifier
from vitcap.evaluation.report import describe_search
from vitcap.explain.methods import caption_maps, class_maps
from vitcap.record import Word
from vitcap.types import EOS, UNK, Batch
from vitcap.writer import Caption, Search, Writer

Maps = dict[str, NDArray[np.float32]]


@dataclass(frozen=True)
class Found:
    """Words or classes with their maps (T, L, H, N) by method, and facts in plain JSON types."""

    words: tuple[Word, ...]
    text: str
    maps: Maps
    facts: dict[str, Any]


@dataclass(frozen=True)
class Sentence:
    """A caption, and how it came about, in plain JSON types."""

    caption: Caption
    facts: dict[str, Any]


def write(door: Writer, batch: Batch, *, search: Search, seed: int | None, need_attention: bool) -> list[Sentence]:
    """What the model writes for each record of a batch."""
    generator = None if seed is None else torch.Generator(door.device).manual_seed(seed)
    captions = door.write(batch, search=search, generator=generator, need_attention=need_attention)
    facts = {"words": "generated", "decoding": describe_search(search), "seed": seed}
    return [Sentence(caption, facts) for caption in captions]


def read(door: Writer, batch: Batch, given: Caption | str, *, need_attention: bool) -> Sentence:
    """A given caption; a text is read by teacher forcing, and words that the vocabulary lacks as unknown.

    Raises ValueError, which quotes the text, where none of its words is known, or it is too long for the model.
    """
    facts: dict[str, Any] = {"words": "given"}
    if isinstance(given, Caption):
        size = door.model.decoder.vocab_size
        if not given.tokens or not all(0 <= token < size for token in given.tokens):
            raise ValueError(
                f"caption {given.text!r}: its tokens are not all of this model's vocabulary (0 to {size - 1})"
            )
        if need_attention and given.attention is None:
            given = replace(given, attention=door.read(batch, given.tokens, need_attention=True).attention)
        return Sentence(given, facts)
    ids = door.tokenizer.encode(given)
    if not ids or set(ids) == {UNK}:
        raise ValueError(
            f"{given!r}: none of its words is in the model's vocabulary" if ids else f"{given!r}: no words"
        )
    try:
        caption = door.read(batch, [*ids, EOS], need_attention=need_attention)
    except ValueError as error:
        raise ValueError(f"{given!r}: {error}") from None
    if UNK in ids:  # in a vocabulary of whole words: there the tokens are the words
        spelling = door.tokenizer.clean(given).split()
        words = tuple(replace(word, text=spelling[word.start]) for word in caption.words)
        caption = replace(caption, words=words, text=" ".join(spelling))
        facts["unknown_words"] = sorted({word for word, i in zip(spelling, ids, strict=True) if i == UNK})
    return Sentence(caption, facts)


def of_caption(
    door: Writer, batch: Batch, sentence: Sentence, methods: Sequence[str], rollout: Mapping[str, Any] | None = None
) -> Found:
    """A caption with its maps; attention that it brings along is not computed again."""
    caption = sentence.caption
    facts = {"tokens": list(caption.tokens), "finished": caption.finished, "log_prob": "natural logarithm"}
    maps: Maps = {}
    if "attention" in methods and caption.attention is not None:
        attention = caption.attention  # of a batch of sentences, it goes on over padding
        count = attention.shape[-1] if batch.source is None else batch.source.shape[1]
        maps["attention"] = attention[..., :count].astype(np.float32)
    if more := [method for method in methods if method not in maps]:
        batch = batch.to(door.device)
        options: dict[str, Any] = {"methods": more, "source": batch.source, "rollout": rollout}
        maps |= caption_maps(door.model, batch.images, caption.tokens, **options)
    return Found(caption.words, caption.text, {name: maps[name] for name in methods}, sentence.facts | facts)


def of_classes(
    door: Classifier,
    batch: Batch,
    classes: Sequence[str | int] | None,
    top: int,
    methods: Sequence[str],
    rollout: Mapping[str, Any] | None = None,
) -> Found:
    """The classes of a picture, the likeliest or the given ones, each as a word; the text is the first of them."""
    log_probs = door.logits(batch).log_softmax(-1)[0]
    if classes is None:
        indices = log_probs.topk(min(top, len(door.classes))).indices.tolist()
    else:
        indices = [door.class_index(name) for name in classes]
    words = tuple(Word(door.class_names[c], i, i + 1, log_probs[c].item()) for i, c in enumerate(indices))
    images = batch.to(door.device).images
    assert images is not None
    maps = class_maps(door.model, images, indices, methods=methods, rollout=rollout)
    facts = {"words": "likeliest" if classes is None else "given", "classes": indices, "log_prob": "natural logarithm"}
    return Found(words, words[0].text, {name: maps[name] for name in methods}, facts)
