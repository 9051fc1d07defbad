"""Labelled pictures in folders: one folder a class, as ImageNet and its relatives are laid out."""

from __future__ import annotations

import hashlib
import logging
import os
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path

from vitcap.data.imagenet import find_class_index, find_val_labels, read_class_index, read_real
from vitcap.data.images import IMAGE_SUFFIXES
from vitcap.data.reading import is_folder
from vitcap.data.records import CaptionRecord, Entry, FileSource

log = logging.getLogger(__name__)

SPLIT_FOLDERS = {"train": ("train", "training"), "val": ("val", "valid", "validation"), "test": ("test",)}
_JUNK = {"__macosx", "thumbs.db", "desktop.ini"}


class ImageFolderSource(FileSource):
    """Pictures in class folders: root/{train,val,test}/CLASS/..., or root/CLASS/... without splits.

    root: the data folder. Pictures may lie any number of folders below their class; names that begin with a dot,
        `__MACOSX`, `Thumbs.db` and files that are no pictures are left out and counted.
    class_index: JSON file (under root, or a path of its own) {"0": ["n01440764", "tench"], ...} that decides the
        classes, their order and their names; left out, the only `*class_index.json` in root, if there is one. The data
        may then have some of the classes only, in folders named by class id, by class name or by index.
    order: of the classes without an index: "text" sorts the folder names as torchvision does, "numeric" by value,
        "auto" is numeric if all names are whole numbers and text otherwise.
    real_labels: JSON list of label lists by number of the ImageNet validation image (Beyer et al. 2020), see `real`.
    subset: a model chooses among the classes that the data has only, as on ImageNet-A and -R, see `subset`.
    val_fraction, split_seed: where there is no val split: this share of every class, by hash, of train or, without any
        split folders, of all. Without them pictures in class folders alone are one split, "all".

    Every split has the classes of train (of val, without one): missing and extra class folders are errors, unless a
    class index decides. A flat folder of ILSVRC2012_val_*.JPEG is read with the ground truth beside it, see `imagenet`.

    classes: class ids (folder names) in index order; class_names: to be read by people. report: counts, see FileSource.
    """

    name = "image_folder"

    def __init__(
        self,
        root: str | os.PathLike[str] | None = None,
        *,
        class_index: str | None = None,
        order: str = "auto",
        real_labels: str | None = None,
        subset: bool = False,
        val_fraction: float | None = None,
        split_seed: int = 0,
    ) -> None:
        super().__init__(root, val_fraction=val_fraction, split_seed=split_seed, on_missing="error")
        if order not in ("auto", "text", "numeric"):
            raise ValueError(f"data.source.order={order}: choose auto, text or numeric")
        self.order, self.real_labels, self._some_classes = order, real_labels, subset
        self._folders = self._find_splits()
        index = find_class_index(self.root, class_index)
        self._given = index is not None
        self.order_from = f"class index {index.name}" if index else ""
        self.classes, self.class_names = read_class_index(index) if index else self._classes_of_folders()
        self._where = {c: i for i, c in enumerate(self.classes)}
        log.info("%s: %d classes, %s", self.root, len(self.classes), self.order_from)

    def _find_splits(self) -> dict[str, Path]:
        found: dict[str, Path] = {}
        for split, names in SPLIT_FOLDERS.items():
            there = [self.root / name for name in names if (self.root / name).is_dir()]
            if len(there) > 1:
                raise ValueError(
                    f"{self.root}: {there[0].name} and {there[1].name} are both the {split} split: keep one"
                )
            found |= {split: there[0]} if there else {}
        return found or {"train" if self.val_fraction is not None else "all": self.root}

    def _class_folders(self, folder: Path) -> list[str]:
        return sorted(e.name for e in os.scandir(folder) if is_folder(e) and not _is_junk(e.name))

    def _classes_of_folders(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Class ids and names of the first split that has class folders (train, else val, else test)."""
        of_split = {split: self._class_folders(folder) for split, folder in self._folders.items()}
        first = next((split for split, names in of_split.items() if names), None)
        if first is None:
            raise ValueError(
                f"{self.root}: no class folders in it: the layout is {self.root.name}/train/CLASS/picture. For a flat "
                "folder of ImageNet alone name the classes with data.source.class_index=FILE"
            )
        names = of_split[first]
        for split, others in of_split.items():
            missing, extra = [n for n in names if n not in others], [n for n in others if n not in names]
            if others and (missing or extra):
                told = [f"{what} {_some(some)}" for what, some in (("lacks", missing), ("also has", extra)) if some]
                raise ValueError(
                    f"{self._folders[split]}: the classes differ from {self._folders[first].name}: it "
                    f"{' and '.join(told)}. Make the missing folders (outside train they may be empty), remove the "
                    "extra ones, or give the class list with data.source.class_index=FILE"
                )
        whole = [name for name in names if name.isdecimal() and name.isascii()]
        if self.order == "numeric" and len(whole) < len(names):
            raise ValueError(
                f"{self.root}: order=numeric, but {_some([n for n in names if n not in whole])} are no numbers"
            )
        if self.order != "text" and len(whole) == len(names):
            self.order_from = "folder names in numeric order"
            return (ids := tuple(sorted(names, key=int))), ids
        self.order_from = "folder names in text order"
        return tuple(names), tuple(names)

    def use_classes(self, classes: Sequence[str], names: Sequence[str] | None = None) -> None:
        """Take over the class list of a trained model: labels become its indices. The folders may be some of them."""
        self.classes, self._given = tuple(classes), True
        self.class_names = tuple(names) if names is not None else self.classes
        self._where = {c: i for i, c in enumerate(self.classes)}
        self.order_from = "classes of the model"
        self._read.clear()
        self.report.clear()

    def present(self, split: str) -> tuple[int, ...]:
        """Sorted labels that a split has pictures of."""
        return tuple(sorted({record.label for record in self.split(split) if record.label is not None}))

    def _evaluated(self) -> list[str]:
        return [split for split in self._read if split != "train"] or [s for s in self.splits() if s != "train"]

    @property
    def subset(self) -> tuple[int, ...] | None:
        """With subset=true the sorted labels of the evaluated splits (those read so far, but for train), else None."""
        if not self._some_classes:
            return None
        return tuple(sorted({label for split in self._evaluated() for label in self.present(split)}))

    @property
    def real(self) -> dict[int | str, frozenset[int]] | None:
        """Image id -> ReaL labels, of the evaluated splits; empty for images left out of ReaL. None without a file."""
        if self.real_labels is None:
            return None
        records = [record for split in self._evaluated() for record in self.split(split)]
        return read_real(self.root / self.real_labels, records, classes=len(self.classes))

    def _own_splits(self) -> tuple[str, ...]:
        return tuple(self._folders)

    def _why_not(self, split: str) -> str:
        return " (no folder of that name)" if "all" not in self._folders else "; evaluate with split=all"

    def _label(self, name: str, folder: Path) -> int:
        if name in self._where:
            return self._where[name]
        if self._given and self.class_names.count(name) == 1:
            return self.class_names.index(name)
        if self._given and name.isdecimal() and name.isascii() and int(name) < len(self.classes):
            return int(name)
        raise ValueError(
            f"{folder}: {name!r} is not one of the {len(self.classes)} classes ({self.order_from}): it is no class id, "
            "no class name and no index"
        )

    def _entries(self, split: str) -> list[Entry]:
        folder, names = self._folders[split], self._class_folders(self._folders[split])
        loose = [e.name for e in os.scandir(folder) if not is_folder(e) and self._is_picture(e.name)]
        if loose and not names:
            labels, told = find_val_labels(self.root, folder, sorted(loose), classes=self.classes)
            log.info("%s: flat, %s", folder, told)
            return [Entry(f"{folder.name}/{n}", folder / n, (), labels[n]) for n in sorted(loose)]
        self.report["pictures outside class folders left out"] += len(loose)
        junk = sum(_is_junk(entry.name) and is_folder(entry) for entry in os.scandir(folder))
        self.report["hidden and junk folders left out"] += junk
        entries, empty = [], []
        for name in names:
            found = self._walk(folder / name)
            entries += [Entry(p.relative_to(self.root).as_posix(), p, (), name) for p in found]
            empty += [] if found else [name]
        if empty and split == "train":
            raise ValueError(f"{folder}: no pictures in the class folders {_some(empty)}: fill or remove them")
        self.report[f"class folders of {split} without pictures"] += len(empty)
        return entries

    def _is_picture(self, name: str) -> bool:
        """Whether a file is taken; counts those that are not."""
        if _is_junk(name):
            self.report["hidden and junk files left out"] += 1
            return False
        if os.path.splitext(name)[1].lower() not in IMAGE_SUFFIXES:
            self.report["files that are no pictures left out"] += 1
            return False
        return True

    def _walk(self, folder: Path) -> list[Path]:
        found, seen = [], set()
        for here, below, names in os.walk(folder, followlinks=True):
            real = os.path.realpath(here)
            if real in seen:  # a link back to a folder above
                below.clear()
                continue
            seen.add(real)
            self.report["hidden and junk folders left out"] += sum(map(_is_junk, below))
            below[:] = sorted(name for name in below if not _is_junk(name))
            found += [Path(here, name) for name in sorted(names) if self._is_picture(name)]
        return found

    def _finish(self, split: str, entries: list[Entry]) -> list[CaptionRecord]:
        if not entries:
            raise ValueError(
                f"{self._folders[split]}: no pictures in it ({', '.join(sorted(IMAGE_SUFFIXES)[:4])}, ...)"
            )
        folder = self._folders[split]
        label = {name: self._label(name, folder) for name in {entry.where for entry in entries}}
        records = [CaptionRecord(entry.image_id, entry.path, (), label[entry.where]) for entry in entries]
        self.report["images"] += len(records)
        told = ", ".join(f"{count} {what}" for what, count in self.report.items() if count and what != "images")
        have = len(set(label.values()))
        log.info(
            "%s: %d pictures of %d of %d classes; %s", folder, len(records), have, len(self.classes), told or "all read"
        )
        if split == "train" and have < len(self.classes):
            log.warning("%s: %d classes of the index have no picture to learn from", folder, len(self.classes) - have)
        return records

    def _carve(self, records: list[CaptionRecord]) -> dict[str, list[CaptionRecord]]:
        """The share of every class with two pictures or more, so that small classes are in both splits."""
        assert self.val_fraction is not None

        def place(record: CaptionRecord) -> bytes:
            return hashlib.sha256(f"{self.split_seed}:{record.image_id}".encode(errors="replace")).digest()

        of_class: defaultdict[int | None, list[CaptionRecord]] = defaultdict(list)
        for record in records:
            of_class[record.label].append(record)
        chosen: set[int | str] = set()
        for some in of_class.values():
            count = min(max(1, round(self.val_fraction * len(some))), len(some) - 1)
            chosen |= {record.image_id for record in sorted(some, key=place)[:count]}
        if not chosen:
            raise ValueError(f"{self.root}: no class has two pictures, so val_fraction={self.val_fraction} leaves none")
        log.warning(
            "%s: val is %d of the %d pictures (val_fraction=%g of every class, split_seed=%d), not an official split",
            *(self.root, len(chosen), len(records), self.val_fraction, self.split_seed),
        )
        return {
            "train": [record for record in records if record.image_id not in chosen],
            "val": [record for record in records if record.image_id in chosen],
        }


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name.lower() in _JUNK


def _some(names: Sequence[str], count: int = 5) -> str:
    return ", ".join(names[:count]) + (f" and {len(names) - count} more" if len(names) > count else "")
