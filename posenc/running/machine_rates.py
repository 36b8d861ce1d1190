"""Time three operations of a machine: by their seconds everything else is estimated."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch

from posenc.core.machine import fastest_seconds
from posenc.training.device import fit_threads
from posenc.training.memory import keep_freed_memory

CALIBRATION_SECONDS = 0.1  # for so long each of the three operations is timed
NUMBERS = 1 << 20  # numbers in the multiplication that is timed
CALLS = 100  # of the smallest operation that are timed at once


@dataclass(frozen=True)
class Rates:
    """Hold the seconds of three operations on a device."""

    flop: float  # one FLOP of a matrix product
    multiplication: float  # multiplying two numbers, one by one
    call: float  # calling the smallest operation


@functools.cache
def measure_rates(device: torch.device, precision: str, width: int, rows: int, threads: int | None) -> Rates:
    """Time the three operations on a device, in a precision, at the sizes of a model."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    # The product is that of a layer's MLP, which has the largest ones.
    x = torch.ones(rows, width, device=device, dtype=dtype)
    weight = torch.ones(width, 4 * width, device=device, dtype=dtype)
    many = torch.ones(NUMBERS, device=device)
    single = torch.ones(1, device=device)
    # As a training does. Otherwise the times would hold the mapping of new memory for each result.
    keep_freed_memory()
    fit_threads(device)  # threads that share a core wait for each other, and take up to 100 times as long

    def small_calls() -> None:
        for _ in range(CALLS):
            single.add_(single)

    threads_before = torch.get_num_threads()
    # A job of a sweep will have these threads, and this process may have more.
    torch.set_num_threads(threads or threads_before)
    try:
        product = fastest_seconds(lambda: x @ weight, device, CALIBRATION_SECONDS)
        multiplications = fastest_seconds(lambda: many * many, device, CALIBRATION_SECONDS)
        calls = fastest_seconds(small_calls, device, CALIBRATION_SECONDS)
    finally:
        torch.set_num_threads(threads_before)
    return Rates(
        flop=product / (2 * x.numel() * weight.shape[1]),
        multiplication=multiplications / NUMBERS,
        call=calls / CALLS,
    )
