"""The one thread that does the models' work, and the requests that wait for it."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from vitcap.serve.limits import Limits, busy


class Ask(Protocol):
    """What a request wants. Those of equal kinds may be worked on together; those of kind None may not."""

    @property
    def kind(self) -> Hashable: ...


@dataclass(eq=False)
class _Job:
    ask: Any
    answer: asyncio.Future[Any]
    put: float = field(default_factory=time.monotonic)


class Desk:
    """Asks wait in a bounded queue; one thread takes the oldest, and others of its kind with it, to `work`.

    work: asks -> for each, in their order, its answer, or an exception that is raised where it was asked. It never runs
    in the thread of the event loop, nor twice at the same time.
    """

    def __init__(self, work: Callable[[Sequence[Any]], Sequence[Any]], limits: Limits) -> None:
        self.work, self.limits = work, limits
        self._waiting: deque[_Job] = deque()
        self._changed = threading.Condition()
        self._open = False

    def start(self) -> None:
        """Begin to work."""
        self._open = True
        self._thread = threading.Thread(target=self._run, name="vitcap-serve", daemon=True)
        self._thread.start()

    def stop(self, patience: float = 5.0) -> None:
        """End when what is being worked on is done, or after some seconds."""
        with self._changed:
            self._open = False
            self._changed.notify()
        self._thread.join(patience)

    @property
    def waiting(self) -> int:
        """Asks that wait."""
        return len(self._waiting)

    async def do(self, ask: Ask) -> tuple[Any, float]:
        """The answer, and the seconds that the ask waited. An asker that is cancelled leaves the queue.

        Raises Refused (503) where the queue is full, or the work has not begun within `timeout`.
        """
        job = _Job(ask, asyncio.get_running_loop().create_future())
        with self._changed:
            if len(self._waiting) >= self.limits.queue:
                raise busy(f"{len(self._waiting)} requests wait already, as many as may")
            self._waiting.append(job)
            self._changed.notify()
        try:
            await asyncio.wait({job.answer}, timeout=self.limits.timeout)
            if not job.answer.done() and self._withdraw(job):
                raise busy(f"the request waited {self.limits.timeout:g} seconds for its turn")
            answer, began = await job.answer
            return answer, began - job.put
        finally:
            self._withdraw(job)

    def _withdraw(self, job: _Job) -> bool:
        """Take an ask out of the queue; False where it is not there any more."""
        with self._changed:
            if job in self._waiting:
                self._waiting.remove(job)
                return True
            return False

    def _take(self) -> list[_Job]:
        """The oldest ask and those of its kind; none once the desk is closed."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or not self._open)
            if not self._open:
                return []
            kind = self._waiting[0].ask.kind
            jobs = [job for job in self._waiting if job.ask.kind == kind] if kind is not None else [self._waiting[0]]
            jobs = jobs[: self.limits.batch]
            for job in jobs:
                self._waiting.remove(job)
            return jobs

    def _run(self) -> None:
        while jobs := self._take():
            began = time.monotonic()
            try:
                answers = self.work([job.ask for job in jobs])
            except BaseException as error:  # whatever it is, others wait
                answers = [error] * len(jobs)
            for job, answer in zip(jobs, answers, strict=True):
                try:
                    job.answer.get_loop().call_soon_threadsafe(_settle, job.answer, answer, began)
                except RuntimeError:  # the loop has ended meanwhile
                    return


def _settle(future: asyncio.Future[Any], answer: Any, began: float) -> None:
    if future.done():  # its asker has gone
        return
    if isinstance(answer, BaseException):
        future.set_exception(answer if isinstance(answer, Exception) else RuntimeError(str(answer)))
    else:
        future.set_result((answer, began))
