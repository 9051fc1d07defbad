"""CIDEr-D (Vedantam et al. 2015, arXiv:1411.5726, section 6) as the COCO caption evaluation computes it.

What the COCO program calls CIDEr is CIDEr-D without stemming. Facts that a reader of the paper would not expect, all of
them needed for equal numbers: the length in the Gaussian penalty counts bigrams (words - 1); the document frequencies
come from the references that are scored, counted per image, so a subset of a split has other scores than the split; the
scale ends at 10, but captions of fewer than 4 words cannot reach it (two words at most 5.0, three words 7.5).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from vitcap.metrics.bleu import check, count_ngrams, join


@dataclass(frozen=True)
class DocumentFrequencies:
    """counts: n-gram (words joined by blanks) -> number of images with it among their references. images: how many."""

    counts: dict[str, int]
    images: int

    @classmethod
    def of(cls, references: Iterable[Sequence[str]], *, n: int = 4) -> DocumentFrequencies:
        """Counted on the tokenised reference captions of each image, for example of a training split."""
        per_image = [[caption.split() for caption in captions] for captions in references]
        image = np.repeat(np.arange(len(per_image)), [len(captions) for captions in per_image])
        counts: dict[str, int] = {}
        for grams in count_ngrams(list(chain.from_iterable(per_image)), n, words=True):
            frequency = _images_with(grams.gram, image[grams.sentence])
            counts |= zip(grams.words or (), frequency.tolist(), strict=True)
        return cls(counts, len(per_image))


def _images_with(gram: NDArray[np.int64], image: NDArray[np.int64], grams: int = 0) -> NDArray[np.int64]:
    """In how many images each n-gram occurs; the pairs of n-gram and image are ascending, and may repeat."""
    first = np.append(True, (gram[1:] != gram[:-1]) | (image[1:] != image[:-1]))[: len(gram)]
    return np.bincount(gram[first], minlength=grams)


def cider_d(
    hypotheses: Sequence[str],
    references: Sequence[Sequence[str]],
    *,
    frequencies: DocumentFrequencies | None = None,
    n: int = 4,
    sigma: float = 6.0,
) -> tuple[float, NDArray[np.float64]]:
    """CIDEr-D on its own scale, 0..10: the mean over the images, and the score of each image (I,).

    hypotheses: one tokenised caption per image, words separated by blanks. references: the tokenised reference captions
    of each image, at least one. frequencies: where the idf weights come from; default: `references`, which then must be
    of at least two images, because with one image every weight is log(1) = 0.
    """
    images = check(hypotheses, references)
    if (frequencies.images if frequencies else images) < 2:
        raise ValueError("CIDEr-D is not defined on one image: its idf weights log(images / frequency) are all 0")
    words = [caption.split() for caption in chain(hypotheses, *references)]
    per_image = np.array([len(captions) for captions in references])
    image = np.append(np.arange(images), np.repeat(np.arange(images), per_image))
    bigrams = np.maximum(np.fromiter(map(len, words), np.int64, len(words)) - 1, 0)
    penalty = np.exp(-((bigrams - bigrams[image]) ** 2) / (2 * sigma**2))

    similarity = np.zeros(len(words))
    for grams in count_ngrams(words, n, words=frequencies is not None):
        if frequencies is not None:
            frequency: NDArray[np.generic] = np.array(
                [frequencies.counts.get(text, 0) for text in grams.words or ()], np.float64
            )
            log_images = np.log(frequencies.images)
        else:
            entries = np.flatnonzero(grams.sentence >= images)
            frequency = _images_with(
                grams.gram[entries], image[grams.sentence[entries]], grams.gram.max(initial=-1) + 1
            )
            log_images = np.log(images)
        weight = grams.times * (log_images - np.log(np.maximum(frequency, 1)))[grams.gram]
        norm = np.sqrt(np.bincount(grams.sentence, weight**2, len(words)))
        reference, candidate = join(grams, images, image)
        product = np.minimum(weight[candidate], weight[reference]) * weight[reference]
        cosine = np.bincount(grams.sentence[reference], product, len(words))
        scale = norm * norm[image]
        similarity += np.divide(cosine, scale, out=np.zeros(len(words)), where=scale > 0)
    total = np.bincount(image[images:], (similarity * penalty)[images:], images)
    scores = 10 * total / n / per_image
    return float(scores.mean()), scores
