"""Speed that depends on the machine, in one place; models never ask what they run on."""

from __future__ import annotations

import ctypes
import sys


def keep_freed_memory() -> bool:
    """Let the C library keep freed memory for the next tensor instead of giving it back to the kernel.

    Every tensor of a few megabytes would otherwise be mapped, page-faulted in and unmapped again: half of the time of
    a small CNN on a CPU. Only for glibc (Linux); returns whether it was done. The process's memory then stays near its
    peak.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    m_trim_threshold, m_mmap_max = -1, -4
    return bool(mallopt(m_mmap_max, 0)) and bool(mallopt(m_trim_threshold, 2**31 - 1))
