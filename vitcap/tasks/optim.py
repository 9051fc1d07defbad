"""Optimiser and learning-rate schedule."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

_BLOCK = re.compile(r"(?:^|\.)blocks\.(\d+)\.")
_AFTER_BLOCKS = ("norm.", "fc_norm.", "attn_pool.", "head.")


def parameter_groups(
    model: nn.Module,
    *,
    encoder: nn.Module,
    lr: float,
    encoder_lr: float,
    weight_decay: float,
    layer_decay: float = 1.0,
    rest: str = "decoder",
) -> list[dict[str, object]]:
    """Four AdamW groups: {encoder, rest} x {decayed matrices, biases, gains and position tables without decay}.

    lr, encoder_lr: peak learning rates; weight_decay: of the decayed groups. rest: name of what is not the encoder.
    layer_decay: below 1, the encoder's groups are split by layer and every layer learns so many times as fast as the
        one after it, see `layer_scales`.
    Frozen parameters are left out; those that are unfrozen later must require gradients when this is called.
    """
    scales = layer_scales(encoder, layer_decay) if layer_decay != 1 else {}
    own = {id(p): name for name, p in encoder.named_parameters()}
    groups: dict[tuple[bool, int, float, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or name.endswith((".table", "pos_embed", "cls_token", "reg_token"))
            layer, scale = scales.get(own.get(id(parameter), ""), (0, 1.0))
            groups.setdefault((id(parameter) in own, layer, scale, not plain), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": encoder_lr * scale if in_encoder else lr,
            "weight_decay": weight_decay if decayed else 0.0,
            "name": (f"encoder{f' layer {layer}' if scales else ''}" if in_encoder else rest)
            + ("" if decayed else " without decay"),
        }
        for (in_encoder, layer, scale, decayed), parameters in sorted(groups.items())
    ]


def layer_scales(encoder: nn.Module, decay: float) -> dict[str, tuple[int, float]]:
    """Parameter name -> (layer, factor on the learning rate) of a Transformer encoder.

    Layer 0 are the embeddings, i + 1 is block i, depth + 1 the final norm; the factor is decay ** (depth + 1 - layer)
    (Clark et al. 2020, section 3.2, counted as in Bao et al. 2022, BEiT). ValueError if there are no blocks.
    """
    names = [name for name, _ in encoder.named_parameters()]
    # What stands before the blocks of a hybrid, a CNN with blocks of its own, is one layer with the embeddings.
    inner = [name for name in names if not name.startswith("backbone.")]
    blocks = {name: int(match[1]) for name in inner if (match := _BLOCK.search(name))}
    if not blocks:
        raise ValueError(
            f"task.layer_decay={decay} goes by the blocks of a Transformer, and {type(encoder).__name__} has none: "
            "set it to 1"
        )
    last = max(blocks.values()) + 2

    def layer(name: str) -> int:
        if name in blocks:
            return blocks[name] + 1
        return last if name.removeprefix("model.").startswith(_AFTER_BLOCKS) else 0

    return {name: (layer(name), decay ** (last - layer(name))) for name in names}


def warmup_cosine(step: int, *, warmup: int, total: int) -> float:
    """Factor on the learning rate of update `step`, counted from 0: rises in `warmup` equal parts to 1 (the first
    update already takes one part), then half a cosine from 1 at `warmup` down to 0 at `total` (Loshchilov and
    Hutter 2017, without restarts)."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return 0.5 * (1.0 + math.cos(math.pi * progress))


def make_optimizer(
    groups: Iterable[dict[str, object]], *, betas: tuple[float, float], warmup: int, total: int
) -> tuple[torch.optim.AdamW, LambdaLR]:
    """AdamW (Loshchilov and Hutter 2019) with warm-up and cosine decay, stepped every update."""
    optimizer = torch.optim.AdamW(list(groups), betas=betas, foreach=True)
    return optimizer, LambdaLR(optimizer, lambda step: warmup_cosine(step, warmup=warmup, total=total))
