"""Progress bars on a terminal. In a log, where nobody sees a bar move, there are lines instead."""

from __future__ import annotations

import atexit
import logging
import math
import sys
from typing import IO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn


def terminal(stream: IO[str]) -> Console | None:
    """A console on a stream that somebody watches; None for files, pipes and the like."""
    return Console(file=stream) if stream.isatty() else None


def clock(seconds: float) -> str:
    """1:02:03 or 2:03."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class Bars:
    """One or more bars at the foot of a terminal; what is printed meanwhile, logged lines too, goes above them.

    Only the last ones that were begun are shown: those of a loop that broke off go when others begin, and when the
    program ends.
    """

    _shown: Bars | None = None

    def __init__(self, console: Console) -> None:
        self.console = console
        self._bars = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[told]}", markup=False),
            console=console,
            transient=True,
            redirect_stdout=sys.stdout.isatty(),
            redirect_stderr=sys.stderr.isatty(),
        )
        self._handlers: list[tuple[logging.StreamHandler[IO[str]], IO[str]]] = []
        Bars.close()
        before = {id(sys.stdout): "stdout", id(sys.stderr): "stderr"}
        self._bars.start()
        Bars._shown = self
        for handler in logging.getLogger().handlers:  # they hold the stream itself, and would write over the bars
            if isinstance(handler, logging.StreamHandler) and (name := before.get(id(stream := handler.stream))):
                handler.setStream(getattr(sys, name))
                self._handlers.append((handler, stream))

    def add(self, label: str, total: float) -> TaskID:
        """A bar of so many steps; infinity where nobody knows."""
        return self._bars.add_task(label, total=total if math.isfinite(total) else None, told="")

    def show(self, bar: TaskID, done: int, told: str) -> None:
        """How far a bar is, and what is told beside it."""
        self._bars.update(bar, completed=done, told=told)

    def remove(self, bar: TaskID) -> None:
        """Take a bar away."""
        self._bars.remove_task(bar)

    def tell(self, line: str) -> None:
        """A line that stays, above the bars."""
        self.console.print(line, markup=False, highlight=False, soft_wrap=True)

    def stop(self) -> None:
        """Take the bars away."""
        if Bars._shown is self:
            Bars._shown = None
        for handler, stream in self._handlers:
            handler.setStream(stream)
        self._handlers = []
        self._bars.stop()

    @staticmethod
    def close() -> None:
        """Take away the bars that are shown, if there are any, so that the cursor is there again."""
        if Bars._shown is not None:
            Bars._shown.stop()


atexit.register(Bars.close)
