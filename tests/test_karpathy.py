"""The Karpathy split of COCO rebuilt from the official files of 2014 and lists of images."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from hydra.utils import instantiate
from PIL import Image

from vitcap.data.coco import KarpathySource
from vitcap.data.karpathy import RESTVAL, TEST, TRAIN, VAL, find_lists, split_by_lists
from vitcap.data.records import Entry

TRAINING, VALIDATION = [9, 25, 30], [42, 73, 74, 133, 136]
NAMES = {i: f"COCO_train2014_{i:012d}.jpg" for i in TRAINING} | {i: f"COCO_val2014_{i:012d}.jpg" for i in VALIDATION}


def official(root: Path, captions: int = 5, below: str = "annotations") -> Path:
    """The official files of a tiny COCO 2014."""
    for split, ids in (("train", TRAINING), ("val", VALIDATION)):
        (root / f"{split}2014").mkdir(parents=True)
        for i in ids:
            Image.new("RGB", (8, 6)).save(root / f"{split}2014" / NAMES[i])
        told = [
            {"id": 10 * i + k, "image_id": i, "caption": f"Picture {i}, told {k}."}
            for i in ids
            for k in range(captions)
        ]
        (root / below).mkdir(exist_ok=True)
        content = {"images": [{"id": i, "file_name": NAMES[i]} for i in ids], "annotations": told}
        (root / below / f"captions_{split}2014.json").write_text(json.dumps(content))
    return root


def write(folder: Path, **lists: list[object]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, lines in lists.items():
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    return folder


def ids(source: KarpathySource) -> dict[str, list[object]]:
    return {split: [record.image_id for record in source.split(split)] for split in source.splits()}


BOTTOM_UP = {  # the file name with its folder, then the id; train holds restval
    "karpathy_train_images": [
        f"{'train' if i in TRAINING else 'val'}2014/{NAMES[i]} {i}" for i in (*TRAINING, 42, 136)
    ],
    "karpathy_val_images": [f"val2014/{NAMES[i]} {i}" for i in (133, 73)],
    "karpathy_test_images": [f"val2014/{NAMES[74]} 74"],
}
NAMES_ALONE = {
    "coco_train": [NAMES[i] for i in TRAINING],
    "coco_restval": [NAMES[42], NAMES[136]],
    "coco_dev": [NAMES[133], NAMES[73]],
    "coco_test": [NAMES[74]],
}
IDS = {"train": TRAINING, "restval": [42, 136], "val_ids": [133, 73], "test_ids": [74, ""]}
TWO = {"coco_val": ["133", "000000000073"], "coco_test": [r"val2014\COCO_val2014_000000000074.jpg"]}


@pytest.mark.parametrize("lists", [BOTTOM_UP, NAMES_ALONE, IDS, TWO], ids=["bottom-up", "names", "ids", "val and test"])
@pytest.mark.parametrize("folder", ["", "splits", "elsewhere"])
def test_every_kind_of_lists_gives_the_same_split(lists, folder, tmp_path) -> None:
    root = official(tmp_path)
    write(root / folder, **lists)
    source = KarpathySource(root, lists=folder if folder == "elsewhere" else None, expect=False)
    assert ids(source) == {"train": [9, 25, 30, 42, 136], "val": [133, 73], "test": [74]}
    last = source.split("train")[-1]
    assert last.image == root / "val2014" / NAMES[136]
    assert last.captions == tuple(f"Picture 136, told {k}." for k in range(5))
    assert source.report == {"images": 8, "captions": 40}


@pytest.mark.parametrize("lists", [NAMES_ALONE, TWO], ids=["names", "val and test"])
def test_restval_can_be_kept_apart(lists, tmp_path) -> None:
    write(official(tmp_path), **lists)
    found = ids(KarpathySource(tmp_path, restval=False, expect=False))
    assert found == {"train": TRAINING, "restval": [42, 136], "val": [133, 73], "test": [74]}


def test_what_is_odd_in_the_official_files_is_told_with_its_place(tmp_path) -> None:
    write(official(tmp_path), **NAMES_ALONE)
    file = tmp_path / "annotations" / "captions_val2014.json"
    content = json.loads(file.read_text())
    content["images"].append(content["images"][0])
    file.write_text(json.dumps(content))
    source = KarpathySource(tmp_path, expect=False)
    assert source.splits()
    assert source.report["images listed twice merged"] == 1
    assert source.places["images listed twice merged"] == [str(file)]


def test_a_part_of_the_training_list_is_that_part(tmp_path) -> None:
    write(official(tmp_path), **(NAMES_ALONE | {"coco_train": [25], "coco_restval": []}))
    assert ids(KarpathySource(tmp_path, expect=False))["train"] == [25]


def test_a_split_file_comes_first_and_lists_can_be_asked_for(tmp_path) -> None:
    write(official(tmp_path), **NAMES_ALONE)
    image = {
        "filename": NAMES[42],
        "filepath": "val2014",
        "cocoid": 42,
        "split": "val",
        "sentences": [{"raw": "a cat"}],
    }
    (tmp_path / "dataset_coco.json").write_text(json.dumps({"images": [image]}))
    assert ids(KarpathySource(tmp_path)) == {"val": [42]}
    assert ids(KarpathySource(tmp_path, json="dataset_coco.json")) == {"val": [42]}
    assert ids(KarpathySource(tmp_path, lists=".", expect=False))["val"] == [133, 73]
    with pytest.raises(ValueError, match=r"json=dataset_coco\.json, data\.source\.lists=\.: only one of them"):
        KarpathySource(tmp_path, json="dataset_coco.json", lists=".")


def test_other_places_for_files_and_pictures(tmp_path) -> None:
    official(tmp_path, below=".")
    (tmp_path / "photos").mkdir()
    for split in ("train2014", "val2014"):
        (tmp_path / split).rename(tmp_path / "photos" / split)
    write(tmp_path / "lists", **TWO)
    source = KarpathySource(tmp_path, lists="lists", images="photos", expect=False)
    assert source.split("test")[0].image == tmp_path / "photos" / "val2014" / NAMES[74]
    usual = KarpathySource(tmp_path, lists="lists", expect=False)
    with pytest.raises(FileNotFoundError, match=r"1 of 1 test images are not there: .*COCO_val2014_000000000074\.jpg"):
        usual.split("test")


def test_the_config_reaches_it(config, tmp_path) -> None:
    write(official(tmp_path), **TWO)
    data = instantiate(
        config("data=karpathy", f"data.root={tmp_path}", "data.source.expect=false", "data.min_count=1").data
    )
    assert {len(data.records(split)) for split in ("train", "val", "test")} == {5, 2, 1}


# what is wrong with lists


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"coco_val": [133, 7]},
            r"coco_val\.txt line 2: image 7 is neither in captions_train2014\.json nor in .*val2014",
        ),
        (
            {"coco_val": ["COCO_val2014_000000000009.jpg"]},
            r"coco_val\.txt line 1: image COCO_val2014_\d+9\.jpg is neither",
        ),
        (
            {"coco_test": [f"{NAMES[74]} 73"]},
            r"coco_test\.txt line 1: '\S+ 73', where \S+74\.jpg and perhaps its id 74",
        ),
        ({"coco_test": ["74 a picture of 74"]}, r"coco_test\.txt line 1: '74 a picture of 74', where 74 and perhaps"),
        ({"coco_val": [133, 73, 133]}, r"image 133 is listed in coco_val\.txt line 1 and in coco_val\.txt line 3"),
        (
            {"coco_test": [74, 73]},
            r"coco_test\.txt: image 73 is listed in coco_val\.txt line 2 and in coco_test\.txt line 2",
        ),
        ({"coco_train": [9, 133]}, r"image 133 is listed in coco_train\.txt line 2 and in coco_val\.txt line 1"),
    ],
)
def test_lists_that_do_not_fit_are_named(changes, message, tmp_path) -> None:
    write(official(tmp_path), **(TWO | changes))
    for expect in (True, False):
        with pytest.raises(ValueError, match=message) as caught:
            KarpathySource(tmp_path, expect=expect).split("train")
        assert "\n" not in str(caught.value)


def test_files_that_are_not_there_are_named(tmp_path) -> None:
    with pytest.raises(
        FileNotFoundError,
        match=r"no dataset\*\.json .* with data\.source\.json=, or the folder of coco_val\.txt .*data\.source\.lists=",
    ):
        KarpathySource(tmp_path)
    write(tmp_path / "half", coco_val=[133])
    with pytest.raises(FileNotFoundError, match=r"half: no lists of val and test, such as coco_val\.txt and coco_test"):
        KarpathySource(tmp_path, lists="half")
    write(tmp_path, **TWO)
    with pytest.raises(
        FileNotFoundError, match=r"captions_train2014\.json: no such file; lists of images need the off"
    ):
        KarpathySource(tmp_path).splits()
    official(tmp_path)
    (tmp_path / "annotations" / "captions_val2014.json").unlink()
    with pytest.raises(FileNotFoundError, match=r"captions_val2014\.json: no such file"):
        KarpathySource(tmp_path).splits()
    write(tmp_path, dev=[133])
    with pytest.raises(ValueError, match=r"coco_val\.txt and dev\.txt are both lists of val: keep one"):
        KarpathySource(tmp_path)


def test_other_text_files_are_no_lists(tmp_path) -> None:
    write(
        tmp_path, **{"Flickr_8k.devImages": [1], "Flickr_8k.testImages": [1], "valid": [1], "latest": [1], "test": [1]}
    )
    assert find_lists(tmp_path) == {}


# the counts


def entries(split: str, count: int, start: int = 1) -> list[Entry]:
    five = ["a"] * 5
    folder = Path(f"{split}2014")
    return [
        Entry(i, folder / f"COCO_{split}2014_{i:012d}.jpg", five, f"captions_{split}2014.json, image id {i}")
        for i in range(start, start + count)
    ]


@pytest.fixture(scope="module")
def full(tmp_path_factory):
    """All of COCO 2014 by name, and lists of the right sizes."""
    train2014, val2014 = entries("train", TRAIN), entries("val", RESTVAL + VAL + TEST, start=200_001)
    held = val2014[RESTVAL:]
    lists = {
        "coco_train": train2014,
        "coco_restval": val2014[:RESTVAL],
        "coco_val": held[:VAL],
        "coco_test": held[VAL:],
    }
    folder = write(tmp_path_factory.mktemp("full"), **{k: [e.path.name for e in v] for k, v in lists.items()})
    return find_lists(folder), train2014, val2014


def without(full, split: str) -> dict[str, Path]:
    return {name: path for name, path in full[0].items() if name != split}


def shortened(full, split: str, folder: Path, drop: int = 1) -> dict[str, Path]:
    lines = full[0][split].read_text().splitlines()[:-drop]
    return full[0] | {split: write(folder, **{f"coco_{split}": lines}) / f"coco_{split}.txt"}


def test_the_full_split_has_its_counts(full) -> None:
    lists, train2014, val2014 = full
    found = split_by_lists(lists, train2014, val2014)
    assert {split: len(some) for split, some in found.items()} == {
        "train": 82_783,
        "restval": 30_504,
        "val": 5_000,
        "test": 5_000,
    }
    assert len(found["train"]) + len(found["restval"]) == 113_287
    assert len({entry.image_id for some in found.values() for entry in some}) == 123_287
    rest = {split: lists[split] for split in ("val", "test")}
    assert split_by_lists(rest, train2014, val2014) == found


def test_counts_that_are_not_met_are_named(full, tmp_path) -> None:
    _, *pictures = full
    last = "; if the lists are only a part of the split, set data.source.expect=false"
    for lists, message in [
        (shortened(full, "val", tmp_path), f"{tmp_path}/coco_val.txt: 5,000 images are wanted, 4,999 found{last}"),
        (
            shortened(full, "test", tmp_path, 4_000),
            f"{tmp_path}/coco_test.txt: 5,000 images are wanted, 1,000 found{last}",
        ),
        (
            shortened(full, "restval", tmp_path, 3),
            f"{full[0]['train']}: train and restval together are 113,287 images, 82,783 + 30,501 found{last}",
        ),
        (
            without(full, "restval"),
            f"{full[0]['train']}: train and restval together are 113,287 images, 82,783 + 0 found; restval is missing: "
            "add coco_restval.txt, or take the train list away",
        ),
    ]:
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            split_by_lists(lists, *pictures)
    lists, train2014, val2014 = full
    rest = {split: lists[split] for split in ("val", "test")}
    with pytest.raises(
        ValueError, match=r"^the official pictures in neither val nor test: .* 113,287 .*, 82,782 \+ 30,504"
    ):
        split_by_lists(rest, train2014[:-1], val2014)
    four = [*val2014[:-1], val2014[-1]._replace(captions=["a"] * 4)]
    message = r"^captions_val2014\.json, image id 240504 \(test\): 5 captions or more are wanted, 4 found$"
    with pytest.raises(ValueError, match=message):
        split_by_lists(lists, train2014, four)


def test_small_lists_are_refused_unless_told_otherwise(tmp_path) -> None:
    write(official(tmp_path), **TWO)
    with pytest.raises(
        ValueError, match=r"coco_val\.txt: 5,000 images are wanted, 2 found; .*data\.source\.expect=false$"
    ):
        KarpathySource(tmp_path).splits()
