"""Recognise that memory ran out, and keep freed memory in the process."""

from __future__ import annotations

import ctypes
import functools
import sys

import torch

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's malloc.h
LARGEST = 32 * 1024 * 1024  # bytes; glibc takes no larger threshold


@functools.cache
def keep_freed_memory() -> None:
    """Tell glibc not to return freed tensors to the kernel; elsewhere do nothing.

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


def is_out_of_memory(error: BaseException) -> bool:
    """Whether memory ran out: torch has an exception for it, or words that differ by device."""
    if isinstance(error, torch.OutOfMemoryError | MemoryError):
        return True
    words = ("out of memory", "can't allocate memory", "not enough memory", "alloc_failed")
    return isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
