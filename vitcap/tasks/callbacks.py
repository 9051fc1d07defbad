"""Callbacks of training: self-contained, exactly resumable checkpoints; averaged weights; progress for logs."""

from __future__ import annotations

import signal
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import lightning as L
import torch
from lightning.pytorch.callbacks import Checkpoint, EMAWeightAveraging
from rich.console import Console

from vitcap import processes
from vitcap.stopping import Interrupted, handled
from vitcap.tasks.bars import Bars, clock, terminal
from vitcap.types import require_number


class SelfContained(L.Callback):
    """Puts into every checkpoint what describes the model, and the random state that the next step starts from.

    description: plain JSON types, stored under the key `vitcap`.
    """

    def __init__(self, description: dict[str, Any]) -> None:
        self.description = description
        self._begun = False
        self._random: torch.Tensor | None = None
        self._random_cuda: list[torch.Tensor] | None = None

    def on_save_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Everything that a model draws from is torch's generators; data draw from (seed, epoch, index)."""
        checkpoint["vitcap"] = self.description
        checkpoint["random"] = torch.get_rng_state()
        if torch.cuda.is_available():
            checkpoint["random_cuda"] = torch.cuda.get_rng_state_all()
        if processes.share()[1] > 1:
            checkpoint["random_by_process"] = processes.gather(_states())

    def on_load_checkpoint(self, trainer: L.Trainer, pl_module: L.LightningModule, checkpoint: dict[str, Any]) -> None:
        """Keep the random state for the first step."""
        self._random, self._random_cuda = checkpoint.get("random"), checkpoint.get("random_cuda")
        states = checkpoint.get("random_by_process", [])
        rank, world = processes.share()
        if world > 1 and (rank or len(states) == world):
            self._random, self._random_cuda = states[rank] if len(states) == world else (None, None)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        # As late as possible: setting up a trainer draws random numbers too.
        rank = processes.share()[0]
        if rank and not self._begun and self._random is None:
            # Each process drops out at its own places; the first one's are those of a run by itself.
            torch.manual_seed(((torch.initial_seed() * 1_000_003 + trainer.global_step) * 1_000_003 + rank) % 2**63)
        self._begun = True
        if self._random is not None:
            torch.set_rng_state(self._random)
            if self._random_cuda is not None and len(self._random_cuda) == torch.cuda.device_count():
                torch.cuda.set_rng_state_all(self._random_cuda)
            self._random = None


def _states() -> tuple[torch.Tensor, list[torch.Tensor] | None]:
    return torch.get_rng_state(), torch.cuda.get_rng_state_all() if torch.cuda.is_available() else None


class LastCheckpoint(Checkpoint):
    """Writes `path` every so many steps and at the end of each epoch; and when the program is asked to end, by Ctrl-C
    or SIGTERM, which then raises Interrupted.

    Always between two optimiser steps, since accumulated gradients are in no checkpoint, and after the validation that
    follows a step, so that a run that goes on there has its scores, the best model's among them. A second Ctrl-C ends
    at once. Of several processes all stop at the step that one was asked to, and the first writes.
    """

    def __init__(self, path: Path, *, every: int) -> None:
        require_number("save_every", every, 1, whole=True)
        self.path, self.every = path, every
        self._asked, self._asked_at = 0, 0.0
        self._step = self._stop = 0
        self._signals = ExitStack()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._step = trainer.global_step
        self._signals.enter_context(handled(self._ask))

    def _ask(self, number: int, frame: Any) -> None:
        now = time.monotonic()
        # Sent by terminal and launcher; or by a scheduler, which kills by itself in time.
        again = processes.share()[1] > 1 and now - self._asked_at < 1
        if self._asked and (again or number != signal.SIGINT):
            return
        if self._asked:
            raise Interrupted(number)
        self._asked, self._asked_at = number, now
        if processes.is_first():
            print(
                "\nstopping after this step and a checkpoint; Ctrl-C again stops at once", file=sys.stderr, flush=True
            )

    def _save(self, trainer: L.Trainer, *, due: bool) -> None:
        if processes.any_of(bool(self._asked)):
            self._stop = max(processes.gather(self._asked))
        if self._stop or due:
            trainer.save_checkpoint(self.path)

    def _end(self) -> None:
        """Only here: what the last step logs is written after its checkpoint."""
        if self._stop:
            raise Interrupted(self._stop)

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        self._end()

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._end()

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if trainer.global_step == self._step:
            return
        self._step = trainer.global_step
        if not trainer.is_last_batch and trainer.global_step != trainer.max_steps:  # or the epoch ends with this step
            self._save(trainer, due=trainer.global_step % self.every == 0)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._save(trainer, due=True)

    def teardown(self, trainer: L.Trainer, pl_module: L.LightningModule, stage: str) -> None:
        self._signals.close()


