"""Training and evaluation as a whole, at toy size: what is written, exact resumption, bad input in one line."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from conftest import TINY
from PIL import Image

import vitcap
from vitcap import run
from vitcap.data.shapes import ShapesSource, export_coco
from vitcap.tasks.captioning import CaptionTask

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A finished toy run with two overlays."""
    from hydra import compose, initialize_config_dir

    out = tmp_path_factory.mktemp("runs") / "toy"
    with initialize_config_dir(str(ROOT / "conf"), version_base="1.3"):
        cfg = compose("config", overrides=[*TINY, f"out={out}", "overlays=2", "trainer.max_epochs=1"])
    return out, run.train(cfg)


def test_a_run_writes_everything_it_names(trained):
    out, report = trained
    assert json.loads((out / "scores.json").read_text()) == report
    assert set(report["scores"]) >= {"BLEU-1", "BLEU-4", "ROUGE-L", "CIDEr-D"}
    facts = report["facts"]
    assert (facts["split"], facts["images"], facts["seed"]) == ("val", 12, 0)
    assert facts["decoding"]["search"] == "greedy"
    assert {"references_per_image", "tokeniser", "idf"} <= set(facts)
    assert set(report["truth"]) == {"true_seen", "true_held_out", "coverage"}
    results = json.loads((out / "captions.json").read_text())
    assert len({r["image_id"] for r in results}) == 12
    per_image = json.loads((out / "per_image.json").read_text())
    assert set(per_image) == {str(r["image_id"]) for r in results}
    sheets = sorted((out / "overlays").glob("*.png"))
    assert len(sheets) == 2
    assert Image.open(sheets[0]).width > 400
    assert (out / "metrics.csv").exists()
    assert list(out.glob("events.out.tfevents*"))


def test_best_checkpoint_and_model_file_give_the_same_captions(trained):
    out, _ = trained
    pictures = [r.open() for r in ShapesSource(train_size=1, val_size=3).split("val")]
    files = [out, out / "model.safetensors", out / "checkpoints" / "best.ckpt"]
    texts = [[(c.text, c.score) for c in vitcap.load(file).caption(pictures)] for file in files]
    assert texts[0] == texts[1] == texts[2]


def test_evaluation_of_a_run_repeats_its_scores(trained, config, tmp_path):
    out, report = trained
    cfg = config(
        f"checkpoint={out}", "data.source.train_size=40", "data.source.val_size=12", f"out={tmp_path}", name="evaluate"
    )
    again = run.evaluate(cfg)
    assert again["scores"] == pytest.approx(report["scores"], abs=1e-12)
    assert again["truth"] == report["truth"]


@pytest.mark.parametrize("stop", [3, 5, 7], ids=["inside an epoch", "at its end", "inside the second"])
def test_resumed_training_equals_uninterrupted_training_bit_for_bit(stop, config, tmp_path, monkeypatch):
    # 40 scenes in batches of 8: 5 steps an epoch, 10 in all; dropout and averaged weights are on.
    common = [*TINY, "trainer.max_epochs=2", "save_every=1", "ema=0.9", "model.decoder.dropout=0.2"]
    run.train(config(*common, f"out={tmp_path / 'whole'}"))

    step = CaptionTask.training_step

    def interrupted(self, batch, batch_idx):
        if self.global_step == stop:
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    monkeypatch.setattr(CaptionTask, "training_step", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run.train(config(*common, f"out={tmp_path / 'parts'}"))
    monkeypatch.setattr(CaptionTask, "training_step", step)
    torch.manual_seed(123)  # whatever the process did before must not matter
    run.train(config(*common, f"out={tmp_path / 'parts'}", "resume=true"))

    whole, parts = (
        torch.load(tmp_path / name / "checkpoints" / "last.ckpt", weights_only=True) for name in ("whole", "parts")
    )
    assert whole["global_step"] == parts["global_step"] == 10
    assert whole["lr_schedulers"][0]["last_epoch"] == parts["lr_schedulers"][0]["last_epoch"]
    for key in ("state_dict", "current_model_state"):
        for name, tensor in whole[key].items():
            assert torch.equal(tensor, parts[key][name]), (key, name)
    for index, state in whole["optimizer_states"][0]["state"].items():
        for name, value in state.items():
            assert torch.equal(value, parts["optimizer_states"][0]["state"][index][name]), (index, name)


def test_a_run_folder_is_not_written_over(trained, config):
    out, _ = trained
    with pytest.raises(ValueError, match=r"already holds a run.*resume=true.*overwrite=true"):
        run.train(config(*TINY, f"out={out}"))


def _train(*overrides: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "scripts/train.py", *overrides], cwd=ROOT, capture_output=True, text=True, timeout=120
    )


