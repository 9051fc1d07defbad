"""Class folders as people have them, ImageNet's own files, and random training pictures."""

from __future__ import annotations

import json
import logging
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from torchvision.datasets import ImageFolder

from vitcap.data.augment import ClassifyAugment
from vitcap.data.image_folder import ImageFolderSource
from vitcap.data.imagenet import read_class_index
from vitcap.data.transforms import Augment


def pictures(root: Path, *names: str) -> Path:
    for name in names:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (4, 4)).save(root / name, "JPEG")
    return root


def write(path: Path, content: Any) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def labels(source: ImageFolderSource, split: str) -> dict[Any, Any]:
    return {record.image_id: record.label for record in source.split(split)}


def test_labels_are_torchvisions(tmp_path: Path) -> None:
    pictures(
        tmp_path, *(f"{s}/{c}/{i}.jpg" for s in ("train", "val") for c in ("owl", "Cat", "dog 2") for i in range(3))
    )
    source = ImageFolderSource(tmp_path)
    theirs = ImageFolder(str(tmp_path / "train"))
    assert list(source.classes) == theirs.classes == ["Cat", "dog 2", "owl"]
    assert [(str(r.image), r.label) for r in source.split("train")] == theirs.samples
    assert source.splits() == ("train", "val")
    assert source.split("val")[0].captions == ()
    assert source.split("val")[0].open().size == (4, 4)
    assert source.present("val") == (0, 1, 2)


def test_junk_is_left_out_and_counted(tmp_path: Path) -> None:
    good = ("train/dog/a.jpg", "train/cat/deep/down/b.JPEG", "val/dog/a.jpg", "val/cat/a.png")
    bad = ("train/.ipynb_checkpoints/a.jpg", "train/__MACOSX/a.jpg", "train/dog/._a.jpg", "train/cat/.hidden/a.jpg")
    pictures(tmp_path, *good, *bad, "train/loose.jpg")
    for name in ("train/dog/.DS_Store", "train/dog/Thumbs.db", "train/dog/readme.txt", "train/.DS_Store"):
        write(tmp_path / name, "x")
    source = ImageFolderSource(tmp_path)
    assert source.classes == ("cat", "dog")
    assert labels(source, "train") == {"train/cat/deep/down/b.JPEG": 0, "train/dog/a.jpg": 1}
    counts = +source.report
    assert counts == Counter(
        {
            "images": 2,
            "hidden and junk folders left out": 3,
            "hidden and junk files left out": 4,
            "files that are no pictures left out": 1,
            "pictures outside class folders left out": 1,
        }
    )
    assert labels(source, "val") == {"val/cat/a.png": 0, "val/dog/a.jpg": 1}


