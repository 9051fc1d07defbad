"""BLEU-1 to BLEU-4 (Papineni et al. 2002) as the COCO caption evaluation computes them, and the n-gram counts under it.

Corpus level: clipped n-gram counts and lengths are summed over all images before any ratio is taken, and the reference
length of an image is that of the reference closest in length (the shorter one on a tie). The scores of single images
are smoothed by nothing but two tiny constants, so an image without a matching 4-gram has BLEU-4 near 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

TINY, SMALL = 1e-15, 1e-9
"""Added to numerators and denominators; COCO's values, which the agreement to the last digits depends on."""


class NGrams(NamedTuple):
    """The different n-grams of each of many sentences, for one n; one entry for each pair of n-gram and sentence.

    gram: (E,) ascending number of the n-gram, without gaps. sentence: (E,) index, ascending for one n-gram.
    times: (E,) how often the n-gram occurs in the sentence. words: per n-gram its words joined by blanks, if asked for.
    """

    gram: NDArray[np.int64]
    sentence: NDArray[np.int64]
    times: NDArray[np.int64]
    words: list[str] | None


def count_ngrams(sentences: Sequence[Sequence[str]], n: int = 4, *, words: bool = False) -> list[NGrams]:
    """`NGrams` of the orders 1 to n. sentences: lists of words. Exact: n-grams are numbered, not hashed."""
    flat = list(chain.from_iterable(sentences))
    index = {word: i for i, word in enumerate(dict.fromkeys(flat))}
    ids = np.fromiter(map(index.__getitem__, flat), np.int64, len(flat))
    lengths = np.fromiter(map(len, sentences), np.int64, len(sentences))
    sentence = np.repeat(np.arange(len(lengths)), lengths)
    left = np.repeat(lengths.cumsum(), lengths) - np.arange(len(flat))  # words from here to the end of the sentence
    start, gram, size = np.arange(len(flat)), ids, len(index)
    orders = []
    for order in range(1, n + 1):
        if order > 1:
            inside = left[start] >= order
            start, gram = start[inside], gram[inside]
            if size * len(index) * max(len(lengths), 1) >= 2**62:  # keep the keys below within 64 bits
                distinct, gram = np.unique(gram, return_inverse=True)
                size = len(distinct)
            gram, size = gram * len(index) + ids[start + order - 1], size * len(index)
        key = gram * len(lengths) + sentence[start]
        if words:
            key, first, count = np.unique(key, return_index=True, return_counts=True)
        else:
            key, count = np.unique(key, return_counts=True)
        number, of = np.divmod(key, max(len(lengths), 1))
        new = np.append(True, number[1:] != number[:-1])[: len(key)]
        text = [" ".join(flat[i : i + order]) for i in start[first[new]]] if words else None
        orders.append(NGrams(new.cumsum() - 1, of, count, text))
    return orders


def join(grams: NGrams, images: int, image: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where candidate and reference share an n-gram. The candidates are the first `images` sentences, image: (S,) of
    each sentence. Returns the indices of the reference entries and of the candidate entries they meet."""
    candidate = np.flatnonzero(grams.sentence < images)
    reference = np.flatnonzero(grams.sentence >= images)
    if not len(candidate):
        return candidate, candidate
    keys = grams.gram * images + image[grams.sentence]
    place = np.searchsorted(keys[candidate], keys[reference]).clip(max=len(candidate) - 1)
    met = keys[candidate][place] == keys[reference]
    return reference[met], candidate[place[met]]


def bleu(
    hypotheses: Sequence[str], references: Sequence[Sequence[str]], *, n: int = 4
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """BLEU-1 to BLEU-n, in 0..1.

    hypotheses: one tokenised caption per image, words separated by blanks. references: the tokenised reference captions
    of each image, at least one. Returns the corpus scores (n,) and the scores of the images (n, I).
    """
    images = check(hypotheses, references)
    words = [caption.split() for caption in chain(hypotheses, *references)]
    image = np.append(np.arange(images), np.repeat(np.arange(images), [len(r) for r in references]))
    lengths = np.fromiter(map(len, words), np.int64, len(words))
    length = lengths[:images]

    # The closest reference, the shorter one on a tie: the smallest distance, told apart by the length itself.
    longest = lengths.max() + 1
    rank = np.abs(lengths - length[image])[images:] * longest + lengths[images:]
    starts = np.searchsorted(image[images:], np.arange(images))
    closest = np.minimum.reduceat(rank, starts) % longest

    guesses = np.maximum(length - np.arange(n)[:, None], 0)
    correct = np.zeros((n, images))
    for order, grams in enumerate(count_ngrams(words, n)):
        reference, candidate = join(grams, images, image)
        most = np.zeros(len(grams.times), np.int64)
        np.maximum.at(most, candidate, grams.times[reference])
        clipped = np.minimum(most, grams.times)
        hits = most > 0
        correct[order] = np.bincount(grams.sentence[hits], clipped[hits], images)
    corpus = _bleu(correct.sum(1, keepdims=True), guesses.sum(1, keepdims=True), length.sum(), closest.sum())
    return corpus[:, 0], _bleu(correct, guesses, length, closest)


def _bleu(correct: NDArray, guesses: NDArray, length: NDArray, closest: NDArray) -> NDArray[np.float64]:
    """Geometric means of the precisions of orders 1..k for every k, with the brevity penalty. correct: (n, I)."""
    precision = np.cumprod((correct + TINY) / (guesses + SMALL), axis=0)
    ratio = (length + TINY) / (closest + SMALL)
    return precision ** (1 / np.arange(1, len(correct) + 1))[:, None] * np.exp(np.minimum(1 - 1 / ratio, 0))


def check(hypotheses: Sequence[str], references: Sequence[Sequence[str]]) -> int:
    """The number of images, or a ValueError if the two do not fit each other."""
    if isinstance(hypotheses, str) or any(isinstance(captions, str) for captions in references):
        raise ValueError("hypotheses must be a list of captions and references a list of lists of captions")
    if len(hypotheses) != len(references):
        raise ValueError(f"{len(hypotheses)} hypotheses but references of {len(references)} images")
    if not hypotheses:
        raise ValueError("no images to score")
    if empty := [i for i, captions in enumerate(references) if not captions]:
        raise ValueError(f"no reference captions for {len(empty)} of the images, the first at position {empty[0]}")
    return len(hypotheses)
