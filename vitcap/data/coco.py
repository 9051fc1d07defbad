"""Captions in JSON: the COCO format (Chen et al. 2015) and the split files of Karpathy and Fei-Fei 2015."""

from __future__ import annotations

import contextlib
import io
import os
import re
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitcap.data.annotations import is_id, kind_of, validate
from vitcap.data.karpathy import find_lists, split_by_lists
from vitcap.data.reading import image_folder, only_file, plain_path, read_json
from vitcap.data.records import Entry, FileSource

_CAPTION_FILE = re.compile(r"captions_(train|val|test)(\d{4})?\.json")


class CocoSource(FileSource):
    """COCO captions: one annotation file and one image folder for each split.

    root: the data folder. annotations: split -> JSON file under it; left out, `annotations/captions_<split><year>.json`
        and `captions_<split><year>.json` are looked for. images: split -> image folder; left out, the usual
        `<split><year>`, `images/<split><year>`, `<split>`, `images/<split>`, `images` and the root itself.
    val_fraction, split_seed, on_missing, report: see FileSource.

    Two files under one image id are an error: captions must not change pictures. So is an annotation of an image that
    is not in the file's list, but with on_missing="skip".
    """

    name = "coco"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        annotations: Mapping[str, str] | None = None,
        images: Mapping[str, str] | None = None,
        val_fraction: float | None = None,
        split_seed: int = 0,
        on_missing: str = "error",
    ) -> None:
        super().__init__(root, val_fraction=val_fraction, split_seed=split_seed, on_missing=on_missing)
        for option, value in (("annotations", annotations), ("images", images)):
            if value is not None and not isinstance(value, Mapping):
                raise ValueError(f"data.source.{option}={value}: one a split is wanted, such as {{train: {value}}}")
        self.images = dict(images or {})
        if annotations:
            self.annotations = {split: self.root / name for split, name in annotations.items() if name}
        else:
            self.annotations = self._discover()

    def _discover(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for path in sorted([*self.root.glob("annotations/captions_*.json"), *self.root.glob("captions_*.json")]):
            if match := _CAPTION_FILE.fullmatch(path.name):
                if other := found.get(match[1]):
                    raise ValueError(
                        f"{self.root}: {other.name} and {path.name} both fit; choose with data.source.annotations="
                    )
                found[match[1]] = path
        if not found:
            raise FileNotFoundError(
                f"{self.root}: no annotations/captions_train2017.json or the like; give data.source.annotations="
            )
        return {split: found[split] for split in ("train", "val", "test") if split in found}

    def _own_splits(self) -> tuple[str, ...]:
        return tuple(self.annotations)

    def _why_not(self, split: str) -> str:
        return f" (no captions_{split}*.json)"

    def _entries(self, split: str) -> list[Entry]:
        path = self.annotations[split]
        data = read_json(path)
        for what, count in validate(data, path, self._refuse, skip=self.on_missing == "skip").items():
            self._note(what, str(path), count)
        if not data["images"]:
            raise ValueError(f"{path}: no images in it")
        images, captions = _index(data)
        year = match[2] or "" if (match := _CAPTION_FILE.fullmatch(path.name)) else ""
        usual = [f"{split}{year}", f"images/{split}{year}", split, f"images/{split}", "images", ""]
        example = plain_path(data["images"][0]["file_name"])
        folder = image_folder(self.root, self.images.get(split), usual, example)
        return [
            Entry(
                image_id,
                folder / plain_path(image["file_name"]),
                [annotation.get("caption") for annotation in captions.get(image_id, ())],
                f"{path.name}, image id {image_id}",
            )
            for image_id, image in images.items()
        ]


class KarpathySource(FileSource):
    """The splits of Karpathy and Fei-Fei 2015: `dataset_coco.json`, `dataset_flickr8k.json` or `_flickr30k.json`, or,
    for COCO, the official captions of 2014 and lists of the images of each split.

    root: the data folder. json: the split file under it; left out, the only `dataset*.json`. images: the folder that
        `filepath` and `filename` start from; left out, the root, `images` or the usual Flickr folders.
    lists: the folder of `coco_val.txt`, `coco_test.txt` and so on (see karpathy.find_lists), beside `annotations` with
        captions_train2014.json and captions_val2014.json; looked for where there is no split file. Pictures are then in
        `train2014` and `val2014`, in `images` if that is given. expect: see karpathy.split_by_lists.
    restval: count "restval" (COCO val images in neither val nor test) as train, as is usual; else it is a split.
    val_fraction, split_seed, on_missing, report: see FileSource.

    Ids are COCO's own if the file has them. Captions are the raw sentences; the token lists of the file are only used
    where there is no raw text.
    """

    name = "karpathy"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        json: str | None = None,
        images: str | None = None,
        lists: str | None = None,
        expect: bool = True,
        restval: bool = True,
        val_fraction: float | None = None,
        split_seed: int = 0,
        on_missing: str = "error",
    ) -> None:
        super().__init__(root, val_fraction=val_fraction, split_seed=split_seed, on_missing=on_missing)
        if json and lists:
            raise ValueError(f"data.source.json={json}, data.source.lists={lists}: only one of them can say the splits")
        self.images, self.restval, self.expect = images, restval, expect
        split_files = ["dataset*.json", "*/dataset*.json"]
        there = json or (lists is None and any(path for name in split_files for path in self.root.glob(name)))
        self.lists = {} if there else find_lists(self.root, lists)
        if not self.lists:
            try:
                self.file = self.root / json if json else only_file(self.root, split_files, "data.source.json")
            except FileNotFoundError as error:
                raise FileNotFoundError(
                    f"{error}, or the folder of coco_val.txt and coco_test.txt with data.source.lists="
                ) from None

    @cached_property
    def _by_split(self) -> dict[str, list[Entry]]:
        return self._by_lists() if self.lists else self._by_file()

    def _by_lists(self) -> dict[str, list[Entry]]:
        below = "annotations/" if (self.root / "annotations").is_dir() else ""
        files = {split: f"{below}captions_{split}2014.json" for split in ("train", "val")}
        for name in files.values():
            if not (self.root / name).is_file():
                raise FileNotFoundError(
                    f"{self.root / name}: no such file; lists of images need the official captions of 2014, both files"
                )
        folders = self.images and {split: f"{self.images}/{split}2014" for split in files}
        official = CocoSource(self.root, annotations=files, images=folders or None)
        official.refused = self.refused
        pictures = {split: official._entries(split) for split in files}
        self.report.update(official.report)
        self.places.update(official.places)
        splits = split_by_lists(self.lists, pictures["train"], pictures["val"], expect=self.expect, refuse=self._refuse)
        if self.restval:
            splits["train"] = [*splits.get("train", ()), *splits.pop("restval", ())]
        return splits

    def _by_file(self) -> dict[str, list[Entry]]:
        data = read_json(self.file)
        images = data.get("images") if isinstance(data, dict) else None
        if not isinstance(images, list) or not images:
            raise ValueError(
                f"{self.file}: {kind_of(data)}, not a Karpathy split file (an object with a list of images)"
            )
        usual = [
            "",
            "images",
            "Images",
            "Flicker8k_Dataset",
            "Flickr8k_Dataset",
            "flickr30k-images",
            "flickr30k_images",
        ]
        folder: Path | None = None
        by_split: dict[str, list[Entry]] = {}
        seen: dict[object, str] = {}
        for number, image in enumerate(images):
            where = f"{self.file.name}, image {number}"
            if not isinstance(image, dict) or not all(key in image for key in ("filename", "split", "sentences")):
                hint = "; a COCO annotation file is read by the coco source" if "annotations" in data else ""
                self._refuse(f"{self.file}: image {number} has no filename, split and sentences{hint}")
                continue
            wrong = [key for key in ("filename", "split") if not isinstance(image[key], str) or not image[key].strip()]
            wrong += [] if isinstance(image["sentences"], list) else ["sentences"]
            if wrong:
                self._refuse(f"{self.file}: image {number} has {wrong[0]} {str(image[wrong[0]])[:80]!r}")
                continue
            name = "/".join(plain_path(str(part)) for part in (image.get("filepath"), image["filename"]) if part)
            folder = folder or image_folder(self.root, self.images, usual, name)
            image_id: Any = image.get("cocoid", image.get("imgid", name))
            if not is_id(image_id):
                self._refuse(f"{self.file}: image {number} has the id {image_id!r}; a number or text is wanted")
                continue
            keys: tuple[object, ...] = (("id", image_id), name)
            if twice := [seen[key] for key in keys if key in seen]:
                self._refuse(f"{self.file}: {name} (id {image_id}) is there twice: {twice[0]} and {where}")
                continue
            seen |= dict.fromkeys(keys, where)
            split = "train" if image["split"] == "restval" and self.restval else str(image["split"])
            captions = [self._sentence(sentence, where) for sentence in image["sentences"]]
            by_split.setdefault(split, []).append(Entry(image_id, folder / name, captions, where))
        return by_split

    def _sentence(self, sentence: Any, where: str) -> object:
        if not isinstance(sentence, dict):
            return None
        tokens, raw = sentence.get("tokens"), sentence.get("raw")
        if tokens == [] and raw:
            self._note("empty token lists, raw text used", where)
        return raw or (" ".join(map(str, tokens)) if isinstance(tokens, list) else raw)

    def _own_splits(self) -> tuple[str, ...]:
        return tuple(self._by_split)

    def _entries(self, split: str) -> list[Entry]:
        return self._by_split[split]


def _index(data: dict[str, Any]) -> tuple[dict[Any, dict[str, Any]], dict[Any, list[dict[str, Any]]]]:
    """Images by id, and annotations by image id."""
    from pycocotools.coco import COCO  # here, since it loads the mask extension, which no other source needs

    index = COCO()
    index.dataset = data  # not by path: COCO opens files with the encoding of the locale
    with contextlib.redirect_stdout(io.StringIO()):
        index.createIndex()
    return index.imgs, index.imgToAnns


def decode_mask(segmentation: Any, height: int, width: int) -> NDArray[np.bool_]:
    """(height, width) mask of an instance: polygons, or run lengths, plain or packed. ValueError for anything else."""
    from pycocotools import mask

    try:
        packed = isinstance(segmentation, dict) and not isinstance(segmentation["counts"], list)
        runs = segmentation if packed else mask.frPyObjects(segmentation, height, width)
        return mask.decode(mask.merge(runs) if isinstance(runs, list) else runs).astype(bool)
    except Exception as error:  # it raises bare Exceptions, too
        raise ValueError(f"no mask: {str(segmentation)[:60]} ({error})") from None
