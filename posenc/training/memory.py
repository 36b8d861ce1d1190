"""Keep freed memory in the process: less work for the kernel in every step."""

from __future__ import annotations

import ctypes
import functools
import sys

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST = 32 * 1024 * 1024  # bytes; glibc takes no larger threshold


@functools.cache
def keep_freed_memory() -> None:
    """Tell glibc not to hand freed tensors back to the kernel; elsewhere this does nothing.

    Measured at the nano shape on two CPU cores: 3400 to 7700 page faults a step without, 13 with, and the
    step 10-20% shorter.
    """
    if not sys.platform.startswith("linux"):
        return
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):  # musl
        return
    mallopt(M_MMAP_THRESHOLD, LARGEST)
    mallopt(M_TRIM_THRESHOLD, 1 << 30)
