"""vitcap: vision Transformers and image captioning with attention you can look at.

import vitcap
captioner = vitcap.load("runs/demo/model.safetensors")
print(captioner.caption("photo.jpg"))
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vitcap.captioner import Captioner

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def load(path: str | Path, *, device: str = "cpu") -> Captioner:
    """Captioner of a model file (`model.safetensors`, a `.ckpt`) or of a finished run's folder.

    device: where the model computes, as torch names it.
    Raises vitcap.checkpoint.CheckpointError, in one line, for anything else.
    """
    # Imported here so that `import vitcap` stays instant.
    from vitcap.captioner import Captioner

    return Captioner.load(path, device=device)
