"""What the processes of one run tell each other. With one process everything here is free, and changes nothing.

Objects travel over gloo, also between processes with GPUs; tensors as their device wants it. A process that ends breaks
its connections, so that the others fail with `Lost` at once; one that hangs, after the timeout of the run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

T = TypeVar("T")
Share = tuple[int, int]
"""(rank, world): this process of so many, counted from 0."""
PATIENCE = timedelta(days=7)
"""How long processes wait for the first one's work, such as features of all pictures, unless it ends."""

_groups: dict[str, Any] = {}


class Lost(ConnectionError):
    """Another process of the run ended or hangs."""


class FirstFailed(ConnectionError):
    """The first process failed, and says itself why."""


def start(rank: int, world: int, *, timeout: timedelta) -> None:
    """Join the other processes, at the address in the environment (MASTER_ADDR, MASTER_PORT). Raises Lost where they
    cannot be reached in time."""
    with _told():
        backend = "nccl" if torch.cuda.is_available() else "gloo"
        dist.init_process_group(backend, rank=rank, world_size=world, timeout=timeout)
        _groups["objects"] = dist.new_group(backend="gloo", timeout=timeout)
        _groups["patient"] = dist.new_group(backend="gloo", timeout=PATIENCE)


def leave() -> None:
    """Part from the others, at the end."""
    if dist.is_initialized():
        dist.destroy_process_group()


def share() -> Share:
    """This process's rank and the number of processes."""
    return (dist.get_rank(), dist.get_world_size()) if dist.is_available() and dist.is_initialized() else (0, 1)


def in_all(number: int) -> int:
    """Number, in the order of all, of the so-manieth (from 0) of what is dealt out to the processes in turn."""
    rank, world = share()
    return number * world + rank


def is_first() -> bool:
    """Whether this is the process that prints and writes."""
    return share()[0] == 0


def gather(value: T) -> list[T]:
    """The value of every process, by rank, in every process."""
    world = share()[1]
    if world == 1:
        return [value]
    found: list[Any] = [None] * world
    with _told():
        dist.all_gather_object(found, value, group=_groups.get("objects"))
    return found


def any_of(flag: bool) -> bool:
    """Whether it is so in any process."""
    if share()[1] == 1:
        return flag
    found = torch.tensor(int(flag))
    with _told():
        dist.all_reduce(found, dist.ReduceOp.MAX, group=_groups.get("objects"))
    return bool(found)


def collect(found: Mapping[int, T]) -> list[T]:
    """What all processes found, in the order of its numbers, which must be different ones."""
    ranks = gather(dict(found))
    joined = {number: one for own in ranks for number, one in own.items()}
    assert len(joined) == sum(map(len, ranks)), "two processes have done the same"
    return [joined[number] for number in sorted(joined)]


def first(action: Callable[[], T]) -> T:
    """What the first process's `action` returns, in every process; the others wait for it and do nothing.

    An error of the action is raised in the first process, and FirstFailed in the others.
    """
    rank, world = share()
    if world == 1:
        return action()
    said: list[Any] = [None]
    if rank == 0:
        try:
            said = [(True, action())]
        except Exception as error:
            _broadcast([(False, str(error))])
            raise
    _broadcast(said)
    done, value = said[0]
    if not done:
        raise FirstFailed(value)
    return value


def total(values: Tensor) -> Tensor:
    """Sum of a tensor over all processes."""
    if share()[1] > 1:
        values = values.clone()
        with _told():
            dist.all_reduce(values)
    return values


def weigh(**terms: tuple[Tensor | None, int]) -> dict[str, tuple[Tensor, Tensor, int]]:
    """Means over the items of this process -> what they are to all.

    terms: name -> (mean, number of items that it is over); the names are those of every process, and None with 0 is the
    mean of one without items. Returns name -> (the mean, weighed so that the average over processes, as DDP takes it
    of gradients, is the mean over all items; that mean, detached; the number of all items).
    """
    world = share()[1]
    if world == 1:
        return {name: (mean, mean.detach(), count) for name, (mean, count) in terms.items() if mean is not None}
    means = {name: mean for name, (mean, count) in terms.items() if mean is not None and count}
    device = next((mean.device for mean in means.values()), _device())
    sums = torch.zeros(len(terms), 2, dtype=torch.float64)
    for row, (name, (_, count)) in enumerate(terms.items()):
        sums[row, 1] = count
        if name in means:
            sums[row, 0] = float(means[name].detach()) * count
    sums = total(sums.to(device)).cpu()
    result = {}
    for (name, (_, count)), (value, items) in zip(terms.items(), sums.tolist(), strict=True):
        mean = means[name] * (world * count / items) if name in means else torch.zeros((), device=device)
        result[name] = (mean, torch.tensor(value / max(items, 1), device=device), int(items))
    return result


def message(error: BaseException) -> str | None:
    """In a line, an error that comes of another process's end, wherever it was raised; None for any other."""
    if isinstance(error, Lost):
        return str(error)
    text = " ".join(str(error).split())
    signs = ("gloo", "NCCL", "Connection closed", "Connection reset", "recvBytes", "Broken pipe")
    known = isinstance(error, dist.DistError) or any(sign in text for sign in signs)
    return _say(text) if known and share()[1] > 1 else None


def _say(text: str) -> str:
    rank, world = share()
    return (
        f"process {rank} of {world} (counted from 0) lost another one, which ended or hangs: what that one said of it "
        f"is the cause ({text[:160]})"
    )


def _device() -> torch.device:
    return torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else torch.device("cpu")


def _broadcast(said: list[Any]) -> None:
    with _told():
        dist.broadcast_object_list(said, src=0, group=_groups.get("patient"))


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:
        raise Lost(_say(" ".join(str(error).split()))) from error
