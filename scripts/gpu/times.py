"""Prepare and time a training step, a forward pass or an evaluation, of posenc or of another package.

These functions run in a worker, which holds one prepared case: the visit times two workers in turns.
"""

from __future__ import annotations

import gc
import math
from contextlib import ExitStack
from dataclasses import dataclass, replace
from time import perf_counter

import torch
from bench.peers import PEERS, PeerLoss, forward, installed, peer_model

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.device_peaks import peak_flops
from posenc.core.machine import wait_for
from posenc.model.decoder import training_flops
from posenc.running.bench.case import BenchCase, make_cases
from posenc.running.bench.work import Work, evaluation_work, training_work
from posenc.training.device import compiled_blocks
from posenc.training.memory import keep_freed_memory

WARM_UP = 2  # calls


@dataclass(frozen=True)
class Case:
    """Name something that can be timed."""

    overrides: tuple[str, ...]  # posenc's settings; a peer has their sizes
    work: str  # training | forward | evaluation
    multiple: int = 1  # window of an evaluation, in T
    peer: str = ""  # name of another package's model, instead of posenc's


@dataclass(frozen=True)
class Prepared:
    """Describe a case that can be timed now."""

    tokens: int  # of one call
    first_seconds: float  # of setting up and of the first call, which compiles
    peak_gib: float | None  # None on a CPU
    flops: int | None  # of the model in a training step; None where it is not counted
    peak_flops: float | None  # of the device in this precision, each second
    parameters: int


class _Ready:
    """The case of this process that can be timed."""

    def __init__(self) -> None:
        self.stack = ExitStack()
        self.work: Work | None = None

    def clear(self) -> None:
        """Drop the case, and give its memory back."""
        self.work = None
        self.stack.close()
        self.stack = ExitStack()
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()


_ready = _Ready()


def peers_installed() -> list[str]:
    """Return the names of the peers whose packages are here."""
    versions = installed()
    # nanoGPT's model is written out, so that it needs no package
    return [peer.name for peer in PEERS if peer.package not in versions or versions[peer.package] is not None]


def prepare(case: Case) -> Prepared:
    """Build the case's model, run it once and measure its memory."""
    _ready.clear()
    keep_freed_memory()
    command_line = replace(parse(list(case.overrides)), multirun=True)
    (bench_case,) = make_cases(compose_jobs("train", command_line).jobs, f"{case.multiple}x")
    device = bench_case.step.device
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    began = perf_counter()
    work = _peer_work(case, bench_case) if case.peer else _own_work(case, bench_case)
    work.run()
    wait_for(device)
    first_seconds = perf_counter() - began
    work.seconds(WARM_UP)
    _ready.work = work
    flops = None
    if case.work == "training" and not case.peer:
        length = bench_case.step.settings.context_length
        flops = work.tokens * training_flops(work.model, length)
    return Prepared(
        tokens=work.tokens,
        first_seconds=first_seconds,
        peak_gib=_peak_gib(device),
        flops=flops,
        peak_flops=peak_flops(device, bench_case.step.precision),
        parameters=sum(parameter.numel() for parameter in work.model.parameters()),
    )


def sample(seconds: float) -> float:
    """Return the seconds of one call of the prepared case, as a mean over at least `seconds`."""
    assert _ready.work is not None
    # The first call also makes the GPU change over from another process.
    expected = _ready.work.seconds(1)
    return _ready.work.seconds(max(1, math.ceil(seconds / expected)))


def release() -> None:
    """Drop the prepared case."""
    _ready.clear()


def warm_up(cases: list[Case], memory_share: float) -> dict[str, float]:
    """Prepare cases for the compiled code that they leave on the disk.

    Return the seconds of the first case of each kind of work, which found nothing there. `memory_share` is
    what this process may take of the GPU's memory.
    """
    if torch.cuda.is_available():
        torch.cuda.set_per_process_memory_fraction(memory_share)
    try:
        seconds: dict[str, float] = {}
        for case in cases:
            first_seconds = prepare(case).first_seconds
            seconds.setdefault(case.work, first_seconds)
        return seconds
    finally:
        _ready.clear()


def _own_work(case: Case, bench_case: BenchCase) -> Work:
    model = bench_case.model()
    if case.work == "evaluation":
        (window,) = bench_case.windows
        return evaluation_work(bench_case, model, window)
    _ready.stack.enter_context(compiled_blocks(model, bench_case.title.compile))
    if case.work == "forward":
        return forward(bench_case, model)
    return training_work(bench_case, model)


def _peer_work(case: Case, bench_case: BenchCase) -> Work:
    (peer,) = (peer for peer in PEERS if peer.name == case.peer)
    # the last of its ways to attend is the fused one, which is the faster one on a GPU
    model = peer_model(peer, peer.attentions[-1], bench_case)
    if bench_case.title.compile:  # the whole model, as users of other packages do
        model.compile()
        _ready.stack.callback(torch._dynamo.reset)
    if case.work == "forward":
        return forward(bench_case, model)
    return training_work(bench_case, model, PeerLoss)


def _peak_gib(device: torch.device) -> float | None:
    """Return the most memory since the case was begun, with its weights (a graph hides it later)."""
    if device.type != "cuda":
        return None
    return torch.cuda.max_memory_allocated(device) / 2**30
