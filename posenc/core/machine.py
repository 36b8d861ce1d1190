"""Measure this machine: its memory, whether it can compile, its cores, and the load of other processes."""

from __future__ import annotations

import logging
import os
import re
import resource
import sys
import time
from collections.abc import Callable
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

SMALL_MODEL = 20_000_000  # weights; below, a second thread gains less than a second job
ONE_CORE = 0.8  # cores; one busy process is measured as 0.9 to 1.1
THREADS = "OMP_NUM_THREADS"
BUSY_STATES = ("user", "nice", "system", "irq", "softirq")  # not idle, not waiting for a disk
SHORTEST = 0.3  # seconds of a sample: the kernel counts in hundredths
log = logging.getLogger(__name__)


def threads_of_user() -> str | None:
    """Return what the user, a sweep or torchrun says of threads; an empty variable means the same as none."""
    return os.environ.get(THREADS, "").strip() or None


def free_memory(root: Path = Path("/")) -> int:
    """Return the bytes that this process may still take, by the machine and by its control groups (v2)."""
    # psutil knows the machine alone. In a container the kernel ends a process at the limit of its control
    # group.
    free = [psutil.virtual_memory().available]
    control_group = PurePosixPath(_read_match(root / "proc/self/cgroup", r"^0::/(.*)$") or "")
    # Every group above ours may have a limit of its own, and the tightest one counts.
    for group in (control_group, *control_group.parents):
        folder = root / "sys/fs/cgroup" / group
        limit = _read_match(folder / "memory.max", r"^(\d+)$")
        used = _read_match(folder / "memory.current", r"^(\d+)$")
        if limit is not None and used is not None:
            # the file cache counts as used, and is given back first
            cached = _read_match(folder / "memory.stat", r"^inactive_file (\d+)$") or "0"
            free.append(max(0, int(limit) - int(used) + int(cached)))
    return min(free)


def _read_match(path: Path, pattern: str) -> str | None:
    """Return the first group of a pattern in a file; None if there is no match or no file."""
    try:
        match = re.search(pattern, path.read_text(encoding="utf-8"), re.M)
    except OSError:
        return None
    return match[1] if match else None


def wait_for(device: torch.device) -> None:
    """Wait until the device has done all its work."""
    if device.type != "cpu":
        import torch

        torch.accelerator.synchronize(device)


def fastest_seconds(call: Callable[[], object], device: torch.device, duration: float) -> float:
    """Call a function again and again for `duration` seconds; return the seconds of its fastest call.

    Other processes disturb the fastest call least. torch.utils.benchmark would do: it imports what compiles
    C++, which warns on a machine that has a torch for GPUs and none of them.
    """
    call()  # the first call sets up
    wait_for(device)
    seconds: list[float] = []
    end = time.perf_counter() + duration
    # At least one call, however long it takes.
    while not seconds or time.perf_counter() < end:
        began = time.perf_counter()
        call()
        wait_for(device)
        seconds.append(time.perf_counter() - began)
    return min(seconds)


@cache
def compiler_works(device: torch.device) -> bool:
    """Try whether torch.compile works for the device on this machine; warn why, if it does not."""
    import torch

    # compiled code is kept beside posenc's other caches, so that the runs of a sweep share it
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache_dir() / "compiled"))
    try:
        # Only a compilation tells: it takes a C++ compiler, headers and a linker, of which any may be
        # missing.
        torch.compile(lambda x: x.relu() + 1)(torch.ones(2, device=device))
    except Exception as error:  # compilers, linkers and Triton each raise their own
        log.warning("torch.compile does not work here, the model runs without it: %s", first_line(error))
        return False
    return True


def peak_memory(device: torch.device) -> int:
    """Return the most bytes that this process held, on the GPU if it runs there."""
    if device.type == "cuda":
        import torch

        return torch.cuda.max_memory_allocated(device)
    if sys.platform == "linux":  # getrusage would begin with what the parent held, and psutil has no peak
        kilobytes = _read_match(Path("/proc/self/status"), r"^VmHWM:\s+(\d+) kB")
        if kilobytes:
            return int(kilobytes) * 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # bytes on macOS


# --- threads of a CPU, and the load of other processes


def usable_cores() -> int:
    """Return how many cores this process may keep busy, by its binding and its container's quota."""
    # os.cpu_count() counts all cores of the machine, also those that a container may not use.
    from loky import cpu_count

    return int(cpu_count())


def threads_for(weights: int, cores: int) -> int:
    """Return the threads of one of several jobs by its model's size, so that all of them train fastest."""
    # not by what is free: the order of a job's sums must not depend on what else runs
    threads = 1 if weights < SMALL_MODEL else 4
    return min(cores, threads)


@dataclass(frozen=True)
class Load:
    """Hold how much other processes use the cores that this process may run on."""

    cores: int
    used_by_others: float  # cores that they keep busy

    @property
    def free(self) -> int:
        """Return how many cores the others leave, at least one."""
        return max(1, int(self.cores - self.used_by_others + 0.5))

    def note(self, threads: int) -> str | None:
        """Return a warning with the speed to expect of `threads` threads; None if no core is lacking."""
        cores_left = max(self.cores - self.used_by_others, 0.05)
        # processes that leave less than one core would use more than they get
        demand = threads + self.used_by_others / min(1.0, cores_left)
        if demand - self.cores < ONE_CORE:
            return None
        speed = max(0.1, round(self.cores / demand, 1))
        busy = f"other processes keep {self.used_by_others:.1f} of {self.cores} cores busy"
        return f"{busy}: expect about {speed:.0%} of the usual speed"


@dataclass(frozen=True)
class _Reading:
    """Hold the counters of the machine at one time."""

    clock: float  # seconds
    seconds_of_others: float  # CPU time of other processes on our cores, since the machine started
    cores: int


class LoadMeter:
    """Measure the load between two readings of the kernel's counters, which cost nothing."""

    def __init__(self) -> None:
        self._last = self._read()

    @staticmethod
    def _read() -> _Reading:
        cores = psutil.cpu_times(percpu=True)
        binding = getattr(psutil.Process(), "cpu_affinity", None)  # not on macOS
        our_numbers = range(len(cores)) if binding is None else binding()
        # Only cores that this process may run on: others' load on the rest of the machine takes nothing away
        # from it.
        our_cores = [core for number, core in enumerate(cores) if number in our_numbers]
        busy = sum(getattr(core, state, 0.0) for core in our_cores for state in BUSY_STATES)
        times = os.times()
        # Children count as ours, so that a sweep does not take its own jobs for others' load.
        our_seconds = times.user + times.system + times.children_user + times.children_system
        return _Reading(time.monotonic(), busy - our_seconds, len(our_cores))

    def load(self, least: float = SHORTEST) -> Load | None:
        """Return the load since the last reading; None if that was less than `least` seconds ago."""
        last = self._last
        if time.monotonic() - last.clock < least:
            return None
        now = self._read()
        self._last = now
        used = (now.seconds_of_others - last.seconds_of_others) / (now.clock - last.clock)
        # The two counters are read one after the other, so that their difference may be a little below 0 or
        # above all cores.
        return Load(now.cores, min(max(0.0, used), float(now.cores)))


@cache
def load_meter() -> LoadMeter:
    """Return the command's meter, which begins with the first call."""
    return LoadMeter()


def say_load(threads: int) -> None:
    """Print the warning about other processes for `threads` threads, if there is one."""
    load = load_meter().load()
    note = None if load is None else load.note(threads)
    if note:
        say(note)
