"""The user's door: pictures in, captions with probabilities and attention out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np
import torch
from PIL import Image

from vitcap import checkpoint
from vitcap.data.images import load_image, to_rgb
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.decoding import Beam, Greedy
from vitcap.models.captioner import CaptionModel
from vitcap.types import EOS, PAD, Batch, Generated

Picture = str | Path | Image.Image
Search = Callable[..., Generated]


@dataclass(frozen=True)
class Word:
    """A word of a caption: its text, the half-open span of tokens that spell it, and their summed log-probability."""

    text: str
    start: int
    stop: int
    log_prob: float


@dataclass(frozen=True)
class Caption:
    """One caption of one picture; `str(caption)` is its text.

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


class Captioner:
    """A trained model with all it needs: tokenizer, preprocessing, decoding.

    search: decoding where a call names none; a model file brings its own. description: the model file's description.
    """

    def __init__(
        self,
        model: CaptionModel,
        tokenizer: Tokenizer,
        preprocess: Preprocess,
        *,
        search: Search | None = None,
        description: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.tokenizer, self.preprocess = model.eval(), tokenizer, preprocess
        self.search = search if search is not None else Beam(beams=3)
        self.description = description or {}

    @classmethod
    def load(cls, path: str | Path, *, device: str | torch.device = "cpu") -> Captioner:
        """Read a model file (model.safetensors or .ckpt) or a run folder. Raises CheckpointError in one line."""
        saved = checkpoint.read(path)
        try:
            model = checkpoint.rebuild(saved).to(device)
            search = checkpoint.build(saved.description["decode"])
        except checkpoint.CheckpointError as error:
            raise checkpoint.CheckpointError(f"{path}: {error}") from None
        d = saved.description
        return cls(
            model,
            Tokenizer.from_json(d["tokenizer"]),
            Preprocess.from_dict(d["preprocess"]),
            search=search,
            description=d,
        )

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.mean.device

    @overload
    def caption(  # type: ignore[overload-overlap]
        self,
        pictures: Picture,
        *,
        search: Search | None = ...,
        n_best: int = ...,
        need_attention: bool = ...,
        batch_size: int = ...,
        seed: int | None = ...,
    ) -> Caption: ...
    @overload
    def caption(
        self,
        pictures: Sequence[Picture],
        *,
        search: Search | None = ...,
        n_best: int = ...,
        need_attention: bool = ...,
        batch_size: int = ...,
        seed: int | None = ...,
    ) -> list[Caption]: ...
    def caption(
        self,
        pictures: Picture | Sequence[Picture],
        *,
        search: Search | None = None,
        n_best: int = 1,
        need_attention: bool = False,
        batch_size: int = 16,
        seed: int | None = None,
    ) -> Caption | list[Caption]:
        """Caption one picture (a path or a PIL image) or a list of them.

        search: a Greedy, Beam or Sample of vitcap.decoding; None is the model's own. n_best: captions per picture, the
        others under `alternatives`. need_attention: also give the cross-attention. batch_size: pictures at a time.
        seed: of a sampling search. One picture gives one Caption, a list a list in its order.
        Raises ImageError, naming the file, for a picture that cannot be read, and ValueError for options out of range.
        """
        for option, value in (("n_best", n_best), ("batch_size", batch_size)):
            if value < 1:
                raise ValueError(f"{option}={value}: must be at least 1")
        if isinstance(pictures, (str, Path, Image.Image)):
            one = self.caption([pictures], search=search, n_best=n_best, need_attention=need_attention, seed=seed)
            return one[0]
        if search is None:
            search = self.search
            if n_best > 1 and isinstance(search, Greedy):  # a model that decodes greedily by itself
                search = Beam(beams=n_best, **asdict(search))
        if n_best > 1:
            if not isinstance(search, Beam):
                raise ValueError(f"{type(search).__name__} gives one caption; n_best={n_best} needs a beam search")
            search = replace(search, n_best=n_best, beams=max(n_best, search.beams))
        generator = None if seed is None else torch.Generator(self.device).manual_seed(seed)
        captions: list[Caption] = []
        for start in range(0, len(pictures), batch_size):
            part = pictures[start : start + batch_size]
            images = torch.stack([self.preprocess(_picture(p)) for p in part]).to(self.device)
            with torch.inference_mode():
                memory = self.model.encode(Batch(ids=tuple(range(len(part))), images=images))
                found = search(self.model.decoder, memory, generator=generator, need_attention=need_attention)
            captions += self.read_captions(found)
            self._grid, self._prefix = memory.grid, memory.prefix
        return captions

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

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) of the memory's patches; known after the first picture, else found with an empty one."""
        self._probe()
        return self._grid

    @property
    def prefix(self) -> int:
        """Number of memory tokens before the patches (class token, registers)."""
        self._probe()
        return self._prefix

    def _probe(self) -> None:
        if not hasattr(self, "_grid"):
            empty = torch.zeros(1, 3, *self.preprocess.size, device=self.device)
            with torch.inference_mode():
                memory = self.model.encode(Batch(ids=(0,), images=empty))
            self._grid, self._prefix = memory.grid, memory.prefix

    def save(self, path: str | Path) -> Path:
        """Write the whole model to one safetensors file, which `load` reads; returns its path."""
        return checkpoint.write(path, self.model, self.description)


def _picture(picture: Picture) -> Image.Image:
    return to_rgb(picture) if isinstance(picture, Image.Image) else load_image(picture)
