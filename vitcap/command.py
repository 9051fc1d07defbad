"""What the scripts call: evaluation of whatever the options name, and errors in one line.

Light to import: captions that are scored from files need no model, and an error needs no wait.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import MissingMandatoryValue, OmegaConfBaseException

from vitcap.files import full_disk_told
from vitcap.machine import keep_freed_memory
from vitcap.stopping import Interrupted, handled

# What a user did wrong ends in one line; anything else is a defect of ours and keeps its traceback.
USER_ERRORS: tuple[type[Exception], ...] = (ValueError, OSError, hydra.errors.HydraException, OmegaConfBaseException)

SUBJECTS = {"checkpoint": "checkpoint=RUN", "results": "results=FILE annotations=FILE", "model": "model=NAME"}
FITS = {
    "annotations": ("results",),
    "partial": ("results",),
    "meteor": ("checkpoint", "results"),
    "spice": ("checkpoint", "results"),
    "zip": ("checkpoint", "results"),
    "decode": ("checkpoint",),
    "average": ("checkpoint",),
    "share": ("checkpoint",),
    "save": ("checkpoint",),
    "novel": ("checkpoint",),
    "ground": ("checkpoint",),
    "faithful": ("checkpoint",),
    "force": ("checkpoint", "model"),
    "pretrained": ("model",),
    "weights": ("model",),
    "test_size": ("model",),
}
"""Option of conf/evaluate.yaml -> the subjects that it goes with; the others go with all."""
FLAGS = ("partial", "pretrained", "test_size", "novel", "ground", "faithful", "force")
OF_MAPS = {
    "methods": ("ground", "faithful"),
    "limit": ("ground", "faithful"),
    "instances": ("ground",),
    "protocol": ("ground",),
    "regions": ("ground",),
}
"""Option -> the questions about maps that it goes with."""
OF_SCORES = ("meteor", "spice", "novel", "zip", "save")


def shorthand(arguments: Sequence[str]) -> list[str]:
    """Command line of scripts/evaluate.py as Hydra reads it: `model=NAME` would choose a file of conf/model."""
    return [f"model.name={a.removeprefix('model=')}" if a.startswith("model=") else a for a in arguments]


def subject(cfg: DictConfig) -> str:
    """Which of SUBJECTS a config names. ValueError unless it is one, and with options that belong to it."""
    given = [name for name in SUBJECTS if (cfg.model.name if name == "model" else cfg.get(name)) is not None]
    if len(given) != 1:
        found = " and ".join(f"{name}=" for name in given) + " are" if given else "nothing is"
        raise ValueError(
            f"{found} given to score: give one of checkpoint=RUN (a model trained here), results=FILE annotations=FILE "
            "(captions that are written already), model=NAME pretrained=true or weights=FILE (a classifier of timm)"
        )
    for option, fits in FITS.items():
        if cfg.get(option) not in (None, False) and given[0] not in fits:
            wanted = " or ".join(SUBJECTS[name] for name in fits)
            raise ValueError(f"{option}={_short(cfg[option])} goes with {wanted}, not with {given[0]}=: leave it out")
    for option in FLAGS:
        if cfg.get(option) not in (None, True, False):
            raise ValueError(f"{option}={_short(cfg[option])}: true or false is wanted")
    asked = [f"{name}=true" for name in ("ground", "faithful") if cfg[name]]
    for option, of in OF_MAPS.items():
        if cfg.get(option) is not None and not any(cfg[name] for name in of):
            wanted = " or ".join(f"{name}=true" for name in of)
            raise ValueError(f"{option}={_short(cfg[option])} goes with {wanted}: add it, or leave {option}= out")
    if asked and (scores := [option for option in OF_SCORES if cfg.get(option) not in (None, False)]):
        raise ValueError(f"{scores[0]}= scores captions, and {asked[0]} asks about maps instead: leave one of them out")
    return given[0]


def _short(value: Any) -> str:
    return "..." if isinstance(value, DictConfig) else str(value)


def evaluate(cfg: DictConfig) -> dict[str, Any]:
    """Score a checkpoint, a results file, or a classifier of timm, as conf/evaluate.yaml explains.

    Returns the content of scores.json, which it writes to cfg.out. Every sample counts once, whatever the number of
    processes; the first scores and writes, and the others return nothing.
    """
    if subject(cfg) != "results":
        from vitcap.scoring import evaluate_model  # torch, and all that needs it

        return evaluate_model(cfg)
    if int(os.environ.get("RANK") or os.environ.get("SLURM_PROCID") or 0):  # files are scored by the first alone
        return {}
    from vitcap.evaluation.files import evaluate_results

    text, report = evaluate_results(
        cfg.results,
        cfg.annotations,
        out=cfg.out,
        partial=cfg.partial,
        archive=cfg.zip,
        split=cfg.split,
        algorithm=cfg.algorithm,
        seed=cfg.seed,
        **java_options(cfg),
    )
    print(text)
    return report


def java_options(cfg: DictConfig) -> dict[str, Any]:
    """The options meteor and spice as plain Python types."""
    return {
        name: OmegaConf.to_container(cfg[name], resolve=True) if isinstance(cfg[name], DictConfig) else cfg[name]
        for name in ("meteor", "spice")
    }


def settle() -> None:
    """Before anything large: the allocator; and of the libraries' messages only what a user can act on."""
    keep_freed_memory()
    for name in ("lightning.pytorch", "lightning.fabric", "lightning.pytorch.utilities.rank_zero"):
        logging.getLogger(name).setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", message=".*does not have many workers.*")
    warnings.filterwarnings("ignore", message=".*number of training batches.*smaller than the logging interval.*")
    warnings.filterwarnings("ignore", message=".* directory .* exists and is not empty.*")
    warnings.filterwarnings("ignore", message=".*module.s. in eval mode at the start of training.*")
    warnings.filterwarnings("ignore", message=".*LeafSpec.*")
    warnings.filterwarnings("ignore", message=".*sync_dist=True.*")  # what is logged is of all processes already
    warnings.filterwarnings("ignore", message=".*overridden .on_before_batch_transfer. in .LightningModule.*")


