"""The convolutional encoder: its arithmetic in plain loops, its grid, its independence of the batch."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.testing import assert_close

from vitcap.models.cnn import ConvEncoder


def encoder(**options: object) -> ConvEncoder:
    torch.manual_seed(0)
    model = ConvEncoder(**{"image_size": (16, 24), "channels": (4, 16), "width": 6, **options})  # type: ignore[arg-type]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.double()


def images(batch: int = 3, size: tuple[int, int] = (16, 24)) -> Tensor:
    return torch.randn(batch, 3, *size, dtype=torch.float64, generator=torch.Generator().manual_seed(1))


def convolved(image: Tensor, weight: Tensor, stride: int) -> Tensor:
    """3x3 convolution of one picture (C, H, W), place by place, zeros around it."""
    padded, (height, width) = F.pad(image, (1, 1, 1, 1)), image.shape[1:]
    rows = [
        torch.stack(
            [torch.einsum("oihw,ihw->o", weight, padded[:, y : y + 3, x : x + 3]) for x in range(0, width, stride)]
        )
        for y in range(0, height, stride)
    ]
    return torch.stack(rows).permute(2, 0, 1)


def grouped(x: Tensor, norm: torch.nn.GroupNorm) -> Tensor:
    """(C, H, W) with mean 0 and variance 1 in every group of channels, then scaled and shifted per channel."""
    parts = x.reshape(norm.num_groups, -1)
    parts = (parts - parts.mean(1, keepdim=True)) / (parts.var(1, correction=0, keepdim=True) + norm.eps).sqrt()
    return parts.reshape(x.shape) * norm.weight[:, None, None] + norm.bias[:, None, None]


def test_is_convolutions_norms_and_a_projection() -> None:
    model = encoder()
    memory = model(images())
    for b, image in enumerate(images()):
        x = image
        for stage in model.stages:
            first, norm1, _, second, norm2, _ = stage
            x = grouped(convolved(x, first.weight, 2), norm1).clamp(min=0)
            x = grouped(convolved(x, second.weight, 1), norm2).clamp(min=0)
        assert x.shape == (16, 4, 6)
        places = torch.stack([x[:, row, column] for row in range(4) for column in range(6)])  # row by row
        tokens = F.layer_norm(places @ model.project.weight.T + model.project.bias, (6,), eps=1e-6)
        tokens = tokens * model.norm.weight + model.norm.bias
        assert_close(memory.tokens[b], tokens)
        assert_close(memory.pooled[b], tokens.mean(0))


@pytest.mark.parametrize("training", [False, True])
def test_a_picture_is_read_alone(training: bool) -> None:
    """Also in training: nothing of the rest of the batch enters, and running a batch changes no state."""
    model = encoder().train(training)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    memory = model(images())
    for b in range(3):
        assert_close(model(images()[b : b + 1]).tokens[0], memory.tokens[b])
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name])


@pytest.mark.parametrize(("size", "channels", "grid"), [(64, (32, 64, 128), (8, 8)), ((32, 48), (8, 6), (8, 12))])
def test_grid_and_shapes(size: int | tuple[int, int], channels: tuple[int, ...], grid: tuple[int, int]) -> None:
    model = ConvEncoder(image_size=size, channels=channels, width=24)
    memory = model(torch.randn(2, 3, *model.preprocess["size"]))
    assert model.grid == memory.grid == grid
    assert memory.tokens.shape == (2, grid[0] * grid[1], model.width)
    assert memory.pooled is not None
    assert memory.pooled.shape == (2, 24)
    assert memory.prefix == 0
    assert memory.mask is memory.attentions is None
    assert not model.cacheable


def test_head_of_trunk_is_forward_and_everything_trains() -> None:
    model = encoder()
    features = model.trunk(images())
    assert features.shape == (3, 24, 16)
    assert_close(model.head(features).tokens, model(images()).tokens)
    model(images()).tokens.square().sum().backward()
    assert all(p.grad is not None and p.grad.ne(0).any() for name, p in model.named_parameters() if name != "norm.bias")


def test_dropout_is_for_training_only() -> None:
    model = encoder(dropout=0.5)
    assert not torch.equal(model(images()).tokens, model(images()).tokens)
    model.eval()
    assert torch.equal(model(images()).tokens, model(images()).tokens)


def test_bad_arguments_state_both_numbers() -> None:
    with pytest.raises(ValueError, match="image_size 60x64 is not a multiple of 8x8, the stride of 3 stages"):
        ConvEncoder(image_size=(60, 64))
    with pytest.raises(ValueError, match=r"one positive number for each stage, got \[8, 0\]"):
        ConvEncoder(channels=(8, 0))
    with pytest.raises(ValueError, match=r"\(batch, 3, 16, 24\), got \(3, 3, 24, 16\)"):
        encoder()(images(size=(24, 16)))
    with pytest.raises(ValueError, match="no self-attention"):
        encoder()(images(), need_attention=True)
