"""Batches that do not fit the memory are halved until they do."""

from __future__ import annotations

import gc
import logging
from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor

from vitcap.types import Batch

log = logging.getLogger(__name__)

T = TypeVar("T")

_SIGNS = ("not enough memory", "can't allocate memory", "out of memory", "alloc_failed")
"""In messages of RuntimeErrors: torch has no class of its own for the CPU, for MPS, and for cuBLAS."""


class NotEnoughMemory(ValueError):
    """A single record does not fit the memory."""


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an error says that memory, of whatever device, is used up."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    return isinstance(error, RuntimeError) and any(sign in str(error).lower() for sign in _SIGNS)


def describe(error: BaseException) -> str:
    """An error of that kind in a line."""
    return f"not enough memory ({' '.join(str(error).split())[:160]})"


class Halving:
    """Does work on batches whole, or, once one did not fit the memory, in parts of half the size, and so on.

    The size that fits is kept for the batches that follow; the first time it shrinks, a warning says so. what: names
    the work in messages.
    """

    def __init__(self, what: str) -> None:
        self.what = what
        self.most: int | None = None

    def __call__(
        self, work: Callable[[Batch], T], batch: Batch, *, generator: torch.Generator | None = None
    ) -> list[T]:
        """What `work` returns for each part of a batch, in order.

        generator: that `work` draws from; what was drawn for a part that did not fit is drawn again. Raises
        NotEnoughMemory where one record is too much.
        """
        done, found = 0, []
        while True:
            size = len(batch) if self.most is None else min(self.most, len(batch))
            part = batch if size == len(batch) else _part(batch, done, done + size)
            before = None if generator is None else generator.get_state()
            try:
                found.append(work(part))
                problem = ""
            except (RuntimeError, MemoryError) as error:
                if not is_out_of_memory(error):
                    raise
                problem = describe(error)
            if problem:  # outside of the except block, whose traceback keeps the tensors of the failed attempt
                self._shrink(len(part), problem)
                if generator is not None and before is not None:
                    generator.set_state(before)
                continue
            done += size
            if done >= len(batch):
                return found

    def _shrink(self, size: int, problem: str) -> None:
        if size < 2:
            raise NotEnoughMemory(f"{self.what}, one record at a time: {problem}")
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        if self.most is None:
            log.warning("%s: %d records at a time do not fit the memory: half as many from now on", self.what, size)
        self.most = (size + 1) // 2


def _part(batch: Batch, start: int, stop: int) -> Batch:
    values = {f.name: getattr(batch, f.name) for f in fields(batch)}
    parts: dict[str, Any] = {name: v[start:stop] for name, v in values.items() if isinstance(v, Tensor | tuple)}
    return replace(batch, **parts)