def job_folder(cfg: DictConfig) -> str:
    """Where a job writes: `cfg.out`; in a sweep (Hydra's --multirun) a folder in it, named after the options that vary,
    such as `seed-1`, unless `out` is made of options itself ('out=runs/seed${seed}')."""
    if not HydraConfig.initialized() or HydraConfig.get().mode != RunMode.MULTIRUN:
        return str(cfg.out)
    job = HydraConfig.get()
    options = [argument for argument in sys.argv[1:] if not argument.startswith("-") and "=" in argument]
    given = OverridesParser.create().parse_overrides(options)
    if any(one.get_key_element() == "out" and "${" in str(one.input_line) for one in given):
        return str(cfg.out)
    fixed = {one.get_key_element() for one in given if not one.is_sweep_override()}
    varied = [one for one in job.overrides.task if one.partition("=")[0] not in fixed]
    parts = (one.partition("=") for one in varied)
    plain = "_".join(f"{key.replace('/', '-')}-{value}" for key, _, value in parts)
    name = re.sub(r"[^\w.+-]+", "-", plain)  # Hydra would want quotes for more
    name += f"_{job.job.num}" * (name != plain)  # values that differ only in what is left out stay apart
    return os.path.join(cfg.out, name if varied and len(name.encode()) <= 120 else str(job.job.num))


def command(action: Callable[[DictConfig], Any], cfg: DictConfig) -> None:
    """Run an action for the command line: user errors end in one line on standard error and exit status 1.

    The environment variable HYDRA_FULL_ERROR=1 shows the traceback. Training starts again under torchrun where
    trainer.devices asks for several processes; one that ends takes the others along, each with a line.
    """
    try:
        cfg.out = job_folder(cfg)
        if "trainer" in cfg:
            from vitcap.launch import relaunch

            relaunch(cfg)
        with handled(), full_disk_told(cfg.out), _bars_closed():
            action(cfg)
    except _loaded("vitcap.processes", "FirstFailed"):
        sys.exit(1)
    except RuntimeError as error:
        lost = sys.modules["vitcap.processes"].message(error) if "vitcap.processes" in sys.modules else None
        if lost is None:
            if (memory := sys.modules.get("vitcap.memory")) is None or not memory.is_out_of_memory(error):
                raise
            size = f"data.batch_size={cfg.data.batch_size} and raise trainer.accumulate_grad_batches by as much"
            print(f"vitcap: error: {memory.describe(error)}: lower {size}", file=sys.stderr)
            sys.exit(1)
        print(f"vitcap: error: {lost}", file=sys.stderr, flush=True)
        os._exit(1)  # at once: the connections that are left would be waited for
    except KeyboardInterrupt:
        print("vitcap: interrupted", file=sys.stderr)
        sys.exit(130)
    except Interrupted as stop:
        if not _rank():
            print(f"vitcap: {stop}{_way_on(cfg)}", file=sys.stderr)
        sys.exit(stop.status)
    except USER_ERRORS + _loaded("lightning.pytorch.utilities.exceptions", "MisconfigurationException") as error:
        if os.environ.get("HYDRA_FULL_ERROR") == "1":
            raise
        cause: BaseException = error
        while isinstance(cause, hydra.errors.InstantiationException) and cause.__cause__ is not None:
            cause = cause.__cause__
        named = isinstance(cause, OSError) and cause.filename is not None and cause.strerror
        text = f"{cause.filename}: {cause.strerror}" if named else str(cause)  # type: ignore[attr-defined]
        if isinstance(cause, MissingMandatoryValue):
            text = f"{cause.full_key} must be given: add {cause.full_key}=VALUE"
        where = f" (process {rank})" if (rank := _rank()) else ""
        print(f"vitcap: error{where}: {' '.join(text.split())}", file=sys.stderr)
        sys.exit(1)


@contextmanager
def _bars_closed() -> Iterator[None]:
    """Progress bars of what broke off are gone before a line says why."""
    try:
        yield
    finally:
        if "vitcap.tasks.bars" in sys.modules:
            sys.modules["vitcap.tasks.bars"].Bars.close()


def _way_on(cfg: DictConfig) -> str:
    if "trainer" not in cfg:
        return ""
    if not os.path.exists(os.path.join(cfg.out, "checkpoints", "last.ckpt")):
        return " before the first checkpoint"
    return f"; go on with {shlex.quote(f'out={cfg.out}')} resume=true"


def _rank() -> int:
    return sys.modules["vitcap.processes"].share()[0] if "vitcap.processes" in sys.modules else 0


def _loaded(module: str, name: str) -> tuple[type[Exception], ...]:
    """An exception class, if its module is loaded; or it cannot have been raised."""
    return (getattr(sys.modules[module], name),) if module in sys.modules else ()
