"""The user's door to sequence-to-sequence models: sentences in, sentences with probabilities and attention out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any, Self, overload

import numpy as np
import torch
from numpy.typing import NDArray
from torch.nn.utils.rnn import pad_sequence

from vitcap import checkpoint
from vitcap.data.loader import framed
from vitcap.data.tokenizer import Tokenizer
from vitcap.metrics.alignment import merge_pieces
from vitcap.models.captioner import CaptionModel
from vitcap.types import PAD, Batch
from vitcap.writer import Caption, Search, Writer, require_counts

NO_LIMIT = 1_000_000


class NoAttention(ValueError):
    """Asked of a model that attends to nothing."""


class Translator(Writer):
    """A trained sequence-to-sequence model with its two tokenizers and its decoding.

    search: decoding where a call names none; a model file brings its own. description: the model file's description.
    """

    def __init__(
        self,
        model: CaptionModel,
        source_tokenizer: Tokenizer,
        tokenizer: Tokenizer,
        *,
        search: Search | None = None,
        description: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, tokenizer, search=search, description=description)
        self.source_tokenizer = source_tokenizer

    @classmethod
    def of(cls, saved: checkpoint.Saved, *, device: str | torch.device = "cpu") -> Self:
        """The translator of a model file that is read already. Raises CheckpointError in one line."""
        d = saved.description
        return cls(
            checkpoint.rebuild(saved, "translate").to(device),
            Tokenizer.from_json(d["source_tokenizer"]),
            Tokenizer.from_json(d["tokenizer"]),
            search=checkpoint.rebuild_search(saved),
            description=d,
        )

    @overload
    def translate(  # type: ignore[overload-overlap]
        self,
        sentences: str,
        *,
        search: Search | None = ...,
        n_best: int = ...,
        need_attention: bool = ...,
        batch_size: int = ...,
        seed: int | None = ...,
    ) -> Caption: ...
    @overload
    def translate(
        self,
        sentences: Sequence[str],
        *,
        search: Search | None = ...,
        n_best: int = ...,
        need_attention: bool = ...,
        batch_size: int = ...,
        seed: int | None = ...,
    ) -> list[Caption]: ...
    def translate(
        self,
        sentences: str | Sequence[str],
        *,
        search: Search | None = None,
        n_best: int = 1,
        need_attention: bool = False,
        batch_size: int = 64,
        seed: int | None = None,
    ) -> Caption | list[Caption]:
        """Translate one sentence, or a list of them. The options are those of `Captioner.caption`.

        attention of the result: (T, L, H, N) over the N source tokens. Raises ValueError, which quotes the sentence,
        where no token of it is left.
        """
        one = isinstance(sentences, str)
        found = self.write_all(
            [sentences] if one else sentences,
            self.batch,
            search=search,
            n_best=n_best,
            need_attention=need_attention,
            batch_size=batch_size,
            seed=seed,
        )
        return found[0] if one else found

    def batch(self, sentences: Sequence[str]) -> Batch:
        """The model's input of some sentences."""
        ids = [self.encode(sentence) for sentence in sentences]
        return Batch(ids=tuple(range(len(ids))), source=pad_sequence(ids, True, PAD))

    def align(
        self, sources: Sequence[str], targets: Sequence[str], *, batch_size: int = 64
    ) -> list[NDArray[np.float64]]:
        """Soft alignments of given sentence pairs: the attention while the target is read word by word.

        Each is (target words, source words): the attention of the step that predicts a word, as the mean over layers,
        heads and the word's tokens, and the sum over the tokens of a source word. Raises ValueError for a model without
        attention, and quotes a sentence of which nothing is left.
        """
        require_counts(batch_size=batch_size)
        if isinstance(sources, str) or isinstance(targets, str) or len(sources) != len(targets):
            raise ValueError(
                "a list of source and one of target sentences, as many of each, are wanted; got "
                + " and ".join("a text" if isinstance(x, str) else str(len(x)) for x in (sources, targets))
            )
        found: list[NDArray[np.float64]] = []
        for start in range(0, len(sources), batch_size):
            batch = self.batch(sources[start : start + batch_size])
            assert batch.source is not None
            words = [framed(self.tokenizer, text, NO_LIMIT) for text in targets[start : start + batch_size]]
            captions = pad_sequence([torch.tensor(row) for row in words], True, PAD)[:, None]
            weights = np.concatenate(self.fitting(self._attention, replace(batch, captions=captions)))
            found += [
                self.by_words(w, row[1:], source)
                for w, row, source in zip(weights, words, batch.source.tolist(), strict=True)
            ]
        return found

    def _attention(self, batch: Batch) -> NDArray[Any]:
        """(B, T, N) while the captions of a batch are read, as the mean over layers and heads."""
        with torch.inference_mode():
            attention = self.model(batch.to(self.device), need_attention=True).attention
        if attention is None:
            raise NoAttention("this model has no attention, so there is no alignment to give")
        return attention[:, 0].mean((2, 3)).float().cpu().numpy()

    def by_words(self, weights: NDArray[Any], tokens: Iterable[int], source: Iterable[int]) -> NDArray[np.float64]:
        """weights (T, N) over target and source tokens -> (target words, source words): see `align`."""
        sources = [(start, stop) for _, start, stop in self.source_tokenizer.words(source)]
        return merge_pieces(weights, sources, [(start, stop) for _, start, stop in self.tokenizer.words(tokens)])

    def relink(self, links: Collection[tuple[int, int]], source: str, target: str) -> frozenset[tuple[int, int]] | None:
        """Links between the words of two texts, as blanks separate them, as links between the words that the tokenizers
        leave of them: what is only punctuation loses its links, what is split keeps them all. None where the two kinds
        of words cannot be matched."""
        sides = []
        for tokenizer, text in ((self.source_tokenizer, source), (self.tokenizer, target)):
            counts = [len(tokenizer.clean(word).split()) for word in text.split()]
            if sum(counts) != len(tokenizer.words(tokenizer.encode(text))):
                return None
            starts = np.cumsum([0, *counts]).tolist()
            sides.append([range(start, start + count) for start, count in zip(starts, counts, strict=False)])
        return frozenset((s, t) for i, j in links for s in sides[0][i] for t in sides[1][j])

    def source_words(self, sentence: str) -> list[str]:
        """The words of a source sentence, as the columns of an alignment have them."""
        return [word for word, _, _ in self.source_tokenizer.words(self.encode(sentence))]

    def unknown_words(self, sentence: str) -> list[str]:
        """The words of a source sentence that the vocabulary does not have; none where it is made of pieces."""
        if self.source_tokenizer.kind == "bpe":
            return []
        return [
            word
            for word in self.source_tokenizer.clean(sentence).split()
            if self.source_tokenizer.unknown_share([word])
        ]

    def encode(self, sentence: str) -> torch.Tensor:
        """Token ids (S,) of a source sentence. Raises ValueError, which quotes it, where none is left."""
        ids = self.source_tokenizer.encode(sentence)
        if not ids:
            raise ValueError(f"no word is left of the sentence {sentence!r}")
        return torch.tensor(ids)
