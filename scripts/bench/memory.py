"""Peak memory of one call: how much more than its inputs it needs at its worst moment, its outputs included.

On a CPU the call runs in a fresh process, forked from one that has imported torch and computed nothing, so that no
memory kept from earlier calls can hide what this one needs. The same call on small inputs comes first and brings in
code and thread pools. Then the kernel's high-water mark of resident memory (VmHWM of Linux) is set back to the present,
and its growth over the call is the result; it is kept for each CPU in batches, so that 1 MiB more or less means
nothing. Where the mark cannot be set back (no /proc/self/clear_refs), the growth of `ru_maxrss` is taken, which misses
what still fits below the peak of the set-up. On a GPU torch's own allocator keeps the mark.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from vitcap.machine import release_freed_memory

Setup = Callable[[], Callable[[], Any]]


def peak(setup: Setup, warm: Setup, *, device: str = "cpu", threads: int = 1) -> int:
    """Bytes. setup: makes the inputs and returns the call; warm: the same for small inputs; both picklable."""
    if device == "cuda":
        return _cuda(setup, warm)
    processes = multiprocessing.get_context("forkserver")
    processes.set_forkserver_preload(["torch"])
    ours, theirs = processes.Pipe(duplex=False)
    child = processes.Process(target=_child, args=(setup, warm, threads, theirs))
    child.start()
    theirs.close()
    try:
        result = ours.recv()
    except EOFError:
        child.join()
        result = f"its process ended with code {child.exitcode}; is the machine out of memory?"
    child.join()
    if isinstance(result, str):
        raise ValueError(f"peak memory could not be measured: {result}")
    return result


def _child(setup: Setup, warm: Setup, threads: int, out: Connection) -> None:
    try:
        import torch

        torch.set_num_threads(threads)
        warm()()
        call = setup()
        release_freed_memory()
        resettable = _reset_mark()
        before = _status("VmRSS") if resettable else _max_resident()
        outputs = call()
        result: int | str = (_status("VmHWM") if resettable else _max_resident()) - before
        del outputs
    except Exception as error:
        result = f"{type(error).__name__}: {error}"
    out.send(result)


def _reset_mark() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")  # proc_pid_clear_refs(5): reset the peak resident set size
    except OSError:
        return False
    return True


def _status(key: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {key}")


def _max_resident() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def method(device: str) -> str:
    """How `peak` measures on this machine."""
    if device == "cuda":
        return "torch.cuda.max_memory_allocated above the inputs"
    mark = "VmHWM after a reset" if Path("/proc/self/clear_refs").exists() else "ru_maxrss"
    return f"growth of the peak resident set ({mark}) over one call, in a fresh process"


def _cuda(setup: Setup, warm: Setup) -> int:
    import torch

    warm()()
    call = setup()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_allocated()
    outputs = call()
    torch.cuda.synchronize()
    del outputs
    return torch.cuda.max_memory_allocated() - before
