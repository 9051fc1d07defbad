"""Training and evaluation as a whole, at toy size: what is written, exact resumption, bad input in one line."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import hydra
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
    assert per_image["facts"] == facts
    assert set(per_image["images"]) == {str(r["image_id"]) for r in results}
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


ENCODERS = {
    "vit": [],
    "timm vit": ["model/encoder=timm", "model.encoder.name=test_vit", "model.encoder.trainable=1"],
    "timm cnn": ["model/encoder=timm", "model.encoder.name=test_resnet", "model.encoder.trainable=all"],
    "hybrid": ["model/encoder=hybrid", "model.encoder.name=test_efficientnet", "model.encoder.trainable=all"],
}
DECODERS = {
    "transformer, bpe": ["data.tokenizer=bpe", "data.vocab_size=300", "decode=beam"],
    "rnn, words": ["model/decoder=rnn", "model.decoder.width=32", "decode=sample", "decode.top_k=5"],
}


@pytest.mark.parametrize("decoder", DECODERS)
@pytest.mark.parametrize("encoder", ENCODERS)
def test_every_encoder_and_decoder_train_evaluate_and_caption(encoder, decoder, config, tmp_path):
    groups = [*ENCODERS[encoder], *DECODERS[decoder]]
    tiny = [
        o
        for o in TINY
        if not (o.startswith("model.encoder") and encoder != "vit")
        and not (o.startswith("model.decoder") and "rnn" in decoder)
    ]
    if encoder != "vit":
        tiny += ["model.encoder.image_size=64", "model.encoder.weights=null"]
    report = run.train(config(*tiny, *groups, f"out={tmp_path / 'run'}", "trainer.max_epochs=1"))
    assert report["facts"]["images"] == 12
    captioner = vitcap.load(tmp_path / "run")
    photo = Image.new("RGB", (90, 60), (200, 30, 30))
    caption = captioner.caption(photo, need_attention=True, seed=1)
    assert caption.attention.shape[0] == len(caption.tokens)
    assert caption.attention.shape[3] == captioner.prefix + captioner.grid[0] * captioner.grid[1]
    assert caption.attention.sum(-1) == pytest.approx(1.0, abs=1e-4)
    again = captioner.caption(photo, seed=1)
    assert (again.text, again.tokens) == (caption.text, caption.tokens)


def test_cached_features_train_as_the_pictures_do(config, tmp_path):
    root = _coco(tmp_path)
    tiny = [o for o in TINY if "source" not in o]
    common = [*tiny, "data=coco", f"data.root={root}", "data.min_count=1", "model.encoder.depth=2", "ema=null"]
    common += ["model.encoder.trainable=1", "trainer.max_epochs=2"]
    # float16 features against float32 ones: the same training within their rounding.
    cached = run.train(config(*common, f"data.cache={tmp_path / 'cache'}", f"out={tmp_path / 'a'}"))
    direct = run.train(config(*common, f"out={tmp_path / 'b'}"))
    a, b = (vitcap.load(tmp_path / name).model.state_dict() for name in "ab")
    for name, tensor in a.items():
        torch.testing.assert_close(tensor, b[name], atol=2e-3, rtol=2e-3, msg=name)
    assert cached["facts"]["images"] == direct["facts"]["images"] == 8


def _break_off(*_, **__):
    raise ValueError("broken off")


def test_overwriting_takes_the_old_run_away_and_resuming_keeps_its_curves(config, tmp_path, monkeypatch):
    common = [*TINY, f"out={tmp_path}", "trainer.log_every_n_steps=1"]
    run.train(config(*common, "trainer.max_epochs=1"))
    (tmp_path / "notes.json").write_text("{}")
    curves = (tmp_path / "metrics.csv").read_text().splitlines()
    run.train(config(*common, "trainer.max_epochs=2", "resume=true"))
    longer = (tmp_path / "metrics.csv").read_text().splitlines()
    assert longer[: len(curves)] == curves
    assert len(longer) > len(curves)
    events = set(tmp_path.glob("events.out.tfevents*"))
    with pytest.raises(ValueError, match="trainer: "):  # a mistake in the options costs nothing
        run.train(config(*common, "overwrite=true", "+trainer.max_epoch=1"))
    assert (tmp_path / "model.safetensors").exists()
    assert events <= set(tmp_path.glob("events.out.tfevents*"))
    monkeypatch.setattr(run.L.Trainer, "fit", _break_off)
    with pytest.raises(ValueError, match="broken off"):
        run.train(config(*common, "overwrite=true"))
    assert not (tmp_path / "model.safetensors").exists()
    assert not events & set(tmp_path.glob("events.out.tfevents*"))
    assert (tmp_path / "notes.json").exists()


def test_a_run_too_short_for_a_validation_keeps_its_last_weights(config, tmp_path):
    report = run.train(config(*TINY, f"out={tmp_path}", "trainer.max_epochs=1", "trainer.check_val_every_n_epoch=2"))
    assert report["facts"]["chosen_by"] == "last, without validation"
    assert report["facts"]["checkpoint"].endswith("last.ckpt")
    assert vitcap.load(tmp_path).description["facts"]["scores"] == report["scores"]


@pytest.mark.parametrize("option", ["data.max_length=60", "decode.max_length=50", "validation_decode.max_length=50"])
def test_a_decoder_too_short_for_the_captions_is_told_before_training(option, config, tmp_path):
    with pytest.raises(ValueError, match=rf"model\.decoder\.max_length=40 is too short for {option}"):
        run.build(config(*TINY, option, f"out={tmp_path}"))


def test_options_of_the_data_out_of_range(config, tmp_path):
    for option in ("batch_size=0", "num_workers=-1", "captions_per_image=0", "max_length=2", "train_limit=-1"):
        with pytest.raises(hydra.errors.InstantiationException, match=rf"data\.{option}"):
            run.build(config(*TINY, f"data.{option}", f"out={tmp_path}"))


@pytest.mark.parametrize(
    ("option", "message"),
    [
        ("data.batch_size=x", r"data\.batch_size=x: a whole number of at least 1 is wanted"),
        ("data.vocab_size=4", r"data\.vocab_size=4: a whole number of at least 5"),
        ("data.min_count=1.5", r"data\.min_count=1\.5: a whole number of at least 1"),
        ("data.on_bad=ignore", r"data\.on_bad=ignore: choose error or skip"),
        ("task.lr=x", r"task\.lr=x: a number of at least 0"),
        ("task.lr=nan", r"task\.lr=nan: a number of at least 0"),
        ("task.label_smoothing=2", r"task\.label_smoothing=2: a number from 0 to 1"),
        ("task.betas=[0.9]", r"task\.betas=\[0\.9\]: two numbers"),
        ("seed=-1", r"seed=-1: a whole number from 0 to 4294967295"),
        ("overlays=-1", r"overlays=-1: a whole number of at least 0"),
        ("save_every=0", r"save_every=0: a whole number of at least 1"),
        ("ema=1", r"ema=1: a decay below 1"),
        ("trainer.max_epochs=0", r"no step was trained: trainer\.max_epochs"),
    ],
)
def test_options_out_of_range_or_of_another_kind_are_named(option, message, config, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run.command(run.train, config(*TINY, option, f"out={tmp_path}"))
    assert re.search(f"^vitcap: error: .*{message}", capsys.readouterr().err, re.MULTILINE)


def test_what_cannot_be_resumed_from_is_named(trained, config, tmp_path, capsys):
    out, _ = trained
    last = out / "checkpoints" / "last.ckpt"
    for overrides, message in (
        ([f"resume={out / 'model.safetensors'}"], "without the state of training"),
        ([f"resume={last}", "model.decoder.width=64"], "another model .*decoder.* differs"),
        ([f"resume={last}", "data.min_count=30"], "another model .vocabulary differs"),
        ([f"resume={tmp_path / 'nothing.ckpt'}"], "no checkpoint to resume from"),
    ):
        with pytest.raises(SystemExit):
            run.command(run.train, config(*TINY, *overrides, f"out={tmp_path / 'run'}"))
        assert re.search(message, capsys.readouterr().err), overrides


def test_a_run_folder_that_the_locale_cannot_name_is_one_line(config, tmp_path):
    cfg = config(*TINY)
    cfg.out = f"{tmp_path}/r\udcc3\udcbcn"
    with pytest.raises(ValueError, match=r"out='.*r\\udcc3\\udcbcn': .*PYTHONUTF8=1"):
        run.train(cfg)


def test_a_run_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("text")
    run_ = _train(*TINY, f"out={tmp_path / 'file'}")
    assert run_.returncode == 1
    assert run_.stderr.splitlines() == [f"vitcap: error: {tmp_path / 'file'}: File exists"]


@pytest.mark.parametrize("cached", [False, True])
def test_dropout_is_on_in_training_and_frozen_parts_stay_in_eval_mode(cached, config, tmp_path, monkeypatch):
    seen = []
    step = CaptionTask.training_step

    def watched(self, batch, batch_idx):
        seen.append(
            (self.model.decoder.training, self.model.decoder.drop.training, self.model.encoder.blocks[0].training)
        )
        return step(self, batch, batch_idx)

    monkeypatch.setattr(CaptionTask, "training_step", watched)
    root = _coco(tmp_path)
    tiny = [o for o in TINY if "source" not in o]
    common = [*tiny, "data=coco", f"data.root={root}", "data.min_count=1", "trainer.max_epochs=2"]
    common += ["model.encoder.depth=2", "model.encoder.trainable=1"]
    run.train(config(*common, f"data.cache={tmp_path / 'cache' if cached else 'null'}", f"out={tmp_path / 'run'}"))
    assert seen == [(True, True, False)] * 2


def test_scores_on_other_data_than_the_training_data_are_pointed_out(trained, config, tmp_path, caplog):
    out, _ = trained
    root = _coco(tmp_path)
    run.evaluate(
        config(f"checkpoint={out}", "data=coco", f"data.root={root}", f"out={tmp_path / 'e'}", name="evaluate")
    )
    assert "trained on data=shapes and is scored on data=coco" in caplog.text


def test_a_vocabulary_that_misses_much_is_pointed_out(config, tmp_path, caplog):
    cfg = config(
        *[o for o in TINY if "source" not in o], "data=coco", f"data.root={_coco(tmp_path)}", "data.min_count=30"
    )
    with caplog.at_level("WARNING"):
        run.build(cfg)
    assert "lower data.min_count=30" in caplog.text


def test_what_must_be_given_is_named(config, tmp_path, capsys):
    with pytest.raises(SystemExit):
        run.command(run.train, config("data=flickr", f"out={tmp_path / 'r'}"))
    assert "vitcap: error: data.root must be given" in capsys.readouterr().err
