"""How a program is asked to end: Ctrl-C, and SIGTERM, which schedulers send some time before they kill."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """The program was asked to end by a signal. No Exception, as KeyboardInterrupt is none: nothing may go on over it.

    status: exit status that shells expect of it: 130 for Ctrl-C, 143 for SIGTERM.
    """

    def __init__(self, number: int) -> None:
        super().__init__("interrupted" if number == signal.SIGINT else f"ended by {signal.Signals(number).name}")
        self.status = 128 + number


def _raise(number: int, frame: Any) -> None:
    raise Interrupted(number)


@contextmanager
def handled(handler: Callable[[int, Any], Any] = _raise) -> Iterator[None]:
    """Have a handler called on Ctrl-C and SIGTERM inside the block; by default it raises Interrupted.

    Only in the main thread, the one that Python gives signals to; elsewhere nothing changes.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, handler) for number in SIGNALS}
    try:
        yield
    finally:
        for number, old in before.items():
            signal.signal(number, old)