class WeightAverage(EMAWeightAveraging):
    """Exponential moving average of the weights; validation, checkpoints and the final model use the average.

    The decay grows as min(decay, (1 + n) / (10 + n)) with the update n, so that the first random weights are forgotten
    (Tan and Le 2019, after TensorFlow's ExponentialMovingAverage).
    """

    def __init__(self, decay: float = 0.999) -> None:
        require_number("ema", decay, 0)
        if decay >= 1.0:
            raise ValueError(f"ema={decay}: a decay below 1 is wanted")

        def average(mean: Any, new: Any, count: Any) -> Any:
            keep = min(decay, (1.0 + float(count)) / (10.0 + float(count)))
            return torch.lerp(new, mean, keep) if mean.is_floating_point() else new

        super(EMAWeightAveraging, self).__init__(avg_fn=average, use_buffers=False)
        self.update_every_n_steps = 1
        self.update_starting_at_step = None
        self.update_starting_at_epoch = None

    def on_train_batch_end(self, trainer: L.Trainer, pl_module: L.LightningModule, *args: Any) -> None:
        """A step that was left out does not count."""
        if getattr(pl_module, "step_left_out", False):
            self._latest_update_step = trainer.global_step
        super().on_train_batch_end(trainer, pl_module, *args)


class Progress(L.Callback):
    """How far training is, with speed, loss, scores and the time that is left: on a terminal a bar of the epoch, above
    which the scores of each epoch stay; in a log a line every few seconds and one at the end of each epoch.

    every: seconds between two lines. scores: those that are told, by name. console: the terminal; None for standard
    output if it is one.
    """

    def __init__(
        self, *, every: float = 10.0, scores: tuple[str, ...] = ("BLEU-4", "CIDEr-D"), console: Console | None = None
    ) -> None:
        self.scores = scores
        self._console = console if console is not None else terminal(sys.stdout)
        self.every = every if self._console is None else 1.0
        self._begin = self._last = time.monotonic()
        self._images = self._first_step = 0
        self._bars: Bars | None = None
        self._epoch: Any = None
        self._scoring: Any = None
        self._told = ""

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._begin = self._last = time.monotonic()
        self._first_step = trainer.global_step
        if self._console is not None and processes.is_first():
            self._bars = Bars(self._console)

    def on_train_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if self._bars is not None and self._epoch is not None:
            self._bars.remove(self._epoch)
        self._epoch = None

    def on_train_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        if not processes.is_first():
            return
        self._images += len(batch) * processes.share()[1]
        now = time.monotonic()
        if now - self._last >= self.every:
            total = int(trainer.estimated_stepping_batches)
            done = trainer.global_step
            left = (now - self._begin) / max(done - self._first_step, 1) * (total - done)
            self._told = (
                f"loss {float(trainer.callback_metrics.get('train/loss_step', float('nan'))):.3f}  "
                f"{self._images / (now - self._last):.0f}/s  {clock(now - self._begin)} gone, {clock(left)} left"
            )
            self._images, self._last = 0, now
            if self._bars is None:
                print(f"{_epoch(trainer)}  step {done}/{total}  {self._told}", flush=True)
        if self._bars is not None:
            if self._epoch is None:  # not at the start of the epoch, which a run that goes on inside one does not have
                self._epoch = self._bars.add(_epoch(trainer), trainer.num_training_batches)
            self._bars.show(self._epoch, batch_idx + 1, self._told)

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._paused = time.monotonic()
        if self._bars is not None:
            self._scoring = self._bars.add("scoring", sum(trainer.num_val_batches))

    def on_validation_batch_end(
        self, trainer: L.Trainer, pl_module: L.LightningModule, outputs: Any, batch: Any, batch_idx: int, *more: Any
    ) -> None:
        if self._bars is not None:
            self._bars.show(self._scoring, batch_idx + 1, "")

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or not processes.is_first():
            return
        seen = trainer.callback_metrics
        figures = [f"val loss {float(seen['val/loss']):.3f}"] if "val/loss" in seen else []
        for name in self.scores:
            if f"val/{name}" in seen:
                figures.append(f"{name} {100 * float(seen[f'val/{name}']):.1f}")
        now = time.monotonic()
        line = f"{_epoch(trainer)} scored in {now - self._paused:.0f} s: {'  '.join(figures)}"
        line += f"  ({clock(now - self._begin)})"
        self._last += now - self._paused
        if self._bars is None:
            print(line, flush=True)
        else:
            self._bars.remove(self._scoring)
            self._bars.tell(line)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._stop()

    def on_exception(self, trainer: L.Trainer, pl_module: L.LightningModule, exception: BaseException) -> None:
        self._stop()

    def _stop(self) -> None:
        if self._bars is not None:
            self._bars.stop()
            self._bars = None


def _epoch(trainer: L.Trainer) -> str:
    return f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}"
