"""Geometry: what is painted in a photo file is found again, in the photo's own pixels, from what the model was given.

The model is stood in for by one that is easy to reason about: its map is the mean brightness of each patch of its
input, or what a stack of convolutions makes of its brightness. Everything else is the real thing: the file with its
EXIF turn, `load_image`, `Preprocess`, where the cells lie, and the drawing.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, example, given, settings
from hypothesis import strategies as st
from PIL import Image
from timm.layers import create_conv2d
from torch import nn

from vitcap.data.images import load_image
from vitcap.data.transforms import Preprocess
from vitcap.explain.seen import on_photo
from vitcap.models.receptive_field import follow
from vitcap.viz.heatmap import peak, to_photo
from vitcap.viz.overlay import paint

TURNS = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}
"""EXIF orientation -> what a camera held that way does to an upright scene (the inverse of what a reader must do)."""

MEAN = (0.485, 0.456, 0.406)
GROUND = tuple(round(255 * value) for value in MEAN)  # as letterbox fills: nothing but the painted patch stands out
FILTERS = {"bilinear": 1, "bicubic": 2, "lanczos": 3}  # Pillow's filters, and their reach in output pixels

# The examples are the same in every run: a test that fails on one machine fails on all.
BOUNDED = settings(
    max_examples=100, derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow]
)


@st.composite
def preprocesses(draw: st.DrawFn) -> tuple[Preprocess, tuple[int, int]]:
    """Any preprocessing of a model with square or oblong input, and its (rows, columns) of patches."""
    patch = draw(st.sampled_from([8, 14, 16]))
    grid = draw(st.integers(3, 8)), draw(st.integers(3, 8))  # of 2 x 2, a patch in the middle covers all alike
    if draw(st.booleans()):
        grid = grid[0], grid[0]
    preprocess = Preprocess(
        size=(grid[0] * patch, grid[1] * patch),
        mode=draw(st.sampled_from(["crop", "squash", "letterbox"])),
        crop_pct=draw(st.sampled_from([1.0, 0.95, 0.875, 0.7])),
        interpolation=draw(st.sampled_from(sorted(FILTERS))),
        mean=MEAN,
    )
    return preprocess, grid


sides = st.tuples(st.integers(12, 420), st.integers(12, 420))
shares = st.tuples(st.floats(0, 1), st.floats(0, 1))


def brightness(preprocess: Preprocess, grid: tuple[int, int], photo: Image.Image) -> np.ndarray:
    """The stand-in: (rows, columns) mean brightness of the patches of the model input."""
    light = preprocess(photo).double().mean(0).numpy()
    rows, columns = grid
    return light.reshape(rows, light.shape[0] // rows, columns, light.shape[1] // columns).mean((1, 3))


def saved(upright: Image.Image, turn: int, path: Path | BytesIO) -> None:
    """The file of a camera that was held as the EXIF orientation `turn` says."""
    exif = Image.Exif()
    exif[0x0112] = turn
    stored = upright if TURNS[turn] is None else upright.transpose(TURNS[turn])
    stored.save(path, format="PNG", exif=exif)


def seen_part(window: tuple[float, ...], size: tuple[int, int]) -> tuple[float, float, float, float]:
    return max(window[0], 0), max(window[1], 0), min(window[2], size[0]), min(window[3], size[1])


@pytest.fixture(scope="module")
def file(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("geometry") / "photo.png"


@BOUNDED
@given(made=preprocesses(), size=sides, turn=st.sampled_from(sorted(TURNS)), share=shares)
@example(made=(Preprocess(size=(224, 224), crop_pct=0.875), (14, 14)), size=(640, 480), turn=6, share=(0.0, 1.0))
@example(made=(Preprocess(size=(48, 48), crop_pct=0.875), (3, 3)), size=(12, 420), turn=5, share=(0.5, 0.9))
@example(made=(Preprocess(size=(64, 96), mode="letterbox"), (4, 6)), size=(420, 12), turn=7, share=(1.0, 0.0))
def test_a_painted_patch_is_found_in_the_photo(file, made, size, turn, share):
    """The peak of the map that is drawn lies within one patch of what was painted, wherever the model looks."""
    preprocess, grid = made
    window = preprocess.window(*size)
    # a patch of the model in photo pixels; less than one pixel cannot be painted
    across, down = (max(1.0, (window[2 + i] - window[i]) / grid[1 - i]) for i in range(2))
    x0, y0, x1, y1 = seen_part(window, size)
    x, y = x0 + share[0] * (x1 - x0), y0 + share[1] * (y1 - y0)
    left, top = (min(max(0, round(at - side / 2)), n - 1) for at, side, n in ((x, across, size[0]), (y, down, size[1])))
    box = left, top, min(size[0], left + round(across)), min(size[1], top + round(down))
    upright = Image.new("RGB", size, GROUND)
    upright.paste((255, 255, 255), box)
    saved(upright, turn, file)

    photo = load_image(file)
    assert photo.size == size
    heat = brightness(preprocess, grid, photo)
    assert heat.max() - heat.min() > 1
    spread, seen = to_photo(heat, preprocess.window(*photo.size), *photo.size)
    row, column = np.unravel_index(np.where(seen, spread, -1).argmax(), spread.shape)
    assert abs(column + 0.5 - (box[0] + box[2]) / 2) <= across
    assert abs(row + 0.5 - (box[1] + box[3]) / 2) <= down


@BOUNDED
@given(made=preprocesses(), size=sides, turn=st.sampled_from(sorted(TURNS)), data=st.data())
def test_what_the_model_never_saw_has_no_influence_and_is_hatched(file, made, size, turn, data):
    preprocess, grid = made
    window = preprocess.window(*size)
    plain = Image.new("RGB", size, GROUND)
    _, seen = to_photo(np.ones(grid), window, *size)
    # A resized pixel is made of a neighbourhood: as wide as the filter, and wider where the photo is made smaller.
    steps = (window[2] - window[0]) / preprocess.size[1], (window[3] - window[1]) / preprocess.size[0]
    margin = [FILTERS[preprocess.interpolation] * max(1.0, step) + 1 for step in steps]
    near = [window[0] - margin[0], window[1] - margin[1], window[2] + margin[0], window[3] + margin[1]]
    boxes = [
        (0, 0, int(near[0]), size[1]),
        (0, 0, size[0], int(near[1])),
        (int(np.ceil(near[2])), 0, *size),
        (0, int(np.ceil(near[3])), *size),
    ]
    boxes = [(a, b, c, d) for a, b, c, d in boxes if a < c and b < d]
    if boxes:
        painted = plain.copy()
        painted.paste((255, 255, 255), data.draw(st.sampled_from(boxes)))
        saved(painted, turn, file)
        photo = load_image(file)
        assert not np.array_equal(np.asarray(photo), np.asarray(plain))
        assert preprocess(photo).equal(preprocess(plain)), "a bright patch outside the window reached the model"

    # exactly the pixels whose centres lie in the window are seen
    x, y = np.arange(size[0]) + 0.5, np.arange(size[1]) + 0.5
    inside = ((y >= window[1]) & (y <= window[3]))[:, None] & ((x >= window[0]) & (x <= window[2]))
    assert np.array_equal(seen, inside)
    if preprocess.mode == "letterbox" and preprocess.crop_pct == 1:
        assert seen.all(), "nothing of the photo is lost"

    # and what is drawn there depends on no map, has no colour, and is striped
    maps = [np.zeros(grid), np.random.default_rng(0).random(grid), np.full(grid, 1 / (grid[0] * grid[1]))]
    drawn = [np.asarray(paint(plain, heat, window, top=2.0)).astype(int) for heat in maps]
    for one in drawn:
        assert np.array_equal(one[~seen], drawn[0][~seen])
        assert (np.ptp(one[~seen], axis=-1) == 0).all(), "grey"
        assert (np.ptp(one[seen], axis=-1) > 0).all(), "coloured, also where the map is 0"
    if (~seen).sum() > 200:
        assert len(np.unique(drawn[0][~seen][:, 0])) == 2, "stripes on one even photo"


@BOUNDED
@given(made=preprocesses(), size=sides, turn=st.sampled_from(sorted(TURNS)))
def test_the_window_is_where_the_input_comes_from(file, made, size, turn):
    """A photo whose colour states its own place: the model input, read back, says what the window says."""
    preprocess, _ = made
    x, y = np.meshgrid((np.arange(size[0]) + 0.5) / size[0], (np.arange(size[1]) + 0.5) / size[1])
    ramp = np.stack([255 * x, 255 * y, np.full_like(x, 255)], axis=-1).round().astype(np.uint8)
    saved(Image.fromarray(ramp), turn, file)
    photo = load_image(file)
    assert np.array_equal(np.asarray(photo), ramp)
    red, green, blue = preprocess(photo).double().numpy()
    window = preprocess.window(*size)
    rows, columns = np.indices(red.shape) + 0.5
    photo_x = window[0] + columns * (window[2] - window[0]) / red.shape[1]
    photo_y = window[1] + rows * (window[3] - window[1]) / red.shape[0]
    # away from the rim, where the filter has no neighbours; letterbox's fill is no part of the photo
    steps = (window[2] - window[0]) / red.shape[1], (window[3] - window[1]) / red.shape[0]
    reach = [FILTERS[preprocess.interpolation] * max(1.0, step) for step in steps]
    within = (photo_x > reach[0]) & (photo_x < size[0] - reach[0])
    within &= (photo_y > reach[1]) & (photo_y < size[1] - reach[1])
    # Nowhere off by half a model pixel (or by what two levels of brightness mean), and on average by far less.
    for found, there, side, step in ((red, photo_x, size[0], steps[0]), (green, photo_y, size[1], steps[1])):
        error = (found / 255 * side - there)[within]
        assert (np.abs(error) <= max(0.5 * step, 2 * side / 255)).all()
        assert error.size < 20 or abs(error.mean()) <= max(0.1 * step, 0.75 * side / 255)
    assert (blue[within] >= 250).all()


# cells of a stack of convolutions


def stack(padding: str, kernels: tuple[int, ...]) -> nn.Module:
    """Sums of brightness: convolutions of stride 2 with all weights 1, padded as those of a ResNet or of TensorFlow."""
    inputs = [3] + [1] * (len(kernels) - 1)
    model = nn.Sequential(
        *(create_conv2d(i, 1, k, stride=2, padding=padding) for i, k in zip(inputs, kernels, strict=True))
    )
    for layer in model:
        nn.init.ones_(layer.weight)
    return model


def painted(
    file: Path, model: nn.Module, preprocess: Preprocess, size: tuple[int, int], turn: int, share: tuple[float, float]
) -> tuple[np.ndarray, tuple[float, ...], tuple[float, float], tuple[float, float]]:
    """The map of a photo with one bright patch somewhere inside of what the model sees; the window, the patch's middle,
    and (across, down) a cell in photo pixels."""
    window = preprocess.window(*size)
    stride = 2 ** len(model)
    across, down = ((window[2 + i] - window[i]) * stride / preprocess.size[1 - i] for i in range(2))
    x0, y0, x1, y1 = seen_part(window, size)
    middle = x0 + across + share[0] * (x1 - x0 - 2 * across), y0 + down + share[1] * (y1 - y0 - 2 * down)
    sides = max(2, round(across / 2)), max(2, round(down / 2))
    left, top = (round(at - side / 2) for at, side in zip(middle, sides, strict=True))
    upright = Image.new("RGB", size, GROUND)
    upright.paste((255, 255, 255), (left, top, left + sides[0], top + sides[1]))
    saved(upright, turn, file)
    light = preprocess(load_image(file))[None].float() - torch.tensor(GROUND).view(1, 3, 1, 1)
    with torch.no_grad():
        heat = model(light.abs().where(light.abs() > 2, 0))[0, 0].numpy()
    return heat, window, (left + sides[0] / 2, top + sides[1] / 2), (across, down)


@BOUNDED
@given(
    padding=st.sampled_from(["", "same"]),
    kernels=st.sampled_from([(3, 3, 3), (7, 3, 3), (3, 5, 3), (5, 3, 3, 3)]),
    sides=st.tuples(st.integers(64, 130), st.integers(64, 130)),
    mode=st.sampled_from(["crop", "squash", "letterbox"]),
    size=st.tuples(st.integers(120, 420), st.integers(120, 420)),
    turn=st.sampled_from(sorted(TURNS)),
    share=shares,
)
def test_a_patch_is_found_through_convolutions(file, padding, kernels, sides, mode, size, turn, share):
    """Within half a cell, whatever the padding does to the cells, and whether or not the strides divide the input."""
    model, preprocess = stack(padding, kernels), Preprocess(size=sides, mode=mode, mean=MEAN, interpolation="bilinear")
    window = preprocess.window(*size)
    seen = seen_part(window, size)
    cell = [(window[2 + i] - window[i]) * 2 ** len(kernels) / sides[1 - i] for i in range(2)]
    assume(all(seen[2 + i] - seen[i] >= 3 * cell[i] for i in range(2)))
    heat, window, (x, y), (across, down) = painted(file, model, preprocess, size, turn, share)
    cells = on_photo(follow(model, sides).box(heat.shape), sides, window) or window
    found = peak(heat, cells)
    assert abs(found[0] - x) <= 0.5 * across + 1.5
    assert abs(found[1] - y) <= 0.5 * down + 1.5
    spread, seen = to_photo(heat, window, *size, cells=cells)
    drawn = spread[min(int(found[1]), size[1] - 1), min(int(found[0]), size[0] - 1)]
    assert spread[seen].max() <= drawn * (1 + 2 / min(across, down)), "the picture is highest there, up to a pixel"


@pytest.mark.parametrize(("padding", "moved"), [("", -7.5), ("same", 7.5)])
def test_on_average_convolutions_move_nothing(file, padding, moved):
    """Over many places: with the cells where they are, and shared out evenly over the input, as they are not."""
    model, preprocess = stack(padding, (3, 3, 3, 3)), Preprocess(size=(128, 128), mode="squash", mean=MEAN)
    box = follow(model, (128, 128)).box((8, 8))
    assert box == pytest.approx((moved, moved, moved + 128, moved + 128))
    rng, errors = np.random.default_rng(0), []
    for _ in range(120):
        heat, window, (x, y), (across, down) = painted(file, model, preprocess, (300, 200), 1, tuple(rng.random(2)))
        for cells in (on_photo(box, (128, 128), window), window):
            found = peak(heat, cells)
            errors.append(((found[0] - x) / across, (found[1] - y) / down))
    placed, even = np.array(errors).reshape(-1, 2, 2).mean(0)
    assert abs(placed).max() < 0.08, "cells"
    assert even == pytest.approx([-moved / 16, -moved / 16], abs=0.08), "half a cell to the other side"


# worked values


def test_worked_values_of_crop():
    """640 x 480, shorter side to 256, centre 224: resized to 341 x 256, left 58, top 16."""
    preprocess = Preprocess(size=(224, 224), crop_pct=0.875)
    resize, crop = preprocess.chain(640, 480)
    assert resize["size"] == [341, 256]
    assert crop["box"] == [58, 16, 58 + 224, 16 + 224]
    window = preprocess.window(640, 480)
    assert window == pytest.approx((108.856305, 30, 529.266862, 450), abs=1e-6)
    _, seen = to_photo(np.ones((14, 14)), window, 640, 480)
    assert [np.flatnonzero(seen.any(axis))[[0, -1]].tolist() for axis in (0, 1)] == [[109, 528], [30, 449]]
    # the corner patches' centres, by hand: 8 and 216 input pixels from the window's corner
    first = np.zeros((14, 14))
    first[0, 0] = 1
    assert peak(first, window) == pytest.approx((108.856305 + 8 * 640 / 341, 30 + 8 * 480 / 256), abs=1e-6)


def test_worked_values_of_spreading():
    """align_corners=False: [0, 1] over 4 pixels, a 2 x 3 map over 4 x 6, a spike over 9 x 9."""
    np.testing.assert_allclose(to_photo([[0, 1]], (0, 0, 4, 1), 4, 1)[0], [[0, 0.25, 0.75, 1]], atol=1e-12)
    spread, seen = to_photo([[0.1, 0.3, 0.05], [0.05, 0.4, 0.1]], (0, 0, 6, 4), 6, 4)
    np.testing.assert_allclose(spread[0], [0.1, 0.15, 0.25, 0.2375, 0.1125, 0.05], atol=1e-12)
    np.testing.assert_allclose(spread[2], [0.0625, 0.140625, 0.296875, 0.303125, 0.159375, 0.0875], atol=1e-12)
    assert (spread.sum(), spread.mean()) == (pytest.approx(4), pytest.approx(1 / 6))
    assert seen.all()
    spike = np.zeros((3, 3))
    spike[1, 1] = 1
    spread, _ = to_photo(spike, (0, 0, 9, 9), 9, 9)
    assert (spread.min(), spread.sum()) == (0, pytest.approx(9))


@BOUNDED
@given(made=preprocesses(), size=sides)
def test_the_chain_of_steps_makes_the_same_input(made, size):
    """What a record says was done to the photo, done by Pillow step by step."""
    preprocess, _ = made
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 256, (size[1], size[0], 3), dtype=np.uint8))
    image = photo
    for step in preprocess.chain(*size):
        if step["name"] == "resize":
            image = image.resize(tuple(step["size"]), Image.Resampling[step["interpolation"].upper()])
        elif step["name"] == "crop":
            image = image.crop(tuple(step["box"]))
        else:
            left, top, right, bottom = step["by"]
            padded = Image.new("RGB", (left + image.width + right, top + image.height + bottom), tuple(step["fill"]))
            padded.paste(image, (left, top))
            image = padded
    got = preprocess(photo).permute(1, 2, 0).numpy().astype(int)
    # a long thin picture is resized in part only, equal within rounding
    assert np.abs(got - np.asarray(image).astype(int)).max() <= 1
