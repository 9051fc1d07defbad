"""What a map is compared with: that of the same architecture without its training, and one that sees no picture."""

from __future__ import annotations

import copy
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from vitcap import checkpoint

D = TypeVar("D", bound=Any)


def random_weights(door: D, seed: int) -> D:
    """The same door with a model of the same architecture whose weights are drawn anew (Adebayo et al. 2018, "Sanity
    Checks for Saliency Maps": all layers at once).

    The weights are those that training would begin with; of a model that no description rebuilds, those that its
    layers are made with.
    """
    other, model = copy.copy(door), copy.deepcopy(door.model)
    description = getattr(door, "description", None) or {}
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        for part in ("encoder", "decoder", "head"):
            if part in description and part != "head" and hasattr(model, part):
                setattr(model, part, checkpoint.build(description[part]))
            elif hasattr(model, part):
                _reset(getattr(model, part))
    other.model = model.to(door.device).eval()
    return other


def _reset(module: nn.Module) -> None:
    for part in module.modules():
        if callable(reset := getattr(part, "reset_parameters", None)):
            reset()
        else:
            for own in part.parameters(recurse=False):
                nn.init.trunc_normal_(own, std=0.02)


def centre_map(grid: tuple[int, int]) -> NDArray[np.float64]:
    """(rows, columns) of sum 1: a Gaussian in the middle whose standard deviation is a quarter of each side."""
    down, across = (np.exp(-0.5 * ((np.arange(n) - (n - 1) / 2) / (n / 4)) ** 2) for n in grid)
    values = np.outer(down, across)
    return values / values.sum()
