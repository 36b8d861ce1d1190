"""Time a work in turns with another one, so that a machine that slows down slows both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import asdict, dataclass
from time import perf_counter
from typing import Any

from posenc.core.errors import first_line
from posenc.core.machine import wait_for
from posenc.running.bench.work import Work

SHORTEST = 0.05  # seconds of a sample: shorter calls are repeated
WARM_UP = 2  # calls before anything is timed

MakeWork = Callable[[], Work]


@dataclass(frozen=True)
class Timing:
    """Hold the seconds of a call of a work and of its base, by pair, and what follows from them."""

    seconds: list[float]
    base_seconds: list[float]
    tokens_per_second: float  # median
    # quartiles of the ratios of pairs
    ratio_low: float
    ratio: float
    ratio_high: float


@dataclass
class Figures:
    """Hold what was measured of a work. After a failure `reason` says why the later figures are None."""

    tokens: int | None = None  # tokens of one call
    first_seconds: float | None = None  # seconds of setting up and of the first call, which compiles
    tensor_bytes: int | None = None
    tensor_ratio: float | None = None  # tensor_bytes over those of the base
    timing: Timing | None = None
    reason: str | None = None

    def plain(self) -> dict[str, Any]:
        """Return the figures as the JSON has them, without those that were not measured."""
        values = asdict(self)
        timing = values.pop("timing") or {}
        reason = values.pop("reason")
        measured = {name: value for name, value in (values | timing).items() if value is not None}
        return measured if reason is None else {**measured, "reason": reason}


def measure_figures(make_work: MakeWork, make_base: MakeWork, repeats: int) -> Figures:
    """Return figures of a work, timed in turns with the base."""
    figures = Figures()
    try:
        began = perf_counter()
        work = make_work()
        work.run()  # sets up, compiles
        wait_for(work.device)
        figures.tokens = work.tokens
        # The first call is timed alone: it compiles, for 13 to 30 s, and would drown all others.
        figures.first_seconds = perf_counter() - began
        base = make_base()
        figures.tensor_bytes = work.tensor_bytes()
        figures.tensor_ratio = figures.tensor_bytes / base.tensor_bytes()
        figures.timing = time_in_turns(work, base, repeats)
    except Exception as error:  # an encoding may refuse the length, and memory may run out
        figures.reason = first_line(error)
    return figures


def time_in_turns(work: Work, base: Work, repeats: int) -> Timing:
    """Time calls of each in pairs, whose order alternates."""
    work.seconds(WARM_UP)
    base.seconds(WARM_UP)
    # The base makes as many calls, so that both samples of a pair lie close together in time.
    calls = max(1, math.ceil(SHORTEST / work.seconds(1)))
    seconds: list[float] = []
    base_seconds: list[float] = []
    for pair in range(repeats):
        # Whichever comes second in a pair may find warm caches, or a machine that has just slowed down.
        if pair % 2 == 0:
            base_seconds.append(base.seconds(calls))
            seconds.append(work.seconds(calls))
        else:
            seconds.append(work.seconds(calls))
            base_seconds.append(base.seconds(calls))
    # The pace of a machine changes by 1.5 within an hour
    # (docs/log.md). The ratio of a pair hardly feels that.
    low, middle, high = _quartiles([a / b for a, b in zip(seconds, base_seconds, strict=True)])
    return Timing(
        seconds=seconds,
        base_seconds=base_seconds,
        tokens_per_second=work.tokens / statistics.median(seconds),
        ratio_low=low,
        ratio=middle,
        ratio_high=high,
    )


def _quartiles(ratios: list[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile. A single ratio is all three."""
    # statistics.quantiles refuses a single value before Python 3.13.
    if len(ratios) == 1:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high
