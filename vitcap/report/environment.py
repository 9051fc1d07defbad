"""Where and how a run was made: `environment.json`."""

from __future__ import annotations

import json
import os
import platform
import shlex
import subprocess
import sys
import time
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import vitcap
from vitcap import processes

FILE = "environment.json"
PACKAGES = ("torch", "torchvision", "timm", "lightning", "tokenizers", "numpy", "pillow")


def environment(*, device: str, started: float | None = None) -> dict[str, Any]:
    """Versions, machine and command of this process, in plain JSON types; memory_gib: the most that it has had so far.

    device: where the model is. started: time.time() at the start.
    """
    found: dict[str, Any] = {
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "vitcap": vitcap.__version__,
        "revision": revision(),
        "python": platform.python_version(),
        "packages": {name: text for name in PACKAGES if (text := _version(name))},
        "system": f"{platform.system()} {platform.release()}, {platform.machine()}",
        "device": _device(device),
        "processes": processes.share()[1],
        "threads": torch.get_num_threads(),
        "cores": os.cpu_count(),
        "memory_gib": _memory(device),
    }
    if started is not None:
        found["started"] = time.strftime("%Y-%m-%d %H:%M:%S %z", time.localtime(started))
        found["minutes"] = round((time.time() - started) / 60, 2)
    return found


def revision() -> str | None:
    """The git revision of the source tree that this is, "-dirty" where files differ from it; None without one."""
    root = Path(vitcap.__file__).parents[1]
    if not (root / ".git").exists():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        told = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return told or None


def read_environment(folder: Path) -> dict[str, Any]:
    """What a run wrote of its environment; nothing where it wrote none."""
    try:
        found = json.loads((folder / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _device(name: str) -> str:
    if name.startswith("cuda") and torch.cuda.is_available():
        return torch.cuda.get_device_name(torch.device(name))
    return name


def _memory(device: str) -> dict[str, float]:
    found = {}
    if sys.platform != "win32":
        import resource

        unit = 2**30 if sys.platform == "darwin" else 2**20
        found["process"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / unit, 2)
    if device.startswith("cuda") and torch.cuda.is_available():
        found["device"] = round(torch.cuda.max_memory_allocated(torch.device(device)) / 2**30, 2)
    return found
