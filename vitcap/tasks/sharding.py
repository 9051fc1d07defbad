"""Training with weights, gradients and optimiser state sharded over the processes (FSDP2; Zhao et al. 2023).

Each block of an encoder is a unit, which is whole only while it computes; so are the rest of the encoder, and decoder
or head. While the validation split is scored the whole model is in every process, which decode different numbers of
words.
"""

from __future__ import annotations

import warnings
from datetime import timedelta
from typing import Any

from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.fsdp import FSDPModule, fully_shard, register_fsdp_forward_method

from vitcap.processes import share
from vitcap.tasks.base import TrainingTask
from vitcap.tasks.self_critical import SelfCriticalTask

METHODS = ("trunk", "head", "start", "step")
"""What encoders and decoders are called by beside `forward`."""


def strategy(world: int, timeout: timedelta) -> ModelParallelStrategy:
    """Lightning's strategy; checkpoints are the same one file as without sharding."""
    return ModelParallelStrategy(
        data_parallel_size=world, tensor_parallel_size=1, save_distributed_checkpoint=False, timeout=timeout
    )


def shard(task: TrainingTask, *, records: int, batch_size: int, on_bad: str, ema: float | None) -> None:
    """Have a task shard its model once the trainer has joined the processes.

    Raises ValueError for what cannot be: averaged weights, and batches of which a process would have no record, for
    all take part in every unit.
    """
    if ema is not None:
        raise ValueError("trainer.strategy=fsdp has no averaged weights: set ema=null")
    if on_bad != "error":
        raise ValueError("trainer.strategy=fsdp needs all records: set data.on_bad=error")
    world = share()[1]
    last = records % batch_size or batch_size
    if min(last, batch_size) < world:
        raise ValueError(
            f"trainer.strategy=fsdp: the last batch of an epoch has {last} of {records} records for {world} processes: "
            f"set data.train_limit={records - last} or another data.batch_size"
        )
    if isinstance(task, SelfCriticalTask):
        raise ValueError("trainer.strategy=fsdp trains by cross-entropy: task=captioning or task=classification")
    warnings.filterwarnings("ignore", message=".*returned a view tensor.*")  # which decoding alone changes in place
    task.configure_model = lambda: _shard(task)  # type: ignore[method-assign]
    start, end = task.on_validation_epoch_start, task.on_validation_epoch_end

    def whole() -> None:
        for unit in _units(task):
            unit.set_reshard_after_forward(False, recurse=False)
            unit.unshard()
        start()

    def parted() -> None:
        end()
        for unit in _units(task):
            unit.set_reshard_after_forward(
                unit not in (task.model.encoder, getattr(task.model, task.rest)), recurse=False
            )
            unit.reshard()

    task.on_validation_epoch_start, task.on_validation_epoch_end = whole, parted  # type: ignore[method-assign]


def _units(task: TrainingTask) -> list[FSDPModule]:
    return [module for module in task.modules() if isinstance(module, FSDPModule)]


def _shard(task: TrainingTask) -> None:
    if _units(task):
        return
    mesh: Any = task.device_mesh["data_parallel"]  # type: ignore[index]
    encoder, rest = task.model.encoder, getattr(task.model, task.rest)
    blocks = [
        m for m in encoder.modules() if isinstance(m, nn.ModuleList | nn.Sequential) and _named(encoder, m, "blocks")
    ]
    for block in (block for group in blocks for block in group):
        shared = {p for p in block.parameters() if _uses(encoder, p) > 1}
        fully_shard(block, mesh=mesh, ignored_params=shared)
    # The decoder calls itself by several names, one inside the other: it stays whole until the backward pass.
    for unit in (encoder, rest):
        fully_shard(unit, mesh=mesh, reshard_after_forward=False)
        for name in METHODS:
            if hasattr(unit, name):
                register_fsdp_forward_method(unit, name)


def _named(module: nn.Module, part: nn.Module, name: str) -> bool:
    return any(path.split(".")[-1] == name for path, m in module.named_modules() if m is part)


def _uses(module: nn.Module, parameter: nn.Parameter) -> int:
    """Modules that have a parameter; one that several modules share, such as a table of positions, counts for each."""
    everywhere = module.named_modules(remove_duplicate=False)
    return sum(p is parameter for _, m in everywhere for p in m.parameters(recurse=False))
