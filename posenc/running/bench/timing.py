"""Time a work in turns with another one, so that a machine that slows down slows both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from posenc.core.errors import first_line
from posenc.core.machine import wait_for
from posenc.running.bench.work import Work

SHORTEST = 0.05  # seconds of a sample: shorter calls are repeated
WARM_UP = 2  # calls before anything is timed

MakeWork = Callable[[], Work]


@dataclass(frozen=True)
class Ratio:
    """Hold the quartiles of the ratios of pairs: seconds of a work over those of its base."""

    low: float
    middle: float
    high: float


@dataclass(frozen=True)
class Timing:
    """Hold the seconds of a call of a work and of its base, by pair, and what follows from them."""

    seconds: list[float]
    base_seconds: list[float]  # empty without a base
    tokens_per_second: float  # median
    ratio: Ratio | None  # None without a base

    def plain(self) -> dict[str, Any]:
        """Return the figures as the JSON has them, without those of a missing base."""
        if self.ratio is None:
            return {"seconds": self.seconds, "tokens_per_second": self.tokens_per_second}
        return {
            "seconds": self.seconds,
            "base_seconds": self.base_seconds,
            "tokens_per_second": self.tokens_per_second,
            "ratio_low": self.ratio.low,
            "ratio": self.ratio.middle,
            "ratio_high": self.ratio.high,
        }


@dataclass
class Figures:
    """Hold what was measured of a work. After a failure `reason` says why the later figures are None."""

    tokens: int | None = None  # tokens of one call
    first_seconds: float | None = None  # seconds of setting up and of the first call, which compiles
    tensor_bytes: int | None = None
    tensor_ratio: float | None = None  # tensor_bytes over those of the base
    timing: Timing | None = None
    reason: str | None = None
    base_reason: str | None = None  # why the base failed, so that nothing is said relative to it

    def plain(self) -> dict[str, Any]:
        """Return the figures as the JSON has them, without those that were not measured."""
        values: dict[str, Any] = {
            "tokens": self.tokens,
            "first_seconds": self.first_seconds,
            "tensor_bytes": self.tensor_bytes,
            "tensor_ratio": self.tensor_ratio,
        }
        if self.timing is not None:
            values |= self.timing.plain()
        values |= {"reason": self.reason, "base_reason": self.base_reason}
        return {name: value for name, value in values.items() if value is not None}


def measure_figures(make_work: MakeWork, make_base: MakeWork, repeats: int) -> Figures:
    """Return figures of a work, timed in turns with the base; timed alone if the base fails."""
    figures = Figures()
    try:
        began = perf_counter()
        work = make_work()
        work.run()  # sets up, compiles
        wait_for(work.device)
        figures.tokens = work.tokens
        # The first call is timed alone: it compiles, for 13 to 30 s, and would drown all others.
        figures.first_seconds = perf_counter() - began
        figures.tensor_bytes = work.tensor_bytes()
        base = _ready_base(make_base, figures)
        figures.timing = time_in_turns(work, base, repeats)
    except Exception as error:  # an encoding may refuse the length, and memory may run out
        figures.reason = first_line(error)
    return figures


def _ready_base(make_base: MakeWork, figures: Figures) -> Work | None:
    """Return the base, warmed up, and set the ratio of bytes; None if it fails, with the reason."""
    assert figures.tensor_bytes is not None
    # The base is another encoding, which may refuse a length that the work itself takes.
    try:
        base = make_base()
        figures.tensor_ratio = figures.tensor_bytes / base.tensor_bytes()
        base.seconds(WARM_UP)
    except Exception as error:
        figures.tensor_ratio = None
        figures.base_reason = first_line(error)
        return None
    return base


def time_in_turns(work: Work, base: Work | None, repeats: int) -> Timing:
    """Time calls of each in pairs, whose order alternates. The base is warm."""
    work.seconds(WARM_UP)
    # The base makes as many calls, so that both samples of a pair lie close together in time.
    calls = max(1, math.ceil(SHORTEST / work.seconds(1)))
    seconds: list[float] = []
    base_seconds: list[float] = []
    for pair in range(repeats):
        base_is_first = pair % 2 == 0
        # Whichever comes second in a pair may find warm caches, or a machine that has just slowed down.
        if base is not None and base_is_first:
            base_seconds.append(base.seconds(calls))
        seconds.append(work.seconds(calls))
        if base is not None and not base_is_first:
            base_seconds.append(base.seconds(calls))
    # The pace of a machine changes by 1.5 within an hour
    # (docs/log.md). The ratio of a pair hardly feels that.
    ratio = None
    if base is not None:
        ratio = _quartiles([a / b for a, b in zip(seconds, base_seconds, strict=True)])
    return Timing(
        seconds=seconds,
        base_seconds=base_seconds,
        tokens_per_second=work.tokens / statistics.median(seconds),
        ratio=ratio,
    )


def _quartiles(ratios: list[float]) -> Ratio:
    """Return lower quartile, median and upper quartile. A single ratio is all three."""
    # statistics.quantiles refuses a single value before Python 3.13.
    if len(ratios) == 1:
        return Ratio(ratios[0], ratios[0], ratios[0])
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return Ratio(low, middle, high)
