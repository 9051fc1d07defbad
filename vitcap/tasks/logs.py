"""Where a run is logged beside metrics.csv: TensorBoard events always, Weights & Biases where asked for."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lightning as L
import numpy as np
import torch
from lightning.pytorch.loggers import TensorBoardLogger, WandbLogger
from lightning.pytorch.loggers.logger import Logger
from lightning.pytorch.utilities.rank_zero import rank_zero_only
from PIL import Image

from vitcap import processes

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Samples:
    """What a model makes of a few records: a table of texts, and pictures.

    columns: names of what a row has. pictures: name -> (picture, what it shows, in words).
    """

    columns: tuple[str, ...]
    rows: list[tuple[str, ...]]
    pictures: dict[str, tuple[Image.Image, str]] = field(default_factory=dict)

    def markdown(self) -> str:
        """The table as TensorBoard's texts have it."""
        head = [self.columns, tuple("---" for _ in self.columns)]
        return "\n".join("| " + " | ".join(map(_cell, row)) + " |" for row in (*head, *self.rows))


Draw = Callable[[Any], Samples]
"""From the task in training."""


class Events(TensorBoardLogger):
    """TensorBoard events in the folder of a run.

    purge: step from which a run goes on; what was logged there and later is not shown any more. None for a new run.
    """

    def __init__(self, folder: Path, *, purge: int | None = None) -> None:
        more = {} if purge is None else {"purge_step": purge}
        super().__init__(folder, name="", version="", default_hp_metric=False, **more)  # type: ignore[arg-type]

    @rank_zero_only
    def save(self) -> None:
        """Write what waits; options are in config.yaml, so Lightning's own file of them is left out."""
        if self._experiment is not None:
            self._experiment.flush()


def require_wandb(project: Any) -> None:
    """ValueError, in one line, if a run is to be logged to a project of Weights & Biases and cannot be."""
    if project is None:
        return
    if not isinstance(project, str) or not project.strip():
        raise ValueError(f"wandb={project}: the name of a project is wanted, or null")
    found = importlib.util.find_spec("wandb")
    if found is None or found.origin is None:  # a mere folder of this name, which Weights & Biases writes to, is none
        raise ValueError(f'wandb={project}: Weights & Biases is not installed: pip install "vitcap[wandb]"')


def open_wandb(project: str, folder: Path, *, config: Mapping[str, Any], resume: bool) -> WandbLogger:
    """A run of Weights & Biases, begun at once, so that what is wrong with it costs no training.

    Its name is that of the folder, which its files are written to; with WANDB_MODE=offline nothing leaves the computer.
    resume: go on with the last run that was logged from this folder, if there is one.
    Raises ValueError, in one line, where it cannot begin, such as without a login.
    """
    import wandb

    before = sorted(folder.glob("wandb/*run-*-*"), key=lambda path: path.name.partition("run-")[2]) if resume else []
    run = before[-1].name.rpartition("-")[2] if before else None
    logger = WandbLogger(project=project, name=folder.resolve().name, save_dir=folder, id=run)
    logger._wandb_init.pop("anonymous", None)  # wandb warns of it, whatever it is
    try:
        if processes.is_first():
            folder.mkdir(parents=True, exist_ok=True)
            logger.log_hyperparams(dict(config))
    except wandb.errors.Error as error:
        told = " ".join(str(error).split())
        raise ValueError(f"wandb={project}: {told} (WANDB_MODE=offline logs without a network)") from error
    return logger


def close_wandb(loggers: Iterable[Logger], summary: Mapping[str, Any]) -> None:
    """Add the final scores to a run of Weights & Biases, and end it; of several processes the first does.

    What goes wrong there is told in a line: the results of the training are on the disk.
    """
    for logger in loggers:
        if isinstance(logger, WandbLogger) and processes.is_first():
            try:
                logger.experiment.summary.update(dict(summary))
                logger.experiment.finish()
            except Exception as error:
                log.warning("wandb: %s", " ".join(str(error).split()) or type(error).__name__)


def resumed_step(file: str | os.PathLike[str] | None) -> int | None:
    """The number of optimiser steps that a checkpoint was written after; None without a checkpoint."""
    if file is None:
        return None
    return int(torch.load(file, map_location="cpu", mmap=True, weights_only=True)["global_step"])


def write_samples(loggers: Iterable[Logger], samples: Samples, step: int) -> None:
    """Hand samples to the loggers that show texts and pictures."""
    for logger in loggers:
        if isinstance(logger, TensorBoardLogger):
            writer: Any = logger.experiment
            if samples.rows:
                writer.add_text("samples", samples.markdown(), step)
            for name, (picture, _) in samples.pictures.items():
                writer.add_image(f"samples/{name}", np.asarray(picture.convert("RGB")), step, dataformats="HWC")
        elif isinstance(logger, WandbLogger):
            if samples.rows:
                rows = [[_clean(cell) for cell in row] for row in samples.rows]
                logger.log_text("samples/table", columns=list(samples.columns), data=rows, step=step)
            for name, (picture, told) in samples.pictures.items():
                logger.log_image(f"samples/{name}", [picture], step=step, caption=[_clean(told)])


class LogSamples(L.Callback):
    """Samples for the loggers after each epoch's validation.

    model: draws them with the model as it was validated, weights averaged if they are; scored: draws them from what the
    validation found. Either may be None.
    Give it before WeightAverage, which takes the averaged weights away again.

    Nothing that training draws from is touched, of several processes the first draws, and if it fails, a line says so
    and training goes on without.
    """

    def __init__(self, model: Draw | None = None, scored: Draw | None = None) -> None:
        self.model, self.scored = model, scored

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Before the scores are counted."""
        self._log(trainer, pl_module, self.model)

    def on_validation_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """After it."""
        self._log(trainer, pl_module, self.scored)

    def _log(self, trainer: L.Trainer, task: L.LightningModule, draw: Draw | None) -> None:
        if draw is None or trainer.sanity_checking or not processes.is_first():
            return
        devices = [torch.cuda.current_device()] if torch.cuda.is_available() else []
        try:
            with torch.random.fork_rng(devices=devices):
                # Lightning counts the steps that scores are logged at from 0, too.
                write_samples(trainer.loggers, draw(task), max(trainer.global_step - 1, 0))
        except Exception as error:
            log.warning("no samples in the logs from now on: %s", " ".join(str(error).split()) or type(error).__name__)
            self.model = self.scored = None


def _clean(text: str) -> str:
    return " ".join(text.encode("utf-8", "replace").decode("utf-8").split())


def _cell(text: str) -> str:
    """A text in a table of Markdown, as it is."""
    marks = "\\`*_{}[]<>|~#&"
    return "".join(f"\\{letter}" if letter in marks else letter for letter in _clean(text))
