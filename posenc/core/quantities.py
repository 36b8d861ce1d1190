"""Put times, sizes and lengths into words: `2:05`, `4 min`, `12/340 MB`, `8x`."""

from __future__ import annotations

from datetime import timedelta

BYTE_UNITS = (("GB", 1e9), ("MB", 1e6), ("kB", 1e3))


def clock(seconds: float) -> str:
    """Return `2:05` or `1:02:05`."""
    text = str(timedelta(seconds=round(seconds)))  # 0:02:05
    return text.removeprefix("0:").removeprefix("0")


def duration(seconds: float) -> str:
    """Return a time as precisely as an estimate is: `12 s`, `4 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    if seconds < 90 * 60:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h"


def length_text(multiple: float) -> str:
    """Return a window as a multiple of T: `0.5x`, `8x`."""
    return f"{multiple:g}x"


def bytes_text(size: float, of: float | None = None) -> str:
    """Return `12 MB`, or `12/340 MB` of a size that is known: both in one unit, with one digit below 100."""
    largest = size if of is None else max(size, of)
    units_that_fit = [(unit, unit_bytes) for unit, unit_bytes in BYTE_UNITS if largest >= unit_bytes]
    unit, unit_bytes = units_that_fit[0] if units_that_fit else BYTE_UNITS[-1]
    digits = 0 if largest >= 100 * unit_bytes else 1
    done = f"{size / unit_bytes:.{digits}f}"
    if of is None:
        return f"{done} {unit}"
    return f"{done}/{of / unit_bytes:.{digits}f} {unit}"
