"""The memory of tensors: keep it from step to step, recognise that it ran out, and measure it."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Callable, Iterable
from contextlib import suppress
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from posenc.core.errors import says_out_of_memory

# Options of glibc's mallopt, from its malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3
MMAP_THRESHOLD_BYTES = 32 * 1024 * 1024  # glibc takes no larger one
TRIM_THRESHOLD_BYTES = 1 << 30
# The memory of a pass over a window is measured with windows of 1/16 and 1/8 of it, which takes 1/50 of its
# time.
TRIAL_FRACTION = 16


@cache
def keep_freed_memory() -> None:
    """Let glibc keep the memory of freed tensors for the next ones. Other C libraries are left alone.

    With nano on two CPU cores a step has 13 page faults by this, instead of 3400 to 7700, and takes 10 to 20%
    less time.
    """
    with suppress(OSError, AttributeError):  # macOS, musl
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        mallopt(M_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES)


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether memory ran out. On some devices torch has an exception for it, on others a message."""
    return isinstance(error, torch.OutOfMemoryError) or says_out_of_memory(error)


class LiveTensors(TorchDispatchMode):
    """A context that counts the bytes of all tensors that are made in it and still exist."""

    def __init__(self) -> None:
        super().__init__()
        self.live = 0  # bytes now
        self.peak = 0  # the most bytes at one time
        self._counted: weakref.WeakSet[Any] = weakref.WeakSet()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Leave these tensors out of the count."""
        self._counted.update(tensor.untyped_storage() for tensor in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        # a view, or a tensor that is changed in place, takes no memory of its own
        input_storages = {id(storage) for storage in _storages((args, kwargs))}
        for storage in _storages(result):
            if storage not in self._counted and id(storage) not in input_storages:
                self._count(storage)
        return result

    def _count(self, storage: torch.UntypedStorage) -> None:
        """Count a storage that was made, until it is freed."""
        self._counted.add(storage)
        self.live += storage.nbytes()
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._forget, storage.nbytes())

    def _forget(self, size: int) -> None:
        self.live -= size


def _storages(tree: Any) -> list[torch.UntypedStorage]:
    """Return the storages of all tensors in nested lists, tuples and dictionaries."""
    return [leaf.untyped_storage() for leaf in tree_iter(tree) if isinstance(leaf, torch.Tensor)]


def memory_needed(make_pass: Callable[[int], object], window: int) -> float:
    """Estimate the peak bytes of a pass over W tokens as a W + b W^2, from passes over s and 2s tokens."""
    # The square is for encodings that see the scores of all pairs of tokens. Others need a W alone.
    #   short_peak  =  a s +   b s^2
    #   double_peak = 2a s + 4 b s^2
    # Hence b = (double_peak - 2 short_peak) / 2 s^2 and a = double_peak / 2s - 2 b s.
    short = max(1, window // TRIAL_FRACTION)
    short_peak = peak_bytes(make_pass, short)
    double_peak = peak_bytes(make_pass, 2 * short)
    quadratic = max(0.0, (double_peak - 2 * short_peak) / (2 * short**2))
    linear = double_peak / (2 * short) - quadratic * 2 * short
    return linear * window + quadratic * window**2


def peak_bytes(make_pass: Callable[[int], object], length: int) -> int:
    """Make a pass and return the largest number of bytes that its tensors take at once."""
    with LiveTensors() as meter:
        make_pass(length)
    return meter.peak
