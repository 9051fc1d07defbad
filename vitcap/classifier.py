"""The user's door to classification: pictures in, classes with probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, overload

import torch

from vitcap import checkpoint
from vitcap.captioner import Picture, open_picture
from vitcap.data.transforms import Preprocess
from vitcap.models.classifier import ImageClassifier
from vitcap.types import Batch
from vitcap.writer import require_counts


@dataclass(frozen=True)
class Prediction:
    """One class of one picture: its name, its index, and its probability under the model, 0..1."""

    name: str
    index: int
    probability: float

    def __str__(self) -> str:
        return self.name


class Classifier:
    """A trained image classifier with its class names and preprocessing.

    classes: (class, name for people) in the order of the model's outputs. description: the model file's description.
    """

    def __init__(
        self,
        model: ImageClassifier,
        classes: Sequence[tuple[str, str]],
        preprocess: Preprocess,
        *,
        description: dict[str, Any] | None = None,
    ) -> None:
        self.model, self.preprocess = model.eval(), preprocess
        self.classes, self.class_names = tuple(c for c, _ in classes), tuple(name for _, name in classes)
        self.description = description or {}

    @classmethod
    def load(cls, path: str | Path, *, device: str | torch.device = "cpu") -> Classifier:
        """Read a model file (model.safetensors or .ckpt) or a run folder. Raises CheckpointError in one line."""
        return cls.of(checkpoint.read(path), device=device)

    @classmethod
    def of(cls, saved: checkpoint.Saved, *, device: str | torch.device = "cpu") -> Classifier:
        """The classifier of a model file that is read already. Raises CheckpointError in one line."""
        d = saved.description
        model = checkpoint.rebuild(saved, "classify").to(device)
        return cls(model, d["classes"], Preprocess.from_dict(d["preprocess"]), description=d)

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.mean.device

    def logits(self, batch: Batch) -> torch.Tensor:
        """(B, C), without gradients, on the model's device."""
        with torch.inference_mode():
            return self.model(batch.to(self.device)).float()

    @overload
    def classify(self, pictures: Picture, *, top: int = ..., batch_size: int = ...) -> list[Prediction]: ...  # type: ignore[overload-overlap]
    @overload
    def classify(
        self, pictures: Sequence[Picture], *, top: int = ..., batch_size: int = ...
    ) -> list[list[Prediction]]: ...
    def classify(
        self, pictures: Picture | Sequence[Picture], *, top: int = 5, batch_size: int = 16
    ) -> list[Prediction] | list[list[Prediction]]:
        """The `top` likeliest classes of one picture (a path or a PIL image), best first; of a list, a list of those.

        Raises ImageError, naming the file, for a picture that cannot be read, and ValueError for options out of range.
        """
        require_counts(top=top, batch_size=batch_size)
        if isinstance(pictures, Picture):
            return self.classify([pictures], top=top)[0]
        found: list[list[Prediction]] = []
        for start in range(0, len(pictures), batch_size):
            part = pictures[start : start + batch_size]
            images = torch.stack([self.preprocess(open_picture(p)) for p in part])
            probabilities = self.logits(Batch(ids=tuple(range(len(part))), images=images)).softmax(-1)
            values, indices = probabilities.topk(min(top, len(self.classes)))
            found += [
                [Prediction(self.class_names[i], i, p) for p, i in zip(ps, row, strict=True)]
                for ps, row in zip(values.tolist(), indices.tolist(), strict=True)
            ]
        return found

    def save(self, path: str | Path) -> Path:
        """Write the whole model to one safetensors file, which `vitcap.load` reads; returns its path."""
        return checkpoint.write(path, self.model, self.description)
