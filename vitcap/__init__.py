"""vitcap: vision Transformers and image captioning with attention you can look at.

import vitcap
captioner = vitcap.load()  # the packaged model; or the path of a model file, or of a run
print(captioner.caption("photo.jpg"))
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitcap.captioner import Captioner
    from vitcap.classifier import Classifier
    from vitcap.translator import Translator

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(path: str | Path | None = None, *, device: str = "cpu") -> Captioner | Translator | Classifier:
    """Model of a file (`model.safetensors`, a `.ckpt`) or of a finished run's folder, ready for use.

    path: or the name of a packaged model (vitcap.pretrained.names()), where no file or run has that name; None for the
    packaged captioner.

    A Captioner for pictures, a Translator for sentences or a Classifier for pictures, as the model was trained.
    device: where the model computes, as torch names it.
    Raises vitcap.checkpoint.CheckpointError, in one line, for anything else.
    """
    # Imported here so that `import vitcap` stays instant.
    from vitcap import checkpoint, pretrained
    from vitcap.captioner import Captioner
    from vitcap.classifier import Classifier
    from vitcap.translator import Translator

    saved = checkpoint.read(pretrained.path() if path is None else path)
    doors: dict[str, type[Captioner] | type[Translator] | type[Classifier]]
    doors = {"caption": Captioner, "translate": Translator, "classify": Classifier}
    return doors[saved.kind].of(saved, device=device)
