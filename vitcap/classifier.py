"""The user's door to classification: pictures in, classes with probabilities out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Self, overload

import torch

from vitcap import checkpoint
from vitcap.data.transforms import Preprocess
from vitcap.door import Picture, PictureDoor
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


class Classifier(PictureDoor):
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
        super().__init__(model, description)
        self.preprocess = preprocess
        self.classes, self.class_names = tuple(c for c, _ in classes), tuple(name for _, name in classes)

    @classmethod
    def of(cls, saved: checkpoint.Saved, *, device: str | torch.device = "cpu") -> Self:
        """The classifier of a model file that is read already. Raises CheckpointError in one line."""
        d = saved.description
        model = checkpoint.rebuild(saved, "classify").to(device)
        return cls(model, d["classes"], Preprocess.from_dict(d["preprocess"]), description=d)

    def class_index(self, name: str | int) -> int:
        """Index of a class given by its index, its name in the data, or its name for people.

        Raises ValueError for a class that is not there, or a name for people that several classes have.
        """
        if isinstance(name, int):
            if not 0 <= name < len(self.classes):
                raise ValueError(
                    f"class {name}: this model has {len(self.classes)} classes, 0 to {len(self.classes) - 1}"
                )
            return name
        if name in self.classes:
            return self.classes.index(name)
        found = [index for index, other in enumerate(self.class_names) if other.casefold() == name.casefold()]
        if len(found) > 1:
            ids = ", ".join(f"{index} ({self.classes[index]})" for index in found)
            raise ValueError(f"class {name!r}: {len(found)} classes have this name; give the index of one: {ids}")
        if not found:
            raise ValueError(
                f"class {name!r}: this model has none of that name; its classes are {_some(self.class_names)}"
            )
        return found[0]

    def logits(self, batch: Batch) -> torch.Tensor:
        """(B, C), without gradients, on the model's device. A batch that does not fit the memory is halved."""
        with torch.inference_mode():
            return torch.cat(self.fitting(lambda part: self.model(part.to(self.device)).float(), batch))

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
            probabilities = self.logits(self.batch(part)).softmax(-1)
            values, indices = probabilities.topk(min(top, len(self.classes)))
            found += [
                [Prediction(self.class_names[i], i, p) for p, i in zip(ps, row, strict=True)]
                for ps, row in zip(values.tolist(), indices.tolist(), strict=True)
            ]
        return found


def _some(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
