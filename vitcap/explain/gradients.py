"""Gradients of scores with respect to what lies inside a model, which is left as it was.

Letters: B = 1 picture, N tokens, C channels, S scores.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitcap.models.attention_maps import global_layers, with_gradient
from vitcap.types import Batch, Memory


@contextmanager
def settled(model: nn.Module, *, gradients: bool) -> Iterator[None]:
    """Evaluation mode, with gradients or without, whatever holds outside; every module's mode returns afterwards."""
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        with torch.inference_mode(False), torch.set_grad_enabled(gradients):
            yield
    finally:
        for module, training in modes:
            module.training = training


def gradients_of(scores: Tensor, tensors: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """For each of the scores (S,), its gradients with respect to the tensors, zeros where it does not depend on one.

    One backward pass for each score; the last frees the graph. Parameters gather no gradient.
    """
    for number, score in enumerate(scores):
        found = torch.autograd.grad(score, tensors, retain_graph=number + 1 < len(scores), allow_unused=True)
        yield [torch.zeros_like(x) if g is None else g for x, g in zip(tensors, found, strict=True)]


def encode_with_features(model: Any, batch: Batch) -> tuple[Memory, Tensor]:
    """Memory of a picture, and the features (1, N, C) it is made of, which have a gradient: those that Grad-CAM reads.

    Of a Transformer the tokens that enter its last block: behind that block a classifier may read the class token
    alone, and the gradient of all patches is zero. Of a CNN, also within a hybrid, the grid it ends with. The patches
    are the last rows * columns tokens.
    """
    encoder = model.encoder
    block = _last_block(encoder)
    if block is None:
        with torch.no_grad():  # no layer before the grid is asked for anything
            grid = encoder.trunk(model.normalise(batch.images))
        features = grid.detach().requires_grad_()
        return encoder.head(features), features
    seen: list[Tensor] = []

    def watch(_: nn.Module, inputs: tuple[Any, ...]) -> tuple[Any, ...]:
        seen.append(with_gradient(inputs[0]))
        return seen[0], *inputs[1:]

    hook = block.register_forward_pre_hook(watch)
    try:
        memory = model.encode(batch)
    finally:
        hook.remove()
    return memory, seen[0]


def _last_block(encoder: Any) -> nn.Module | None:
    """The last block of an encoder that is a Transformer from the patches on; None for a CNN or a hybrid."""
    timm = getattr(encoder, "model", None)
    if timm is not None:
        return timm.blocks[-1] if global_layers(timm) else None
    return None if hasattr(encoder, "backbone") or not hasattr(encoder, "blocks") else encoder.blocks[-1]
