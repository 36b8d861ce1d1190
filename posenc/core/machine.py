"""Measure this machine: cores, and the memory that a piece of work holds."""

from __future__ import annotations

import ctypes
import gc
import re
import resource
import weakref
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


def usable_cores() -> int:
    """Return how many cores this process may keep busy, by its binding and its container's quota."""
    from loky import cpu_count

    return int(cpu_count())


def wait_for(device: torch.device) -> None:
    """Wait until everything that was asked of the device is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


class LiveTensors(TorchDispatchMode):
    """Count the bytes of tensors made inside that are still held, and their peak.

    What an operation needs while it runs is not seen, nor is what was there before.
    """

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakKeyDictionary[Any, int] = weakref.WeakKeyDictionary()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count these tensors."""
        for tensor in tensors:
            self._known[tensor.untyped_storage()] = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        given = {id(one.untyped_storage()) for one in inputs}
        for one in tree_iter(result):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                if storage not in self._known and id(storage) not in given:
                    self._add(storage)
        return result

    def _add(self, storage: Any) -> None:
        size = storage.nbytes()
        self._known[storage] = size
        self.live += size
        self.peak = max(self.peak, self.live)
        weakref.finalize(storage, self._drop, size)

    def _drop(self, size: int) -> None:
        self.live -= size


@contextmanager
def peak_of(device: torch.device, before: Iterable[torch.Tensor]) -> Iterator[list[int]]:
    """Append to the list, at the end, the bytes that the work inside held at its peak.

    On a GPU by its allocator; on Linux by the process's peak above what it held before; elsewhere by the live
    tensors other than those of `before`.
    """
    found: list[int] = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        start = torch.cuda.memory_allocated(device)
        yield found
        found.append(torch.cuda.max_memory_allocated(device) - start)
    elif device.type == "cpu" and _reset_peak() and (resident_before := resident("VmRSS")) is not None:
        yield found
        found.append(max(0, (resident("VmHWM") or 0) - resident_before))
    else:
        meter = LiveTensors()
        meter.ignore(before)
        with meter:
            yield found
        found.append(meter.peak)


def resident(field: str) -> int | None:
    """Return the bytes this process holds (VmRSS) or held at most (VmHWM, which psutil lacks); Linux only."""
    try:
        found = re.search(rf"^{field}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None


def peak_memory(device: torch.device) -> int:
    """Return the bytes this process held at most, on the GPU if it runs there."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if (peak := resident("VmHWM")) is not None:  # getrusage's begins with what the parent held
        return peak
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


def _reset_peak() -> bool:
    """Return freed memory to the kernel and let VmHWM begin anew; False where that cannot be done."""
    gc.collect()
    try:
        ctypes.CDLL("libc.so.6").malloc_trim(0)
        Path("/proc/self/clear_refs").write_text("5")
    except (OSError, AttributeError):
        return False
    return True