def test_numbers_sort_by_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    pictures(tmp_path, *(f"{s}/{c}/a.jpg" for s in ("train", "val") for c in (1, 2, 10, 21)))
    with caplog.at_level(logging.INFO):
        source = ImageFolderSource(tmp_path)
    assert source.classes == ("1", "2", "10", "21")
    assert "numeric order" in caplog.text
    assert labels(source, "val")["val/10/a.jpg"] == 2
    assert ImageFolderSource(tmp_path, order="text").classes == ("1", "10", "2", "21")
    with pytest.raises(ValueError, match="choose auto, text or numeric"):
        ImageFolderSource(tmp_path, order="size")
    pictures(tmp_path, "train/owl/a.jpg", "val/owl/a.jpg")
    assert ImageFolderSource(tmp_path).classes == ("1", "10", "2", "21", "owl")
    with pytest.raises(ValueError, match="order=numeric, but owl are no numbers"):
        ImageFolderSource(tmp_path, order="numeric")


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ["train/cat/a.jpg", "train/owl/a.jpg", "val/cat/a.jpg"],
            r"val: the classes differ from train: it lacks owl\.",
        ),
        (
            ["train/cat/a.jpg", "val/cat/a.jpg", "val/owl/a.jpg"],
            r"val: the classes differ from train: it also has owl\.",
        ),
        (["train/a/a.jpg", "val/b/a.jpg"], r"lacks a and also has b\. .*class_index"),
        (["train/a.jpg", "val/a.jpg"], r"no class folders in it: the layout is .*/train/CLASS/picture"),
        (["train/a/a.jpg", "val/a/a.jpg", "valid/a/a.jpg"], r"val and valid are both the val split"),
    ],
)
def test_layouts_that_cannot_be_meant(names: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        ImageFolderSource(pictures(tmp_path, *names))
    assert str(tmp_path) in str(caught.value)


def test_classes_without_pictures(tmp_path: Path) -> None:
    pictures(tmp_path, "train/cat/a.jpg", "train/owl/a.jpg", "val/cat/a.jpg")
    (tmp_path / "val" / "owl").mkdir()
    source = ImageFolderSource(tmp_path)
    assert labels(source, "val") == {"val/cat/a.jpg": 0}
    assert source.report["class folders of val without pictures"] == 1
    assert source.present("val") == (0,)
    (tmp_path / "train" / "owl" / "a.jpg").unlink()
    with pytest.raises(ValueError, match="no pictures in the class folders owl"):
        ImageFolderSource(tmp_path).split("train")
    (tmp_path / "val" / "cat" / "a.jpg").unlink()
    with pytest.raises(ValueError, match="val: no pictures in it"):
        ImageFolderSource(tmp_path).split("val")


def test_a_share_of_every_class_becomes_val(tmp_path: Path) -> None:
    pictures(tmp_path, *(f"cat/{i}.jpg" for i in range(20)), *(f"dog/{i}.jpg" for i in range(5)), "owl/0.jpg")
    source = ImageFolderSource(tmp_path, val_fraction=0.2)
    assert source.splits() == ("train", "val")
    train, val = labels(source, "train"), labels(source, "val")
    assert Counter(val.values()) == {0: 4, 1: 1}
    assert Counter(train.values()) == {0: 16, 1: 4, 2: 1}
    assert not set(train) & set(val)
    assert labels(ImageFolderSource(tmp_path, val_fraction=0.2), "val") == val
    assert labels(ImageFolderSource(tmp_path, val_fraction=0.2, split_seed=1), "val") != val
    with pytest.raises(ValueError, match=r"no split 'val'; there is all; evaluate with split=all; set .*val_fraction"):
        ImageFolderSource(tmp_path).split("val")
    assert len(ImageFolderSource(tmp_path).split("all")) == 26


def test_links_that_lead_back_end(tmp_path: Path) -> None:
    pictures(tmp_path, "cat/a.jpg", "dog/a.jpg")
    (tmp_path / "cat" / "again").symlink_to(tmp_path / "cat", target_is_directory=True)
    assert len(ImageFolderSource(tmp_path).split("all")) == 2


# --- ImageNet ---

INDEX = {
    "0": ["n01440764", "tench"],
    "1": ["n01443537", "crane"],
    "2": ["n02012849", "crane"],
    "3": ["n03126707", "kite"],
}


def test_class_index_gives_order_and_names(tmp_path: Path) -> None:
    """Index, id and name of a class all name its folder; the data may have some of the classes only."""
    write(tmp_path / "imagenet_class_index.json", INDEX)
    pictures(tmp_path, "val/n03126707/a.jpg", "val/n01443537/a.jpg")
    source = ImageFolderSource(tmp_path)
    assert source.classes == ("n01440764", "n01443537", "n02012849", "n03126707")
    assert source.class_names == ("tench", "crane", "crane", "kite")
    assert labels(source, "val") == {"val/n01443537/a.jpg": 1, "val/n03126707/a.jpg": 3}
    assert source.present("val") == (1, 3)
    assert source.subset is None
    part = ImageFolderSource(tmp_path, subset=True)  # as for ImageNet-A and -R
    assert part.subset == (1, 3)
    assert len(part.classes) == 4
    pictures(tmp_path / "v2", "0/a.jpg", "3/a.jpg", "kite/b.jpg")
    source = ImageFolderSource(tmp_path / "v2", class_index="../imagenet_class_index.json")
    assert labels(source, "all") == {"0/a.jpg": 0, "3/a.jpg": 3, "kite/b.jpg": 3}
    for wrong in ("4", "crane", "n99999999"):  # beyond the index, twice in it, not in it
        folder = pictures(tmp_path / f"x{wrong}", f"{wrong}/a.jpg")
        with pytest.raises(ValueError, match=f"'{wrong}' is not one of the 4 classes"):
            ImageFolderSource(folder, class_index=str(tmp_path / "imagenet_class_index.json")).split("all")


def test_classes_of_a_model_are_taken_over(tmp_path: Path) -> None:
    pictures(tmp_path, "1/a.jpg", "2/a.jpg", "10/a.jpg")
    source = ImageFolderSource(tmp_path)
    assert labels(source, "all") == {"1/a.jpg": 0, "2/a.jpg": 1, "10/a.jpg": 2}
    source.use_classes(["1", "10", "2", "3"])  # a model that was trained on another order, and on more
    assert labels(source, "all") == {"1/a.jpg": 0, "10/a.jpg": 1, "2/a.jpg": 2}
    source.use_classes(["cat", "dog"])
    with pytest.raises(ValueError, match=r"'(2|10)' is not one of the 2 classes \(classes of the model\)"):
        source.split("all")


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({"0": ["a", "b"], "2": ["c", "d"]}, "index 1 is missing"),
        ({"0": ["a", "b"], "1": ["a", "d"]}, "class 'a' is there twice"),
        ({"0": ["a"]}, r"\"INDEX\": \[\"id\", \"name\"\]"),
        ({"a": ["a", "b"]}, "entry 'a'"),
        ([], "no class index"),
        ("{", "line 1 column"),
    ],
)
def test_class_indices_that_are_none(content: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        read_class_index(write(tmp_path / "index.json", content))
    assert "index.json" in str(caught.value)
    assert read_class_index(write(tmp_path / "list.json", ["cat", "owl"])) == (("cat", "owl"), ("cat", "owl"))


SYNSETS = ["n01440764", "n01443537", "n02012849", "n03126707"]
DEVKIT = ["n03126707", "n01440764", "n02012849", "n01443537"]
"""An order of its own, as the development kit has."""
TRUTH = [2, 1, 4, 4]
EXPECTED = [DEVKIT[t - 1] for t in TRUTH]


def flat_imagenet(root: Path) -> Path:
    pictures(root, *(f"val/ILSVRC2012_val_{i:08d}.JPEG" for i in range(1, 5)))
    return pictures(root, *(f"train/{wnid}/{wnid}_1.JPEG" for wnid in SYNSETS))


def clsloc(root: Path) -> None:
    kit = root / "ILSVRC2012_devkit_t12" / "data"
    write(kit / "ILSVRC2012_validation_ground_truth.txt", "\n".join(map(str, TRUTH)) + "\n")
    write(kit / "map_clsloc.txt", "".join(f"{w} {DEVKIT.index(w) + 1} name\n" for w in SYNSETS))


def synset_list(root: Path) -> None:
    write(root / "ILSVRC2012_validation_ground_truth.txt", "\n".join(map(str, TRUTH)))
    write(root / "synset_words.txt", "".join(f"{w} some, names\n" for w in DEVKIT))


def kaggle(root: Path) -> None:
    rows = [f"ILSVRC2012_val_{i:08d},{w} 1 2 3 4 {w} 5 6 7 8" for i, w in enumerate(EXPECTED, 1)]
    write(root / "LOC_val_solution.csv", "\n".join(["ImageId,PredictionString", *reversed(rows)]))


def caffe(root: Path) -> None:
    rows = [f"ILSVRC2012_val_{i:08d}.JPEG {SYNSETS.index(w)}" for i, w in enumerate(EXPECTED, 1)]
    write(root / "val.txt", "\n".join(rows))


def meta(root: Path) -> None:
    scipy_io = pytest.importorskip("scipy.io")
    import numpy as np

    rows = np.zeros(5, dtype=[("ILSVRC2012_ID", object), ("WNID", object)])
    for place, (number, wnid) in enumerate([*enumerate(DEVKIT, 1), (1001, "n00001740")]):
        rows[place] = (number, wnid)
    write(root / "ILSVRC2012_validation_ground_truth.txt", "\n".join(map(str, TRUTH)))
    scipy_io.savemat(root / "meta.mat", {"synsets": rows})


@pytest.mark.parametrize("truth", [clsloc, synset_list, kaggle, caffe, meta])
def test_flat_validation_folder(truth: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    truth(flat_imagenet(tmp_path))
    source = ImageFolderSource(tmp_path)
    with caplog.at_level(logging.INFO):
        found = source.split("val")
    assert [r.label for r in found] == [SYNSETS.index(w) for w in EXPECTED]
    assert found[0].image_id == "val/ILSVRC2012_val_00000001.JPEG"
    assert "flat, labels" in caplog.text  # and the log says from where


def test_flat_validation_folder_without_a_usable_truth(tmp_path: Path) -> None:
    flat_imagenet(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"no LOC_val_solution\.csv, val\.txt or ILSVRC2012_validation"):
        ImageFolderSource(tmp_path).split("val")
    truth = write(tmp_path / "ILSVRC2012_validation_ground_truth.txt", "2\n1\n4\n")
    write(tmp_path / "synset_words.txt", "".join(f"{w} names\n" for w in SYNSETS))
    with pytest.raises(FileNotFoundError, match=r"order of the development kit, which no sorted synset list tells"):
        ImageFolderSource(tmp_path).split("val")
    write(tmp_path / "map_clsloc.txt", "".join(f"{w} {i} x\n" for i, w in enumerate(DEVKIT, 1)))
    with pytest.raises(ValueError, match=r"3 labels over 4 synsets have none for ILSVRC2012_val_00000004"):
        ImageFolderSource(tmp_path).split("val")
    truth.unlink()
    write(tmp_path / "val.txt", "ILSVRC2012_val_00000001.JPEG 1000\n")
    with pytest.raises(ValueError, match=r"val\.txt: line 1 .*below 4"):
        ImageFolderSource(tmp_path).split("val")
    pictures(tmp_path, "val/other.jpg")
    with pytest.raises(ValueError, match=r"pictures \(other\.jpg, \.\.\.\) but no class folders"):
        ImageFolderSource(tmp_path).split("val")


def test_real_labels_go_by_the_number_of_the_picture(tmp_path: Path) -> None:
    names = {3: "n01440764", 1: "n03126707", 4: "n02012849", 2: "n01443537"}
    pictures(tmp_path, *(f"val/{w}/ILSVRC2012_val_{i:08d}.JPEG" for i, w in names.items()))
    write(tmp_path / "real.json", [[3, 0], [], [0], [1, 2]])
    source = ImageFolderSource(tmp_path, real_labels="real.json")
    real = source.real
    assert real is not None
    assert {str(i)[-13:]: labels for i, labels in real.items()} == {
        "00000001.JPEG": {0, 3},
        "00000002.JPEG": set(),
        "00000003.JPEG": {0},
        "00000004.JPEG": {1, 2},
    }
    write(tmp_path / "real.json", [[3, 0], [], [4]])
    with pytest.raises(ValueError, match="label 4 is none of the classes 0 to 3"):
        _ = source.real
    write(tmp_path / "real.json", [[3, 0]])
    with pytest.raises(ValueError, match="1 entries, none for ILSVRC2012_val_0000000"):
        _ = source.real
    write(tmp_path / "real.json", [[0]] * 4)
    pictures(tmp_path, "val/n01440764/other.JPEG")
    with pytest.raises(ValueError, match="ReaL goes by the number"):
        _ = ImageFolderSource(tmp_path, real_labels="real.json").real
    assert ImageFolderSource(tmp_path).real is None


def test_the_sample_of_imagenet(data_root: Path) -> None:
    source = ImageFolderSource(data_root / "imagenet_sample")
    records = source.split("val")
    assert (len(records), len(source.classes), len(source.present("val"))) == (500, 1000, 500)
    for record in records:
        assert isinstance(record.image, Path)
        assert record.label is not None
        assert source.classes[record.label] == record.image.parent.name
    assert source.class_names[records[0].label or 0] == "tench"


# --- augmentation ---


def photo() -> Image.Image:
    values = torch.randint(0, 256, (60, 80, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    return Image.fromarray(values.numpy()).resize((160, 120), Image.Resampling.BICUBIC)


def test_augmentation_is_a_function_of_the_generator() -> None:
    augment = ClassifyAugment(size=(32, 48), erase=0.5)
    image = photo()
    torch.manual_seed(5)
    before = torch.get_rng_state()
    first = [augment(image, torch.Generator().manual_seed(seed)) for seed in range(20)]
    assert torch.equal(torch.get_rng_state(), before)  # the draws of the model are not disturbed
    torch.rand(7)
    again = [augment(image, torch.Generator().manual_seed(seed)) for seed in range(20)]
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert {(tuple(a.shape), a.dtype) for a in first} == {((3, 32, 48), torch.uint8)}
    assert not any(torch.equal(a, b) for n, a in enumerate(first) for b in first[:n])


def test_without_operations_it_is_the_crop_of_inception() -> None:
    augment = ClassifyAugment(size=(32, 32), operations=0)
    crop = Augment(size=(32, 32), scale=(0.08, 1.0), flip=True)
    for seed in range(5):
        one, two = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        assert torch.equal(augment(photo(), one), crop(photo(), two))


def test_erasing_puts_noise_into_a_rectangle() -> None:
    plain = ClassifyAugment(size=(64, 64), operations=0, scale=(1, 1), flip=False)
    erasing = ClassifyAugment(size=(64, 64), operations=0, scale=(1, 1), flip=False, erase=1.0)
    image = Image.new("RGB", (64, 64), (10, 20, 30))
    for seed in range(10):
        one, two = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(seed)
        changed = (erasing(image, one) != plain(image, two)).any(0)
        rows, columns = changed.any(1).nonzero()[:, 0], changed.any(0).nonzero()[:, 0]
        box = changed[rows.min() : rows.max() + 1, columns.min() : columns.max() + 1]
        assert box.float().mean() > 0.95
        assert 0.015 < box.numel() / 64**2 < 0.34
    rate = ClassifyAugment(size=(16, 16), operations=0, scale=(1, 1), flip=False, erase=0.25)
    image = Image.new("RGB", (16, 16))
    hits = sum(bool(rate(image, torch.Generator().manual_seed(seed)).any()) for seed in range(200))
    assert 30 < hits < 70


@pytest.mark.parametrize(
    ("option", "value"), [("erase", 1.5), ("operations", -1), ("magnitude", 31), ("scale", (0, 1))]
)
def test_augmentation_out_of_range(option: str, value: Any) -> None:
    with pytest.raises(ValueError, match=option):
        ClassifyAugment(**{option: value})
