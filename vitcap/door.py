"""What the doors to all models share: loading, saving, the fingerprint of the weights; and those to picture models."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any, Self

import torch
from PIL import Image

from vitcap import checkpoint
from vitcap.data.images import Encoded, load_image, to_rgb
from vitcap.data.transforms import Preprocess
from vitcap.memory import Halving
from vitcap.models.captioner import EncoderModel
from vitcap.models.weights import fingerprint
from vitcap.record import View
from vitcap.types import Batch

Picture = str | Path | Encoded | Image.Image


class Door:
    """A trained model, in evaluation mode, and the description that its file has of it."""

    model: Any

    def __init__(self, model: EncoderModel, description: dict[str, Any] | None) -> None:
        self.model, self.description = model.eval(), description or {}
        self.fitting = Halving("the model's work")

    @classmethod
    def load(cls, path: str | Path, *, device: str | torch.device = "cpu") -> Self:
        """Read a model file (model.safetensors or .ckpt) or a run folder. Raises CheckpointError in one line."""
        return cls.of(checkpoint.read(path), device=device)

    @classmethod
    def of(cls, saved: checkpoint.Saved, *, device: str | torch.device = "cpu") -> Self:
        """The model of a file that is read already. Raises CheckpointError in one line."""
        raise NotImplementedError

    @property
    def device(self) -> torch.device:
        """Where the model is."""
        return self.model.mean.device

    @property
    def view(self) -> View | None:
        """How the model's attention is best looked at, as its file says; None where it says nothing."""
        return checkpoint.view_of(self.description)

    @property
    def fingerprint(self) -> str:
        """The first 16 hexadecimal digits of the SHA-256 of the weights; they are read again only when they changed."""
        tensors = chain(self.model.parameters(), self.model.buffers())
        version = [(t.data_ptr(), 0 if t.is_inference() else t._version) for t in tensors]
        if getattr(self, "_version", None) != version:
            self._fingerprint, self._version = fingerprint(self.model.state_dict().items(), None)[:16], version
        return self._fingerprint

    def save(self, path: str | Path, *, storage: str = "fp32") -> Path:
        """Write the whole model to one safetensors file, which `vitcap.load` reads; returns its path.

        storage: how weights are stored, "fp32", "fp16" or "int8"; see vitcap.models.storage.pack.
        """
        return checkpoint.write(path, self.model, self.description, storage=storage)


class PictureDoor(Door):
    """A model that reads pictures: how they become its input, and the grid that it sees in them."""

    preprocess: Preprocess

    def batch(self, pictures: Sequence[Picture]) -> Batch:
        """The model's input of some pictures. Raises ImageError, naming the file, for one that cannot be read."""
        images = torch.stack([self.preprocess(open_picture(picture)) for picture in pictures])
        return Batch(ids=tuple(range(len(pictures))), images=images)

    @property
    def grid(self) -> tuple[int, int] | None:
        """(rows, columns) of the memory's patches; None where the model has none."""
        return self._places()[0]

    @property
    def grid_box(self) -> tuple[float, float, float, float]:
        """The rectangle of the input, in its pixels, that the patches share out evenly; see vitcap.types.Encoder."""
        height, width = self.preprocess.size
        if getattr(self, "_box_of", None) != self.fingerprint:  # finding it takes a pass
            self._box = getattr(self.model.encoder, "grid_box", (0.0, 0.0, float(width), float(height)))
            self._box_of = self.fingerprint
        return self._box

    @property
    def prefix(self) -> int:
        """Number of memory tokens before the patches (class token, registers)."""
        return self._places()[1]

    def _places(self) -> tuple[tuple[int, int] | None, int]:
        if not hasattr(self, "_found"):
            empty = torch.zeros(1, 3, *self.preprocess.size, device=self.device)
            with torch.inference_mode():
                memory = self.model.encode(Batch(ids=(0,), images=empty))
            self._found = memory.grid, memory.prefix
        return self._found


def open_picture(picture: Picture) -> Image.Image:
    """The upright RGB picture. Raises ImageError, naming the file, for one that cannot be read."""
    return to_rgb(picture) if isinstance(picture, Image.Image) else load_image(picture)
