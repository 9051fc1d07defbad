"""Tar shards: the same each time, every sample once for any number of processes and workers, captions by shard."""

from __future__ import annotations

import fcntl
import functools
import gzip
import http.server
import io
import json
import logging
import os
import signal
import subprocess
import sys
import tarfile
import threading
from collections import Counter
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from conftest import TINY
from PIL import Image
from torch.testing import assert_close

from vitcap import run
from vitcap.cli import caption_shards, main
from vitcap.data import pictures, shards_write
from vitcap.data.images import ImageError
from vitcap.data.loader import BatchLoader
from vitcap.data.pictures import CaptionData
from vitcap.data.records import CaptionRecord
from vitcap.data.shards import ShardSource
from vitcap.data.shards_sample import read_samples
from vitcap.data.shards_stream import TapeBatches
from vitcap.data.shards_urls import ShardError, expand
from vitcap.data.shards_write import Plan, write_shards
from vitcap.data.tables import TableSource
from vitcap.data.transforms import Preprocess
from vitcap.stopping import Interrupted
from vitcap.tasks.callbacks import LastCheckpoint

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "scripts"))
import prepare

WORDS = ("red", "green", "blue", "grey", "white", "black", "brown", "pink")


def jpeg(number: int, size: tuple[int, int] = (12, 8)) -> bytes:
    """A picture whose shade tells its number."""
    out = io.BytesIO()
    Image.fromarray(np.full((size[1], size[0], 3), number % 250, np.uint8)).save(out, "JPEG", quality=95)
    return out.getvalue()


