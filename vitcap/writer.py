"""What a model that writes sentences gives: words with probabilities and attention; and what such models share."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
import torch

from vitcap.data.tokenizer import Tokenizer
from vitcap.decoding import Beam, Greedy
from vitcap.door import Door
from vitcap.models.captioner import CaptionModel
from vitcap.record import Word
from vitcap.types import BOS, EOS, PAD, Batch, Generated

Search = Callable[..., Generated]


@dataclass(frozen=True)
class Caption:
    """One caption of one picture, or one translation; `str(caption)` is its text.

    tokens, log_probs: ids without BOS, the final EOS included, and the log-probability of each under the model.
    score: what the search ranked by. finished: False where the maximum length cut it.
    alternatives: the other captions of an n-best list, best first.
    attention: (T, L, H, N) cross-attention of each token by layer and head, when asked for.
    """

    text: str
    words: tuple[Word, ...]
    tokens: tuple[int, ...]
    log_probs: tuple[float, ...]
    score: float
    finished: bool
    alternatives: tuple[Caption, ...] = ()
    attention: np.ndarray | None = None

    def __str__(self) -> str:
        return self.text

    @property
    def probability(self) -> float:
        """How sure the model is, 0..1: the geometric mean of the probabilities of its tokens, the end included."""
        return math.exp(sum(self.log_probs) / max(len(self.log_probs), 1))


class Writer(Door):
    """A trained model that writes sentences, with its tokenizer and its decoding: see Captioner and Translator.

    search: decoding where a call names none; a model file brings its own. description: the model file's description.
    """

    def __init__(
        self,
        model: CaptionModel,
        tokenizer: Tokenizer,
        *,
        search: Search | None = None,
        description: dict[str, Any] | None = None,
    ) -> None:
        super().__init__(model, description)
        self.tokenizer = tokenizer
        self.search = search if search is not None else Beam(beams=3)

    def choose_search(self, search: Search | None, n_best: int) -> Search:
        """The search of a call that asks for n_best sentences; ValueError if it cannot give them."""
        if search is None:
            search = self.search
            if n_best > 1 and isinstance(search, Greedy):  # a model that decodes greedily by itself
                search = Beam(beams=n_best, **asdict(search))
        if n_best > 1:
            if not isinstance(search, Beam):
                raise ValueError(f"{type(search).__name__} gives one caption; n_best={n_best} needs a beam search")
            search = replace(search, n_best=n_best, beams=max(n_best, search.beams))
        return search

    def write_all(
        self,
        items: Sequence[Any],
        make_batch: Callable[[Sequence[Any]], Batch],
        *,
        search: Search | None,
        n_best: int,
        need_attention: bool,
        batch_size: int,
        seed: int | None,
    ) -> list[Caption]:
        """One Caption for each picture or sentence, in their order.

        make_batch: some of them -> a Batch. The others: see `Captioner.caption`, whose ValueErrors these are.
        """
        require_counts(n_best=n_best, batch_size=batch_size)
        search = self.choose_search(search, n_best)
        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        parts = (items[start : start + batch_size] for start in range(0, len(items), batch_size))
        options: dict[str, Any] = {"search": search, "generator": generator, "need_attention": need_attention}
        return [one for part in parts for one in self.write(make_batch(part), **options)]

    def write(
        self, batch: Batch, *, search: Search, generator: torch.Generator | None = None, need_attention: bool = False
    ) -> list[Caption]:
        """One Caption for each record of a batch, the lesser ones of an n-best list under `alternatives`. A batch that
        does not fit the memory is halved."""

        def work(part: Batch) -> list[Caption]:
            with torch.inference_mode():
                memory = self.model.encode(part.to(self.device))
                found = search(self.model.decoder, memory, generator=generator, need_attention=need_attention)
            return self.read_captions(found)

        return [caption for part in self.fitting(work, batch, generator=generator) for caption in part]

    def read(self, batch: Batch, tokens: Sequence[int], *, need_attention: bool = False) -> Caption:
        """The Caption of given tokens (ids without BOS, the final EOS included) of the one record of a batch, read by
        teacher forcing. Its score is the sum of the log-probabilities."""
        limit = getattr(self.model.decoder, "max_length", None)
        if limit is not None and len(tokens) > limit:
            raise ValueError(f"a text of {len(tokens)} tokens, the end included: this model reads at most {limit}")
        ids = torch.tensor([[list(tokens)]], device=self.device)
        captions = torch.cat((torch.full_like(ids[..., :1], BOS), ids), -1)
        with torch.inference_mode():
            output = self.model(replace(batch, captions=captions).to(self.device), need_attention=need_attention)
        log_probs = output.logits.log_softmax(-1, dtype=torch.float32).gather(-1, ids[..., None]).squeeze(-1)
        finished = (ids == EOS).any(-1)
        return self.read_captions(Generated(ids, log_probs, log_probs.sum(-1), finished, output.attention))[0]

    def read_captions(self, found: Generated) -> list[Caption]:
        """Result of a search -> one Caption per image, the lesser ones under `alternatives`."""
        tokens, log_probs = found.tokens.tolist(), found.log_probs.tolist()
        scores, finished = found.scores.tolist(), found.finished.tolist()
        captions = []
        for image in range(len(tokens)):
            ranked = []
            for rank in range(len(tokens[image])):
                ids = [i for i in tokens[image][rank] if i != PAD]
                probs = log_probs[image][rank][: len(ids)]
                words = tuple(
                    Word(text, a, b, sum(probs[a:b])) for text, a, b in self.tokenizer.words(i for i in ids if i != EOS)
                )
                attention = None
                if found.attention is not None:
                    attention = found.attention[image, rank, : len(ids)].float().cpu().numpy()
                ranked.append(
                    Caption(
                        text=" ".join(word.text for word in words),
                        words=words,
                        tokens=tuple(ids),
                        log_probs=tuple(probs),
                        score=scores[image][rank],
                        finished=finished[image][rank],
                        attention=attention,
                    )
                )
            captions.append(replace(ranked[0], alternatives=tuple(ranked[1:])))
        return captions


def require_counts(**options: int) -> None:
    """ValueError that names the first option below 1."""
    for option, value in options.items():
        if value < 1:
            raise ValueError(f"{option}={value}: must be at least 1")
