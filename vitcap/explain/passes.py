"""One forward pass through a model for all methods that are wanted, and one backward pass for each score.

Letters: B = 1 picture or sentence, T tokens of a caption (or classes), H heads, N places.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import ExitStack
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitcap.explain.gradients import encode_with_features, gradients_of, settled
from vitcap.models.attention_maps import Recorded, recorded_attention
from vitcap.types import Batch, Memory
from vitcap.viz.relevance import grad_cam, weigh

Relevance = Callable[[int, list[NDArray], list[NDArray], list[NDArray]], NDArray]
"""Index of the score, and weighed attention of the encoder (N, N), of the queries (T, T) and across (T, N) -> (N,)."""


class Pass:
    """A context in which the model has read one picture or sentence: `memory`. Afterwards no graph is left.

    model: a CaptionModel or ImageClassifier. methods: those that are wanted, which decide what is recorded.
    images: (1, 3, H, W), uint8 or normalised. source: (1, S) ids, in place of images. Raises ValueError for a batch.
    """

    memory: Memory

    def __init__(
        self, model: Any, methods: Collection[str], images: Tensor | None, source: Tensor | None = None
    ) -> None:
        given = images if source is None else source
        if given is None or len(given) != 1:
            raise ValueError(f"{0 if given is None else len(given)} pictures or sentences: exactly one is wanted")
        self.model, self.given, self.text = model, given, source is not None
        self.relevance, self.watches = "relevance" in methods, "grad-cam" in methods
        self.gradients = self.relevance or self.watches
        # A decoder gives its attention with its output; that of an encoder has to be recorded.
        self.records = self.relevance or "rollout" in methods or ("attention" in methods and not _writes(model))
        self.recorded = Recorded()
        self.features: Tensor | None = None

    def __enter__(self) -> Pass:
        with ExitStack() as stack:
            stack.enter_context(settled(self.model, gradients=self.gradients))
            if self.records:
                self.recorded = stack.enter_context(recorded_attention(self.model, gradients=self.gradients))
            # A copy, because what was made in inference mode cannot be part of a graph.
            given = self.given.to(self.model.mean.device).clone()
            batch = Batch(ids=(0,), source=given) if self.text else Batch(ids=(0,), images=given)
            if self.watches:
                self.memory, self.features = encode_with_features(self.model, batch)
            else:
                self.memory = self.model.encode(batch)
            self.open = stack.pop_all()
        return self

    def __exit__(self, *error: Any) -> None:
        self.features = None
        del self.memory
        self.open.__exit__(*error)

    def encoder_attention(self) -> list[Tensor]:
        """(1, H, N, N) of each block; empty for an encoder whose layers do not attend over all tokens."""
        count = self.memory.tokens.shape[1]
        whole = all(a.shape[-2:] == (count, count) for a in self.recorded.encoder)
        return list(self.recorded.encoder) if whole else []

    def gradient_maps(self, scores: Tensor, relevance: Relevance) -> dict[str, NDArray]:
        """ "relevance" and "grad-cam", as far as they are wanted, (T, 1, 1, N), of the scores (T,)."""
        parts: list[list[Tensor]] = [[], [], []]
        if self.relevance:
            parts = [self.encoder_attention(), self.recorded.queries, self.recorded.cross]
        weights = [a for part in parts for a in part]
        tensors = weights + ([] if self.features is None else [self.features])
        maps: dict[str, list[NDArray]] = {}
        for number, gradients in enumerate(gradients_of(scores, tensors)):
            if self.features is not None:
                maps.setdefault("grad-cam", []).append(self._cam(gradients.pop()))
            if self.relevance:
                weighed = iter([_weigh(*pair) for pair in zip(weights, gradients, strict=True)])
                values = relevance(number, *([next(weighed) for _ in part] for part in parts))
                maps.setdefault("relevance", []).append(values)
        return {name: np.stack(values)[:, None, None] for name, values in maps.items()}

    def _cam(self, gradient: Tensor) -> NDArray:
        assert self.features is not None
        assert self.memory.grid is not None
        patches = self.memory.grid[0] * self.memory.grid[1]
        values = grad_cam(*(x.detach()[0, -patches:].mT for x in (self.features, gradient)))
        return np.concatenate((np.zeros(self.memory.prefix), to_numpy(values)))


def _weigh(weights: Tensor, gradient: Tensor) -> NDArray:
    """(1, H, T, N), or (1, T, N) of a recurrent decoder, whose step is one head -> (T, N)."""
    return to_numpy(weigh(*(x.detach().reshape(-1, *x.shape[-2:]) for x in (weights, gradient))))


def _writes(model: Any) -> bool:
    return hasattr(model, "decoder")


def to_numpy(x: Tensor) -> NDArray:
    """Doubles stay doubles; the rest becomes single precision."""
    return x.detach().to("cpu", x.dtype if x.dtype == torch.float64 else torch.float32).numpy()
