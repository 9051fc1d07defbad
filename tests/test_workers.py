"""Loader workers: any start method gives the same batches, and twenty epochs take no more memory than the first."""

from __future__ import annotations

import json
import os
import pickle
import signal
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from vitcap.data.augment import ClassifyAugment
from vitcap.data.coco import CocoSource, KarpathySource
from vitcap.data.digit_images import DigitImagesSource
from vitcap.data.image_folder import ImageFolderSource
from vitcap.data.pairs import PairsSource
from vitcap.data.pictures import CaptionData
from vitcap.data.sentences import SentenceData
from vitcap.data.sequences import DigitsSource, TranslationSource
from vitcap.data.shapes import ShapesSource, export_coco
from vitcap.data.tables import FlickrSource, TableSource
from vitcap.data.transforms import Augment, Preprocess


def _pictures(root: Path) -> list[str]:
    """Six pictures of different sizes and shapes, one of them a strip."""
    root.mkdir(parents=True, exist_ok=True)
    sizes = [(40, 30), (30, 40), (64, 64), (200, 9), (33, 71), (8, 8)]
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (40 * number, 90, 200 - 30 * number)).save(root / f"{number}.png")
    return [f"{number}.png" for number in range(len(sizes))]


def _coco(root: Path) -> Any:
    for split in ("train", "val"):
        export_coco(ShapesSource(train_size=6, val_size=3), root, split)
    return CocoSource(root)


def _karpathy(root: Path) -> Any:
    images = [
        {
            "filename": name,
            "imgid": number,
            "split": "val" if number > 3 else "train",
            "sentences": [{"raw": f"a picture {number}", "tokens": ["a", "picture", str(number)]}],
        }
        for number, name in enumerate(_pictures(root / "images"))
    ]
    (root / "dataset_own.json").write_text(json.dumps({"images": images, "dataset": "own"}))
    return KarpathySource(root)


def _flickr(root: Path) -> Any:
    names = _pictures(root / "images")
    (root / "captions.txt").write_text("image,caption\n" + "".join(f"{name},a picture of it\n" for name in names))
    for split, part in (("train", names[:4]), ("val", names[4:])):
        (root / f"{split}.txt").write_text("".join(f"{name}\n" for name in part))
    return FlickrSource(root)


