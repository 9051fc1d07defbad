"""What training writes while it runs: checkpoints that are whole at any moment, and curves that a resumed run goes on
with."""

from __future__ import annotations

import csv
import errno
import io
import os
from argparse import Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch.loggers.logger import Logger, rank_zero_experiment
from lightning.pytorch.plugins.io import TorchCheckpointIO

from vitcap import processes
from vitcap.files import full_disk_told, whole


class WholeCheckpoints(TorchCheckpointIO):
    """Writes beside the checkpoint and renames; Lightning's own goes through the system's temporary folder, from which
    a file of another disk is copied to its final name."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: str | Path, storage_options: Any = None) -> None:
        """As torch.save, and the former checkpoint stays until this one is on the disk."""
        with whole(path) as temporary, open(temporary, "wb") as file:
            torch.save(checkpoint, file)


class Curves(Logger):
    """`metrics.csv`: a row for whatever is logged, written at once, so that a killed run loses none of them.

    A new column is written with all rows before it, whole or not at all. Only the first process writes.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.file = folder / "metrics.csv"
        self.columns: list[str] | None = None

    @property
    def name(self) -> str:
        """Curves have none: their folder is the run's."""
        return ""

    @property
    def version(self) -> str:
        """Likewise."""
        return ""

    @property
    def save_dir(self) -> str:
        """The folder of the run."""
        return str(self.file.parent)

    @property
    @rank_zero_experiment
    def experiment(self) -> None:
        """Nothing beside the file."""

    def log_hyperparams(self, params: dict[str, Any] | Namespace, *args: Any, **kwargs: Any) -> None:
        """They are in config.yaml."""

    def trim(self, step: int) -> None:
        """Forget the rows of optimiser steps from `step` on, which a run that goes on there writes again, and a row
        that a killed run left half."""
        if processes.is_first() and self.file.exists():
            columns, rows = self._read()
            self._write(columns, [row for row in rows if row["step"].isdigit() and int(row["step"]) < step])

    def log_metrics(self, metrics: Mapping[str, Any], step: int | None = None) -> None:
        """Append a row."""
        if not processes.is_first():
            return
        row = {name: float(value) if isinstance(value, torch.Tensor) else value for name, value in metrics.items()}
        if "epoch" in row:
            row["epoch"] = int(row["epoch"])
        row["step"] = 0 if step is None else step
        if self.columns is None:
            self.columns = self._read()[0] if self.file.exists() else []
        if new := set(row) - set(self.columns):
            columns, rows = self._read() if self.file.exists() else ([], [])
            self._write(sorted({*columns, *new}), [*rows, row])
        else:
            line = _lines(self.columns, [row])
            with full_disk_told(self.file), open(self.file, "ab", buffering=0) as file:
                end = file.tell()
                if file.write(line) != len(line):
                    file.truncate(end)
                    raise OSError(errno.ENOSPC, "no space left")

    def _read(self) -> tuple[list[str], list[dict[str, str]]]:
        text = self.file.read_bytes().decode("utf-8", "replace")
        reader = csv.DictReader(io.StringIO(text[: text.rfind("\n") + 1], newline=""))
        return list(reader.fieldnames or []), [row for row in reader if None not in row.values() and None not in row]

    def _write(self, columns: list[str], rows: list[dict[str, Any]]) -> None:
        header = dict(zip(columns, columns, strict=True))
        with whole(self.file) as temporary:
            temporary.write_bytes(_lines(columns, [header, *rows]))
        self.columns = columns


def _lines(columns: list[str], rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    csv.DictWriter(text, columns, lineterminator=os.linesep).writerows(rows)
    return text.getvalue().encode()
