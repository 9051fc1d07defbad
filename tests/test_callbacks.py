"""Checkpoints of the training callbacks, and what a run that goes on inside an epoch must set up again."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from conftest import TINY

from vitcap import run
from vitcap.tasks.callbacks import Interrupted, LastCheckpoint
from vitcap.tasks.captioning import CaptionTask


def test_checkpoints_are_written_between_optimiser_steps_only(tmp_path):
    """Three batches a step: one checkpoint every second step and at the end, none with gradients accumulated."""
    saved = []
    trainer = SimpleNamespace(global_step=0, is_last_batch=False, max_steps=-1)

    def save(path):
        saved.append((batch, trainer.global_step))
        path.write_text("")

    trainer.save_checkpoint = save
    last = LastCheckpoint(tmp_path / "last.ckpt", every=2)
    last.on_train_start(trainer, None)
    try:
        for batch in range(1, 15):
            trainer.is_last_batch = batch == 14
            trainer.global_step = 5 if batch == 14 else batch // 3
            last.on_train_batch_end(trainer, None, None, None, batch - 1)
        assert saved == [(6, 2), (12, 4)]
        last.on_train_epoch_end(trainer, None)  # after the validation, whose scores are in the checkpoint
        assert saved[2:] == [(14, 5)]
        trainer.is_last_batch = False
        last._ask(2, None)
        last.on_train_batch_end(trainer, None, None, None, 15)  # still inside a step: goes on to its end
        trainer.global_step, batch = 6, 17
        last.on_train_batch_end(trainer, None, None, None, 16)
        assert saved[-1] == (17, 6)
        with pytest.raises(Interrupted):
            last.on_train_batch_start(trainer, None, None, 17)
    finally:
        last.teardown(trainer, None, "fit")


def test_a_frozen_encoder_stays_frozen_when_training_goes_on_inside_the_epoch(config, tmp_path, monkeypatch):
    common = [*TINY, "trainer.max_epochs=1", "save_every=1", "ema=null", "task.freeze_encoder_epochs=1"]
    step = CaptionTask.training_step

    def interrupted(self, batch, batch_idx):
        if self.global_step == 2:
            raise KeyboardInterrupt
        return step(self, batch, batch_idx)

    monkeypatch.setattr(CaptionTask, "training_step", interrupted)
    with pytest.raises((KeyboardInterrupt, SystemExit)):
        run.train(config(*common, f"out={tmp_path}"))
    before = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    monkeypatch.setattr(CaptionTask, "training_step", step)
    run.train(config(*common, f"out={tmp_path}", "resume=true"))
    after = torch.load(tmp_path / "checkpoints" / "last.ckpt", weights_only=True)
    assert (before["global_step"], after["global_step"]) == (2, 5)
    for name, tensor in before["state_dict"].items():
        if name.startswith("model.encoder."):
            assert torch.equal(tensor, after["state_dict"][name]), name
    steps = [line.split(",") for line in (tmp_path / "metrics.csv").read_text().splitlines()]
    assert steps[0].count("step") == 1
