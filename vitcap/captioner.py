"""The user's door to captioning: pictures in, captions with probabilities and attention out."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Self, overload

import torch

from vitcap import checkpoint
from vitcap.data.tokenizer import Tokenizer
from vitcap.data.transforms import Preprocess
from vitcap.door import Picture, PictureDoor
from vitcap.models.captioner import CaptionModel
from vitcap.writer import Caption, Search, Writer


class Captioner(Writer, PictureDoor):
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
        super().__init__(model, tokenizer, search=search, description=description)
        self.preprocess = preprocess

    @classmethod
    def of(cls, saved: checkpoint.Saved, *, device: str | torch.device = "cpu") -> Self:
        """The captioner of a model file that is read already. Raises CheckpointError in one line."""
        d = saved.description
        return cls(
            checkpoint.rebuild(saved, "caption").to(device),
            Tokenizer.from_json(d["tokenizer"]),
            Preprocess.from_dict(d["preprocess"]),
            search=checkpoint.rebuild_search(saved),
            description=d,
        )

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
        """Caption one picture (a path, a file in memory as vitcap.data.images.Encoded, a PIL image) or a list of them.

        search: a Greedy, Beam or Sample of vitcap.decoding; None is the model's own. n_best: captions per picture, the
        others under `alternatives`. need_attention: also give the cross-attention. batch_size: pictures at a time.
        seed: of a sampling search. One picture gives one Caption, a list a list in its order.
        Raises ImageError, naming the file, for a picture that cannot be read, and ValueError for options out of range.
        """
        one = isinstance(pictures, Picture)
        found = self.write_all(
            [pictures] if one else pictures,  # type: ignore[arg-type]
            self.batch,
            search=search,
            n_best=n_best,
            need_attention=need_attention,
            batch_size=batch_size,
            seed=seed,
        )
        return found[0] if one else found
