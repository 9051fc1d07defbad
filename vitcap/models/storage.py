"""Weights of models in fewer bytes: float16, or whole numbers of 8 bits with a scale for each output channel.

Computing stays in float32: what is packed here is unpacked when the file is read.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

STORAGES = ("fp32", "fp16", "int8")
SCALE = ".int8_scale"
_ROW = 32
"""Fewest weights that share a scale; it takes four bytes, so fewer are better kept in float16."""


def pack(weights: Mapping[str, Tensor], storage: str) -> dict[str, Tensor]:
    """Weights as they are to be stored; `unpack` is the inverse, up to rounding.

    storage: "fp32" as they are; "fp16" all matrices and kernels in float16; "int8" those in whole numbers -127..127,
    `w = scale[c] * q` with scale[c] the largest |w| of output channel c (the first axis) over 127, which is stored
    under the name with `SCALE` behind it, and the small ones in float16. Vectors (biases, norms, statistics) stay as
    they are. A matrix that float16 cannot hold (beyond 65,504) stays, too. Raises ValueError for another storage.
    """
    if storage not in STORAGES:
        raise ValueError(f"weights={storage!r}: one of {', '.join(STORAGES)} is wanted")
    packed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if storage == "fp32" or tensor.ndim < 2 or tensor.dtype != torch.float32 or not tensor.numel():
            packed[name] = tensor
            continue
        rows = tensor.reshape(len(tensor), -1)
        if storage == "int8" and rows.shape[1] >= _ROW and len(rows) > 1:
            scale = rows.abs().amax(1) / 127
            codes = (rows / scale.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().clamp(-127, 127)
            packed[name], packed[name + SCALE] = codes.to(torch.int8).reshape(tensor.shape), scale
        else:
            half = tensor.half()
            packed[name] = half if half.isfinite().all() else tensor
    return packed


def unpack(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Stored weights as float32. Raises ValueError for codes without their scales, or scales that do not fit."""
    whole: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if name.endswith(SCALE):
            if (codes := weights.get(name.removesuffix(SCALE))) is None or codes.dtype != torch.int8:
                raise ValueError(f"{name}: scales of weights that are not there")
        elif tensor.dtype == torch.int8 and tensor.ndim > 1:
            scale = weights.get(name + SCALE)
            if scale is None or scale.shape != tensor.shape[:1] or scale.dtype != torch.float32:
                raise ValueError(f"{name}: weights in 8 bits without a scale for each of {len(tensor)} channels")
            whole[name] = tensor.float() * scale.reshape(-1, *[1] * (tensor.ndim - 1))
        else:
            whole[name] = tensor.float() if tensor.dtype == torch.float16 else tensor
    return whole