def _table(root: Path) -> Any:
    names = _pictures(root / "images")
    rows = [{"image": f"images/{n}", "caption": "a picture", "split": "val" if n > "3" else "train"} for n in names]
    (root / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TableSource(root)


def _folders(root: Path) -> Any:
    for split in ("train", "val"):
        for kind in ("cat", "dog"):
            _pictures(root / split / kind)
    return ImageFolderSource(root)


def _pairs(root: Path) -> Any:
    for split in ("train", "val"):
        (root / f"{split}.tsv").write_text("".join(f"source {split} {n}\ttarget {n} of it\n" for n in range(6)))
    return PairsSource(root)


PICTURES = {
    "shapes": lambda root: ShapesSource(train_size=6, val_size=3),
    "coco": _coco,
    "karpathy": _karpathy,
    "flickr": _flickr,
    "table": _table,
    "class folders": _folders,
    "digit images": lambda root: DigitImagesSource(),
}
SENTENCES = {
    "digits": lambda root: DigitsSource(train_size=6, val_size=3),
    "translation": lambda root: TranslationSource(train_size=6, val_size=3),
    "pairs": _pairs,
}


def _data(kind: str, root: Path, **options: Any) -> Any:
    if kind in SENTENCES:
        return SentenceData(partial(SENTENCES[kind], root), batch_size=3, train_limit=6, val_limit=3, **options)
    labels = kind in ("class folders", "digit images")
    made = CaptionData(
        partial(PICTURES[kind], root),
        tokenizer=None if labels else "word",
        min_count=1,
        batch_size=3,
        eval_batch_size=2,
        train_limit=6,
        val_limit=3,
        augment=ClassifyAugment if labels else Augment,
        **options,
    )
    made.fit_to(Preprocess(size=(24, 24)).to_dict())
    return made


def _plain(batch: Any) -> Any:
    tensors = {n: getattr(batch, n) for n in ("images", "features", "captions", "labels", "source")}
    return batch.ids, {name: tensor.tolist() for name, tensor in tensors.items() if tensor is not None}


def _batches(data: Any, split: str, *, train: bool) -> list[Any]:
    loader = data.loader(split, train=train)
    loader.batches.set_epoch(3)
    found = [_plain(batch) for batch in loader]
    assert found
    return found


@pytest.mark.parametrize("kind", [*PICTURES, *SENTENCES])
def test_every_kind_of_data_can_be_sent_to_a_worker(kind, tmp_path):
    made = _data(kind, tmp_path)
    for split, train in (("train", True), ("val", False)):
        dataset = made.dataset(split, train)
        twin = pickle.loads(pickle.dumps(dataset))
        for index in range(len(dataset)):
            one, other = dataset[2, index], twin[2, index]
            assert (one.id, one.captions, one.label, one.source) == (
                other.id,
                other.captions,
                other.label,
                other.source,
            )
            assert one.image is None or torch.equal(one.image, other.image)


@pytest.mark.parametrize("start", ["fork", pytest.param("spawn", marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", ["coco", "pairs", "cached features"])
def test_workers_give_the_batches_that_the_main_process_does(kind, start, tmp_path):
    options: dict[str, Any] = {"num_workers": 2, "worker_start": start}
    if kind == "cached features":
        _coco(tmp_path / "coco")
        made = [
            CaptionData(CocoSource, str(tmp_path / "coco"), cache=str(tmp_path / "cache"), cache_flip=True, **more)
            for more in ({"min_count": 1}, {"min_count": 1} | options)
        ]
        for one in made:
            one.fit_to(Preprocess(size=(8, 8)).to_dict())
            one.cache_features(
                ("train", "val"), fingerprint="abc", extract=lambda x: x.float().mean((2, 3))[:, None] / 255
            )
    else:
        made = [_data(kind, tmp_path, **more) for more in ({}, options)]
    for split, train in (("train", True), ("val", False)):
        assert _batches(made[0], split, train=train) == _batches(made[1], split, train=train)


def test_a_start_method_that_is_none_is_named():
    with pytest.raises(ValueError, match=r"data.worker_start=thread: this system has .*spawn.*, or null for its own"):
        _data("shapes", Path(), worker_start="thread")


def ignores(pid: int, number: int) -> bool:
    """Whether a process ignores a signal: the last thing that a worker does of its start."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    mask = next(int(line.split()[1], 16) for line in lines if line.startswith("SigIgn"))
    return bool(mask >> (number - 1) & 1)


def test_a_scheduler_that_ends_every_process_of_a_job_kills_no_worker(tmp_path):
    """Or the main process would lose its workers before its checkpoint; a second SIGTERM is believed."""
    loader = _data("shapes", tmp_path, num_workers=2).loader("train", train=True)
    batches = iter(loader)
    first = next(batches)
    workers = loader._iterator._workers
    until = time.monotonic() + 30
    while not all(ignores(worker.pid, signal.SIGINT) for worker in workers):  # they start in their own time
        assert time.monotonic() < until
        time.sleep(0.01)
    for worker in workers:
        os.kill(worker.pid, signal.SIGTERM)
        os.kill(worker.pid, signal.SIGINT)
    assert len(first) == len(next(batches)) == 3
    assert all(worker.is_alive() for worker in workers)
    del batches
    loader._iterator._shutdown_workers()
    assert not any(worker.is_alive() for worker in workers)


def resident(pid: int) -> float:
    """Resident memory of a process in MiB."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


@pytest.mark.slow
@pytest.mark.parametrize("start", ["fork", "spawn"])
def test_memory_is_flat_over_twenty_epochs_with_workers(start, tmp_path):
    """Of the main process and of each worker; the first five epochs may fill caches. 8 MiB are 40 % of the pictures of
    one epoch, so that a loader that kept them would show by far."""
    for number in range(300):
        Image.effect_noise((300, 200), 90).convert("RGB").save(_made(tmp_path / "train" / "cat") / f"{number}.jpg")
    Image.new("RGB", (300, 200)).save(_made(tmp_path / "val" / "cat") / "0.jpg")
    made = CaptionData(
        ImageFolderSource, str(tmp_path), tokenizer=None, batch_size=32, num_workers=2, worker_start=start
    )
    made.fit_to(Preprocess(size=(150, 150)).to_dict())
    loader, seen = made.loader("train", train=True), []
    for epoch in range(20):
        loader.batches.set_epoch(epoch)
        assert sum(len(batch) for batch in loader) == 300
        pids = [os.getpid(), *(worker.pid for worker in loader._iterator._workers)]
        seen.append([resident(pid) for pid in pids])
    print(f"\n{start}: MiB of main and workers after epochs 1, 5, 10, 20:", *(seen[i] for i in (0, 4, 9, 19)))
    for process in range(3):
        assert max(row[process] for row in seen[5:]) - max(row[process] for row in seen[:5]) < 8, seen


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder
