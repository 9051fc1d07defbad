"""How the processes of a run come to be: by torchrun, by SLURM, or by trainer.devices; see docs/distributed.md."""

from __future__ import annotations

import atexit
import logging
import os
import sys
from datetime import timedelta
from typing import Any

import torch
from lightning.fabric.plugins.environments import ClusterEnvironment, SLURMEnvironment, TorchElasticEnvironment
from omegaconf import DictConfig

from vitcap import processes
from vitcap.types import require_number


def _environment() -> ClusterEnvironment | None:
    """The launcher that started this process, in the order in which Lightning's Trainer looks for one."""
    if TorchElasticEnvironment.detect():
        return TorchElasticEnvironment()
    # Only srun starts a process for each task; the commands of a batch script run once.
    if os.environ.get("SLURM_STEP_ID") is not None and SLURMEnvironment.detect():
        return SLURMEnvironment()
    return None


def join(cfg: DictConfig) -> None:
    """Join the other processes of a run, if a launcher has started several. Once in a process.

    cfg.timeout: minutes that they wait for each other. cfg.out becomes that of the first, for it may hold the time.
    """
    require_number("timeout", cfg.timeout, 0.001)
    environment = _environment()
    if environment is None or environment.world_size() == 1 or processes.share()[1] > 1:
        return
    os.environ["MASTER_ADDR"], os.environ["MASTER_PORT"] = environment.main_address, str(environment.main_port)
    if torch.cuda.is_available():
        torch.cuda.set_device(environment.local_rank() % torch.cuda.device_count())
    rank = environment.global_rank()
    processes.start(rank, environment.world_size(), timeout=timedelta(minutes=float(cfg.timeout)))
    atexit.register(processes.leave)
    cfg.out = processes.first(lambda: str(cfg.out))
    if rank:  # all say the same, but of pictures that cannot be read
        logging.getLogger("vitcap").setLevel(logging.ERROR)
        logging.getLogger("vitcap.data.loader").setLevel(logging.WARNING)


def wanted(cfg: DictConfig) -> int:
    """Processes that trainer.devices asks for on this machine."""
    devices, gpus = cfg.trainer.devices, torch.cuda.device_count()
    gpu = cfg.trainer.accelerator in ("auto", "gpu", "cuda") and gpus > 0
    if devices in ("auto", -1, "-1"):
        return gpus if gpu else 1
    if isinstance(devices, str) and devices.isdigit():
        devices = int(devices)
    if isinstance(devices, int) and not isinstance(devices, bool):
        return devices
    if len(devices := str(devices).strip("[] ").split(",")) > 1:
        raise ValueError(
            f"trainer.devices={cfg.trainer.devices}: give their number, trainer.devices={len(devices)}, and choose "
            "them by the environment variable CUDA_VISIBLE_DEVICES"
        )
    return 1


def relaunch(cfg: DictConfig) -> None:
    """Start this script again under torchrun where trainer.devices asks for several processes; then never returns."""
    count = wanted(cfg)
    if count < 2 or _environment() is not None:
        return
    os.environ.setdefault("OMP_NUM_THREADS", str(max((os.cpu_count() or 1) // count, 1)))
    sys.stdout.flush()
    launcher = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count))
    os.execv(sys.executable, (sys.executable, *launcher, *sys.argv))


def trainer_options(cfg: DictConfig, options: dict[str, Any]) -> dict[str, Any]:
    """Arguments of Lightning's Trainer for this run's processes: options are those of cfg.trainer.

    Raises ValueError where trainer.devices or trainer.strategy does not fit them.
    """
    world, strategy = processes.share()[1], options.get("strategy", "auto")
    count = wanted(cfg)
    if world == 1:
        if count > 1:
            raise ValueError(
                f"trainer.devices={cfg.trainer.devices}, but this is one process: start scripts/train.py, or "
                f"torchrun --nproc-per-node {count} scripts/train.py (docs/distributed.md)"
            )
        return options | ({"strategy": "auto"} if strategy in ("ddp", "fsdp") else {})
    environment = _environment()
    name = "SLURM_NTASKS_PER_NODE" if isinstance(environment, SLURMEnvironment) else "LOCAL_WORLD_SIZE"
    local = int(os.environ[name])
    if count not in (1, local):
        raise ValueError(f"trainer.devices={cfg.trainer.devices}, but {local} processes were started: leave it out")
    if strategy in ("auto", "ddp"):
        from lightning.pytorch.strategies import DDPStrategy

        # Parts that a batch does not use (a frozen encoder that is to train later, a process without records) are
        # waited for otherwise.
        timeout = timedelta(minutes=float(cfg.timeout))
        strategy = DDPStrategy(find_unused_parameters=True, timeout=timeout)
    if strategy == "fsdp":
        from vitcap.tasks import sharding

        strategy = sharding.strategy(world, timedelta(minutes=float(cfg.timeout)))
    return options | {"devices": local, "num_nodes": world // local, "strategy": strategy}
