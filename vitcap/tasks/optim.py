"""Optimiser and learning-rate schedule."""

from __future__ import annotations

import math
from collections.abc import Iterable

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR


def parameter_groups(
    model: nn.Module, *, encoder: nn.Module, lr: float, encoder_lr: float, weight_decay: float
) -> list[dict[str, object]]:
    """Four AdamW groups: {encoder, rest} x {decayed matrices, biases, gains and position tables without decay}.

    lr, encoder_lr: peak learning rates; weight_decay: of the decayed groups.
    Frozen parameters are left out; those that are unfrozen later must require gradients when this is called.
    """
    own = {id(p) for p in encoder.parameters()}
    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or name.endswith((".table", "pos_embed", "cls_token", "reg_token"))
            groups.setdefault((id(parameter) in own, not plain), []).append(parameter)
    return [
        {
            "params": parameters,
            "lr": encoder_lr if in_encoder else lr,
            "weight_decay": weight_decay if decayed else 0.0,
            "name": f"{'encoder' if in_encoder else 'decoder'}{'' if decayed else ' without decay'}",
        }
        for (in_encoder, decayed), parameters in sorted(groups.items())
    ]


def warmup_cosine(step: int, *, warmup: int, total: int, floor: float = 0.0) -> float:
    """Factor on the learning rate of update `step`, counted from 0: rises in `warmup` equal parts to 1 (the first
    update already takes one part), then half a cosine from 1 at `warmup` down to `floor` at `total` (Loshchilov and
    Hutter 2017, without restarts)."""
    if step < warmup:
        return (step + 1) / warmup
    progress = min((step - warmup) / max(total - warmup, 1), 1.0)
    return floor + (1.0 - floor) * 0.5 * (1.0 + math.cos(math.pi * progress))


def make_optimizer(
    groups: Iterable[dict[str, object]], *, betas: tuple[float, float], warmup: int, total: int
) -> tuple[torch.optim.AdamW, LambdaLR]:
    """AdamW (Loshchilov and Hutter 2019) with warm-up and cosine decay, stepped every update."""
    optimizer = torch.optim.AdamW(list(groups), betas=betas, foreach=True)
    return optimizer, LambdaLR(optimizer, lambda step: warmup_cosine(step, warmup=warmup, total=total))
