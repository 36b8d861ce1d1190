"""Whether one window fits into memory, asked beforehand: Linux ends a process where a GPU raises an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from posenc.core.machine import control_groups
from posenc.core.memory_meter import LiveTensors

# float32 numbers for each pair of tokens and each head: while even they would fit there is nothing to ask.
WORST = 32
# What a window needs is found at a sixteenth and at an eighth of it, which takes 1/50 of its time.
SHORT = 16
# Of a control group, by version: its limit, its use, and what it would give back first.
GROUP_FILES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
    2: ("memory.max", "memory.current", "inactive_file"),
}


class OutOfMemoryError(Exception):
    """One window alone does not fit; the message says what it would need."""


def check_memory(make_pass: Callable[[int], object], window: int, heads: int) -> None:
    """Raises OutOfMemoryError where a pass over a window of `window` tokens needs more than is free.

    `make_pass(n)` makes a pass over n tokens of it.
    """
    free = free_memory()
    if free is None or 4 * WORST * heads * window**2 <= free:
        return
    need = needed(make_pass, window)
    if need > free:
        raise OutOfMemoryError(
            f"oom at {window} tokens, batch 1: needs about {need / 1e9:.3g} GB, {free / 1e9:.3g} GB free"
        )


def needed(make_pass: Callable[[int], object], window: int) -> float:
    """Bytes that a window's tensors hold at their peak: a S + b S^2 for S tokens, from two shorter ones.

    What does not grow (a block of scores) counts as if it grew with S: the estimate errs on the safe side.
    """
    n = max(1, window // SHORT)
    one, two = _peak(make_pass, n), _peak(make_pass, 2 * n)
    squared = max(0.0, (two - 2 * one) / (2 * n**2))
    linear = two / (2 * n) - squared * 2 * n
    return linear * window + squared * window**2


def _peak(make_pass: Callable[[int], object], n: int) -> int:
    with LiveTensors() as meter:
        make_pass(n)
    return meter.peak


def free_memory(root: Path = Path("/")) -> int | None:
    """Bytes that this process may still take: of the machine, its control group, its own limit (ulimit -v).

    None where unknown.
    """
    found = _number(root / "proc/meminfo", r"^MemAvailable:\s+(\d+) kB")
    known = [] if found is None else [found * 1024]
    size = _number(root / "proc/self/status", r"^VmSize:\s+(\d+) kB")
    if size is not None and (most := address_limit()) is not None:
        known.append(max(0, most - size * 1024))
    for group, folder in control_groups("memory", root):
        limit, used, cached = GROUP_FILES[group]
        most, now = _number(folder / limit, r"^(\d+)$"), _number(folder / used, r"^(\d+)$")
        if most is not None and now is not None:
            cache = _number(folder / "memory.stat", rf"^{cached} (\d+)$") or 0
            known.append(max(0, most - now + cache))
    return min(known, default=None)


def address_limit() -> int | None:
    """Bytes of address space that this process may have; None without a limit, and on Windows."""
    try:
        import resource
    except ImportError:
        return None
    most = resource.getrlimit(resource.RLIMIT_AS)[0]
    return None if most == resource.RLIM_INFINITY else most


def _number(path: Path, pattern: str) -> int | None:
    try:
        found = re.search(pattern, path.read_text(encoding="ascii"), re.M)
    except OSError:
        return None
    return int(found[1]) if found else None
