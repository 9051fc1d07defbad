"""Steps whose loss or gradient is not finite: nothing of them stays, they are counted, and too many end training."""

from __future__ import annotations

import copy
import csv
import json
import logging
import math
import warnings
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import lightning as L
import pytest
import torch
from conftest import TINY
from test_distributed import EXACT, ROOT, assert_same, together, train
from torch import Tensor, nn
from torch.utils.data import DataLoader

from vitcap import run
from vitcap.models.classifier import ImageClassifier
from vitcap.tasks import captioning
from vitcap.tasks.callbacks import WeightAverage
from vitcap.tasks.classification import ClassifyTask
from vitcap.tasks.guards import SkipBadSteps
from vitcap.types import Batch, Memory


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class Normed(nn.Module):
    """An encoder with batch normalisation, and a square root, whose gradient at 0 is infinite though it is 0 there."""

    width = 4

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.root = nn.Parameter(torch.ones(()))

    def forward(self, images: Tensor, need_attention: bool = False) -> Memory:
        pooled = self.norm(self.conv(images)).mean((2, 3)) + (self.root * images.abs().amax()).sqrt()
        return Memory(pooled[:, None], pooled=pooled)


def task(**options: Any) -> ClassifyTask:
    torch.manual_seed(0)
    model = ImageClassifier(Normed(), classes=3, mean=(0.0,) * 3, std=(1.0,) * 3)
    return ClassifyTask(model, warmup=0.0, **options)


def batch(kind: str, number: int) -> Batch:
    """good; nan: a picture that is none; zero: a gradient that is none, of a loss that is finite."""
    generator = torch.Generator().manual_seed(number)
    images = torch.rand(4, 3, 8, 8, generator=generator)
    if kind == "nan":
        images[1, 0, 3, 3] = math.nan
    if kind == "zero":
        images.zero_()
    ids = tuple(f"{kind}{number}-{i}" for i in range(4))
    return Batch(ids, images=images, labels=torch.tensor([0, 1, 2, 0]))


class Watch(L.Callback):
    """Everything that a step changes, after each batch; a step that leaves gradients behind is none."""

    def __init__(self) -> None:
        self.states: list[Any] = []

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: Any, *args: Any) -> None:
        average = next(c for c in trainer.callbacks if isinstance(c, WeightAverage))._average_model
        state = (pl_module.state_dict(), trainer.optimizers[0].state_dict()["state"], average.state_dict())
        self.states.append(copy.deepcopy(state))


def fit(kinds: str, *, most: int = 5, **options: Any) -> tuple[list[Any], SkipBadSteps, L.Trainer]:
    """Train on a batch of each kind. Returns the states after each, the guard and the trainer."""
    watch, guard = Watch(), SkipBadSteps(most=most)
    batches = [batch(kind, number) for number, kind in enumerate(kinds.split())]
    trainer = L.Trainer(
        accelerator="cpu",
        max_epochs=1,
        callbacks=[WeightAverage(0.9), guard, watch],
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        gradient_clip_val=1.0,
        **options,
    )
    trainer.fit(task(), DataLoader(batches, batch_size=None))
    return watch.states, guard, trainer


def tensors(state: Any) -> list[Tensor]:
    if isinstance(state, Tensor):
        return [state]
    parts = state.values() if isinstance(state, dict) else state if isinstance(state, list | tuple) else []
    return [tensor for part in parts for tensor in tensors(part)]


def same(one: Any, other: Any) -> bool:
    pairs = list(zip(tensors(one), tensors(other), strict=True))
    return len(pairs) > 20 and all(torch.equal(a, b) for a, b in pairs)


@pytest.mark.parametrize("kind", ["nan", "zero"])
def test_nothing_of_a_bad_step_stays(kind):
    states, guard, trainer = fit(f"good {kind} good good")
    assert same(states[0], states[1])  # weights, batch statistics, Adam's moments and count, averaged weights
    assert not same(states[1], states[2])
    assert all(bool(tensor.isfinite().all()) for tensor in tensors(states[-1]))
    assert (guard.skipped, guard.in_row, trainer.global_step) == (1, 0, 4)
    assert trainer.callback_metrics["train/skipped_steps"] == 1
    assert bool(trainer.callback_metrics["train/loss_epoch"].isfinite())


def test_without_a_guard_the_same_step_would_stay():
    """What the tests above rely on: each of the bad batches ruins a model."""
    for kind in ("nan", "zero"):
        bad, optimizer = task(), None
        bad.tell_bad_loss = lambda reason: None
        optimizer = torch.optim.AdamW(bad.parameters())
        bad._loss(batch(kind, 0)).backward()
        optimizer.step()
        assert not all(bool(p.isfinite().all()) for p in bad.parameters())


def test_a_step_of_several_batches_is_left_out_as_a_whole():
    states, guard, _ = fit("good good nan good good good good nan", accumulate_grad_batches=2)
    assert same(states[1], states[3])
    assert not same(states[3], states[5])
    assert same(states[5], states[7])
    assert guard.skipped == 2


def test_bad_steps_in_a_row_end_training_and_others_do_not():
    assert fit("nan nan good zero nan good nan", most=3)[1].skipped == 5
    with pytest.raises(
        ValueError,
        match=r"^the loss is nan at step 3: pictures with .*\(records nan3-0, nan3-1, nan3-2, \.\.\.\) "
        r"\(the last of 3 steps in a row, max_bad_steps=3\)$",
    ):
        fit("good nan zero nan good", most=3)
    with pytest.raises(
        ValueError, match=r"^the gradient is not finite at step 1, .*\(records zero1-0, .*lower task.lr"
    ):
        fit("good zero good", most=1)


