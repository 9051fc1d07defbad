"""Progress of long loops, for people who wait and for logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from rich.console import Console

from vitcap.tasks.bars import Bars, clock, terminal


def bar(label: str, *, console: Console | None = None) -> Callable[[int, int], None]:
    """A function of (done, total) that shows the progress of a long loop on standard error: a bar on a terminal, which
    leaves a line when it is done; a line every few seconds in a log.

    console: the terminal, None for standard error if it is one.
    """
    begin, last, before = time.monotonic(), 0.0, 0
    bars: Bars | None = None
    shown = None

    def update(done: int, total: int) -> None:
        nonlocal begin, last, before, bars, shown
        now = time.monotonic()
        screen = console if console is not None else terminal(sys.stderr)
        if done <= before:  # the next loop of the same kind
            begin = now
        before = done
        if done < total and now - last < (0.1 if screen is not None else 10.0):
            return
        last = now
        spent = now - begin
        speed = done / max(spent, 1e-6)
        if screen is None:
            print(f"{label}: {done}/{total}, {speed:.0f}/s, {clock(spent)}", file=sys.stderr, flush=True)
            return
        if bars is None:
            bars = Bars(screen)
            shown = bars.add(label, total)
        assert shown is not None
        if done < total:
            bars.show(
                shown, done, f"{speed:.0f}/s  {clock(spent)} gone, {clock((total - done) / max(speed, 1e-6))} left"
            )
            return
        bars.stop()
        bars.tell(f"{label}: {done}/{total}, {speed:.0f}/s, {clock(spent)}")
        bars = None

    return update
