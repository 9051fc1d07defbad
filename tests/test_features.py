"""The feature cache: what is computed again and what is not, interrupted runs, changed pictures, two processes."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps
from torch import Tensor
from torch.testing import assert_close

from vitcap.data.features import FeatureCache, fill, picture_key
from vitcap.data.pictures import CaptionData
from vitcap.data.records import CaptionRecord
from vitcap.data.transforms import Augment, Preprocess

PREPROCESS = Preprocess(size=(4, 4), mode="squash")
ROW = 2 * 3 * 2
"""Bytes of a row of (2, 3) float16."""


def picture(seed: int) -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (4, 4, 3), dtype=np.uint8))


@pytest.fixture
def records(tmp_path: Path) -> list[CaptionRecord]:
    (tmp_path / "pictures").mkdir()
    made = []
    for i in range(7):
        path = tmp_path / "pictures" / f"{i}.png"
        picture(i).save(path)
        made.append(CaptionRecord(i, path, (f"picture {i}",)))
    return made


class Trunk:
    """(B, 3, H, W) uint8 -> (B, 2, 3): the means of the left and right half of each channel; counts its pictures."""

    def __init__(self) -> None:
        self.seen = 0

    def __call__(self, images: Tensor) -> Tensor:
        self.seen += len(images)
        return torch.stack((images[..., :2].float().mean((2, 3)), images[..., 2:].float().mean((2, 3))), dim=1)


def plainly(image: Image.Image, key: str) -> Tensor:
    return PREPROCESS(image)


def expected(record: CaptionRecord, mirror: bool = False) -> Tensor:
    pixels = np.asarray(Image.open(record.image).convert("RGB"), dtype=np.float64)  # type: ignore[arg-type]
    pixels = pixels[:, ::-1] if mirror else pixels
    halves = np.stack((pixels[:, :2].mean((0, 1)), pixels[:, 2:].mean((0, 1))))
    return torch.from_numpy(halves).half()


def run(
    root: Path, records: list[CaptionRecord], trunk: Callable[[Tensor], Tensor], **options: object
) -> tuple[FeatureCache, list[str | None], dict[int | str, str]]:
    cache = FeatureCache(root, {"trunk": "abc"})
    keys, bad = fill(cache, records, extract=trunk, transform=plainly, batch_size=3, **options)  # type: ignore[arg-type]
    return cache, keys, bad


def right(cache: FeatureCache, keys: list[str | None], records: list[CaptionRecord]) -> None:
    for key, record in zip(keys, records, strict=True):
        assert key is not None
        row = cache[key]
        assert row.dtype == torch.float16
        assert_close(row, expected(record), rtol=0, atol=0)


def test_computed_once(tmp_path: Path, records: list[CaptionRecord]) -> None:
    first, second, seen = Trunk(), Trunk(), []
    cache, keys, bad = run(tmp_path / "cache", records, first, progress=lambda *done: seen.append(done))
    right(cache, keys, records)
    assert bad == {}
    assert first.seen == 7
    assert seen == [(3, 7), (6, 7), (7, 7)]
    assert (cache.folder / "features.f16").stat().st_size == 7 * ROW
    again, keys, _ = run(tmp_path / "cache", records[::-1], second)
    right(again, keys, records[::-1])
    assert second.seen == 0
    more = [*records, CaptionRecord("copy", records[3].image, ("the same file",))]
    cache, keys, _ = run(tmp_path / "cache", more, second)
    assert second.seen == 0
    assert keys[-1] == keys[3]


class Stopped(Exception):
    pass


def interrupted(root: Path, records: list[CaptionRecord], after: int) -> Path:
    """A run that ends at the picture after so many; the folder of its cache."""
    trunk = Trunk()

    def extract(images: Tensor) -> Tensor:
        if trunk.seen >= after:
            raise Stopped
        return trunk(images)

    cache = FeatureCache(root, {"trunk": "abc"})
    with pytest.raises(Stopped):
        fill(cache, records, extract=extract, transform=plainly, batch_size=3)
    return cache.folder


def test_an_interrupted_run_goes_on(tmp_path: Path, records: list[CaptionRecord]) -> None:
    folder = interrupted(tmp_path, records, after=6)
    assert len((folder / "keys.txt").read_text().splitlines()) == 6
    trunk = Trunk()
    cache, keys, _ = run(tmp_path, records, trunk)
    right(cache, keys, records)
    assert trunk.seen == 1


CUTS = {
    "rows without their keys": (6 * ROW, 3 * 33, 3),
    "half a row": (4 * ROW + 5, 3 * 33, 3),
    "half a key": (6 * ROW, 4 * 33 + 7, 4),
    "a key without its newline": (6 * ROW, 5 * 33 - 1, 4),
    "keys without their rows": (2 * ROW, 6 * 33, 2),
    "a key whose row is cut": (5 * ROW + ROW // 2 + 1, 6 * 33, 5),
    "no keys": (3 * ROW, 0, 0),
    "no rows": (0, 3 * 33, 0),
    "nothing": (0, 0, 0),
}


@pytest.mark.parametrize("name", CUTS)
def test_torn_files_are_cut_back_to_whole_rows(name: str, tmp_path: Path, records: list[CaptionRecord]) -> None:
    """Whatever a power cut left: rows that are whole stay, the others are computed anew, and every value is right."""
    rows, keys_size, whole = CUTS[name]
    folder = interrupted(tmp_path, records, after=6)
    os.truncate(folder / "features.f16", rows)
    os.truncate(folder / "keys.txt", keys_size)
    opened = FeatureCache(tmp_path, {"trunk": "abc"})
    assert len(opened.rows) == whole
    for record in records[:whole]:
        assert_close(opened[picture_key(record.image, "bytes")], expected(record), rtol=0, atol=0)  # type: ignore[arg-type]
    trunk = Trunk()
    cache, keys, _ = run(tmp_path, records, trunk)
    right(cache, keys, records)
    assert trunk.seen == 7 - whole
    assert (folder / "features.f16").stat().st_size == 7 * ROW
    right(*run(tmp_path, records, trunk)[:2], records)
    assert trunk.seen == 7 - whole


@pytest.mark.parametrize("name", ["shape.json", "keys.txt"])
def test_a_lost_file_starts_the_cache_anew(name: str, tmp_path: Path, records: list[CaptionRecord]) -> None:
    folder = interrupted(tmp_path, records, after=6)
    os.truncate(folder / "features.f16", 4 * ROW + 3)
    (folder / name).unlink()
    trunk = Trunk()
    cache, keys, _ = run(tmp_path, records, trunk)
    right(cache, keys, records)
    assert trunk.seen == 7


@pytest.mark.parametrize("key_by", ["bytes", "mtime"])
def test_a_changed_picture_gets_a_new_row(key_by: str, tmp_path: Path, records: list[CaptionRecord]) -> None:
    trunk = Trunk()
    _, before, _ = run(tmp_path / "cache", records, trunk, key_by=key_by)
    picture(100).save(records[2].image)
    os.utime(records[2].image, ns=(1, 1))  # type: ignore[arg-type]
    cache, keys, _ = run(tmp_path / "cache", records, trunk, key_by=key_by)
    right(cache, keys, records)
    assert trunk.seen == 8
    assert [a == b for a, b in zip(before, keys, strict=True)] == [i != 2 for i in range(7)]
    os.utime(records[4].image, ns=(5, 5))  # type: ignore[arg-type]
    run(tmp_path / "cache", records, trunk, key_by=key_by)
    assert trunk.seen == (8 if key_by == "bytes" else 9)


def test_another_trunk_or_preprocessing_has_another_folder(tmp_path: Path) -> None:
    plain = {"trunk": "abc", "preprocess": PREPROCESS.to_dict(), "mirror": False}
    other = Preprocess(size=(4, 4), mode="crop").to_dict()
    folders = [
        FeatureCache(tmp_path, identity).folder
        for identity in (plain, {**plain, "trunk": "abd"}, {**plain, "preprocess": other}, {**plain, "mirror": True})
    ]
    assert len(set(folders)) == 4
    assert FeatureCache(tmp_path, dict(reversed(plain.items()))).folder == folders[0]  # the order of keys is no matter
    assert json.loads((folders[0] / "identity.json").read_text()) == plain


def test_two_processes_do_not_fill_one_folder(tmp_path: Path, records: list[CaptionRecord]) -> None:
    cache = FeatureCache(tmp_path, {"trunk": "abc"})
    with open(cache.folder / "lock", "w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(BlockingIOError, match="another process is filling the feature cache"):
            run(tmp_path, records, Trunk())
    trunk = Trunk()
    run(tmp_path, records[:3], trunk)
    # Opened before the rows were there, it takes them over and adds its own behind them.
    fill(cache, records, extract=trunk, transform=plainly)
    right(cache, [picture_key(r.image, "bytes") for r in records], records)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [65001.0, float("inf"), float("nan")])
def test_what_float16_cannot_hold_is_refused(value: float, tmp_path: Path, records: list[CaptionRecord]) -> None:
    def extract(images: Tensor) -> Tensor:
        features = Trunk()(images)
        features[-1, -1, -1] = value
        return features

    with pytest.raises(ValueError, match="do not fit float16"):
        run(tmp_path, records, extract)
    cache, keys, _ = run(tmp_path, records, Trunk())  # nothing of it was kept
    right(cache, keys, records)


def test_unreadable_pictures_are_reported(tmp_path: Path, records: list[CaptionRecord]) -> None:
    """Each of them, also two with the same bytes; the rows of the others are where they should be."""
    for broken in (1, 4):
        Path(records[broken].image).write_bytes(b"\x89PNG but not really")  # type: ignore[arg-type]
    Path(records[6].image).unlink()  # type: ignore[arg-type]
    cache, keys, bad = run(tmp_path / "cache", records, Trunk())
    assert set(bad) == {1, 4, 6}
    assert "1.png" in bad[1]
    assert "6.png: No such file" in bad[6]
    assert [key is None for key in keys] == [i in (1, 4, 6) for i in range(7)]
    good = [i for i in range(7) if i not in (1, 4, 6)]
    right(cache, [keys[i] for i in good], [records[i] for i in good])


def test_what_cannot_be_cached(tmp_path: Path, records: list[CaptionRecord]) -> None:
    with pytest.raises(ValueError, match="cache key must be one of bytes, mtime, got 'name'"):
        run(tmp_path, records, Trunk(), key_by="name")
    drawn = CaptionRecord("scene", lambda: picture(0), ("drawn",))
    with pytest.raises(ValueError, match=r"record 'scene' is drawn.*data\.cache=null"):
        run(tmp_path, [drawn], Trunk())


class Files:
    """A source of the given records."""

    name = "files"

    def __init__(self, records: list[CaptionRecord]) -> None:
        self.own = records

    def splits(self) -> tuple[str, ...]:
        return ("train", "val")

    def split(self, name: str) -> list[CaptionRecord]:
        return self.own[:5] if name == "train" else self.own[5:]


def data(records: list[CaptionRecord], cache: Path, **options: object) -> CaptionData:
    made = CaptionData(lambda: Files(records), batch_size=5, min_count=1, cache=str(cache), **options)  # type: ignore[arg-type]
    made.fit_to(PREPROCESS.to_dict())
    made.cache_features(("train", "val"), fingerprint="abc", extract=Trunk())
    return made


def test_mirrored_views_are_drawn_in_training_only(tmp_path: Path, records: list[CaptionRecord]) -> None:
    made = data(records, tmp_path / "cache", cache_flip=True)
    mirrored = 0
    train = made.loader("train", train=True)
    for number in range(40):
        train.batches.set_epoch(number)
        (batch,) = train
        assert batch.images is None
        for id_, row in zip(batch.ids, batch.features, strict=True):  # type: ignore[arg-type]
            flipped = torch.equal(row, expected(records[int(id_)], mirror=True))
            assert flipped or torch.equal(row, expected(records[int(id_)]))
            mirrored += flipped
    assert 70 < mirrored < 130  # of 200
    (batch,) = made.loader("val")
    for id_, row in zip(batch.ids, batch.features, strict=True):  # type: ignore[arg-type]
        assert_close(row, expected(records[int(id_)]), rtol=0, atol=0)
    # The mirrored view equals the features of the mirrored picture, computed from scratch.
    turned = ImageOps.mirror(Image.open(records[0].image))  # type: ignore[arg-type]
    assert_close(Trunk()(PREPROCESS(turned)[None])[0].half(), expected(records[0], mirror=True), rtol=0, atol=0)


def test_random_views_are_drawn_once_for_each_picture(tmp_path: Path, records: list[CaptionRecord]) -> None:
    options = {"augment": partial(Augment, scale=(0.3, 0.9)), "cache_views": 3}
    made = data(records, tmp_path / "cache", **options)
    train = made.loader("train", train=True)
    seen: dict[int, set[bytes]] = {}
    for number in range(60):
        train.batches.set_epoch(number)
        (batch,) = train
        for id_, row in zip(batch.ids, batch.features, strict=True):  # type: ignore[arg-type]
            seen.setdefault(int(id_), set()).add(row.numpy().tobytes())
    plain = {i: expected(records[i]).numpy().tobytes() for i in range(5)}
    # The plain one and three others; of pictures so small two draws may be the same.
    assert set(map(len, seen.values())) <= {3, 4}
    assert sum(map(len, seen.values())) >= 18
    assert all(plain[i] in seen[i] for i in range(5))
    # Each is a part of its own picture, as the transform draws it from the picture's own seed.
    augment = Augment(size=PREPROCESS.size, scale=(0.3, 0.9), interpolation=PREPROCESS.interpolation)
    key = picture_key(Path(records[2].image), "bytes")  # type: ignore[arg-type]
    for view in range(3):
        seed = int(hashlib.sha256(f"{key} {view}".encode()).hexdigest()[:15], 16)
        drawn = augment(records[2].open(), torch.Generator().manual_seed(seed))
        assert Trunk()(drawn[None])[0].half().numpy().tobytes() in seen[2]
    (batch,) = made.loader("val")
    for id_, row in zip(batch.ids, batch.features, strict=True):  # type: ignore[arg-type]
        assert_close(row, expected(records[int(id_)]), rtol=0, atol=0)
    # Another process, or a later run, finds the same views.
    again = data(records, tmp_path / "cache", **options)
    assert [again._features["train"](i, torch.Generator()).tolist() for i in range(5)] == [
        made._features["train"](i, torch.Generator()).tolist() for i in range(5)
    ]


def test_views_need_what_makes_them(tmp_path: Path, records: list[CaptionRecord]) -> None:
    for options, told in (
        ({"augment": Augment}, "give data.cache_views=4"),
        ({"cache_views": 2}, "data.cache_views=2 needs data.augment"),
        ({"cache_views": -1}, "data.cache_views=-1: a whole number of at least 0"),
    ):
        with pytest.raises(ValueError, match=told):
            data(records, tmp_path, **options)
    with pytest.raises(ValueError, match=r"data\.cache_views=2 needs data\.cache=FOLDER"):
        CaptionData(lambda: Files(records), cache_views=2, augment=Augment)
    for augment in (Augment(), "flip"):
        made = CaptionData(lambda: Files(records), augment=augment, min_count=1)  # type: ignore[arg-type]
        made.fit_to(Preprocess(size=(8, 8)).to_dict())
        with pytest.raises(ValueError, match=r"data\.augment=.*: it makes no transform \(.*\); give \{_target_"):
            made.dataset("train", train=True)


def test_unreadable_pictures_leave_the_data(tmp_path: Path, records: list[CaptionRecord]) -> None:
    Path(records[1].image).write_bytes(b"nothing")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"1 pictures cannot be read: .*1\.png.*data\.on_bad=skip"):
        data(records, tmp_path / "cache")
    made = data(records, tmp_path / "cache", on_bad="skip")
    assert set(made.bad["train"]) == {1}
    assert [r.image_id for r in made.records("train")] == [0, 2, 3, 4]
    (batch,) = made.loader("train", train=True)
    for id_, row in zip(batch.ids, batch.features, strict=True):  # type: ignore[arg-type]
        assert_close(row, expected(records[int(id_)]), rtol=0, atol=0)


def test_a_damaged_shape_file_is_named(tmp_path):
    cache = FeatureCache(tmp_path, {"trunk": "a"})
    cache.extend([(["k"], torch.zeros(1, 2, 3))])
    (cache.folder / "shape.json").write_text("")
    with pytest.raises(ValueError, match=r"shape\.json: damaged; delete the folder"):
        FeatureCache(tmp_path, {"trunk": "a"})
