"""The architecture as a test: who may import whom, and which library appears where."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

PACKAGE = Path(__file__).resolve().parents[1] / "vitcap"

# A module imports only lower layers, or its own folder.
LAYERS = {
    "types": 0,
    "processes": 0,
    "files": 0,
    "stopping": 0,
    "machine": 0,
    "memory": 1,
    "record_check": 0,
    "record": 1,
    "nn": 1,
}
LAYERS |= {"models": 2, "decoding": 2, "data": 2, "metrics": 2, "viz": 2, "tasks": 3}
TOP = 4

# Library -> the only places that may import it.
HOMES = {
    "hydra": {"run", "build", "command", "overrides", "scoring"},
    "omegaconf": {"run", "build", "command", "overrides", "scoring", "launch"},
    "lightning": {"run", "launch", "data/module", "tasks"},
    "timm": {"models/backbones"},
    "pycocotools": {"data/coco"},
    "starlette": {"serve"},
    "uvicorn": {"serve"},
    "python_multipart": {"serve"},
}


def modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def imports(path: Path) -> set[str]:
    """Absolute names of the modules that a file imports, also inside functions, but not for type checking only."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found.add(str(node.module))
            found |= {f"{node.module}.{alias.name}" for alias in node.names if node.module == "vitcap"}
    return found


def place(path: Path) -> str:
    return path.relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__")


def layer(part: str) -> int:
    return LAYERS.get(part, TOP)


@pytest.mark.parametrize("path", modules(), ids=place)
def test_modules_import_only_lower_layers_or_their_own_folder(path):
    own = place(path).split("/")[0]
    for name in imports(path):
        if name.startswith("vitcap."):
            part = name.split(".")[1]
            if part != own and not (layer(own) == TOP and layer(part) == TOP):
                assert layer(part) < layer(own), f"{place(path)} imports {name}"


@pytest.mark.parametrize("library", HOMES)
def test_libraries_stay_in_their_places(library):
    for path in modules():
        if any(name == library or name.startswith(f"{library}.") for name in imports(path)):
            where = place(path)
            assert where in HOMES[library] or where.split("/")[0] in HOMES[library], f"{where} imports {library}"


def test_importing_vitcap_is_light():
    code = "import sys, vitcap; print([m for m in ('torch', 'lightning', 'hydra', 'timm') if m in sys.modules])"
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PACKAGE.parent)
    assert out.stdout.strip() == "[]"


def test_no_module_is_longer_than_300_lines():
    long = {place(p): n for p in modules() if (n := len(p.read_text(encoding="utf-8").splitlines())) > 300}
    assert not long
