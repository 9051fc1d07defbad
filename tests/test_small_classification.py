"""Classifiers from scratch on small pictures: the digits as data, labelled folders, and the recipes' top-1."""

from __future__ import annotations

import builtins
import csv
import json
import pickle
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import vitcap
from vitcap import run
from vitcap.data.digit_images import DigitImagesSource
from vitcap.data.shapes import ShapesSource

ROOT = Path(__file__).resolve().parents[1]
TINY = ["model=vit_classify", "model.encoder.width=32", "model.encoder.depth=1", "model.encoder.heads=2", "overlays=0"]
TINY += ["samples=0", "report=false"]


@pytest.fixture(scope="module")
def digits():
    return pytest.importorskip("sklearn.datasets", reason="scikit-learn ships the digits").load_digits()


def test_the_pictures_and_labels_are_those_of_scikit_learn(digits) -> None:
    source = DigitImagesSource()
    records = {record.image_id: record for split in source.splits() for record in source.split(split)}
    assert sorted(records) == list(range(1797))
    for index, record in records.items():
        assert record.label == digits.target[index]
        assert source.classes[record.label] == str(digits.target[index])
        assert record.captions == ()
    for index in range(0, 1797, 97):
        picture = records[index].open()
        assert (picture.mode, picture.size) == ("RGB", (8, 8))
        wanted = np.rint(digits.images[index] * 255 / 16).astype(np.uint8)
        np.testing.assert_array_equal(np.array(picture), np.repeat(wanted[..., None], 3, axis=2))
    again = pickle.loads(pickle.dumps(records[5]))
    assert np.array_equal(np.array(again.open()), np.array(records[5].open()))


@pytest.mark.parametrize(("fraction", "count"), [(0.2, 359), (0.5, None)])
def test_the_split_is_stratified_and_a_function_of_the_seed(digits, fraction: float, count: int | None) -> None:
    def held(seed: int) -> list[object]:
        return [record.image_id for record in DigitImagesSource(seed=seed, val_fraction=fraction).split("val")]

    source = DigitImagesSource(val_fraction=fraction)
    train, val = (source.split(split) for split in ("train", "val"))
    assert not {r.image_id for r in train} & {r.image_id for r in val}
    whole, some = Counter(digits.target.tolist()), Counter(record.label for record in val)
    assert all(some[label] == round(fraction * whole[label]) for label in range(10))
    assert count in (None, len(val))
    assert held(0) == held(0) == [record.image_id for record in val]
    assert held(1) != held(0)


def test_what_cannot_be_read_is_said_in_one_line(digits, monkeypatch) -> None:
    with pytest.raises(
        ValueError, match=r"^data\.root=here: the digits come with scikit-learn; leave data\.root empty$"
    ):
        DigitImagesSource("here")
    for wrong in (0, 1, 1.5, None):
        with pytest.raises(
            ValueError, match=rf"^data\.source\.val_fraction={wrong}: a share between 0 and 1 is wanted"
        ):
            DigitImagesSource(val_fraction=wrong)
    with pytest.raises(ValueError, match=r"val_fraction=0\.0001 leaves a split without pictures"):
        DigitImagesSource(val_fraction=0.0001)
    with pytest.raises(ValueError, match=r"^no split 'test' in the digits: choose one of train, val$"):
        DigitImagesSource().split("test")


def test_without_scikit_learn_the_package_to_install_is_named(monkeypatch) -> None:
    real = builtins.__import__

    def without(name: str, *rest: object, **options: object) -> object:
        if name.startswith("sklearn"):
            raise ImportError(name)
        return real(name, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ValueError, match=r"^data=digit_images needs scikit-learn: pip install scikit-learn$"):
        DigitImagesSource()


def folders(root: Path, source: ShapesSource, splits: tuple[str, ...] = ("train", "val")) -> Path:
    """The shapes as labelled pictures on disk: root/SPLIT/CLASS/ID.png."""
    for split in splits:
        for record in source.split(split):
            folder = root / split / source.classes[record.label]
            folder.mkdir(parents=True, exist_ok=True)
            record.open().save(folder / f"{record.image_id}.png")
    return root


TINY = ["model=vit_classify", "model.encoder.width=32", "model.encoder.depth=1", "model.encoder.heads=2", "overlays=0"]
TINY += ["samples=0", "report=false"]


def predictions(out: Path) -> dict[str, tuple[str, str, str]]:
    """Number of the picture -> its class, what was predicted, and how surely."""
    with open(out / "predictions.csv", newline="", encoding="utf-8") as file:
        return {
            Path(row["id"]).stem: (row["class"], row["predicted"], row["probability"]) for row in csv.DictReader(file)
        }


def test_a_labelled_folder_of_the_shapes_is_the_shapes(config, tmp_path) -> None:
    """A model of the folder says of each drawn scene, and the other way round, what it says of its own pictures."""
    root = folders(tmp_path / "shapes", ShapesSource(train_size=96, val_size=40))
    drawn = ["data=shapes", "data.source.train_size=96", "data.source.val_size=40"]
    read = ["data=imagenet", f"data.root={root}"]
    for name, own, other in (("drawn", drawn, read), ("read", read, drawn)):
        out = tmp_path / name
        report = run.train(config(*TINY, *own, f"out={out}", "data.batch_size=16", "trainer.max_epochs=2", "ema=null"))
        assert report["facts"]["samples"] == 40
        if name == "drawn":  # whose classes are in another order than sorted folders
            again = run.evaluate(config(f"checkpoint={out}", *other, f"out={tmp_path / 'again'}", name="evaluate"))
            assert again["scores"] == pytest.approx(report["scores"], rel=1e-6)
            assert predictions(tmp_path / "again") == predictions(out)
            assert len({guess for _, guess, _ in predictions(out).values()}) > 1
        else:
            assert vitcap.load(out).classes == ("circle", "cross", "diamond", "square", "star", "triangle")


def train(out: Path, *overrides: str) -> float:
    """Top-1 (0..1) of a run of scripts/train.py."""
    command = [sys.executable, "scripts/train.py", *overrides, f"out={out}"]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return json.loads((out / "scores.json").read_text())["scores"]["top-1"]


@pytest.mark.slow
def test_the_recipe_of_the_digits_reaches_its_top_1(digits, tmp_path) -> None:
    assert train(tmp_path, "experiment=digits_classify") >= 0.96


@pytest.mark.slow
def test_the_recipe_of_the_shapes_reaches_its_top_1(tmp_path) -> None:
    assert train(tmp_path, "experiment=shapes_classify") >= 0.98


@pytest.mark.slow
def test_a_labelled_folder_is_learnt(tmp_path) -> None:
    root = folders(tmp_path / "shapes", ShapesSource(train_size=4000, val_size=500))
    like = [
        "data.batch_size=64",
        "model.encoder.width=96",
        "task.label_smoothing=0",
        "trainer.max_epochs=4",
        "overlays=0",
        "samples=0",
        "report=false",
    ]
    assert train(tmp_path / "run", "model=vit_classify", "data=imagenet", f"data.root={root}", *like) >= 0.85
