"""Encoder and decoder joined: the model that captions pictures, or translates sentences."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from vitcap.types import Batch, DecoderOutput, Memory


class EncoderModel(nn.Module):
    """What all models share: an encoder, and the normalisation of pictures.

    encoder: as the protocol in vitcap.types. mean, std: per channel, of pictures scaled to 0..1; uint8 pictures are
    normalised here, so that loaders move a quarter of the bytes.
    """

    def __init__(self, encoder: Any, *, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.encoder = encoder
        self.mean: Tensor
        self.scale: Tensor
        self.register_buffer("mean", torch.tensor(mean).view(1, 3, 1, 1) * 255.0, persistent=False)
        self.register_buffer("scale", 1.0 / (torch.tensor(std).view(1, 3, 1, 1) * 255.0), persistent=False)

    def normalise(self, images: Tensor) -> Tensor:
        """(B, 3, H, W) uint8 -> normalised floats; floats pass as they are."""
        if images.dtype == torch.uint8:
            return (images.to(self.mean.dtype) - self.mean) * self.scale
        return images

    def encode(self, batch: Batch, need_attention: bool = False) -> Memory:
        """Memory of a batch: of its source sentences, or its cached features, or else its images."""
        if batch.source is not None:
            return self.encoder(batch.source, need_attention)
        if batch.features is not None:
            return self.encoder.head(batch.features.to(self.mean.dtype), need_attention)
        if batch.images is None:
            raise ValueError("the batch has neither images nor features nor source sentences")
        return self.encoder(self.normalise(batch.images), need_attention)


class CaptionModel(EncoderModel):
    """Encoder of pictures or of source sentences + decoder.

    encoder, decoder: as the protocols in vitcap.types. mean, std: see EncoderModel; sentences need none.
    """

    def __init__(
        self,
        encoder: Any,
        decoder: Any,
        *,
        mean: Sequence[float] = (0.0, 0.0, 0.0),
        std: Sequence[float] = (1.0, 1.0, 1.0),
    ) -> None:
        super().__init__(encoder, mean=mean, std=std)
        self.decoder = decoder

    def forward(self, batch: Batch, need_attention: bool = False) -> DecoderOutput:
        """Teacher forcing over batch.captions (B, G, T): logits (B, G, T - 1, V) for tokens 1 .. T - 1."""
        if batch.captions is None:
            raise ValueError("the batch has no captions")
        return self.decoder(self.encode(batch), batch.captions[:, :, :-1], need_attention)
