"""One cell of `posenc bench` in a process of its own: JSON on stdin, JSON on stdout.

A process for each cell, so that its peak is its own, and running out of memory ends nothing but the cell.
"""

from __future__ import annotations

import json
import math
import sys
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from time import perf_counter
from typing import Any

import torch

from posenc.cli.bench_rate import machine, measured_rate, wait_for
from posenc.cli.bench_work import Work, Worker
from posenc.core.memory_meter import LiveTensors, peak_of
from posenc.evaluation.eval_memory import OutOfMemoryError
from posenc.evaluation.forward_cache import NotApplicableError
from posenc.model.decoder import count_parameters, product_weights, training_flops
from posenc.running.told import debugging
from posenc.training.compiling import compiled_blocks, works
from posenc.training.oom import keep_freed_memory

SHORTEST = 0.05  # seconds of a sample: several calls, where one is shorter
WARM_UP = 2  # calls before anything is timed

Part = tuple[dict[str, Any], Callable[[Worker], Work]]  # what an answer goes into, and which work it is of


def main() -> None:
    """Answer one request. What cannot be measured has a `reason` instead of figures."""
    answer_to, sys.stdout = sys.stdout, sys.stderr  # a plug-in may print
    asked = json.load(sys.stdin)
    device = torch.device(asked["device"])
    answer: dict[str, Any] = {}
    if asked["kind"] == "rate":
        answer["machine"] = machine(device)
        _told(answer, lambda: {"rate": measured_rate(device, asked["precision"], asked["shapes"])})
    else:
        _told(answer, lambda: measure(asked, device))
    json.dump(answer, answer_to)


def measure(asked: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Sizes, training and each evaluation window of the asked settings, in turns with the base's."""
    keep_freed_memory()
    own = Worker(asked, asked["settings"], device)
    answer: dict[str, Any] = {
        "parameters": count_parameters(own.model),
        "product_weights": product_weights(own.model),
        "flops_per_token": training_flops(own.model, asked["settings"]["context_length"]),
        "evaluation": [{"window": window} for window in asked["windows"]],
        "training": {},
    }
    parts: list[Part] = [(into, _evaluation(into["window"])) for into in answer["evaluation"]]
    for into, work_of in parts:
        _told(into, partial(_peak, own, work_of))
    if asked["compile"] and not works(device):
        answer["training"]["reason"] = "torch.compile does not work here"
    else:
        with compiled_blocks(own.model, asked["compile"]):
            _told(answer["training"], partial(_peak, own, Worker.training))
    base = Worker(asked, asked["base"], device)
    for into, work_of in parts:
        if "reason" not in into:
            _told(into, partial(_in_turns, own, base, work_of, asked["repeats"]))
    if "reason" not in answer["training"]:
        with compiled_blocks(own.model, asked["compile"]), compiled_blocks(base.model, asked["compile"]):
            _told(answer["training"], partial(_in_turns, own, base, Worker.training, asked["repeats"]))
    return answer


def _evaluation(window: int) -> Callable[[Worker], Work]:
    return lambda worker: worker.evaluation(window)


def _peak(own: Worker, work_of: Callable[[Worker], Work]) -> dict[str, Any]:
    """Bytes at the peak of the work: what the process takes, and the tensors alone.

    Weights and moments are counted, the rest is measured.
    """
    began = perf_counter()
    work = work_of(own)
    work.run()  # sets up, compiles
    wait_for(own.device)
    first = perf_counter() - began
    before = [*own.model.parameters(), *own.model.buffers()]
    with peak_of(own.device, before) as found:
        work.run()
        wait_for(own.device)
    tensors = found[0]
    if own.device.type == "cpu" and not (own.asked["compile"] and own.model.training):
        # The process's figure varies with the allocator's luck: 57 to 100 MB for one and the same batch.
        meter = LiveTensors()
        meter.ignore(before)
        with meter:
            work.run()
        tensors = meter.peak
    return {
        "tokens": work.tokens,
        "peak_bytes": work.held + found[0],
        "tensor_bytes": work.held + tensors,
        "first_seconds": first,
    }


def _in_turns(own: Worker, base: Worker, work_of: Callable[[Worker], Work], repeats: int) -> dict[str, Any]:
    """Seconds of one call, `repeats` times each, every pair taken one right after the other."""
    mine, other = work_of(own), work_of(base)
    for work in (mine, other):
        for _ in range(WARM_UP):
            work.run()
    calls = max(1, math.ceil(SHORTEST / _seconds(mine, own.device, 1)))
    pairs: list[tuple[float, float]] = []
    for i in range(repeats):
        both = (mine, other) if i % 2 else (other, mine)
        took = [_seconds(work, own.device, calls) for work in both]
        pairs.append((took[0], took[1]) if i % 2 else (took[1], took[0]))
    return {"seconds": [a for a, _ in pairs], "base_seconds": [b for _, b in pairs], "calls": calls}


def _seconds(work: Work, device: torch.device, calls: int) -> float:
    """Of one call, the mean of several in a row."""
    wait_for(device)
    began = perf_counter()
    for _ in range(calls):
        work.run()
    wait_for(device)
    return (perf_counter() - began) / calls


def _told(into: dict[str, Any], figures: Callable[[], dict[str, Any]]) -> None:
    """Figures, or the reason why there are none; what was known before stays."""
    try:
        into.update(figures())
    except Exception as error:
        if debugging():
            traceback.print_exc()
        into["reason"] = _reason(error)


def _reason(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    if isinstance(error, NotApplicableError | OutOfMemoryError):
        return first
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in first:
        return "out of memory"
    return f"{type(error).__name__}: {first}"
