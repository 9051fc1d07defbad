"""Runs that are killed at any moment, asked to end, or out of disk: what has its final name is whole, and `resume=true`
ends where an uninterrupted run does, bit for bit. The runs are forked, which is fast."""

from __future__ import annotations

import csv
import json
import multiprocessing
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import TINY
from PIL import Image
from safetensors.torch import load_file

from vitcap import checkpoint, files, run
from vitcap.tasks import saving
from vitcap.tasks.captioning import CaptionTask

SMALL = (
    *(*TINY[2:], "data.source.train_size=20", "data.source.val_size=4", "data.batch_size=8", "data.check=off"),
    *("trainer.max_epochs=2", "trainer.log_every_n_steps=1", "save_every=1", "ema=0.9", "model.decoder.dropout=0.2"),
    "overlays=1",
)
"""Three steps an epoch, six in all, each with its checkpoint."""


def _die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _child(cfg: Any, out: Path, damage: Callable[[], None] | None) -> None:
    with open(f"{out}.log", "a", encoding="utf-8") as told:
        os.dup2(told.fileno(), 1)
        os.dup2(told.fileno(), 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        torch.manual_seed(123)  # whatever the process did before must not matter
        if damage is not None:
            damage()
        try:
            run.command(run.train, cfg)
        except SystemExit as stop:
            sys.stderr.flush()
            os._exit(int(stop.code or 0))
        os._exit(0)


@pytest.fixture
def train(config, tmp_path):
    """train(name, *overrides, damage=, end=): the exit status of a run in a process of its own, which `damage` may
    prepare; end: (seconds, signal) that it is sent then. A run that has a checkpoint is gone on with."""

    def start(name: str, *overrides: str, damage: Callable[[], None] | None = None, end: Any = None) -> int:
        out = tmp_path / name
        going_on = (out / "checkpoints" / "last.ckpt").exists()
        cfg = config(*SMALL, *overrides, f"out={out}", "resume=true" if going_on else "overwrite=true")
        child = multiprocessing.get_context("fork").Process(target=_child, args=(cfg, out, damage))
        child.start()
        if end is not None:
            child.join(end[0])
            if child.is_alive():
                os.kill(child.pid, end[1])
        child.join(120)
        assert child.exitcode is not None, "the run hangs"
        return child.exitcode

    return start


def require_whole_files(out: Path) -> None:
    """Everything that has its final name can be read to its end."""
    for file in out.rglob("*"):
        if not file.is_file() or file.name.startswith("."):
            continue
        if file.suffix == ".ckpt":
            torch.load(file, weights_only=True)
        elif file.suffix == ".safetensors":
            load_file(file)
        elif file.suffix == ".json":
            json.loads(file.read_text())
        elif file.suffix == ".png":
            Image.open(file).load()
        elif file.suffix == ".csv":
            rows = list(csv.reader(file.read_text().splitlines()))
            assert file.read_bytes().endswith(b"\n")
            assert {len(row) for row in rows} == {len(rows[0])}
        elif file.suffix == ".yaml":
            assert "trainer:" in file.read_text() or file.name == "hparams.yaml"


def require_same(one: Path, other: Path) -> None:
    """Weights, averaged and in training, optimiser, best model, scores and curves of two runs are equal."""
    for name in ("last", "best"):
        states = [torch.load(out / "checkpoints" / f"{name}.ckpt", weights_only=True) for out in (one, other)]
        for key in ("state_dict", "current_model_state", "optimizer_states", "lr_schedulers", "global_step", "random"):
            _require_equal(*(state[key] for state in states))
    _require_equal(*(load_file(out / "model.safetensors") for out in (one, other)))
    reports = [json.loads((out / "scores.json").read_text()) for out in (one, other)]
    assert reports[0]["scores"] == reports[1]["scores"]
    curves = [list(csv.DictReader((out / "metrics.csv").read_text().splitlines())) for out in (one, other)]
    for rows in curves:
        for row in rows:
            row.pop("train/loss_epoch", None)  # of the steps since the run went on
    assert curves[0] == curves[1]
    assert len({tuple(sorted(p.name for p in (out / "overlays").iterdir())) for out in (one, other)}) == 1
    assert not list(other.rglob("*.part*"))


def _require_equal(one: Any, other: Any) -> None:
    assert type(one) is type(other)
    if isinstance(one, dict):
        assert one.keys() == other.keys()
        for key in one:
            _require_equal(one[key], other[key])
    elif isinstance(one, list | tuple):
        assert len(one) == len(other)
        for a, b in zip(one, other, strict=True):
            _require_equal(a, b)
    elif isinstance(one, torch.Tensor):
        assert torch.equal(one, other)
    else:
        assert one == other


# Moments of a run, each for a process that the kill then ends


def _inside_a_checkpoint() -> None:
    save, calls = torch.save, []

    def half(content: Any, file: Any) -> None:
        calls.append(1)
        if len(calls) == 2:
            import io

            whole = io.BytesIO()
            save(content, whole)
            file.write(whole.getvalue()[: whole.tell() // 2])
            file.flush()
            _die()
        save(content, file)

    saving.torch.save = half


def _before_its_name() -> None:
    replace = os.replace

    def other(source: Any, target: Any) -> None:
        if str(target).endswith("best.ckpt"):
            _die()
        replace(source, target)

    files.os.replace = other


def _inside_a_validation() -> None:
    CaptionTask.validation_step = lambda *_: _die()


def _inside_the_model_file() -> None:
    replace = os.replace

    def other(source: Any, target: Any) -> None:
        if "model.safetensors" in str(target):
            _die()
        replace(source, target)

    checkpoint.os.replace = other


def _inside_a_picture() -> None:
    Image.Image.save = lambda self, target, *_, **__: (Path(target).write_bytes(b"\x89PNG\r\n\x1a\n"), _die())


def test_a_run_killed_again_and_again_ends_as_an_uninterrupted_one(train, tmp_path):
    assert train("whole") == 0
    moments = [_inside_a_checkpoint, _before_its_name, _inside_a_validation]
    moments += [_inside_a_checkpoint, _inside_the_model_file, _inside_a_picture]
    for moment in moments:
        assert train("parts", damage=moment) == -signal.SIGKILL, moment
        require_whole_files(tmp_path / "parts")
    assert train("parts") == 0
    require_whole_files(tmp_path / "parts")
    require_same(tmp_path / "whole", tmp_path / "parts")


def _asked(number: int, step: int) -> Callable[[], None]:
    """The moment of a signal: inside a step, and inside the validation for step 3."""

    def prepare() -> None:
        steps, validation = CaptionTask.training_step, CaptionTask.validation_step

        def training_step(self: Any, *arguments: Any) -> Any:
            if self.global_step == step:
                os.kill(os.getpid(), number)
            return steps(self, *arguments)

        def validation_step(self: Any, *arguments: Any) -> Any:
            if step == 3:
                os.kill(os.getpid(), number)
            return validation(self, *arguments)

        CaptionTask.training_step, CaptionTask.validation_step = training_step, validation_step

    return prepare


def test_a_run_that_is_asked_to_end_saves_first_and_says_how_to_go_on(train, tmp_path):
    more = ("save_every=100", "overlays=0")  # no checkpoint but those that are asked for
    assert train("whole", *more) == 0
    told = Path(f"{tmp_path / 'parts'}.log")
    for number, step, status in ((signal.SIGTERM, 1, 143), (signal.SIGINT, 3, 130), (signal.SIGTERM, 4, 143)):
        assert train("parts", *more, damage=_asked(number, step)) == status
        last = torch.load(tmp_path / "parts" / "checkpoints" / "last.ckpt", weights_only=True)
        assert last["global_step"] == (3 if step == 3 else step + 1)
        line = told.read_text().splitlines()[-1]
        what = "interrupted" if number == signal.SIGINT else "ended by SIGTERM"
        assert line == f"vitcap: {what}; go on with out={tmp_path / 'parts'} resume=true"
    assert train("parts", *more) == 0
    (tmp_path / "whole" / "overlays").mkdir()
    (tmp_path / "parts" / "overlays").mkdir()
    require_same(tmp_path / "whole", tmp_path / "parts")


def test_a_second_interrupt_ends_at_once_and_one_outside_of_training_too(train, tmp_path):
    def twice() -> None:
        def step(*_: Any) -> None:
            os.kill(os.getpid(), signal.SIGINT)
            os.kill(os.getpid(), signal.SIGINT)
            raise AssertionError("still here")

        CaptionTask.training_step = step

    assert train("twice", damage=twice) == 130
    assert Path(f"{tmp_path / 'twice'}.log").read_text().endswith("vitcap: interrupted before the first checkpoint\n")

    def scoring() -> None:
        run.score_split = lambda *_, **__: os.kill(os.getpid(), signal.SIGTERM)

    assert train("scoring", damage=scoring) == 143
    assert "vitcap: ended by SIGTERM; go on with" in Path(f"{tmp_path / 'scoring'}.log").read_text()
    assert train("scoring") == 0


# A full disk: /dev/full gives the error of the kernel


def _full(name: str, *, from_call: int = 1) -> Callable[[], None]:
    """The disk is full when a file of this name is written, the so-manieth time."""

    def prepare() -> None:
        whole, calls = files.whole, []

        def other(path: str | Path) -> Any:
            calls.append(Path(path).name == name)
            if sum(calls) >= from_call and calls[-1]:
                temporary = Path(path).with_name(f".{name}.{os.getpid()}.part")
                temporary.parent.mkdir(exist_ok=True)
                temporary.symlink_to("/dev/full")
            return whole(path)

        for module in list(sys.modules.values()):
            if getattr(module, "whole", None) is whole:
                module.whole = other  # type: ignore[attr-defined]

    return prepare


def test_a_full_disk_is_one_line_and_costs_nothing_that_was_written(train, tmp_path):
    assert train("whole") == 0
    told = Path(f"{tmp_path / 'parts'}.log")
    for damage, name in (
        (_full("last.ckpt", from_call=3), "checkpoints/last.ckpt"),
        (_full("metrics.csv"), "metrics.csv"),
        (_full("scores.json"), "scores.json"),
        (_full("10000001.png"), "overlays/10000001.png"),
    ):
        assert train("parts", damage=damage) == 1
        line = f"vitcap: error: {tmp_path / 'parts' / name}: no space left on the disk: free some; "
        assert told.read_text().splitlines()[-1].startswith(line), told.read_text()
        require_whole_files(tmp_path / "parts")
    assert train("parts") == 0
    require_same(tmp_path / "whole", tmp_path / "parts")


def _log_much(curves: saving.Curves) -> None:
    for step in range(100_000):
        curves.log_metrics({"a": 1.0}, step)


def test_a_file_system_that_is_really_full(tmp_path):
    """Every writer's own error, also that of safetensors, which has no number."""
    if os.system(f"mount -t tmpfs -o size=1m tmpfs {tmp_path} 2>/dev/null") != 0:
        pytest.skip("mounting is not allowed")
    try:
        (tmp_path / "model.safetensors").write_bytes(b"before")
        model = torch.nn.Linear(1000, 1000)
        with pytest.raises(OSError, match=r"no space left.*model\.safetensors"):
            checkpoint.write(tmp_path / "model.safetensors", model, {})
        with pytest.raises(OSError, match=r"no space left.*last\.ckpt"):
            saving.WholeCheckpoints().save_checkpoint(model.state_dict(), tmp_path / "last.ckpt")
        curves = saving.Curves(tmp_path)
        curves.log_metrics({"a": 1.0}, 0)
        (tmp_path / "rest").write_bytes(b"x" * 900_000)
        with pytest.raises(OSError, match=r"no space left.*metrics\.csv"):
            _log_much(curves)
        assert {line.count(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()} == {1}
        assert (tmp_path / "metrics.csv").read_text().endswith("\n")
        assert sorted(p.name for p in tmp_path.iterdir()) == ["metrics.csv", "model.safetensors", "rest"]
        assert (tmp_path / "model.safetensors").read_bytes() == b"before"
    finally:
        os.system(f"umount {tmp_path}")


def test_curves_lose_half_a_row_and_what_is_trained_again(tmp_path):
    curves = saving.Curves(tmp_path)
    for step in range(4):
        curves.log_metrics({"epoch": step // 2, "train/loss": torch.tensor(0.5 + step)}, step)
    curves.log_metrics({"epoch": 1, "val/loss": 2.0}, 3)
    whole = curves.file.read_text().splitlines()
    assert whole[0] == "epoch,step,train/loss,val/loss"
    assert whole[1:] == ["0,0,0.5,", "0,1,1.5,", "1,2,2.5,", "1,3,3.5,", "1,3,,2.0"]
    with open(curves.file, "a") as file:
        file.write("1,4,4")
    again = saving.Curves(tmp_path)
    again.trim(3)
    assert again.file.read_text().splitlines() == whole[:4]
    again.log_metrics({"epoch": 1, "train/loss": 3.5}, 3)
    again.log_metrics({"epoch": 1, "val/loss": 2.0}, 3)
    assert again.file.read_text().splitlines() == whole


@pytest.mark.slow
def test_a_run_killed_at_any_of_twenty_moments_goes_on_bit_for_bit(train, tmp_path):
    begin = time.monotonic()
    assert train("whole") == 0
    took = time.monotonic() - begin
    dice, killed = random.Random(0), 0
    for number in range(60):
        name = f"parts{number}"
        killed += train(name, end=(dice.uniform(0, took), signal.SIGKILL)) != 0
        require_whole_files(tmp_path / name)
        killed += train(name, end=(dice.uniform(0, took), signal.SIGKILL)) != 0
        require_whole_files(tmp_path / name)
        assert train(name) == 0
        require_same(tmp_path / "whole", tmp_path / name)
        if killed >= 20:
            break
    assert killed >= 20
