"""The mean of two models' weights: what fine-tuning gained, with less of what it forgot.

A model that was trained further, by self-critical training for one, and the model that it started from lie in one
basin of the loss, and points between them often score better than either (Wortsman et al. 2022, "Robust fine-tuning of
zero-shot models", section 2).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from vitcap import checkpoint
from vitcap.door import Door
from vitcap.models.storage import pack, unpack
from vitcap.types import require_number


def average(door: Door, named: str, other: str, share: float) -> dict[str, Any]:
    """Give a model the weights `share * own + (1 - share) * those of another`; counts and the like stay its own.

    named, other: the model files. share: 0..1. Returns the facts. Raises ValueError where the two are not of one build,
    one vocabulary, and one preprocessing.
    """
    require_number("share", share, 0, 1)
    if Path(other).resolve() == Path(named).resolve():
        raise ValueError(f"average={other}: the model that is scored itself; name the one that it started from")
    saved = checkpoint.read(other)
    theirs, own = saved.description, door.description
    for part in ("kind", "tokenizer", "source_tokenizer", "classes", "preprocess"):
        if theirs.get(part) != own.get(part):
            raise ValueError(f"average={other}: its {part} is not that of {named}; name the model that it started from")
    if found := checkpoint.difference(theirs, own):
        option, first, second = found
        raise ValueError(f"average={other}: {option} is {first} there and {second} in {named}")
    state, weights = door.model.state_dict(), saved.weights
    once = checkpoint.untied(state)  # or a weight that has two names, as in a .ckpt, would be moved twice
    for name in {**once, **weights}:
        if name not in state or name not in weights or state[name].shape != weights[name].shape:
            raise ValueError(f"average={other}: {name} has another shape in {named}, or is in one of them alone")
    with torch.no_grad():
        for name, tensor in once.items():
            if tensor.is_floating_point():
                tensor.copy_(torch.lerp(weights[name].to(tensor), tensor, share))
    return {"averaged": {"with": other, "share": share}}


def store(door: Door, storage: str) -> None:
    """Round a model's weights to what a file of this storage holds, so that its scores are those of the file.

    storage: see vitcap.models.storage.pack, whose ValueError this is.
    """
    door.model.load_state_dict(unpack(pack(door.model.state_dict(), storage)))
