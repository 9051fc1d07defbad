"""The Vision Transformer against timm's with copied weights."""

import os
import re
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer as TimmVit
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import nn

from vitcap.models.vit import VisionTransformer
from vitcap.types import Memory

# name: picture (height, width), patch, arguments of timm, the same in ours
CASES = {
    "patch8": ((24, 24), 8, {}, {}),
    "patch14 layer scale (DINOv2)": ((28, 28), 14, {"init_values": 0.3}, {"layer_scale": 1e-5}),
    "patch14 registers (DINOv2 reg4), not square": (
        (28, 42),
        14,
        {"init_values": 0.3, "reg_tokens": 4, "no_embed_class": True},
        {"layer_scale": 1e-5, "registers": 4, "prefix_positions": False},
    ),
    "patch16 (DeiT III)": (
        (48, 48),
        16,
        {"init_values": 0.3, "no_embed_class": True},
        {"layer_scale": 1e-6, "prefix_positions": False},
    ),
    "patch32, not square": ((96, 64), 32, {}, {}),
    "registers with positions": ((32, 32), 16, {"reg_tokens": 2}, {"registers": 2}),
    "average": ((32, 48), 16, {"class_token": False, "global_pool": "avg"}, {"class_token": False, "pool": "mean"}),
    "average, registers": (
        (32, 32),
        16,
        {"class_token": False, "global_pool": "avg", "reg_tokens": 4, "no_embed_class": True},
        {"class_token": False, "pool": "mean", "registers": 4, "prefix_positions": False},
    ),
}
SIZES = {"embed_dim": 32, "depth": 3, "num_heads": 4, "num_classes": 7}
OURS = {"width": 32, "depth": 3, "heads": 4}


def randomised(model: nn.Module) -> nn.Module:
    """Every parameter random, also those that start as 0 or 1."""
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.2)
    return model.eval()


