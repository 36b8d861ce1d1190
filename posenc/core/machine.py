"""Measure this machine: free memory, compiler, and the memory that a piece of work holds."""

from __future__ import annotations

import logging
import os
import re
import resource
import sys
import weakref
from collections.abc import Iterable
from functools import cache
from pathlib import Path, PurePosixPath
from typing import Any

import psutil
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from posenc.core.errors import first_line
from posenc.core.paths import cache_dir

log = logging.getLogger(__name__)


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes this process may still take: of the machine and of its control groups (v2)."""
    free = [psutil.virtual_memory().available]
    own = _found(root / "proc/self/cgroup", r"^0::/(.*)$") or ""
    for inside in (PurePosixPath(own), *PurePosixPath(own).parents):
        folder = root / "sys/fs/cgroup" / inside
        limit, used = (_found(folder / name, r"^(\d+)$") for name in ("memory.max", "memory.current"))
        if limit is not None and used is not None:
            cached = _found(folder / "memory.stat", r"^inactive_file (\d+)$") or "0"  # given back first
            free.append(max(0, int(limit) - int(used) + int(cached)))
    return min(free)


def _found(path: Path, pattern: str) -> str | None:
    try:
        found = re.search(pattern, path.read_text(encoding="utf-8"), re.M)
    except OSError:
        return None
    return found[1] if found else None


def wait_for(device: torch.device) -> None:
    """Wait until everything that was asked of the device is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


@cache
def compiler_works(device: torch.device) -> bool:
    """Whether torch.compile works for the device here: tried once. If not, a warning says why."""
    # compiled code is kept beside posenc's other caches, so that the runs of a sweep share it
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    try:
        torch.compile(lambda x: x.relu() + 1)(torch.ones(2, device=device))
    except Exception as error:  # compilers, linkers and Triton each raise their own
        log.warning("torch.compile does not work here, the model runs without it: %s", first_line(error))
        return False
    return True


class LiveTensors(TorchDispatchMode):
    """Count the bytes of tensors made inside that are still held, and their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.live = self.peak = 0
        self._known: weakref.WeakSet[Any] = weakref.WeakSet()

    def ignore(self, tensors: Iterable[torch.Tensor]) -> None:
        """Do not count these tensors."""
        self._known.update(tensor.untyped_storage() for tensor in tensors)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        inputs = [one for one in tree_iter((args, kwargs)) if isinstance(one, torch.Tensor)]
        given = {id(one.untyped_storage()) for one in inputs}
        for one in tree_iter(result):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                if storage not in self._known and id(storage) not in given:
                    self._known.add(storage)
                    self.live += storage.nbytes()
                    self.peak = max(self.peak, self.live)
                    weakref.finalize(storage, self._drop, storage.nbytes())
        return result

    def _drop(self, size: int) -> None:
        self.live -= size


def peak_memory(device: torch.device) -> int:
    """Return the bytes this process held at most, on the GPU if it runs there."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "linux":  # where getrusage's begins with what the parent held, and psutil has none
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS
