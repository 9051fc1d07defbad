"""Progress of long loops, for people who wait and for logs."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable

from vitcap.tasks.callbacks import clock


def bar(label: str) -> Callable[[int, int], None]:
    """A function of (done, total) that shows the progress of a long loop on standard error: a line that is renewed on a
    terminal, one every few seconds in a log."""
    state = {"last": 0.0, "begin": time.monotonic(), "done": 0}

    def update(done: int, total: int) -> None:
        now = time.monotonic()
        terminal = sys.stderr.isatty()
        if done <= state["done"]:  # the next loop of the same kind
            state["begin"] = now
        state["done"] = done
        if done < total and now - state["last"] < (0.2 if terminal else 10.0):
            return
        state["last"] = now
        spent = now - state["begin"]
        text = f"{label}: {done}/{total}, {done / max(spent, 1e-6):.0f}/s, {clock(spent)}"
        end = "\n" if done >= total or not terminal else ""
        print(("\r" if terminal else "") + text, end=end, file=sys.stderr, flush=True)

    return update
