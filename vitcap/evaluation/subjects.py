"""What is explained of a picture: the words of a model's own caption, or the class it predicts; each with its score and
its maps.

Letters: B pictures, W words (or classes), N patches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitcap.captioner import Captioner
from vitcap.classifier import Classifier
from vitcap.explain.methods import available, caption_maps, class_maps, unavailable
from vitcap.explain.options import require_fit, require_method
from vitcap.record import AttentionRecord, View, Word
from vitcap.types import BOS, Batch
from vitcap.writer import Search


@dataclass(frozen=True)
class Target:
    """What a model said of a picture: ids of a caption's tokens after BOS, or of classes, and the words they spell."""

    ids: tuple[int, ...]
    words: tuple[Word, ...]


class Subject:
    """A door, and how it is asked. score: what f is, in a line."""

    def __init__(self, door: Captioner | Classifier, *, search: Search | None = None, probability: bool = True) -> None:
        self.door, self.search, self.probability = door, search, probability
        classes = "probability, 0 to 1," if probability else "logit"
        self.captions = isinstance(door, Captioner)
        self.score = (
            "log-probability (nats) of each word of the model's own caption, given the words before it"
            if self.captions
            else f"{classes} of the class that the model predicts"
        )

    def see(self, image: Tensor, seed: int) -> Target:
        """The caption, or the likeliest class, of one picture (3, H, W); start and end tokens are no words."""
        batch = Batch(ids=(0,), images=image[None])
        if isinstance(self.door, Captioner):
            generator = torch.Generator(self.door.device).manual_seed(seed)
            caption = self.door.write(batch, search=self.search or self.door.search, generator=generator)[0]
            return Target(caption.tokens, caption.words)
        log_probs = self.door.logits(batch).log_softmax(-1)[0]
        best = int(log_probs.argmax())
        return Target((best,), (Word(self.door.class_names[best], 0, 1, log_probs[best].item()),))

    def scores(self, images: Tensor, target: Target) -> NDArray[np.float64]:
        """(B, 3, H, W) normalised -> (B, W) f of every word."""
        model = self.door.model
        images = images.to(self.door.device, memory_format=torch.channels_last)  # a CNN is twice as fast on a CPU so
        count = len(images)
        with torch.inference_mode():
            if self.captions:
                ids = torch.tensor([BOS, *target.ids], device=images.device)
                batch = Batch(ids=tuple(range(count)), images=images, captions=ids.expand(count, 1, -1))
                log_probs = model(batch).logits[:, 0].double().log_softmax(-1)
                tokens = log_probs.gather(-1, ids[None, 1:, None].expand(count, -1, 1)).squeeze(-1)
                found = torch.stack([tokens[:, word.start : word.stop].sum(1) for word in target.words], 1)
            else:
                logits = model(Batch(ids=tuple(range(count)), images=images)).double()
                found = (logits.softmax(-1) if self.probability else logits)[:, list(target.ids)]
        return found.cpu().numpy()

    def maps(self, image: Tensor, target: Target, views: Mapping[str, View]) -> dict[str, NDArray[np.float64]]:
        """Name of a view -> (W, N) maps of every word over one picture (3, H, W)."""
        methods = tuple(dict.fromkeys(view.method for view in views.values()))
        make: Any = caption_maps if self.captions else class_maps
        values = make(self.door.model, image[None].to(self.door.device), target.ids, methods=methods)
        if self.door.view is not None and self.door.view in views.values():
            require_fit(self.door.view, values[self.door.view.method].shape)
        grid, prefix = self.door.grid, self.door.prefix
        assert grid is not None

        told = " ".join(word.text for word in target.words)
        record = AttentionRecord(target.words, told, values, View(methods[0]), grid=grid, prefix=prefix)
        places = range(len(target.words))
        return {name: np.stack([record.map(i, view).ravel() for i in places]) for name, view in views.items()}


def choose_views(door: Captioner | Classifier, methods: Sequence[str | View] | str) -> dict[str, View]:
    """Name -> view of the methods asked for ("all": those that the model has), and of the one that is shown by default.

    Raises ValueError for a model without a grid, or a method that it lacks, with the reason.
    """
    if not hasattr(door.model, "decoder") and not hasattr(door.model, "classify"):
        raise ValueError("a whole classifier of timm gives no grid of patches: train or load one of vitcap's own")
    have, lacking = available(door.model), unavailable(door.model)
    if door.grid is None:
        raise ValueError("the model's memory has no grid of patches, so no patch can be taken away")
    if not have:
        raise ValueError(f"the model has no maps to measure: {'; '.join(dict.fromkeys(lacking.values()))}")
    asked: list[str | View] = list(have) if methods == "all" else [methods] if isinstance(methods, str) else [*methods]
    if not asked or any(not isinstance(one, str | View) for one in asked):
        raise ValueError(f"methods={asked}: one or more of {', '.join(have)} are wanted, or none given for all of them")
    views = [View(one) if isinstance(one, str) else one for one in asked]
    if door.view is not None:
        require_method(door.view, have, lacking)
        views.append(door.view)
    for view in views:
        if view.method not in have:
            reason = lacking.get(view.method, "there is no such method")
            raise ValueError(f"method {view.method!r}: {reason}; this model has {', '.join(have)}")
    return {name_of(view): view for view in views}


def shown_view(door: Captioner | Classifier, views: Mapping[str, View]) -> str:
    """Name of the view that is shown by default: the model file's, else attention, else the first."""
    if door.view is not None:
        return name_of(door.view)
    return "attention" if "attention" in views else next(iter(views))


def name_of(view: View) -> str:
    """The method, and the layers and heads where they are chosen."""
    chosen = [(what, part) for what, part in (("layer", view.layers), ("head", view.heads)) if part is not None]
    return " ".join([view.method, *(f"{what} {','.join(map(str, part))}" for what, part in chosen)])