def test_steps_are_told_and_weights_that_are_lost_end_training_at_once(caplog, monkeypatch):
    with caplog.at_level(logging.WARNING, "vitcap"):
        fit("good nan good")
    told = [record.getMessage() for record in caplog.records]
    assert told[0].startswith("step left out, 1 in a row, 1 in all: the loss is nan at step 1: pictures")
    assert told[1] == "1 of 3 steps were left out: loss or gradient not finite"
    on_bad = ClassifyTask.not_finite

    def ruined(self: Any, reason: str) -> None:
        self.model.head.weight.data[0, 0] = math.nan
        on_bad(self, reason)

    monkeypatch.setattr(ClassifyTask, "not_finite", ruined)
    with pytest.raises(ValueError, match=r"^the loss is nan at step 1: "):
        fit("good nan good good")


def test_the_counts_are_part_of_checkpoints():
    guard, other = SkipBadSteps(most=3), SkipBadSteps(most=3)
    guard.skipped, guard.in_row = 7, 2
    other.load_state_dict(guard.state_dict())
    assert (other.skipped, other.in_row) == (7, 2)
    with pytest.raises(ValueError, match="max_bad_steps=0: a whole number of at least 1"):
        SkipBadSteps(most=0)


def test_overflow_in_half_precision_is_left_to_the_search_for_the_scale():
    guard, made = SkipBadSteps(most=1), task()
    made.log = lambda *_, **__: None  # type: ignore[method-assign]
    optimizer = torch.optim.AdamW(made.parameters())
    for scale, left_out in ((65536.0, False), (0.5, True)):
        trainer = SimpleNamespace(
            precision_plugin=SimpleNamespace(scaler=SimpleNamespace(get_scale=lambda s=scale: s)), global_step=0
        )
        made._loss(batch("zero", 0)).backward()
        if left_out:
            with pytest.raises(ValueError, match="the gradient is not finite"):
                guard.on_before_optimizer_step(trainer, made, optimizer)
        else:
            guard.on_before_optimizer_step(trainer, made, optimizer)
            assert not made.step_left_out
            assert guard.skipped == 0


def _in_one_of_two() -> tuple[bool, int, list[bool]]:
    from vitcap import processes

    guard, made = SkipBadSteps(most=2), task()
    made.log = lambda *_, **__: None  # type: ignore[method-assign]
    trainer: Any = SimpleNamespace(precision_plugin=None, global_step=0)
    optimizer = torch.optim.AdamW(made.parameters())
    found = []
    for step in range(3):
        guard.on_train_batch_start(trainer, made, batch("good", step), step)
        made._loss(batch("good", step)).backward()
        if processes.share()[0] == 1 and step != 1:
            guard._note("the loss is nan at step 0 (records of the second)")
        guard.on_before_optimizer_step(trainer, made, optimizer)
        found.append(made.step_left_out)
        assert all(p.grad is None for p in made.parameters()) == made.step_left_out
    guard._note("once more") if processes.share()[0] == 1 else None
    guard.on_before_optimizer_step(trainer, made, optimizer)
    return found, guard.skipped  # type: ignore[return-value]


def test_processes_agree_on_what_is_left_out():
    """One has a bad loss, the other not even a bad gradient: both leave the step out, and both end with its message."""
    found = together(2, _in_one_of_two)
    assert found[0] == found[1]
    assert found[0] == ("ValueError", "once more (the last of 2 steps in a row, max_bad_steps=2)")


def test_a_run_counts_what_it_left_out(config, tmp_path, monkeypatch):
    loss_of, calls = captioning.caption_loss, []

    def bad(*arguments: Any, **options: Any) -> Any:
        loss, tokens = loss_of(*arguments, **options)
        calls.append(loss.requires_grad)
        return (loss * math.nan if sum(calls) == 2 and loss.requires_grad else loss), tokens

    monkeypatch.setattr(captioning, "caption_loss", bad)
    small = [*TINY, "trainer.log_every_n_steps=1", "data.check=off", "ema=0.9", f"out={tmp_path}"]
    report = run.train(config(*small))
    assert report["facts"]["skipped_steps"] == 1
    assert json.loads((tmp_path / "scores.json").read_text())["facts"]["skipped_steps"] == 1
    rows = list(csv.DictReader((tmp_path / "metrics.csv").read_text().splitlines()))
    counts = [(row["step"], row["train/skipped_steps"]) for row in rows if row["train/skipped_steps"]]
    assert counts == [(step, "1.0") for step in "1234"]
    last = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert all(bool(t.isfinite().all()) for key in ("state_dict", "current_model_state") for t in last[key].values())
    assert next(v for k, v in last["callbacks"].items() if "SkipBadSteps" in k) == {"skipped": 1, "in_row": 0}


SCRIPT = """
import math, os
import hydra

@hydra.main(version_base="1.3", config_path={conf!r}, config_name="config")
def main(cfg):
    from vitcap.run import command, train
    from vitcap.tasks import captioning
    loss_of, calls = captioning.caption_loss, []
    def bad(*arguments, **options):
        loss, tokens = loss_of(*arguments, **options)
        calls.append(loss.requires_grad)
        last = os.environ.get("RANK", "0") == str(int(os.environ.get("WORLD_SIZE", "1")) - 1)
        return (loss * math.nan if last and sum(calls) == 3 and loss.requires_grad else loss), tokens
    captioning.caption_loss = bad
    command(train, cfg)

main()
"""


@pytest.mark.slow
def test_two_processes_leave_out_what_one_does(tmp_path):
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(conf=str(ROOT / "conf")))
    runs = [train(world, tmp_path / str(world), *EXACT, script=str(script)) for world in (1, 2)]
    assert_same(*runs)
    for world in (1, 2):
        assert json.loads((tmp_path / str(world) / "scores.json").read_text())["facts"]["skipped_steps"] == 1
