"""Steps that would ruin a model in training are left out, counted and told."""

from __future__ import annotations

import logging
from typing import Any

import lightning as L
import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase
from torch.optim import Optimizer

from vitcap import processes
from vitcap.types import require_number

log = logging.getLogger(__name__)

TOLD = 20
"""So many are told one by one, then every hundredth."""


class SkipBadSteps(L.Callback):
    """Leaves out optimiser steps whose loss or gradient is not finite; raises ValueError at the last of so many in a
    row, or at the first where the weights are not finite already.

    most: so many in a row end training, 1 for the first. skipped: how many were left out so far; it is logged as
    train/skipped_steps from the first one on. Both counts are in checkpoints.

    A step that is left out changes neither weights nor their average, neither the optimiser's moments nor the running
    statistics of batch normalisation; the schedule of the learning rate counts it. Processes agree on it. With
    trainer.precision=16-mixed gradients that overflow while the loss is finite belong to the search for the scale,
    which leaves these steps out itself: they count once the scale is below 1.
    """

    def __init__(self, *, most: int) -> None:
        require_number("max_bad_steps", most, 1, whole=True)
        self.most = most
        self.skipped = self.in_row = 0
        self._reason: str | None = None
        self._ids: list[Any] = []
        self._before: list[tuple[Tensor, Tensor]] | None = None

    def state_dict(self) -> dict[str, int]:
        """The counts, for the checkpoint."""
        return {"skipped": self.skipped, "in_row": self.in_row}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        """Those of the run that goes on."""
        self.skipped, self.in_row = state_dict["skipped"], state_dict["in_row"]

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """From now on the task tells this guard of losses that are not finite."""
        task: Any = pl_module
        task.tell_bad_loss = self._note

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Say how many steps were left out."""
        if self.skipped:
            log.warning("%d of %d steps were left out: loss or gradient not finite", self.skipped, trainer.global_step)

    def _note(self, reason: str) -> None:
        self._reason = self._reason or reason

    def on_train_batch_start(
        self, trainer: L.Trainer, pl_module: L.LightningModule, batch: Any, batch_idx: int
    ) -> None:
        """Remember, at the first batch of a step, what the step changes before its end."""
        if self._before is None:
            self._before = [(tensor, tensor.clone()) for tensor in _statistics(pl_module)]
        self._ids += batch.ids[: 3 - len(self._ids)]

    def on_before_optimizer_step(self, trainer: L.Trainer, pl_module: L.LightningModule, optimizer: Optimizer) -> None:
        """Look at loss and gradient, once it is that of all processes, and before it is clipped."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        reason, finite = self._reason, _finite_gradient(parameters)
        scaler = getattr(trainer.precision_plugin, "scaler", None)
        seeking = scaler is not None and scaler.get_scale() >= 1
        before, ids = self._before or [], self._ids
        self._reason, self._before, self._ids = None, None, []
        bad = reason is not None or not (finite or seeking)
        task: Any = pl_module
        task.step_left_out = processes.any_of(bad)
        if task.step_left_out:
            mine = f"the gradient is not finite at step {trainer.global_step}, though the loss is (records "
            mine += f"{', '.join(map(str, ids))}, ...): lower task.lr or lengthen task.warmup"
            told = processes.gather((reason, None if finite or seeking else mine))
            # The process that had the bad record says so; to the others it is the gradient.
            self._leave_out(next(text for kind in zip(*told, strict=True) for text in kind if text), pl_module)
            for parameter in parameters:
                parameter.grad = None  # without one the optimiser changes neither it nor its moments
            for tensor, old in before:
                tensor.copy_(old)
        elif finite:
            self.in_row = 0
        if self.skipped:
            pl_module.log("train/skipped_steps", float(self.skipped), batch_size=1)

    def _leave_out(self, reason: str, task: L.LightningModule) -> None:
        self.skipped, self.in_row = self.skipped + 1, self.in_row + 1
        if processes.any_of(not all(bool(_local(p).isfinite().all()) for p in task.parameters())):
            raise ValueError(reason)  # no other batch would do
        if self.in_row >= self.most:
            row = f" (the last of {self.in_row} steps in a row, max_bad_steps={self.most})" if self.most > 1 else ""
            raise ValueError(reason + row)
        if self.skipped <= TOLD or self.skipped % 100 == 0:
            log.warning("step left out, %d in a row, %d in all: %s", self.in_row, self.skipped, reason)


def _statistics(module: nn.Module) -> list[Tensor]:
    norms = [m for m in module.modules() if isinstance(m, _NormBase) and m.training and m.track_running_stats]
    return [tensor for norm in norms for tensor in norm.buffers(recurse=False)]


def _local(tensor: Tensor) -> Tensor:
    """This process's part of a sharded tensor."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def _finite_gradient(parameters: list[nn.Parameter]) -> bool:
    found = [_local(p.grad) for p in parameters if p.grad is not None]
    return not found or bool(torch.nn.utils.get_total_norm(found).isfinite())
