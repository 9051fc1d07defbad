"""CIDEr-D as the reward of self-critical training (Rennie et al. 2017, arXiv:1612.00563)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitcap.metrics.cider import DocumentFrequencies, cider_d
from vitcap.metrics.ptb import tokenize

END = "</s>"


class CiderReward:
    """CIDEr-D (0..10) of captions drawn for training images, against those images' references.

    references: image id -> its reference captions, of the whole training split: they also give the document
    frequencies. end_token: let the end of a caption take part as a word, in captions and references. Without it a
    caption loses nothing by breaking off ("a dog in a"), and training learns to do so; papers differ in this.
    fingerprint: hash of the document frequencies.

    Raises ValueError for fewer than two images, for which CIDEr-D is not defined, and for images without references.
    """

    def __init__(self, references: Mapping[Any, Sequence[str]], *, end_token: bool = True) -> None:
        if len(references) < 2:
            raise ValueError(f"{len(references)} training images: the reward, CIDEr-D, needs at least two")
        if bare := [id_ for id_, captions in references.items() if not captions]:
            raise ValueError(f"{len(bare)} training images have no captions to be rewarded by, first {bare[0]!r}")
        self.end_token = end_token
        flat = iter(tokenize(chain.from_iterable(references.values())))
        self.references = {
            id_: [self._ended(next(flat), True) for _ in captions] for id_, captions in references.items()
        }
        self.frequencies = DocumentFrequencies.of(self.references.values())
        digest = hashlib.sha256(str(self.frequencies.images).encode())
        for gram, count in sorted(self.frequencies.counts.items()):
            digest.update(f"\n{gram}\t{count}".encode())
        self.fingerprint = digest.hexdigest()[:16]

    def _ended(self, caption: str, finished: bool) -> str:
        return f"{caption} {END}" if self.end_token and finished else caption

    def __call__(
        self, ids: Sequence[Any], captions: Sequence[Sequence[str]], finished: Sequence[Sequence[bool]]
    ) -> NDArray[np.float64]:
        """captions: K of each of the B images `ids`; finished: whether each came to its end -> rewards (B, K)."""
        if strange := [id_ for id_ in ids if id_ not in self.references]:
            raise ValueError(f"image {strange[0]!r} is none of the {len(self.references)} that the reward knows")
        flat = iter(tokenize(chain.from_iterable(captions)))
        told = [self._ended(next(flat), done) for row in finished for done in row]
        gold = [self.references[id_] for id_, row in zip(ids, captions, strict=True) for _ in row]
        return cider_d(told, gold, frequencies=self.frequencies)[1].reshape(len(ids), -1)
