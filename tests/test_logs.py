"""What a run hands to TensorBoard and to Weights & Biases, and that it changes nothing of the training."""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import struct
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from conftest import TINY
from PIL import Image
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vitcap import run
from vitcap.build import build
from vitcap.report.samples import log_samples
from vitcap.tasks import logs
from vitcap.tasks.captioning import CaptionTask

TWO = (*TINY, "trainer.max_epochs=2", "trainer.log_every_n_steps=1", "trainer.accelerator=cpu", "save_every=1")
SHORT = ("decode.max_length=5", "validation_decode.max_length=5")


def events(out) -> EventAccumulator:
    found = EventAccumulator(str(out), size_guidance={"tensors": 0, "images": 0, "scalars": 0})
    found.Reload()
    return found


def texts(found: EventAccumulator, tag: str) -> list[tuple[int, str]]:
    return [(one.step, one.tensor_proto.string_val[0].decode("utf-8")) for one in found.Tensors(tag)]


@pytest.fixture(scope="module")
def logged(tmp_path_factory):
    """A run of two epochs with two samples, and the same run without."""
    from conftest import CONF
    from hydra import compose, initialize_config_dir

    folder = tmp_path_factory.mktemp("runs")
    for name, count in (("with", 2), ("without", 0)):
        with initialize_config_dir(str(CONF), version_base="1.3"):
            more = ["model.decoder.dropout=0.2", f"samples={count}", f"out={folder / name}"]
            run.train(compose("config", overrides=[*TWO, *SHORT, *more]))
    return folder


