"""Time one work in turns with another, so that a machine that slows down slows both."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from time import perf_counter
from typing import TypedDict

from posenc.core.errors import first_line
from posenc.core.machine import wait_for
from posenc.running.bench.work import Work

SHORTEST = 0.05  # seconds of a sample: several calls, where one is shorter
WARM_UP = 2  # calls before anything is timed

MakeWork = Callable[[], Work]


class Figures(TypedDict, total=False):
    """What was measured, as it stands in the JSON; what comes after a failure is missing."""

    tokens: int  # of one call
    first_seconds: float  # of setting up and the first call, which compiles
    tensor_bytes: int
    tensor_ratio: float  # to the base
    seconds: list[float]  # of a call, by pair
    base_seconds: list[float]
    tokens_per_second: float  # median
    ratio_low: float  # quartiles of the ratios of pairs
    ratio: float
    ratio_high: float
    reason: str  # why there is no more


def figures(make_work: MakeWork, make_base: MakeWork, repeats: int) -> Figures:
    """Return figures of a work, timed in turns with the base; `reason` says why some are missing."""
    result = Figures()
    try:
        began = perf_counter()
        work = make_work()
        work.run()  # sets up, compiles
        wait_for(work.device)
        result["tokens"] = work.tokens
        result["first_seconds"] = perf_counter() - began
        base = make_base()
        tensor_bytes = work.tensor_bytes()
        result["tensor_bytes"] = tensor_bytes
        result["tensor_ratio"] = tensor_bytes / base.tensor_bytes()
        seconds, base_seconds = timed_in_turns(work, base, repeats)
    except Exception as error:  # an encoding may refuse the length, and memory may run out
        result["reason"] = first_line(error)
        return result
    ratios = [a / b for a, b in zip(seconds, base_seconds, strict=True)]
    low, middle, high = _quartiles(ratios)
    result["seconds"] = seconds
    result["base_seconds"] = base_seconds
    result["tokens_per_second"] = work.tokens / statistics.median(seconds)
    result["ratio_low"] = low
    result["ratio"] = middle
    result["ratio_high"] = high
    return result


def timed_in_turns(work: Work, base: Work, repeats: int) -> tuple[list[float], list[float]]:
    """Return the seconds of a call of each, in pairs whose order alternates."""
    for either in (work, base):
        either.seconds(WARM_UP)
    calls = max(1, math.ceil(SHORTEST / work.seconds(1)))
    seconds: list[float] = []
    base_seconds: list[float] = []
    for pair in range(repeats):
        if pair % 2 == 0:
            base_seconds.append(base.seconds(calls))
            seconds.append(work.seconds(calls))
        else:
            seconds.append(work.seconds(calls))
            base_seconds.append(base.seconds(calls))
    return seconds, base_seconds


def _quartiles(ratios: list[float]) -> tuple[float, float, float]:
    """Return lower quartile, median and upper quartile; of one ratio itself three times."""
    if len(ratios) == 1:
        return ratios[0], ratios[0], ratios[0]
    low, middle, high = statistics.quantiles(ratios, n=4, method="inclusive")
    return low, middle, high
