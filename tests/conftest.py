"""Shared by the tests: configs composed as the scripts compose them, at toy size."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from hydra import compose, initialize_config_dir
from omegaconf import DictConfig

CONF = Path(__file__).resolve().parents[1] / "conf"

QUICK = ("samples=0", "report=false")
"""Left out of runs that are not about them: both would take longer than a tiny run does."""
TINY = (
    "data.source.train_size=40",
    "data.source.val_size=12",
    "data.batch_size=8",
    "model.encoder.width=32",
    "model.encoder.depth=1",
    "model.encoder.heads=2",
    "model.encoder.patch_size=16",
    "model.decoder.width=32",
    "model.decoder.depth=1",
    "model.decoder.heads=2",
    "overlays=0",
    *QUICK,
)
"""Overrides that make the default model and data tiny."""


@pytest.fixture(autouse=True, scope="session")
def _few_threads() -> None:
    torch.set_num_threads(1)  # the tests are too small to share, and threads that wait for a busy core cost most


@pytest.fixture(autouse=True, scope="session")
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> None:
    os.environ["VITCAP_CACHE"] = str(tmp_path_factory.mktemp("cache"))  # data checks are remembered there


@pytest.fixture
def config() -> Callable[..., DictConfig]:
    """config(*overrides, name="config"): the composed config of scripts/train.py, `QUICK`, or of name="evaluate"."""

    def make(*overrides: str, name: str = "config") -> DictConfig:
        with initialize_config_dir(str(CONF), version_base="1.3"):
            return compose(name, overrides=[*(QUICK if name == "config" else ()), *overrides])

    return make


@pytest.fixture(scope="session")
def data_root() -> Path:
    """Folder of the real data, from the environment variable VITCAP_DATA; tests that need it are skipped without."""
    root = os.environ.get("VITCAP_DATA")
    if not root or not Path(root).is_dir():
        pytest.skip("VITCAP_DATA does not name the folder of the real data")
    return Path(root)