def test_misspelt_keys_and_unknown_models_are_named(tmp_path):
    bad_key = _train("task.learning_rat=1", f"out={tmp_path}")
    assert bad_key.returncode != 0
    assert "learning_rat" in bad_key.stderr
    bad_model = _train("model=resnet_captoin", f"out={tmp_path}")
    assert bad_model.returncode != 0
    assert "resnet_captoin" in bad_model.stderr
    assert "vit_caption" in bad_model.stderr


def _coco(tmp_path: Path) -> Path:
    root = tmp_path / "coco"
    source = ShapesSource(train_size=8, val_size=8)
    for split in ("train", "val"):
        export_coco(source, root, split)
    return root


@pytest.mark.parametrize(
    ("damage", "overrides", "message"),
    [
        (lambda root: None, ["data.root=/nowhere/at/all"], "/nowhere/at/all"),
        (lambda root: (root / "annotations/captions_train.json").write_text('{"images": [{"id"'), [], "captions_train"),
        (lambda root: (root / "annotations/captions_train.json").write_text("[1, 2]"), [], "captions_train"),
        (lambda root: (root / "annotations/captions_val.json").unlink(), [], "val"),
        (
            lambda root: (root / "annotations/captions_train.json").write_text('{"images": [], "annotations": []}'),
            [],
            "captions_train",
        ),
        (
            lambda root: next((root / "train").glob("*.png")).write_bytes(b"no picture"),
            [],
            "no picture|not a picture|png",
        ),
        (
            lambda root: None,
            ["model/encoder=timm", "model.encoder.trainable=all", "model.encoder.name=vit_smal"],
            "vit_smal",
        ),
        (
            lambda root: None,
            ["model/encoder=timm", "model.encoder.weights=/nowhere.safetensors"],
            "/nowhere.safetensors",
        ),
        (lambda root: None, ["data.tokenizer=letters"], "letters"),
    ],
    ids=["root", "cut json", "other json", "no val", "empty", "bad picture", "model", "weights", "tokenizer"],
)
def test_bad_input_ends_in_one_line(damage, overrides, message, config, tmp_path, capsys):
    root = _coco(tmp_path)
    damage(root)
    small = [o for o in TINY if "source" not in o and not ("encoder" in o and "model/encoder=timm" in overrides)]
    cfg = config(*small, "data=coco", f"data.root={root}", *overrides, f"out={tmp_path / 'run'}")
    with pytest.raises(SystemExit) as stop:
        run.command(run.train, cfg)
    assert stop.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("vitcap: error:")]
    assert len(lines) == 1
    assert any(part in lines[0] for part in message.split("|")), lines[0]


def test_unreadable_pictures_can_be_left_out_and_are_counted(config, tmp_path):
    root = _coco(tmp_path)
    next((root / "val").glob("*.png")).write_bytes(b"")
    small = [o for o in TINY if "source" not in o]
    report = run.train(
        config(
            *small, "data=coco", f"data.root={root}", "data.on_bad=skip", "data.min_count=1", f"out={tmp_path / 'r'}"
        )
    )
    assert report["facts"]["images"] == 7
    assert report["facts"]["unreadable_images"] == 1


def test_a_checkpoint_that_is_none_is_one_line(config, tmp_path, capsys):
    fake = tmp_path / "model.ckpt"
    fake.write_text("<html>not found</html>")
    with pytest.raises(SystemExit) as stop:
        run.command(run.evaluate, config(f"checkpoint={fake}", f"out={tmp_path / 'e'}", name="evaluate"))
    assert stop.value.code == 1
    assert "HTML" in capsys.readouterr().err
