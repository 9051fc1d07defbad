"""Going on from a checkpoint whose state of training is damaged: one line, and not a traceback of the trainer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import lightning as L
import torch
from torch.optim import Optimizer

from vitcap import processes
from vitcap.memory import is_out_of_memory

_DAMAGED = (LookupError, TypeError, AttributeError)
"""What a state without an entry, or with one of another kind, makes of the code that reads it; options never do."""


class Resuming(L.Callback):
    """Watches over a trainer until the first batch of a run that goes on from `file` is trained; None: it does not."""

    def __init__(self, file: str | None) -> None:
        self.file = file
        self._at = "weights"

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The weights are in place; optimiser, schedule and loops come next."""
        self._at = "state"

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """All of it is in place. ValueError for moments that are none of the weights, at which a step would fail, and
        for an optimiser or a schedule that would silently begin anew."""
        if self.file is not None:
            for optimizer in trainer.optimizers:
                check_moments(optimizer)
            schedules: list[Any] = [config.scheduler for config in trainer.lr_scheduler_configs]
            anew = [not optimizer.state for optimizer in trainer.optimizers]
            anew += [schedule.last_epoch == 0 for schedule in schedules]
            if trainer.global_step and any(anew):
                raise ValueError(f"no state of optimiser or schedule, after {trainer.global_step} steps")
        self._at = "first batch"

    def on_train_batch_end(self, *_: Any) -> None:
        """From now on errors are none of the checkpoint."""
        self._at = "trained"

    @contextmanager
    def told(self) -> Iterator[None]:
        """ValueError that names the checkpoint, for what its state makes the trainer raise; all others as they are."""
        try:
            yield
        except (*_DAMAGED, RuntimeError, ValueError) as error:
            lost = isinstance(error, RuntimeError) and (is_out_of_memory(error) or processes.message(error))
            if self.file is None or lost or not isinstance(error, self._kinds):
                raise
            what = str(error) if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"
            raise ValueError(
                f"{self.file}: the state of training is damaged, and cannot be resumed from ({what[:200]}); "
                f"init={self.file} starts anew from its weights"
            ) from error

    @property
    def _kinds(self) -> tuple[type[Exception], ...]:
        """Errors that are of the checkpoint at this time: options that do not fit raise ValueError before and after."""
        more = {"weights": (RuntimeError,), "state": (RuntimeError, ValueError), "first batch": ()}
        return () if self._at == "trained" else (*_DAMAGED, *more[self._at])


def check_moments(optimizer: Optimizer) -> None:
    """ValueError unless what an optimiser keeps of each weight is finite, and of its shape or a single number."""
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if not isinstance(value, torch.Tensor):
                continue
            if value.ndim and value.shape != parameter.shape:
                shapes = f"{tuple(value.shape)}, its weight {tuple(parameter.shape)}"
                raise ValueError(f"{name} of the optimiser has the shape {shapes}")
            local: Any = value.to_local() if hasattr(value, "to_local") else value
            if not bool(local.isfinite().all()):
                raise ValueError(f"{name} of the optimiser is not finite")
