"""Speed that depends on the machine, in one place; models never ask what they run on."""

from __future__ import annotations

import ctypes
import sys


def _glibc(function: str, *arguments: int) -> bool:
    """Call a function of the C library; whether it is there (glibc, Linux) and said yes."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        return bool(getattr(ctypes.CDLL(None), function)(*arguments))
    except (OSError, AttributeError):
        return False


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next tensor instead of giving it back to the kernel.

    Every tensor of a few megabytes would otherwise be mapped, page-faulted in and unmapped again: half of the time of
    a small CNN on a CPU. Only for glibc (Linux); returns whether it was done.
    """
    m_trim_threshold, m_mmap_max = -1, -4
    return _glibc("mallopt", m_mmap_max, 0) and _glibc("mallopt", m_trim_threshold, 2**31 - 1)


def map_large_blocks() -> bool:
    """Let the C library map every block of a megabyte or more by itself, which the kernel has back when it is freed.

    For loader workers, which hand a whole batch over and forget it: in its heap the small things that live longer
    (torch remembers 128 tensors that it shared) keep what is around them. Undoes `keep_freed_memory`. Only for glibc.
    """
    m_mmap_threshold, m_mmap_max = -3, -4
    return _glibc("mallopt", m_mmap_max, 65536) and _glibc("mallopt", m_mmap_threshold, 2**20)


def release_freed_memory() -> bool:
    """Give freed memory back once, between two phases that need different tensors; whether any was."""
    return _glibc("malloc_trim", 0)
