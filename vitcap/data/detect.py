"""Which format a data folder is in, told by the files in it, and the source that reads it."""

from __future__ import annotations

import inspect
import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from vitcap.data.coco import CocoSource, KarpathySource
from vitcap.data.image_folder import SPLIT_FOLDERS, ImageFolderSource
from vitcap.data.images import find_images
from vitcap.data.karpathy import find_lists
from vitcap.data.pairs import PairsSource
from vitcap.data.reading import is_folder
from vitcap.data.records import FileSource
from vitcap.data.tables import FlickrSource, TableSource

SOURCES: dict[str, Callable[..., FileSource | PairsSource]] = {
    "coco": CocoSource,
    "karpathy": KarpathySource,
    "flickr": FlickrSource,
    "table": TableSource,
    "imagenet": ImageFolderSource,
    "pairs": PairsSource,
}
"""Name of a format, as of conf/data, to what reads it."""

FOLDER = "folder"
"""Name of the format of pictures alone."""

_BY_SUFFIX = {".json": ("coco", "karpathy"), ".jsonl": ("table",), ".csv": ("table", "flickr")}
_BY_SUFFIX |= {".tsv": ("pairs", "table"), ".token": ("flickr",), ".txt": ("pairs", "flickr")}
_FILE_OPTION = {"karpathy": "json", "flickr": "captions", "table": "file", "pairs": "file"}
_FLICKR = ("Flickr8k.token.txt", "results_20130124.token", "results.csv", "captions.txt", "*.token.txt", "*.token")


def detect(path: Path, wanted: str | None = None) -> tuple[str, Path, dict[str, Any]]:
    """(format, data folder, options of its source) of a data folder or of one annotation file.

    wanted: the format, if it is known. Raises ValueError where several formats fit, naming them, or none does.
    """
    if not path.is_dir():
        return _detect_file(path, wanted)
    if wanted is not None:
        return wanted, path, {}
    fits = [name for name, there in (("coco", _coco), ("karpathy", _karpathy), ("flickr", _flickr)) if there(path)]
    fits += [] if "flickr" in fits else [name for name in ("table", "pairs") if _has_columns(path, name)]
    if len(fits) > 1:
        raise ValueError(f"{path}: may be {' or '.join(fits)}: say which with --data")
    if not fits:
        fits = ["imagenet"] if _class_folders(path) else [FOLDER] if find_images(path) else []
    if not fits:
        raise ValueError(f"{path}: neither annotations nor pictures that are known; say what it is with --data")
    return fits[0], path, {}


def options_of(name: str) -> list[str]:
    """Options that the source of a format takes, besides the folder."""
    return [] if name == FOLDER else [key for key in inspect.signature(SOURCES[name]).parameters if key != "root"]


def _detect_file(path: Path, wanted: str | None) -> tuple[str, Path, dict[str, Any]]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: {'no regular file' if path.exists() else 'no such file or folder'}")
    fits = _BY_SUFFIX.get(path.suffix.lower(), ())
    if not fits:
        raise ValueError(f"{path}: a data folder is wanted, or a file of {', '.join(_BY_SUFFIX)}")
    if wanted is not None and wanted not in fits:
        raise ValueError(f"{path}: no file of {wanted}; it may be {' or '.join(fits)}")
    if wanted is None and path.suffix.lower() == ".json":
        with path.open("rb") as file:
            wanted = "karpathy" if b'"sentences"' in file.read(2**16) else "coco"
    elif wanted is None and len(fits) > 1:
        wanted = next((name for name in fits if name in ("table", "pairs") and _columns_fit(path, name)), fits[-1])
    name = wanted or fits[0]
    if name == "coco":
        root = path.parent.parent if path.parent.name == "annotations" else path.parent
        split = next((split for split in ("train", "val", "test") if split in path.stem), "all")
        return name, root, {"annotations": {split: str(path.relative_to(root))}}
    return name, path.parent, {_FILE_OPTION[name]: path.name}


def _coco(root: Path) -> bool:
    return any(_there(root, ["captions_*.json", "annotations/captions_*.json"])) and not find_lists(root)


def _karpathy(root: Path) -> bool:
    return any(_there(root, ["dataset*.json", "*/dataset*.json"])) or bool(find_lists(root))


def _flickr(root: Path) -> bool:
    return any(_there(root, [*_FLICKR, *(f"Flickr8k_text/{name}" for name in _FLICKR)]))


def _has_columns(root: Path, name: str) -> bool:
    return any(_columns_fit(path, name) for path in _there(root, ["*.csv", "*.tsv", "*.jsonl"]))


def _columns_fit(path: Path, name: str) -> bool:
    if not path.is_file():  # a pipe would be waited for
        return False
    wanted = ({"image"}, {"caption", "captions"}) if name == "table" else ({"source"}, {"target"})
    with path.open(encoding="utf-8-sig", errors="replace") as file:
        first = file.readline(2**16).strip()
    if path.suffix.lower() == ".jsonl":
        try:
            row = json.loads(first)
        except (ValueError, RecursionError):
            return name == "table"
        names = set(row) if isinstance(row, dict) else set()
    else:
        names = {part.strip().strip('"').lower() for part in first.replace("\t", ",").split(",")}
    return all(names & any_of for any_of in wanted)


def _class_folders(root: Path) -> bool:
    """Whether there are split folders with class folders, or at least two folders of pictures and no picture beside."""
    splits = [root / name for names in SPLIT_FOLDERS.values() for name in names if (root / name).is_dir()]
    if splits:
        return True
    if any(root.glob("*class_index.json")):
        return True
    below = [
        Path(entry.path) for entry in os.scandir(root) if is_folder(entry) and not entry.name.startswith((".", "_"))
    ]
    direct = [path for path in find_images(root) if path.parent == root]
    return not direct and len(below) > 1 and all(any(p.parent == d for p in find_images(d)) for d in below)


def _there(root: Path, patterns: Iterable[str]) -> list[Path]:
    return [path for pattern in patterns for path in root.glob(pattern) if not path.name.startswith(".")]
