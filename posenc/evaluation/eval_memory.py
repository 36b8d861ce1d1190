"""Check beforehand whether one window fits into memory: Linux kills a process where a GPU raises an error."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import psutil

from posenc.core.machine import LiveTensors

# float32 numbers for each pair of tokens and each head: while even these fit, no pass is tried.
WORST = 32
# What a window needs is measured at a sixteenth and at an eighth of it, which takes 1/50 of its time.
SHORT = 16


class OutOfMemoryError(Exception):
    """One window alone does not fit; the message says what it would need."""


def check_memory(make_pass: Callable[[int], object], window: int, heads: int) -> None:
    """Raise OutOfMemoryError where a pass over a window of `window` tokens needs more than is free.

    `make_pass(n)` makes a pass over n tokens of it.
    """
    free = free_memory()
    if 4 * WORST * heads * window**2 <= free:
        return
    need = memory_needed(make_pass, window)
    if need > free:
        raise OutOfMemoryError(
            f"oom at {window} tokens, batch 1: needs about {need / 1e9:.3g} GB, {free / 1e9:.3g} GB free"
        )


def memory_needed(make_pass: Callable[[int], object], window: int) -> float:
    """Return the peak bytes of a window's tensors: a S + b S^2 for S tokens, fitted to two shorter windows.

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
