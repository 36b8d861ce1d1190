"""Threads on a CPU: how many a job gets, and what other processes leave. No torch here."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from functools import cache

from posenc.core.console import say

SMALL_MODEL = 20_000_000  # weights up to which a second thread gives less than a second job
A_CORE = 0.8  # cores' worth: one busy process is measured as 0.9 to 1.1
BUSY = ("user", "nice", "system", "irq", "softirq")  # not idle, not waiting for a disk
SHORTEST = 0.3  # seconds of a sample: the kernel counts in hundredths


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
    """Watch the machine from the beginning of a command on, which costs nothing: two readings of counters."""

    def __init__(self) -> None:
        self._began = self._counters()

    @staticmethod
    def _counters() -> tuple[float, float, int]:
        """Return seconds of the clock, CPU seconds of others on our cores, and how many cores these are."""
        import psutil

        every = psutil.cpu_times(percpu=True)
        ours = getattr(psutil.Process(), "cpu_affinity", lambda: range(len(every)))()
        mine = [one for i, one in enumerate(every) if i in ours]
        busy = sum(getattr(one, kind, 0.0) for one in mine for kind in BUSY)
        return time.monotonic(), busy - sum(os.times()[:4]), len(mine)

    def load(self, least: float = SHORTEST) -> Load | None:
        """Return the others' load since the beginning; None before `least` seconds."""
        if time.monotonic() - self._began[0] < least:
            return None
        (began, before, _), (now, after, cores) = self._began, self._counters()
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
