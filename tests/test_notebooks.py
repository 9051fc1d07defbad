"""The notebooks: clean files, public names only, and every cell runs from top to bottom."""

from __future__ import annotations

import ast
import os
import re
from pathlib import Path

import nbformat
import pytest
from nbclient import NotebookClient

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
each = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def read(path: Path) -> nbformat.NotebookNode:
    return nbformat.read(path, as_version=4)


def code(notebook: nbformat.NotebookNode) -> list[str]:
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def private_names(source: str) -> list[str]:
    """Imported names and attributes that begin with one underscore."""
    found = []
    for node in ast.walk(ast.parse(source)):
        names = []
        if isinstance(node, ast.Import):
            names = [part for alias in node.names for part in alias.name.split(".")]
        elif isinstance(node, ast.ImportFrom):
            names = [*str(node.module).split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        found += [name for name in names if re.match(r"_(?!_)", name)]
    return found


def imported(source: str) -> list[str]:
    """Modules that a cell imports."""
    modules: list[str] = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            modules += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            modules.append(str(node.module))
    return modules


def test_the_lecture_is_there():
    assert [path.stem[:2] for path in NOTEBOOKS] == [f"{number:02d}" for number in range(1, len(NOTEBOOKS) + 1)]
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03", "04", "05"]


def test_the_readme_lists_every_notebook():
    listed = re.findall(r"`(\w+\.ipynb)`", (ROOT / "notebooks" / "README.md").read_text(encoding="utf-8"))
    assert listed == [path.name for path in NOTEBOOKS]


@each
def test_file_is_clean(path):
    notebook = read(path)
    nbformat.validate(notebook)
    assert (notebook.nbformat, notebook.nbformat_minor) == (4, 5)
    assert notebook.metadata.kernelspec.name == "python3"
    ids = [cell.id for cell in notebook.cells]
    assert len(set(ids)) == len(ids)
    for cell in notebook.cells:
        assert cell.source.strip(), f"{cell.id} is empty"
        assert not cell.metadata, f"{cell.id} has metadata"
        if cell.cell_type == "code":
            assert not cell.outputs, f"{cell.id} has outputs"
            assert cell.execution_count is None, f"{cell.id} has an execution count"


@each
def test_links_lead_to_files(path):
    for cell in read(path).cells:
        for target in re.findall(r"\]\(([^)#]+\.ipynb)\)", cell.source):
            assert (path.parent / target).is_file(), f"{cell.id}: {target}"


@each
def test_only_public_names_of_vitcap(path):
    cells = code(read(path))
    assert any(name.split(".")[0] == "vitcap" for cell in cells for name in imported(cell))
    assert [name for cell in cells for name in private_names(cell)] == []


@pytest.mark.parametrize(
    "source", ["from vitcap.nn import _x", "import vitcap._x", "from vitcap._x import y", "model._step(1)"]
)
def test_private_names_are_noticed(source):
    assert private_names(source)


@each
def test_runs_from_top_to_bottom_and_draws(path, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))))
    notebook = read(path)
    NotebookClient(
        notebook, timeout=600, kernel_name="python3", resources={"metadata": {"path": str(path.parent)}}
    ).execute()  # raises with the cell and its error
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in cells] == list(range(1, len(cells) + 1))
    outputs = [output for cell in cells for output in cell.outputs]
    assert any("image/png" in output.get("data", {}) for output in outputs), "no figure"
    messages = [output.text for output in outputs if output.output_type == "stream" and output.name == "stderr"]
    assert not [text for text in messages if "Warning" in text], messages