def table(root: Path, count: int, *, split: str = "train") -> list[CaptionRecord]:
    """A folder of so many JPEG pictures with two captions each, as records."""
    (root / "images").mkdir(parents=True, exist_ok=True)
    rows = []
    for n in range(count):
        (root / "images" / f"{split}{n}.jpg").write_bytes(jpeg(n))
        captions = [f"a {WORDS[n % 8]} picture", f"{WORDS[n % 8]} number {WORDS[n // 8 % 8]}"]
        rows.append({"image": f"{split}{n}.jpg", "captions": captions, "split": split})
    (root / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return TableSource(str(root), file=f"{split}.jsonl").split(split)


def tar(path: Path, files: dict[str, bytes], mode: str = "w") -> Path:
    """A foreign shard."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def made(root: Path, counts: list[int]) -> Path:
    """Foreign shards with so many samples each; the caption and the shade are the sample's number."""
    number = 0
    for shard, count in enumerate(counts):
        files: dict[str, bytes] = {}
        for _ in range(count):
            files |= {f"{number:04d}.jpg": jpeg(number), f"{number:04d}.txt": f"number {number}".encode()}
            number += 1
        tar(root / f"{shard:03d}.tar", files)
    return root


def data(root: Path | None, **options: Any) -> CaptionData:
    source = {k: options.pop(k) for k in ("train", "val", "buffer", "resample", "epoch_size") if k in options}
    where = None if root is None else str(root)
    found = CaptionData(functools.partial(ShardSource, **source), where, **({"min_count": 1} | options))
    found.fit_to(Preprocess(size=(8, 8)).to_dict())
    return found


def numbers(batches: Any) -> list[list[int]]:
    """Numbers of the samples in each batch, by the shade of the picture; the id has to be the same."""
    found = []
    for batch in batches:
        shades = [] if batch.images is None else batch.images[:, 0, 4, 4].tolist()
        assert all(abs(shade - int(str(i)[-4:]) % 250) <= 2 for shade, i in zip(shades, batch.ids, strict=True))
        found.append([int(str(i)[-4:]) for i in batch.ids])
    return found


# Writing


def test_shards_are_the_same_each_time_and_keep_the_bytes_of_the_files(tmp_path):
    records = table(tmp_path / "data", 11)
    index = write_shards(records, tmp_path / "a", Plan("train", 4, seed=3), data="table", workers=1)
    write_shards(records, tmp_path / "b", Plan("train", 4, seed=3), data="table", workers=3)
    other = write_shards(records, tmp_path / "c", Plan("train", 4, seed=4), data="table", workers=3)
    names = sorted(p.name for p in (tmp_path / "a").iterdir())
    assert names == ["train-000000.tar", "train-000001.tar", "train-000002.tar", "train.json", "train.jsonl"]
    for name in names:
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()
    assert [s.sha256 for s in other.shards] != [s.sha256 for s in index.shards]
    content = json.loads((tmp_path / "a" / "train.json").read_text())
    assert (content["samples"], content["captions"], [s["samples"] for s in content["shards"]]) == (11, 22, [4, 4, 3])
    found = {}
    for shard in index.shards:
        with tarfile.open(shard.where) as archive:
            members = archive.getmembers()
            assert {(m.mtime, m.uid, m.gid, m.uname, m.gname, m.mode) for m in members} == {(0, 0, 0, "", "", 0o644)}
            for m in members:
                key, _, suffix = m.name.partition(".")
                found.setdefault(key, {})[suffix] = archive.extractfile(m).read()
    by_id = {record.image_id: record for record in records}
    order = []
    for key in sorted(found):
        about = json.loads(found[key]["json"])
        record = by_id.pop(about["id"])
        assert about == {"id": record.image_id, "captions": list(record.captions), "file": record.image.name}
        assert found[key]["jpg"] == record.image.read_bytes()
        order.append(about["id"])
    assert not by_id
    assert order != [record.image_id for record in records]  # the order is drawn


def test_a_run_that_was_broken_off_goes_on_and_leaves_nothing_half(tmp_path, monkeypatch):
    records, plan = table(tmp_path / "data", 9), Plan("train", 3)
    whole = write_shards(records, tmp_path / "whole", plan, data="table")
    write, calls = shards_write._write, []

    def dies(path, *rest):
        calls.append(path)
        if len(calls) == 2:
            path.write_bytes(b"half of it")
            raise KeyboardInterrupt
        return write(path, *rest)

    monkeypatch.setattr(shards_write, "_write", dies)
    with pytest.raises(KeyboardInterrupt):
        write_shards(records, tmp_path / "out", plan, data="table")
    there = sorted(p.name for p in (tmp_path / "out").iterdir())
    assert there[0] == "train-000000.tar"
    assert not [name for name in there if "part" in name]
    with pytest.raises(ValueError, match=r"train.json: its shards are not all written; run the command"):
        ShardSource(str(tmp_path / "out")).split("train")
    before = (tmp_path / "out" / "train-000000.tar").stat().st_mtime_ns
    monkeypatch.setattr(shards_write, "_write", write)
    again = write_shards(records, tmp_path / "out", plan, data="table")
    assert (tmp_path / "out" / "train-000000.tar").stat().st_mtime_ns == before
    assert [(s.samples, s.sha256) for s in again.shards] == [(s.samples, s.sha256) for s in whole.shards]
    monkeypatch.setattr(shards_write, "_write", None)  # all is there: nothing is written
    assert write_shards(records, tmp_path / "out", plan, data="table").samples == 9
    with pytest.raises(ValueError, match=r"train.json: an index of other records or options: choose another folder"):
        write_shards(records[:8], tmp_path / "out", plan, data="table")
    with pytest.raises(ValueError, match=r"train.json: an index of other records or options"):
        write_shards(records, tmp_path / "out", plan, data="table", classes=[("0", "cat")])
    (tmp_path / "out" / "train.json").unlink()
    with pytest.raises(ValueError, match=r"train-000000.tar: a shard that no index tells of"):
        write_shards(records, tmp_path / "out", plan, data="table")


def test_what_a_killed_run_left_goes_and_a_running_one_is_left_alone(tmp_path):
    records, plan, out = table(tmp_path / "data", 4), Plan("train", 2), tmp_path / "out"
    write_shards(records, tmp_path / "whole", plan, data="table")
    out.mkdir()
    left = [".train-000001.tar.7.part", ".train.jsonl.7.part", ".train.json.7.part", ".train.lock"]
    others = [".train-b-000001.tar.7.part", ".val.jsonl.7.part"]  # of splits that may be written just now
    for name in left + others:
        (out / name).write_bytes(b"half")
    with (out / ".train.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match=r"out: another process is writing the shards of train; wait"):
            write_shards(records, out, plan, data="table")
        write_shards(records, out, Plan("test", 2), data="table")
    assert all((out / name).exists() for name in left + others)
    write_shards(records, out, plan, data="table")
    assert sorted(p.name for p in out.iterdir() if p.name.startswith(".")) == sorted(others)
    for file in (tmp_path / "whole").iterdir():
        assert (out / file.name).read_bytes() == file.read_bytes()


def test_bad_pictures_are_an_error_or_named(tmp_path, monkeypatch):
    records = table(tmp_path / "data", 6)
    records[2].image.write_bytes(b"no picture")
    with pytest.raises(ImageError, match=r"train2.jpg: text, not a picture .*--on-bad skip leaves"):
        write_shards(records, tmp_path / "a", Plan("train", 2), data="table", workers=2)
    index = write_shards(records, tmp_path / "b", Plan("train", 2, on_bad="skip"), data="table")
    assert index.samples == 5
    assert list(index.about["left_out"]) == ["train2.jpg"]
    assert str(tmp_path) not in (tmp_path / "b" / "train.json").read_text()
    half = json.loads((tmp_path / "b" / "train.json").read_text()) | {"complete": False}
    (tmp_path / "b" / "train.json").write_text(json.dumps(half))
    monkeypatch.setattr(shards_write, "_write", None)  # no shard is written again, and what was left out still named
    again = write_shards(records, tmp_path / "b", Plan("train", 2, on_bad="skip"), data="table")
    assert again.about["left_out"] == index.about["left_out"]


def test_size_of_shards_and_of_pictures(tmp_path):
    records = table(tmp_path / "data", 12)
    index = write_shards(records, tmp_path / "a", Plan("train", None, megabytes=0.006), data="table")
    assert len(index.shards) > 1
    assert index.samples == 12
    # Tar archives are padded to blocks of 10,240 bytes.
    assert all(shard.bytes <= 10_240 for shard in index.shards)
    small = write_shards(records, tmp_path / "b", Plan("train", resize=4), data="table")
    assert {sample.open().size for sample in read_samples(small.shards[0].where)} == {(6, 4)}
    large = write_shards(records, tmp_path / "c", Plan("train", resize=40), data="table")
    assert {sample.open().size for sample in read_samples(large.shards[0].where)} == {(12, 8)}
    with pytest.raises(ValueError, match="--shard-size is for picture files that are kept"):
        write_shards(records, tmp_path / "d", Plan("train", None, megabytes=1, resize=4), data="table")


def test_the_script_writes_any_data_with_its_classes(tmp_path, capsys):
    for split, name in (("train", "cat"), ("train", "dog"), ("val", "cat"), ("val", "dog")):
        (tmp_path / "data" / split / name).mkdir(parents=True)
        (tmp_path / "data" / split / name / "1.jpg").write_bytes(jpeg(7))
    assert prepare.main(["shards", str(tmp_path / "data"), "--data", "imagenet", "--out", str(tmp_path / "out")]) == 0
    assert "train: 2 pictures in 1 shards" in capsys.readouterr().out
    source = ShardSource(str(tmp_path / "out"))
    assert (source.splits(), source.classes) == (("train", "val"), ("cat", "dog"))
    assert sorted(r.label for r in source.split("val")) == [0, 1]
    arguments = ["shards", "--data", "shapes", "source.val_size=3", "--split", "val", "--out", str(tmp_path / "shapes")]
    assert prepare.main(arguments) == 0
    drawn = ShardSource(str(tmp_path / "shapes")).split("val")
    assert drawn[0].open().size == (64, 64)  # PNG keeps what was drawn
    assert len(drawn[0].captions) == 5
    assert prepare.main(["shards", str(tmp_path / "nothing"), "--out", str(tmp_path / "x")]) == 1
    assert prepare.main(["shards", str(tmp_path / "data"), "source.colour=1", "--out", str(tmp_path / "x")]) == 1
    assert "source.colour: imagenet has no such option" in capsys.readouterr().err
    folder = [str(tmp_path / "data" / "val" / "cat"), "--data", "folder", "--out", str(tmp_path / "x")]
    assert prepare.main(["shards", *folder, "--split", "val"]) == 1
    assert "--split val: a folder of photos without captions has no splits" in capsys.readouterr().err
    assert prepare.main(["shards", *folder]) == 0
    assert ShardSource(train=str(tmp_path / "x" / "all.json")).index("train").samples == 1


# Samples of others


def test_layouts_of_others(tmp_path):
    files = {
        "__meta__/x.json": b"{",
        "a.jpg": jpeg(1),
        "a.txt": "  Zwölf\nBoote ".encode(),
        "b.json": json.dumps({"caption": "of json", "key": "b", "status": "success"}).encode(),
        "b.png": jpeg(2),
        "b.txt": b"of txt",
        "c.cls": b" 3\n",
        "c.jpeg": jpeg(3),
        "c.npy": b"ignored",
        "d.json": b'{"captions": ["one", "two", ""], "id": 77}',
        "d.webp": jpeg(4),
        "e.txt": b"no picture",
        "sub/f.x.jpg": jpeg(5),
        "sub/f.json": b"{broken",
        "g.1.jpg": jpeg(1),
        "g.2.jpg": jpeg(1),
        "h.cls": b"dog",
        "h.jpg": jpeg(1),
    }
    shard = tar(tmp_path / "00000.tar", files)
    found = {sample.key: sample for sample in read_samples(str(shard))}
    assert {key: (s.id, s.captions, s.label) for key, s in found.items() if s.error is None} == {
        "a": ("00000/a", ("Zwölf Boote",), None),
        "b": ("00000/b", ("of json",), None),
        "c": ("00000/c", (), 3),
        "d": (77, ("one", "two"), None),
    }
    assert found["d"].image.content == jpeg(4)
    errors = {key: s.error for key, s in found.items() if s.error is not None}
    assert set(errors) == {"sub/f", "g", "h"}
    assert errors["g"] == "00000.tar/g: has 2 pictures (1.jpg, 2.jpg): one for each key is wanted"
    assert errors["h"] == "00000.tar/h: the class 'dog' in .cls is no class index"
    places = {s.key: s.image for s in read_samples(str(shard), pictures=False)}
    assert list(places) == list(found)
    content = shard.read_bytes()
    assert all(content[at : at + size] == found[key].image.content for key, (at, size) in places.items())
    packed = tmp_path / "packed" / "00000.tar.gz"
    packed.parent.mkdir()
    packed.write_bytes(gzip.compress(content))
    assert [s.image.content for s in read_samples(str(packed))] == [s.image.content for s in found.values()]
    (record, *_) = (r for r in ShardSource(train=str(shard), val=str(packed)).split("val") if r.image_id == 77)
    assert record.open().getpixel((0, 0)) == (4, 4, 4)


def test_classes_of_cls_files(tmp_path):
    for split in ("train", "val"):
        files = {f"{n}.{kind}": (jpeg(n) if kind == "jpg" else b"%d" % n) for n in range(3) for kind in ("cls", "jpg")}
        tar(tmp_path / split / "0.tar", files)
    found = data(tmp_path, tokenizer=None, batch_size=3)
    assert found.source.classes == ("0", "1", "2")
    (batch,) = found.loader("train", train=True)
    assert batch.labels.tolist() == [int(i[-1]) for i in batch.ids]
    tar(tmp_path / "some" / "0.tar", {"1.jpg": jpeg(1), "1.cls": b"1", "2.jpg": jpeg(2)})
    part = data(tmp_path, train="some", val="some", tokenizer=None, batch_size=3, on_bad="skip")
    assert [r.image_id for r in part.records("val")] == ["0/1"]
    (batch,) = part.loader("train", train=True)
    assert (batch.ids, batch.labels.tolist()) == (("0/1",), [1])
    assert part.bad["train"] == {"0/2": "0/2: has no class"}
    tar(tmp_path / "bad" / "0.tar", {"9.jpg": jpeg(9), "9.cls": b"9"})
    source = ShardSource(str(tmp_path), train="train", val="bad")
    assert source.classes == ("0", "1", "2")
    with pytest.raises(ValueError, match="0/9: label 9, of 3 classes"):
        source.split("val")


# Every sample once


@pytest.mark.parametrize("counts", [[7], [3, 0, 5], [10, 1, 1, 30], [5] * 12, [13, 2, 9, 41, 7]], ids=str)
@pytest.mark.parametrize("world", [1, 2, 3])
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_an_epoch_is_every_sample_once_in_equally_many_steps(counts, world, workers):
    """Brute force over processes, workers, batch sizes and buffers; also fewer shards than readers."""
    total = sum(counts)
    for size in (1, 4, 50):
        for buffer in (1, 3, 1000):

            def epoch(start: int = 0, batch: int = size, buffer: int = buffer, **more: Any) -> list[list[list[Any]]]:
                found = []
                for rank in range(world):
                    options = {"seed": 5, "share": (rank, world), "workers": workers, "buffer": buffer}
                    batches = TapeBatches(counts, batch, **options, **more)
                    batches.set_epoch(2)
                    batches.start = start
                    found.append(list(batches))
                    assert len(found[-1]) == len(batches) - start
                return found

            whole = epoch()
            steps = -(-total // size)
            assert sorted(p.record for own in whole for step in own for p in step) == list(range(total))
            for step in range(steps):  # a step is a batch over all processes, shared evenly
                own = [len(batches[step]) for batches in whole]
                assert sum(own) == min(size, total - step * size)
                assert max(own) - min(own) <= 1
            for batches in whole:  # what a worker reads is read once, forwards, before it is needed
                for worker in range(workers):
                    read: list[int] = []
                    held: set[int] = set()
                    for place in (p for step in batches[worker::workers] for p in step):
                        read += [tape for tape, _ in place.reads]
                        held |= {tape for tape, _ in place.reads}
                        assert len(held) <= buffer
                        held.remove(place.tape)
                    assert read == sorted(set(read))
                    assert not held
            for start in {1, steps // 2, steps - 1} - {0, steps}:
                rest = epoch(start)
                for own, tail in zip(whole, rest, strict=True):
                    assert [[p.record for p in step] for step in own[start:]] == [[p.record for p in s] for s in tail]
            drawn = [p for own in epoch(resample=True, size=29) for step in own for p in step]
            assert len(drawn) == len({p.number for p in drawn}) == 29
            assert {p.record for p in drawn} <= set(range(total))


def test_three_processes_with_two_workers_each_read_every_sample_once(tmp_path):
    counts = [9, 1, 17, 4]  # fewer shards than the six readers, and uneven ones
    made(tmp_path, counts)
    found = data(tmp_path, batch_size=7, num_workers=2, buffer=5)
    orders = []
    loaders = [found.loader("train", train=True, share=(rank, 3)) for rank in range(3)]
    for epoch in range(2):
        ranks = []
        for loader in loaders:
            loader.batches.set_epoch(epoch)
            ranks.append(numbers(loader))
        assert [len(batches) for batches in ranks] == [5, 5, 5]
        assert sorted(n for batches in ranks for batch in batches for n in batch) == list(range(31))
        assert [sum(len(batches[step]) for batches in ranks) for step in range(5)] == [7, 7, 7, 7, 3]
        orders.append(ranks)
    assert orders[0] != orders[1]


def test_order_is_mixed_and_drawn_from_seed_and_epoch():
    def order(epoch: int, seed: int, buffer: int = 50) -> list[int]:
        batches = TapeBatches([100] * 20, 10, seed=seed, buffer=buffer)
        batches.set_epoch(epoch)
        return [place.record for step in batches for place in step]

    first = order(0, 1)
    torch.manual_seed(9)
    assert order(0, 1) == first
    assert len({tuple(order(*case)) for case in ((0, 1), (1, 1), (0, 2))}) == 3
    assert [n // 100 for n in order(0, 1, 1)][::100] != list(range(20))  # the shards alone are mixed with a buffer of 1
    assert all(a + 1 == b for a, b in pairwise(order(0, 1, 1)) if b % 100)
    neighbours = sum(a + 1 == b for a, b in pairwise(first))
    assert neighbours < 100  # of 1999; without a buffer, 1980


@pytest.mark.parametrize("workers", [0, 2])
def test_an_epoch_that_was_broken_off_goes_on_with_the_samples_that_are_left(workers, tmp_path):
    made(tmp_path, [9, 3, 14])
    options: dict[str, Any] = {"batch_size": 4, "num_workers": workers, "buffer": 6, "captions_per_image": 1}
    whole, first = data(tmp_path, **options), data(tmp_path, **options)
    loader = whole.train_dataloader()
    loader.batches.set_epoch(3)
    expected = list(loader)
    loader = first.train_dataloader()
    loader.batches.set_epoch(3)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    state = first.state_dict()
    del batches
    again = data(tmp_path, **options)
    again.load_state_dict(state)
    loader = again.train_dataloader()
    loader.batches.set_epoch(3)
    rest = list(loader)
    assert [b.ids for b in rest] == [b.ids for b in expected[3:]]
    for a, b in zip(rest, expected[3:], strict=True):
        assert_close(a.images, b.images, rtol=0, atol=0)
        assert_close(a.captions, b.captions, rtol=0, atol=0)
    loader.batches.set_epoch(4)
    assert sorted(n for batch in numbers(loader) for n in batch) == list(range(26))
    now = 1 if workers else 2
    other = data(tmp_path, **(options | {"num_workers": now}))
    other.load_state_dict(state)
    with pytest.raises(ValueError, match=rf"resume: .* workers {max(workers, 1)} \(now {now}\): give the same"):
        other.train_dataloader()
    other.load_state_dict(state | {"done": 7})  # the end of an epoch
    assert len(list(other.train_dataloader())) == 7


def test_limits_and_resampling(tmp_path):
    made(tmp_path, [4, 4, 4])
    few = data(tmp_path, batch_size=2, train_limit=6)
    assert len(few.records("train")) == 6
    assert sorted(n for batch in numbers(few.loader("train", train=True)) for n in batch) == list(range(6))
    assert few.tokenizer.unknown_share(["number 5"]) == 0
    assert few.tokenizer.unknown_share(["number 6"]) == 0.5
    drawn = data(tmp_path, batch_size=10, resample=True, epoch_size=100, seed=1)
    found = numbers(drawn.loader("train", train=True))
    assert [len(batch) for batch in found] == [10] * 10
    counts = Counter(n for batch in found for n in batch)
    assert set(counts) <= set(range(12))
    assert max(counts.values()) > 5
    with pytest.raises(ValueError, match="epoch_size goes with"):
        ShardSource(str(tmp_path), epoch_size=5)


def test_other_ways_to_read_a_streamed_split(tmp_path):
    made(tmp_path, [3, 4])
    found = data(tmp_path)
    records = found.records("train")
    assert [r.captions for r in records] == [(f"number {n}",) for n in range(7)]
    assert (records[5].image_id, [r.image_id for r in records[1::3]]) == ("001/0005", ["000/0001", "001/0004"])
    assert records[-1].open().getpixel((0, 0)) == (6, 6, 6)
    assert [n for b in numbers(found.loader("train")) for n in b] == list(range(7))  # as evaluation reads it
    assert found.references("train")["001/0006"] == ("number 6",)
    with pytest.raises(ValueError, match=r"data.cache keeps features of picture files"):
        data(tmp_path, cache=str(tmp_path / "cache"))
    with pytest.raises(
        ValueError, match=r"no split 'val'; there is train: name shards of its own with data.source.val"
    ):
        found.records("val")


def test_the_vocabulary_is_made_once(tmp_path, monkeypatch):
    made(tmp_path, [5, 5])
    first = data(tmp_path).tokenizer
    monkeypatch.setattr(pictures, "train_tokenizer", None)
    assert data(tmp_path).tokenizer.to_json() == first.to_json()
    with pytest.raises(TypeError):
        _ = data(tmp_path, min_count=2).tokenizer


# Bad samples and shards


def test_bad_samples_are_an_error_or_counted(tmp_path):
    made(tmp_path, [4])
    files = {"0004.jpg": b"broken", "0004.txt": b"x", "0005.jpg": jpeg(5), "0006.jpg": jpeg(6), "0006.json": b"["}
    tar(tmp_path / "001.tar", files)
    with pytest.raises(ImageError, match=r"data.on_bad=skip leaves such records out"):
        list(data(tmp_path).loader("train", train=True))
    found = data(tmp_path, on_bad="skip", batch_size=2, num_workers=2)
    assert sorted(n for b in numbers(found.loader("train", train=True)) for n in b) == list(range(4))
    assert {key: reason.partition(":")[0] for key, reason in found.bad["train"].items()} == {
        "001/0004": "001.tar/0004.jpg",
        "001/0005": "001/0005",
        "001/0006": "001.tar/0006",
    }
    assert "no caption" in found.bad["train"]["001/0005"]


def test_a_shard_that_is_cut_or_changed_is_told(tmp_path):
    made(tmp_path, [4, 4])
    found = data(tmp_path, on_bad="skip", batch_size=8)
    assert len(found.records("train")) == 8
    content = (tmp_path / "001.tar").read_bytes()
    with tarfile.open(tmp_path / "001.tar") as archive:
        end = archive.getmember("0005.txt").offset_data + 2
    (tmp_path / "001.tar").write_bytes(content[:end])  # in the middle of the second sample
    (batch,) = numbers(found.loader("train", train=True))
    assert sorted(batch) == list(range(5))
    (reason,) = found.bad["train"].values()  # once a shard, however many of its samples are lost
    assert "001.tar: no tar archive that can be read to its end" in reason
    assert reason.endswith(f"; {8 - 5} of its samples are left out")
    with pytest.raises(ShardError, match=r"001.tar: no tar archive that can be read to its end"):
        data(tmp_path).records("train")  # counted anew, for its size has changed
    tar(tmp_path / "001.tar", {"0004.jpg": jpeg(4), "0004.txt": b"x"})
    strict = data(tmp_path, batch_size=8)
    strict.records("train")
    (tmp_path / "000.tar").unlink()
    with pytest.raises(ImageError, match=r"000.tar: cannot be opened \(No such file"):
        list(strict.loader("train", train=True))


@pytest.mark.parametrize("pictures", [True, False])
@pytest.mark.parametrize("packed", [True, False])
def test_no_sample_is_missing_without_a_word(packed, pictures, tmp_path):
    """Cut between two files, or in a header; a header that is damaged: tarfile alone takes all three for the end."""
    made(tmp_path, [4])
    shard = tmp_path / "000.tar"
    content = shard.read_bytes()
    with tarfile.open(shard) as archive:
        at = archive.getmember("0002.jpg").offset
    for wrong in (content[:at], content[: at + 99], content[:at] + b"\1" * 512 + content[at + 512 :]):
        shard.write_bytes(gzip.compress(wrong) if packed else wrong)
        with pytest.raises(ShardError, match=r"000.tar: no tar archive that can be read to its end"):
            list(read_samples(str(shard), pictures=pictures))
    shard.write_bytes(gzip.compress(content) if packed else content)
    assert len(list(read_samples(str(shard), pictures=pictures))) == 4


@pytest.mark.parametrize("pictures", [True, False])
def test_a_packed_shard_is_what_its_checksum_says(pictures, tmp_path):
    """A flipped bit may unpack, as another caption."""
    made(tmp_path, [4])
    content = (tmp_path / "000.tar").read_bytes()
    packed = bytearray(gzip.compress(content, compresslevel=0))
    packed[packed.index(b"number 2") + 7] ^= 1
    shard = tmp_path / "packed.tar.gz"
    shard.write_bytes(packed)
    with pytest.raises(ShardError, match=r"packed.tar.gz: cannot be read \(CRC check failed"):
        list(read_samples(str(shard), pictures=pictures))


def test_fewer_samples_than_the_index_says(tmp_path):
    write_shards(table(tmp_path / "data", 6), tmp_path / "out", Plan("train", 3), data="table")
    index = json.loads((tmp_path / "out" / "train.json").read_text())
    index["shards"][1]["samples"] = 5
    (tmp_path / "out" / "train.json").write_text(json.dumps(index))
    with pytest.raises(ImageError, match=r"train-000001.tar: ends after 3 samples, and 5 are known to be in it"):
        list(data(tmp_path / "out").loader("train", train=True))
    (tmp_path / "out" / "train-000001.tar").write_bytes(b"")
    with pytest.raises(ValueError, match=r"train-000001.tar: 0 bytes, and .*train.json says 10240"):
        data(tmp_path / "out").records("train")
    (tmp_path / "out" / "train-000001.tar").unlink()
    with pytest.raises(FileNotFoundError, match=r"1 of 2 shards are not there, such as .*train-000001.tar"):
        data(tmp_path / "out").records("train")


# Where shards are


def test_addresses(tmp_path, monkeypatch):
    made(tmp_path, [1] * 12)
    names = [str(tmp_path / f"{n:03d}.tar") for n in range(12)]
    assert expand(str(tmp_path)) == names
    assert expand(f"{tmp_path}/{{000..004}}.tar") == names[:5]
    assert expand("00?.tar", root=tmp_path) == names[:10]
    assert expand(["011.tar", "{009..011}.tar"], root=tmp_path) == [names[11], names[9], names[10]]
    for wrong, said in (("099.tar", "no such shard"), ("x*.tar", "no file fits"), (" ", "a path, pattern or address")):
        with pytest.raises((FileNotFoundError, ValueError), match=said):
            expand(wrong, root=tmp_path)
    pipe = f"pipe:cat {tmp_path}/{{000..002}}.tar"
    for hidden in (pipe, f"{{pipe:cat {names[0]},pipe:cat {names[1]}}}", ["000.tar", "{pipe,http}:x"], "PIPE:cat x"):
        with pytest.raises(ValueError, match=r"runs a command, which the config of someone else could name"):
            ShardSource(str(tmp_path), train=hidden)
    monkeypatch.setattr(sys, "argv", ["train.py", f"data.source.train={pipe}"])
    found = data(None, train=pipe, batch_size=2, num_workers=2)
    assert sorted(n for b in numbers(found.loader("train", train=True)) for n in b) == [0, 1, 2]
    monkeypatch.setattr(sys, "argv", ["train.py"])
    monkeypatch.setenv("VITCAP_PIPE", "1")
    bad = "pipe:cat x; exit 3 #a.tar"
    with pytest.raises(ShardError, match=r"cannot be read \(exit status 3\)"):
        list(read_samples(expand(bad)[0]))
    monkeypatch.setitem(sys.modules, "webdataset", None)
    with pytest.raises(ValueError, match=r'pip install "vitcap\[shards\]"'):
        expand(names[0])


@pytest.fixture
def site(tmp_path):
    """(folder, address) of a web server."""
    root = tmp_path / "site"
    root.mkdir()

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(Quiet, directory=str(root)))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield root, f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_shards_at_web_addresses(tmp_path, site):
    root, address = site
    made(root / "train", [3, 2])
    made(root / "val", [4])
    found = data(None, train=f"{address}/train/{{000..001}}.tar", val=f"{address}/val/000.tar", batch_size=2)
    assert sorted(n for b in numbers(found.loader("train", train=True)) for n in b) == list(range(5))
    assert [n for b in numbers(found.loader("val")) for n in b] == list(range(4))
    write_shards(table(tmp_path / "data", 5), root / "own", Plan("train", 2), data="table")
    own = data(None, train=f"{address}/own/train.json", batch_size=2)
    assert own.tokenizer is not None
    (root / "own" / "train.jsonl").unlink()  # the index and the texts were fetched, the shards are streamed
    assert len([i for batch in own.loader("train", train=True) for i in batch.ids]) == 5
    write_shards(table(tmp_path / "data", 3, split="val"), root / "own", Plan("val", 3, seed=None), data="table")
    index = ShardSource(val=f"{address}/own/val.json")
    assert [record.open().getpixel((0, 0))[0] for record in index.split("val")] == [0, 1, 2]
    for file in (root / "own").glob("val*"):
        file.unlink()
    turned = table(tmp_path / "data", 3, split="val")[::-1]  # files of equal sizes: only the bytes tell
    write_shards(turned, root / "own", Plan("val", 3, seed=None), data="table")
    for record in ShardSource(val=f"{address}/own/val.json").split("val"):
        assert record.open().getpixel((0, 0))[0] == int(record.image_id[3:-4])
    with pytest.raises(ShardError, match=r"nothing.tar: cannot be read \(exit status 22: the server says no"):
        list(read_samples(f"{address}/nothing.tar"))


@pytest.mark.parametrize(
    "wrong",
    [
        {"shard": 1},
        {"shard": -1},
        {"at": [0, -1]},
        {"at": [0]},
        {"at": "ab"},
        {"captions": "a dog"},
        {"captions": [3]},
        {"id": None},
        {"id": True},
        {"key": 3},
        {"label": -1},
    ],
    ids=str,
)
def test_lines_of_texts_that_are_not_as_written(wrong, tmp_path):
    write_shards(table(tmp_path / "data", 3), tmp_path / "out", Plan("val", 3), data="table")
    file = tmp_path / "out" / "val.jsonl"
    lines = file.read_text().splitlines()
    assert len(ShardSource(str(tmp_path / "out")).split("val")) == 3
    for changed in (json.dumps(json.loads(lines[1]) | wrong), lines[1][:-9], "3"):
        file.write_text("\n".join([lines[0], changed, lines[2]]) + "\n")
        with pytest.raises(ValueError, match=r"val.jsonl: line 2 is cut or not as vitcap writes it"):
            ShardSource(str(tmp_path / "out")).split("val")


@pytest.mark.parametrize(
    "name", ["pipe:touch x.tar", "/etc/passwd", "../up.tar", "a/b.tar", "-x.tar", "http://x/a.tar", 3]
)
@pytest.mark.parametrize("what", ["name", "texts"])
def test_an_index_names_files_beside_it_alone(name, what, tmp_path):
    write_shards(table(tmp_path / "data", 2), tmp_path / "out", Plan("train", 2), data="table")
    file = tmp_path / "out" / "train.json"
    index = json.loads(file.read_text())
    (index["shards"][0] if what == "name" else index)[what] = name
    file.write_text(json.dumps(index))
    with pytest.raises(ValueError, match="is refused: an index names files beside it, without any folder"):
        ShardSource(str(tmp_path / "out")).split("train")


# All of it


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Shards of drawn scenes, and a model trained on them for a few steps."""
    from hydra import compose, initialize_config_dir

    root = tmp_path_factory.mktemp("shards")
    sizes = [f"source.{split}_size={size}" for split, size in (("train", 20), ("val", 6), ("test", 4))]
    assert prepare.main(["shards", "--data", "shapes", *sizes, "--per-shard", "3", "--out", str(root / "data")]) == 0
    options = [option for option in TINY if "source" not in option]
    options += ["data=shards", f"data.root={root / 'data'}", "data.min_count=1", f"out={root / 'run'}"]
    conf = str(Path(__file__).resolve().parents[1] / "conf")
    with initialize_config_dir(conf, version_base="1.3"):
        report = run.train(compose("config", overrides=[*options, "+trainer.limit_train_batches=2"]))
    return root, report


def test_training_and_evaluation_from_shards(trained, config, tmp_path):
    root, report = trained
    assert (report["facts"]["steps"], report["facts"]["images"]) == (2, 6)
    where = f'data.source.test="{root / "data"}/test-{{000000..000001}}.tar"'
    options = [f"checkpoint={root / 'run'}", "data=shards", where, "split=test", f"out={tmp_path}"]
    assert run.evaluate(config(*options, name="evaluate"))["facts"]["images"] == 4


def test_training_that_is_interrupted_within_an_epoch_is_the_uninterrupted_one(trained, config, tmp_path, monkeypatch):
    root, _ = trained
    options = [option for option in TINY if "source" not in option and "batch_size" not in option]
    options += ["data=shards", f"data.root={root / 'data'}", "data.min_count=1", "data.batch_size=5", "ema=null"]
    run.train(config(*options, f"out={tmp_path / 'whole'}"))
    save = LastCheckpoint._save

    def asked(self, trainer, *, due):
        self._asked = signal.SIGTERM if trainer.global_step == 2 else 0
        save(self, trainer, due=due)

    with monkeypatch.context() as patch:
        patch.setattr(LastCheckpoint, "_save", asked)
        with pytest.raises(Interrupted):
            run.train(config(*options, f"out={tmp_path / 'parts'}"))
    run.train(config(*options, f"out={tmp_path / 'parts'}", "resume=true"))
    ends = [torch.load(tmp_path / n / "checkpoints" / "last.ckpt", weights_only=True) for n in ("whole", "parts")]
    assert ends[0]["global_step"] == 4
    assert_close(ends[1]["state_dict"], ends[0]["state_dict"], rtol=0, atol=0)


@pytest.mark.slow
def test_three_processes_of_two_workers_train_from_shards(trained, tmp_path):
    root, _ = trained
    options = [option for option in TINY if "source" not in option and "batch_size" not in option]
    options += ["data=shards", f"data.root={root / 'data'}", "data.min_count=1", "data.batch_size=7", "ema=null"]
    options += ["data.num_workers=2", "trainer.max_epochs=2", f"out={tmp_path}"]
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "3"]
    checkout = Path(__file__).resolve().parents[1]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(checkout)}
    subprocess.run(
        [sys.executable, *launcher, str(checkout / "scripts/train.py"), *options], check=True, env=environment
    )
    report = json.loads((tmp_path / "scores.json").read_text())
    assert (report["facts"]["steps"], report["facts"]["images"]) == (2 * 3, 6)


def captions(file: Path) -> dict[str, Any]:
    return {row["key"]: row for row in map(json.loads, file.read_text().splitlines())}


def test_captions_of_shards(trained, tmp_path, capsys, monkeypatch):
    root, _ = trained
    model = ["--model", str(root / "run"), "--batch-size", "2"]
    shards = f"{root / 'data'}/train-{{000000..000004}}.tar"
    first = ["caption", shards, *model, "--out", str(tmp_path / "out")]
    assert main([*first, "--part", "1/2"]) == 0
    names = [f"train-{n:06d}.jsonl" for n in range(5)]
    assert sorted(p.name for p in (tmp_path / "out").glob("*.jsonl")) == names[::2]
    before = (tmp_path / "out" / names[0]).stat().st_mtime_ns
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    (tmp_path / "out" / f".{names[1]}.7.part").write_bytes(b"half")  # of a run that was killed
    assert main(first) == 0
    assert not list((tmp_path / "out").glob(".*.part"))
    monkeypatch.delenv("RANK")
    assert sorted(p.name for p in (tmp_path / "out").glob("*.jsonl")) == names
    assert main(first) == 0
    assert "0 shards to caption, 5 done before" in capsys.readouterr().err
    assert (tmp_path / "out" / names[0]).stat().st_mtime_ns == before
    assert main(["caption", shards, *model, "--out", str(tmp_path / "tars"), "--shard-format", "tar", "--quiet"]) == 0
    found, whole = 0, {}
    for name in names:
        rows = captions(tmp_path / "out" / name)
        samples = {s.key: s for s in read_samples(str(root / "data" / name.replace("jsonl", "tar")))}
        assert list(rows) == list(samples)  # every picture of the shard, in its order
        assert all(row["id"] == samples[key].id and isinstance(row["caption"], str) for key, row in rows.items())
        found += len(rows)
        whole |= rows
        with tarfile.open(tmp_path / "tars" / name.replace("jsonl", "tar")) as archive:
            packed = {m.name: json.load(archive.extractfile(m)) for m in archive.getmembers()}
        assert packed == {f"{key}.json": row for key, row in rows.items()}
    assert found == 15
    from vitcap import load

    key, sample = next(iter(samples.items()))
    assert load(root / "run").caption(sample.open()).text == whole[key]["caption"]
    assert main([*first, "--beams", "4"]) == 2
    assert "are of another model or search; give another --out" in capsys.readouterr().err


def test_bad_shards_and_pictures_are_told_and_tried_again(trained, tmp_path, capsys):
    root, _ = trained
    made(tmp_path / "in", [2, 2])
    tar(tmp_path / "in" / "002.tar", {"1.jpg": jpeg(1), "2.jpg": b"broken"})
    content = (tmp_path / "in" / "001.tar").read_bytes()
    (tmp_path / "in" / "001.tar").write_bytes(content[:1500])
    command = ["caption", f"{tmp_path / 'in'}/*.tar", "--model", str(root / "run"), "--out", str(tmp_path / "out")]
    assert main(command) == 1
    said = capsys.readouterr().err
    assert "failed" in said
    assert "001.tar: no tar archive that can be read to its end" in said
    assert "skipped 002.tar/2.jpg: " in said
    assert sorted(p.name for p in (tmp_path / "out").iterdir()) == ["000.jsonl", "002.jsonl", "captions.json"]
    rows = captions(tmp_path / "out" / "002.jsonl")
    assert ("caption" in rows["1"], "error" in rows["2"]) == (True, True)
    (tmp_path / "in" / "001.tar").write_bytes(content)
    assert main(command) == 0
    assert "1 shards to caption, 2 done before" in capsys.readouterr().err
    assert len(captions(tmp_path / "out" / "001.jsonl")) == 2


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["a.tar", "b.jpg", "--out", "x"], "a.tar is a shard and b.jpg is not"),
        (["a.tar"], "shards need --out FOLDER"),
        (["a.tar", "--out", "x", "--part", "3/2"], "K/N is wanted, such as 2/8"),
        (["b.jpg", "--part", "1/2"], "--part and --shard-format are for shards"),
        (["a.tar", "--out", "x", "--sidecar"], "--sidecar is for photos, not for shards"),
        (["a.tar", "--out", "x", "--overwrite"], "--overwrite is for photos, not for shards"),
        (["a.tar", "--out", "x"], "a.tar: no such shard"),
        (["one/a.tar", "two/a.tar", "--out", "x"], "two shards have the same name"),
    ],
)
def test_mistakes_of_the_command_line(arguments, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for folder in ("one", "two"):
        tar(tmp_path / folder / "a.tar", {})
    with suppress(SystemExit):
        assert main(["caption", *arguments]) == 2
    assert said in capsys.readouterr().err


def test_what_is_counted_is_logged(tmp_path, caplog):
    made(tmp_path / "val", [2])
    tar(tmp_path / "val" / "9.tar", {"5.jpg": jpeg(5)})
    caplog.set_level(logging.INFO, "vitcap")
    assert len(ShardSource(str(tmp_path)).split("val")) == 2
    assert "1 pictures without captions skipped" in caplog.text
    tar(
        tmp_path / "twice" / "0.tar",
        {f"{n}.{k}": v for n in "ab" for k, v in (("jpg", jpeg(1)), ("json", b'{"id": 1}'))},
    )
    with pytest.raises(ValueError, match="the id 1 is there twice"):
        ShardSource(train=str(tmp_path / "val"), val=str(tmp_path / "twice")).split("val")
    assert isinstance(data(tmp_path / "val").loader("train", train=True), BatchLoader)


def test_a_share_that_no_process_can_have_is_told(monkeypatch):
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert caption_shards.share(SimpleNamespace(part=None)) == (1, 2)
    for rank, world in (("5", "2"), ("2", "2"), ("0", "0")):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setenv("WORLD_SIZE", world)
        with pytest.raises(ValueError, match=f"RANK={rank} with WORLD_SIZE={world}"):
            caption_shards.share(SimpleNamespace(part=None))
