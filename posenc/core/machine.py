"""Measure this machine: memory, compiler, threads, and what other processes leave."""

from __future__ import annotations

import logging
import os
import re
import resource
import sys
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

import psutil

from posenc.core.console import say
from posenc.core.errors import first_line
from posenc.core.paths import cache_dir

if TYPE_CHECKING:
    import torch

SMALL_MODEL = 20_000_000  # weights up to which a second thread gives less than a second job
A_CORE = 0.8  # cores' worth: one busy process is measured as 0.9 to 1.1
BUSY = ("user", "nice", "system", "irq", "softirq")  # not idle, not waiting for a disk
SHORTEST = 0.3  # seconds of a sample: the kernel counts in hundredths
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
        import torch

        torch.accelerator.synchronize(device)


@cache
def compiler_works(device: torch.device) -> bool:
    """Whether torch.compile works for the device here: tried once. If not, a warning says why."""
    import torch

    # compiled code is kept beside posenc's other caches, so that the runs of a sweep share it
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    try:
        torch.compile(lambda x: x.relu() + 1)(torch.ones(2, device=device))
    except Exception as error:  # compilers, linkers and Triton each raise their own
        log.warning("torch.compile does not work here, the model runs without it: %s", first_line(error))
        return False
    return True


def peak_memory(device: torch.device) -> int:
    """Return the bytes this process held at most, on the GPU if it runs there."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "linux":  # where getrusage's begins with what the parent held, and psutil has none
        found = re.search(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.M)
        if found:
            return int(found[1]) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


# --- threads on a CPU: how many a job gets, and what other processes leave


def usable_cores() -> int:
    """Return how many cores this process may keep busy, by its binding and its container's quota."""
    from loky import cpu_count

    return int(cpu_count())


def threads_for(weights: int, cores: int) -> int:
    """Return the threads of one of several jobs, by its model's size: the most tokens for the machine in all.

    Not by what is free: a job's sums come out in the same order whatever runs beside it.
    """
    return min(cores, 1 if weights < SMALL_MODEL else 4)


@dataclass(frozen=True)
class Load:
    """What other processes use of the cores that this one may run on."""

    cores: int
    others: float  # cores that they keep busy

    @property
    def free(self) -> int:
        """Return how many cores others leave, one at least."""
        return max(1, int(self.cores - self.others + 0.5))

    def note(self, threads: int) -> str | None:
        """Say what is left for so many threads, if a core's worth of what they would use is taken."""
        # others would use more than they get, where they leave less than one core
        wanted = threads + self.others / min(1.0, max(self.cores - self.others, 0.05))
        if wanted - self.cores < A_CORE:
            return None
        busy = f"other processes keep {self.others:.1f} of {self.cores} cores busy"
        return f"{busy}: expect about {max(0.1, round(self.cores / wanted, 1)):.0%} of the usual speed"


class LoadMeter:
    """Watch the machine between two readings of counters, which cost nothing."""

    def __init__(self) -> None:
        self._began = self._counters()

    @staticmethod
    def _counters() -> tuple[float, float, int]:
        """Return seconds of the clock, CPU seconds of others on our cores, and how many cores these are."""
        every = psutil.cpu_times(percpu=True)
        ours = getattr(psutil.Process(), "cpu_affinity", lambda: range(len(every)))()
        mine = [one for i, one in enumerate(every) if i in ours]
        busy = sum(getattr(one, kind, 0.0) for one in mine for kind in BUSY)
        return time.monotonic(), busy - sum(os.times()[:4]), len(mine)

    def load(self, least: float = SHORTEST) -> Load | None:
        """Return the others' load since it was read last; None before `least` seconds."""
        if time.monotonic() - self._began[0] < least:
            return None
        (began, before, _), self._began = self._began, self._counters()
        now, after, cores = self._began
        return Load(cores, min(max(0.0, (after - before) / (now - began)), float(cores)))


@cache
def load_meter() -> LoadMeter:
    """Return the command's meter, which begins with the first call."""
    return LoadMeter()


def say_load(threads: int) -> None:
    """Say in one line what other processes leave for so many threads, if they take a core's worth."""
    load = load_meter().load()
    if load is not None and (note := load.note(threads)):
        say(note)