def test_tensorboard_has_the_curves_of_metrics_csv(logged):
    found = events(logged / "with")
    with open(logged / "with" / "metrics.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    tags = found.Tags()["scalars"]
    assert {"train/loss_step", "val/CIDEr-D", "val/BLEU-4", "val/loss", "lr-AdamW/decoder"} <= set(tags)
    for tag in tags:
        wanted = [(int(row["step"]), float(row[tag])) for row in rows if row[tag]]
        assert [(one.step, one.value) for one in found.Scalars(tag)] == [(step, pytest.approx(v)) for step, v in wanted]
    assert not (logged / "with" / "hparams.yaml").exists()


def test_tensorboard_has_captions_and_maps_of_every_epoch(logged):
    found = events(logged / "with")
    told = texts(found, "samples/text_summary")
    assert [step for step, _ in told] == [4, 9]
    ids = [row["image_id"] for row in json.loads((logged / "with" / "captions.json").read_text())][:2]
    for _, text in told:
        lines = text.splitlines()
        assert lines[0] == "| picture | caption | reference |"
        assert [line.split(" | ")[0] for line in lines[2:]] == [f"| {id_}" for id_ in ids]
    assert sorted(found.Tags()["images"]) == ["samples/1", "samples/2"]
    for tag in found.Tags()["images"]:
        assert [one.step for one in found.Images(tag)] == [4, 9]
        picture = Image.open(io.BytesIO(found.Images(tag)[0].encoded_image_string))
        assert picture.width > 300
        assert len(np.unique(np.asarray(picture).reshape(-1, 3), axis=0)) > 50
    assert not events(logged / "without").Tags()["images"]


def test_the_last_samples_are_what_the_averaged_model_says(logged):
    """Not what the weights in training say: at ten steps they differ much."""
    import vitcap

    model = vitcap.load(logged / "with" / "checkpoints" / "last.ckpt")  # averaged
    wanted = [model.caption(record.open()).text for record in _records(2)]
    told = texts(events(logged / "with"), "samples/text_summary")[-1][1].splitlines()[2:]
    assert [line.split(" | ")[1] for line in told] == wanted


def _records(count: int):
    from vitcap.data.shapes import ShapesSource

    return ShapesSource(train_size=40, val_size=12).split("val")[:count]


def test_samples_change_nothing_of_the_training(logged):
    """Dropout is on: one random number drawn from torch would change the weights."""
    one, other = (torch.load(logged / n / "checkpoints" / "last.ckpt", weights_only=True) for n in ("with", "without"))
    for key in ("state_dict", "current_model_state"):
        for name, tensor in one[key].items():
            assert torch.equal(tensor, other[key][name]), (key, name)
    assert torch.equal(one["random"], other["random"])


def test_a_resumed_run_shows_every_step_once(config, tmp_path, monkeypatch):
    """What was logged after the last checkpoint is logged again, and shown once."""
    common = (*TWO, *SHORT, "samples=1", f"out={tmp_path}", "save_every=3")
    step = CaptionTask.training_step

    def interrupted(self, batch, batch_idx):
        if self.global_step == 8:
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    monkeypatch.setattr(CaptionTask, "training_step", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run.train(config(*common))
    monkeypatch.setattr(CaptionTask, "training_step", step)
    assert logs.resumed_step(tmp_path / "checkpoints" / "last.ckpt") == 6
    run.train(config(*common, "resume=true"))
    found = events(tmp_path)
    assert [one.step for one in found.Scalars("train/loss_step")] == list(range(10))
    assert [one.step for one in found.Images("samples/1")] == [4, 9]
    assert [one for one, _ in texts(found, "samples/text_summary")] == [4, 9]


def test_classes_have_their_confusion_matrix(config, tmp_path):
    small = ["model.encoder.width=16", "model.encoder.depth=1", "model.encoder.heads=2", "data.batch_size=16"]
    data = ["data.source.train_size=32", "data.source.val_size=20", "trainer.accelerator=cpu", "overlays=0"]
    cfg = config("model=vit_classify", *small, *data, "trainer.max_epochs=1", "samples=3", f"out={tmp_path}")
    run.train(cfg)
    found = events(tmp_path)
    assert found.Tags()["images"] == ["samples/confusion"]
    lines = texts(found, "samples/text_summary")[0][1].splitlines()
    assert lines[0] == "| picture | class | predicted | probability |"
    with open(tmp_path / "predictions.csv", newline="") as file:
        rows = list(csv.DictReader(file))[:3]
    cells = [line.strip("| ").split(" | ") for line in lines[2:]]
    assert [c[:3] for c in cells] == [[row["id"], row["class"], row["predicted"]] for row in rows]
    assert [float(c[3].rstrip(" %")) for c in cells] == [
        pytest.approx(100 * float(r["probability"]), abs=0.06) for r in rows
    ]


def test_translations_have_their_alignments(config):
    tiny = ["model.encoder.width=16", "model.decoder.width=16", "model/encoder=text_rnn", "model/decoder=bahdanau"]
    cfg = config("data=digits", "model=seq2seq", *tiny, "data.source.train_size=30", "data.source.val_size=6")
    parts = build(cfg)
    from hydra.utils import instantiate

    callback = log_samples(parts, search=instantiate(cfg.validation_decode), count=2)
    samples = callback.model(None)
    assert samples.columns == ("source", "translation", "target")
    assert [row[0] for row in samples.rows] == [record.source for record in parts.data.records("val")[:2]]
    assert [row[2] for row in samples.rows] == [record.targets[0] for record in parts.data.records("val")[:2]]
    said = [str(number + 1) for number, row in enumerate(samples.rows) if row[1]]
    assert list(samples.pictures) == said


def test_texts_of_a_table_are_only_texts():
    samples = logs.Samples(("a", "b"), [("x|y", "<b>\n*z* \ud800")])
    assert samples.markdown().splitlines() == ["| a | b |", "| --- | --- |", "| x\\|y | \\<b\\> \\*z\\* ? |"]


def test_samples_that_fail_are_told_once_and_training_goes_on(caplog):
    def draw(task):
        raise RuntimeError("out of memory\nhere")

    callback = logs.LogSamples(draw)
    trainer = SimpleNamespace(sanity_checking=False, global_step=3, loggers=[])
    before = torch.get_rng_state()
    with caplog.at_level("WARNING"):
        callback.on_validation_epoch_end(trainer, None)
        callback.on_validation_epoch_end(trainer, None)
    assert [record.getMessage() for record in caplog.records] == [
        "no samples in the logs from now on: out of memory here"
    ]
    assert torch.equal(before, torch.get_rng_state())


def test_random_numbers_that_samples_draw_are_not_those_of_training():
    callback = logs.LogSamples(lambda task: logs.Samples(("a",), [(str(torch.rand(3)),)]))
    before = torch.get_rng_state()
    callback.on_validation_epoch_end(SimpleNamespace(sanity_checking=False, global_step=3, loggers=[]), None)
    assert torch.equal(before, torch.get_rng_state())


def test_without_wandb_there_is_one_line_before_anything(config, tmp_path, monkeypatch, capsys):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *more: None if name == "wandb" else find(name, *more))
    out = tmp_path / "run"
    with pytest.raises(SystemExit) as stop:
        run.command(run.train, config(*TINY, "wandb=photos", f"out={out}"))
    assert stop.value.code == 1
    lines = [line for line in capsys.readouterr().err.splitlines() if line]
    assert lines == ['vitcap: error: wandb=photos: Weights & Biases is not installed: pip install "vitcap[wandb]"']
    assert not out.exists()


@pytest.mark.parametrize("value", ["''", "true", "3"])
def test_wandb_wants_the_name_of_a_project(value, config, tmp_path):
    with pytest.raises(ValueError, match=r"wandb=.*name of a project"):
        run.train(config(*TINY, f"wandb={value}", f"out={tmp_path}"))


def test_a_resumed_run_goes_on_with_the_last_run_of_its_folder(tmp_path, monkeypatch):
    pytest.importorskip("wandb")
    made = []

    class Logger:
        def __init__(self, **options):
            made.append(options)
            self._wandb_init: dict[str, object] = {}

        def log_hyperparams(self, config):
            made[-1]["config"] = config

    monkeypatch.setattr(logs, "WandbLogger", Logger)
    logs.open_wandb("photos", tmp_path, config={"seed": 1}, resume=True)  # not logged there before
    for name in ("run-20260102_030405-first", "offline-run-20260302_030405-last", "run-20260202_030405-second"):
        (tmp_path / "wandb" / name).mkdir(parents=True)
    (tmp_path / "wandb" / "latest-run").symlink_to("run-20260102_030405-first")
    logs.open_wandb("photos", tmp_path, config={"seed": 1}, resume=True)
    logs.open_wandb("photos", tmp_path, config={"seed": 1}, resume=False)
    assert [options["id"] for options in made] == [None, "last", None]
    assert made[1] == {"project": "photos", "name": tmp_path.name, "save_dir": tmp_path, "id": "last"} | {
        "config": {"seed": 1}
    }


def written(content: bytes) -> Iterator[bytes]:
    """Records of a file of Weights & Biases: LevelDB's log format, after 7 bytes that name it.

    Blocks of 32 KiB hold pieces with 7 bytes before them: a checksum, the length, and whether it is a whole record (1)
    or the first (2), a middle (3) or the last (4) piece of one.
    """
    assert content.startswith(b":W&B")
    record, at = b"", 7
    while at + 7 <= len(content):
        if (room := -at % 32768) and room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", content[at : at + 7])
        record += content[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4):
            yield record
            record = b""


def test_wandb_offline_has_the_same_scalars_texts_and_pictures(config, tmp_path, monkeypatch):
    """Read back from the file that Weights & Biases writes; nothing leaves the computer."""
    wandb = pytest.importorskip("wandb")
    from wandb.proto import wandb_internal_pb2

    for name, value in (("WANDB_MODE", "offline"), ("WANDB_SILENT", "true"), ("WANDB_DIR", str(tmp_path))):
        monkeypatch.setenv(name, value)
    out = tmp_path / "run"
    report = run.train(config(*TWO, *SHORT, "wandb=photos", "samples=1", f"out={out}"))
    wandb.teardown()  # which ends the process that writes
    files = list((out / "wandb").glob("offline-run-*/run-*.wandb"))
    assert len(files) == 1
    rows, about, summary = [], {}, {}
    for data in written(files[0].read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        if record.HasField("history"):
            rows.append({i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.history.item})
        for part in (record.run.config, record.config):
            about |= {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in part.update}
        summary |= {i.key or "/".join(i.nested_key): json.loads(i.value_json) for i in record.summary.update}
    with open(out / "metrics.csv", newline="") as file:
        wanted = [float(row["val/CIDEr-D"]) for row in csv.DictReader(file) if row["val/CIDEr-D"]]
    assert [row["val/CIDEr-D"] for row in rows if "val/CIDEr-D" in row] == [pytest.approx(value) for value in wanted]
    assert len([row for row in rows if "train/loss_step" in row]) == 10
    assert len([row for row in rows if row.get("samples/1/_type") == "images/separated"]) == 2
    assert len([row for row in rows if row.get("samples/table/_type") == "table-file"]) == 2
    assert list((files[0].parent / "files" / "media" / "images" / "samples").glob("1_*.png"))
    tables = list((files[0].parent / "files" / "media" / "table" / "samples").glob("table_*.json"))
    assert json.loads(tables[0].read_text())["columns"] == ["picture", "caption", "reference"]
    assert about["seed"] == 0
    assert about["model"]["encoder"]["width"] == 32
    assert about["wandb"] == "photos"
    assert summary["CIDEr-D"] == pytest.approx(report["scores"]["CIDEr-D"])