@pytest.mark.parametrize("case", CASES)
def test_equals_timm(case, tmp_path):
    size, patch, theirs, ours = CASES[case]
    reference = randomised(TimmVit(img_size=size, patch_size=patch, **SIZES, **theirs))
    # The ambiguity of grids that are not square is settled by weights_size.
    save_file(reference.state_dict(), tmp_path / "w.safetensors")
    model = VisionTransformer(
        image_size=size, patch_size=patch, weights=tmp_path / "w.safetensors", weights_size=size, **OURS, **ours
    ).eval()
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        memory, explicit = model(images), model(images, need_attention=True)
        features = reference.forward_features(images)
        torch.testing.assert_close(memory.tokens, reference.fc_norm(features), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(reference.head(memory.pooled), reference(images), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(explicit.tokens, memory.tokens, rtol=1e-5, atol=1e-5)
    rows, columns = size[0] // patch, size[1] // patch
    assert memory.grid == (rows, columns)
    assert memory.prefix == reference.num_prefix_tokens == model.prefix
    assert len(explicit.attentions) == 3
    assert explicit.attentions[0].shape == (2, 4, rows * columns + memory.prefix, rows * columns + memory.prefix)
    torch.testing.assert_close(explicit.attentions[2].sum(-1), torch.ones(explicit.attentions[2].shape[:-1]))


# timm's name: picture, arguments of ours. Two blocks of each; the rest is timm's own configuration.
PUBLISHED = {
    "vit_tiny_patch16_224": (48, {"width": 192, "heads": 3, "patch_size": 16}),
    "vit_small_patch8_224": (24, {"width": 384, "heads": 6, "patch_size": 8}),
    "vit_small_patch32_224": ((64, 96), {"width": 384, "heads": 6, "patch_size": 32}),
    "deit_tiny_patch16_224": (48, {"width": 192, "heads": 3}),
    "deit3_small_patch16_224": (48, {"width": 384, "heads": 6, "layer_scale": 1e-6, "prefix_positions": False}),
    "vit_small_patch14_dinov2": ((28, 42), {"width": 384, "heads": 6, "patch_size": 14, "layer_scale": 1e-5}),
    "vit_small_patch14_reg4_dinov2": (
        42,
        {
            "width": 384,
            "heads": 6,
            "patch_size": 14,
            "layer_scale": 1e-5,
            "registers": 4,
            "prefix_positions": False,
        },
    ),
    "vit_wee_patch16_reg1_gap_256": (
        (32, 64),
        {
            "width": 256,
            "heads": 4,
            "mlp_ratio": 5.0,
            "layer_scale": 1e-5,
            "class_token": False,
            "registers": 1,
            "prefix_positions": False,
            "pool": "mean",
        },
    ),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_configurations_load_strictly_and_give_timms_logits(name, tmp_path):
    size, options = PUBLISHED[name]
    torch.manual_seed(0)
    reference = timm.create_model(name, img_size=size, depth=2, num_classes=7).eval()
    with torch.no_grad():
        for parameter in reference.parameters():  # nothing stays at the 0 or 1 it starts from
            parameter.add_(0.03 * torch.randn_like(parameter))
    save_file(reference.state_dict(), tmp_path / "w.safetensors")
    options = {"image_size": size, "depth": 2, "weights": tmp_path / "w.safetensors", "weights_size": size, **options}
    model = VisionTransformer(**options).eval()
    images = torch.randn(2, 3, *model.preprocess["size"])
    with torch.no_grad():
        logits = reference(images)
        torch.testing.assert_close(reference.head(model(images).pooled), logits, rtol=1e-5, atol=1e-5)
        assert logits.std() > 0.05
    state = reference.state_dict()
    entry = "blocks.1.attn.proj.bias"
    save_file({k: v for k, v in state.items() if k != entry}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=f"{re.escape(entry)} .* is missing in the file"):
        VisionTransformer(**options)
    save_file({**state, "blocks.1.extra": torch.zeros(1)}, tmp_path / "w.safetensors")
    with pytest.raises(ValueError, match=r"blocks\.1\.extra"):
        VisionTransformer(**options)


RESAMPLED = {
    "class token": ({}, {}),
    "registers without positions": (
        {"reg_tokens": 4, "no_embed_class": True},
        {"registers": 4, "prefix_positions": False},
    ),
    "average": ({"class_token": False, "global_pool": "avg"}, {"class_token": False, "pool": "mean"}),
}


@pytest.mark.parametrize("size", [(64, 64), (32, 80), (80, 48)], ids=str)
@pytest.mark.parametrize("case", RESAMPLED)
def test_other_resolutions_give_timms_logits(case, size, tmp_path):
    """A file of 48x48 pictures, read by timm and by ours at another size, square or not."""
    theirs, ours = RESAMPLED[case]
    file = tmp_path / "w.safetensors"
    save_file(randomised(TimmVit(img_size=48, patch_size=16, **SIZES, **theirs)).state_dict(), file)
    reference = TimmVit(img_size=size, patch_size=16, **SIZES, **theirs).eval()
    reference.load_state_dict(checkpoint_filter_fn(load_file(file), reference))
    model = VisionTransformer(image_size=size, weights=file, **OURS, **ours).eval()
    assert model.grid == (size[0] // 16, size[1] // 16)
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        torch.testing.assert_close(reference.head(model(images).pooled), reference(images), rtol=1e-5, atol=1e-5)


def test_gradients_equal_timm(tmp_path):
    reference = randomised(TimmVit(img_size=32, patch_size=16, **SIZES))
    save_file(reference.state_dict(), tmp_path / "w.safetensors")
    model = VisionTransformer(image_size=32, weights=tmp_path / "w.safetensors", **OURS).eval()
    images = torch.randn(2, 3, 32, 32)
    model(images).tokens.square().sum().backward()
    reference.forward_features(images).square().sum().backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, reference.get_parameter(name).grad, rtol=1e-3, atol=1e-4)


def test_distilled_deit_token_is_a_register(tmp_path):
    reference = randomised(VisionTransformerDistilled(img_size=32, patch_size=16, **SIZES))
    torch.save({"model": reference.state_dict()}, tmp_path / "deit.pth")
    model = VisionTransformer(image_size=32, registers=1, weights=tmp_path / "deit.pth", **OURS).eval()
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(images).tokens, reference.forward_features(images), rtol=1e-5, atol=1e-5)


def test_layout_of_dinov2s_authors(tmp_path):
    reference = randomised(
        TimmVit(img_size=28, patch_size=14, init_values=0.1, reg_tokens=4, no_embed_class=True, **SIZES)
    )
    state = {k: v for k, v in reference.state_dict().items() if not k.startswith(("head.", "reg_token"))}
    state["register_tokens"] = reference.reg_token.detach()
    state["mask_token"] = torch.zeros(1, 32)
    state["pos_embed"] = torch.cat((torch.randn(1, 1, 32), state["pos_embed"]), dim=1)
    torch.save(state, tmp_path / "authors.pth")
    reference.load_state_dict(checkpoint_filter_fn(dict(state), reference), strict=False)
    model = VisionTransformer(
        image_size=28,
        patch_size=14,
        layer_scale=1e-5,
        registers=4,
        prefix_positions=False,
        weights=tmp_path / "authors.pth",
        **OURS,
    ).eval()
    images = torch.randn(1, 3, 28, 28)
    with torch.no_grad():
        torch.testing.assert_close(model(images).tokens, reference.forward_features(images), rtol=1e-5, atol=1e-5)


def test_pooling_may_differ_from_the_files(tmp_path, caplog):
    reference = randomised(TimmVit(img_size=32, patch_size=16, **SIZES))
    save_file(reference.state_dict(), tmp_path / "w.safetensors")
    with caplog.at_level("INFO"):
        model = VisionTransformer(image_size=32, pool="mean", weights=tmp_path / "w.safetensors", **OURS).eval()
    assert "norm.weight taken as fc_norm.weight" in caplog.text
    assert "left out head.bias, head.weight" in caplog.text
    images = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(model(images).tokens, reference.forward_features(images), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("size", [(224, 224), (112, 154)])
def test_real_weights_equal_timm(size):
    root = os.environ.get("VITCAP_DATA")
    file = Path(root or ".") / "weights" / "vit_small_patch14_dinov2_saliency.safetensors"
    if not file.is_file():
        pytest.skip("VITCAP_DATA with the ViT-S/14 weights is not there")
    model = VisionTransformer(
        image_size=size, patch_size=14, width=384, depth=12, heads=6, layer_scale=1e-5, weights=file, trainable="none"
    )
    overlay = {"file": str(file), "hf_hub_id": None, "url": ""}
    reference = timm.create_model(
        "vit_small_patch14_dinov2", img_size=size, pretrained=True, pretrained_cfg_overlay=overlay
    ).eval()
    images = torch.randn(1, 3, *size)
    with torch.no_grad():
        memory, expected = model(images), reference.forward_features(images)
        halved = model.head(model.trunk(images).half())  # as features are cached
    torch.testing.assert_close(memory.tokens, expected, rtol=0, atol=1e-4)
    torch.testing.assert_close(halved.tokens, expected, rtol=0, atol=0.05)
    assert expected.std() > 0.5
    if size != (224, 224):  # without rounding, on the smaller picture for the sake of time
        model, reference, images = model.double(), reference.double(), images.double()
        with torch.no_grad():
            torch.testing.assert_close(model(images).tokens, reference.forward_features(images), rtol=0, atol=1e-10)


def names(model: nn.Module) -> set[str]:
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_split_into_frozen_trunk_and_trained_head():
    model = VisionTransformer(image_size=32, trainable=1, dropout=0.5, drop_path=0.5, **OURS).train()
    assert model.cacheable
    assert {name.split(".")[0] + "." + name.split(".")[1] for name in names(model)} == {
        "blocks.2",
        "norm.weight",
        "norm.bias",
    }
    images = torch.randn(2, 3, 32, 32)
    features = model.trunk(images)
    torch.testing.assert_close(
        features, model.trunk(images), rtol=0, atol=0
    )  # no dropout in the trunk, also in training
    assert not features.requires_grad
    assert not torch.equal(model.head(features).tokens, model.head(features).tokens)
    model.eval()
    torch.testing.assert_close(model(images).tokens, model.head(features).tokens, rtol=0, atol=0)
    model.head(features).pooled.sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in model.parameters())

    assert len(model(images, need_attention=True).attentions) == 3
    with pytest.raises(ValueError, match="call the encoder on images"):
        model.head(features, need_attention=True)


def test_trainable_all_and_none():
    whole = VisionTransformer(image_size=32, **OURS)
    assert not whole.cacheable
    assert len(names(whole)) == len(list(whole.parameters()))
    images = torch.randn(1, 3, 32, 32)
    features = whole.trunk(images)
    assert features.requires_grad
    assert len(whole.head(features, need_attention=True).attentions) == 3
    frozen = VisionTransformer(image_size=32, trainable="none", dropout=0.5, **OURS).train()
    assert not names(frozen)
    torch.testing.assert_close(frozen(images).tokens, frozen(images).tokens, rtol=0, atol=0)


def test_fingerprint_follows_the_trunk_only():
    torch.manual_seed(0)
    model = VisionTransformer(image_size=32, trainable=1, **OURS)
    before = model.fingerprint()
    with torch.no_grad():
        model.blocks[2].mlp.fc1.weight.add_(1)
        model.norm.bias.add_(1)
    assert model.fingerprint() == before
    with torch.no_grad():
        model.blocks[1].mlp.fc1.weight.view(-1)[0] += 1e-3
    assert model.fingerprint() != before
    torch.manual_seed(0)
    assert VisionTransformer(image_size=32, trainable=1, **{**OURS, "heads": 2}).fingerprint() != before
    torch.manual_seed(0)
    assert VisionTransformer(image_size=32, trainable=1, **OURS).fingerprint() == before


@pytest.mark.parametrize("position", ["none", "learned", "sinusoidal", "rotary", "alibi"])
def test_positions_tell_patches_apart(position):
    torch.manual_seed(0)
    model = VisionTransformer(image_size=32, patch_size=8, position=position, class_token=False, pool="mean", **OURS)
    randomised(model)
    image = torch.randn(1, 3, 32, 32)
    turned = image.unflatten(2, (4, 8)).flip(2).flatten(2, 3)  # rows of patches in reverse order
    with torch.no_grad():
        a, b = model(image).pooled, model(turned).pooled
    if position == "none":
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)
    elif position == "alibi":  # knows distances only, so that a mirrored grid looks the same; a rolled one does not
        with torch.no_grad():
            b = model(image.unflatten(2, (4, 8)).roll(1, 2).flatten(2, 3)).pooled
        assert (a - b).abs().max() > 1e-3
    else:
        assert (a - b).abs().max() > 1e-3


@pytest.mark.parametrize("position", ["none", "sinusoidal", "rotary", "alibi"])
def test_schemes_without_a_table_take_weights_of_any_resolution(position):
    options = {"patch_size": 8, "position": position, "registers": 2, **OURS}
    small, large = (VisionTransformer(image_size=size, **options) for size in (16, (40, 24)))
    large.load_state_dict(randomised(small).state_dict())
    memory = large.eval()(torch.randn(1, 3, 40, 24))
    assert memory.grid == (5, 3)
    assert memory.tokens.shape == (1, 3 + 15, 32)
    assert memory.tokens.isfinite().all()


def test_bad_arguments_state_both_numbers():
    with pytest.raises(ValueError, match="image_size 30x32 is not a multiple of the patch size 16x16"):
        VisionTransformer(image_size=(30, 32), **OURS)
    with pytest.raises(ValueError, match="needs class_token=True"):
        VisionTransformer(image_size=32, class_token=False, **OURS)
    with pytest.raises(ValueError, match="pool must be"):
        VisionTransformer(image_size=32, pool="max", **OURS)
    with pytest.raises(ValueError, match="trainable=4, but the encoder has 3 blocks"):
        VisionTransformer(image_size=32, trainable=4, **OURS)
    with pytest.raises(ValueError, match="width 32 is not a multiple of 5 heads"):
        VisionTransformer(image_size=32, **{**OURS, "heads": 5})
    with pytest.raises(ValueError, match="unknown position scheme"):
        VisionTransformer(image_size=32, position="fourier", **OURS)
    with pytest.raises(ValueError, match=r"\(batch, 3, 32, 32\), got \(1, 3, 32, 48\)"):
        VisionTransformer(image_size=32, **OURS)(torch.zeros(1, 3, 32, 48))


def test_memory_type_and_preprocessing():
    model = VisionTransformer(image_size=(32, 48), **OURS)
    assert isinstance(model(torch.zeros(1, 3, 32, 48)), Memory)
    assert model.preprocess["size"] == (32, 48)
    assert model.preprocess["mean"] == (0.485, 0.456, 0.406)
    assert model.width == 32
