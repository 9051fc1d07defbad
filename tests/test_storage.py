"""Weights in fewer bytes: how far they are from the originals, and files that lie about them."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from test_checkpoint import description, model
from torch.testing import assert_close

import vitcap
from vitcap import checkpoint
from vitcap.checkpoint import CheckpointError
from vitcap.models.storage import SCALE, pack, unpack

WEIGHTS = {
    "linear.weight": torch.randn(48, 64, generator=torch.Generator().manual_seed(0))
    * torch.logspace(-3, 3, 48)[:, None],
    "conv.weight": torch.randn(8, 16, 3, 3, generator=torch.Generator().manual_seed(1)),
    "depthwise.weight": torch.randn(8, 1, 3, 3, generator=torch.Generator().manual_seed(2)),
    "bias": torch.randn(48, generator=torch.Generator().manual_seed(3)),
    "zeros": torch.zeros(4, 64),
    "large": torch.full((2, 4), 1e6),
    "count": torch.tensor(7),
}


@pytest.mark.parametrize("storage", ["fp32", "fp16", "int8"])
def test_stored_weights_come_back(storage):
    packed = pack(WEIGHTS, storage)
    back = unpack(packed)
    assert {name: (t.shape, t.dtype) for name, t in back.items()} == {n: (t.shape, t.dtype) for n, t in WEIGHTS.items()}
    for name in ("bias", "zeros", "large", "count"):
        assert torch.equal(back[name], WEIGHTS[name])
    if storage == "fp32":
        assert all(torch.equal(back[name], tensor) for name, tensor in WEIGHTS.items())
    for name in ("linear.weight", "conv.weight"):
        rows, error = WEIGHTS[name].flatten(1), (back[name] - WEIGHTS[name]).flatten(1).abs()
        # Half a step of a row's own scale; float16 has 11 bits.
        limit = rows.abs().amax(1, keepdim=True) / 127 * 0.501 if storage == "int8" else rows.abs() * 2**-11 + 1e-7
        assert (error <= limit).all()
    assert packed["depthwise.weight"].dtype == (torch.float32 if storage == "fp32" else torch.float16)


def test_eight_bits_take_a_quarter():
    packed = pack(WEIGHTS, "int8")
    assert packed["linear.weight"].dtype == torch.int8
    assert packed["linear.weight" + SCALE].shape == (48,)
    names = ("linear.weight", "linear.weight" + SCALE)
    assert sum(packed[name].nbytes for name in names) == 48 * 64 + 48 * 4


def test_an_unknown_storage():
    with pytest.raises(ValueError, match="weights='int4': one of fp32, fp16, int8 is wanted"):
        pack(WEIGHTS, "int4")


@pytest.mark.parametrize("storage", ["fp16", "int8"])
def test_a_model_file_in_fewer_bytes_computes_nearly_the_same(storage, tmp_path):
    original = model()
    file = checkpoint.write(tmp_path / "model.safetensors", original, description(), storage=storage)
    whole = checkpoint.write(tmp_path / "whole.safetensors", original, description())
    assert file.stat().st_size < whole.stat().st_size
    door = vitcap.load(file)
    assert {t.dtype for t in door.model.state_dict().values() if t.is_floating_point()} == {torch.float32}
    rebuilt = unpack(pack(original.state_dict(), storage))
    for name, tensor in door.model.state_dict().items():
        assert torch.equal(tensor, rebuilt[name]), name
    # Saved again as it is now, it stays what it is.
    assert_close(vitcap.load(door.save(tmp_path / "again.safetensors")).model.state_dict(), door.model.state_dict())


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda t, name: t.pop(name + SCALE), "weights in 8 bits without a scale"),
        (lambda t, name: t.update({name + SCALE: t[name + SCALE][:-1].clone()}), "weights in 8 bits without a scale"),
        (lambda t, name: t.pop(name), "scales of weights that are not there"),
        (lambda t, name: t[name + SCALE].fill_(float("nan")), "are NaN or infinite"),
    ],
)
def test_files_with_wrong_scales_are_refused(change, told, tmp_path):
    file = checkpoint.write(tmp_path / "model.safetensors", model(), description(), storage="int8")
    tensors = load_file(file)
    change(tensors, next(name for name, t in tensors.items() if t.dtype == torch.int8))
    save_file(tensors, file, metadata={"vitcap": json.dumps(description())})
    with pytest.raises(CheckpointError, match=told) as error:
        vitcap.load(file)
    assert str(file) in str(error.value)
