"""Training with few records, single ones, pictures of any size, and more batches in a step than an epoch has."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from conftest import TINY
from PIL import Image

from vitcap import run

NORMED = ("model/encoder=timm", "model.encoder.name=test_resnet", "model.encoder.trainable=all")
SIZES = {
    "batch of one": (3, ["data.batch_size=1"], 3),
    "fewer than a batch": (3, ["data.batch_size=8"], 1),
    "last batch of one": (9, ["data.batch_size=4"], 3),
    "one record": (1, ["data.batch_size=4", "data.eval_batch_size=1"], 1),
    "a step of more batches than there are": (7, ["data.batch_size=2", "trainer.accumulate_grad_batches=50"], 1),
    "a step over the end of the epoch": (7, ["data.batch_size=2", "trainer.accumulate_grad_batches=3"], 2),
}


@pytest.mark.parametrize("normed", [False, True], ids=["ViT", "CNN with batch normalisation"])
@pytest.mark.parametrize("case", SIZES)
def test_any_number_of_records_trains(case, normed, config, tmp_path):
    records, options, steps = SIZES[case]
    tiny = [o for o in TINY[3:] if not (normed and "model.encoder" in o)]
    tiny += [*NORMED, "model.encoder.image_size=64", "model.encoder.weights=null"] if normed else []
    data = [f"data.source.train_size={records}", "data.source.val_size=2", "data.min_count=1"]
    report = run.train(config(*tiny, *data, *options, "trainer.max_epochs=2", f"out={tmp_path}"))
    assert report["facts"]["steps"] == 2 * steps
    assert report["facts"]["skipped_steps"] == 0
    assert report["facts"]["images"] == 2
    last = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert all(bool(t.isfinite().all()) for t in last["state_dict"].values())


@pytest.mark.parametrize("resize", ["crop", "squash", "letterbox"])
def test_pictures_of_any_size_train_together(resize, config, tmp_path):
    sizes = [(40, 30), (30, 40), (64, 64), (900, 9), (9, 900), (1, 1), (3, 2), (511, 77)]
    rows = []
    for number, size in enumerate(sizes):
        Image.new("RGB", size, (30 * number, 90, 200 - 20 * number)).save(tmp_path / f"{number}.png")
        split = "val" if number % 4 == 3 else "train"
        rows.append({"image": f"{number}.png", "caption": f"a picture of {number}", "split": split})
    Path(tmp_path / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    tiny = [o for o in TINY if "source" not in o and "batch_size" not in o]
    options = ["data=table", f"data.root={tmp_path}", "data.min_count=1", "data.batch_size=3", "data.num_workers=2"]
    options += [f"data.resize={resize}", "overlays=2", "trainer.max_epochs=1", f"out={tmp_path / 'run'}"]
    report = run.train(config(*[o for o in tiny if "overlays" not in o], *options))
    assert report["facts"]["images"] == 2
    assert len(list((tmp_path / "run" / "overlays").glob("*.png"))) == 2
