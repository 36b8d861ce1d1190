"""Train several small models at once on one device, each in a process, with and without NVIDIA's MPS.

MPS lets kernels of several processes run at the same time; without it the GPU changes over between them.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

from gpu.sizes import Sizes
from gpu.workers import Worker, WorkerFailedError
from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.seeds import generator_for
from posenc.running.bench.case import BenchCase, make_cases
from posenc.running.bench.work import Work, bytes_of, random_batch, training_work
from posenc.training.loop import NextTokenLoss, gradients, update
from posenc.training.memory import keep_freed_memory
from posenc.training.optimizer import build_optimizer

WARM_UP = 20  # steps
MPS_CONTROL = "nvidia-cuda-mps-control"
PLAIN = "plain"
GRAPH = "cuda_graph"
_works: dict[str, Work] = {}  # of this process, by kind of step


@dataclass(frozen=True)
class Speed:
    """Hold how fast processes trained that began together."""

    processes: int
    tokens_per_second: float  # of all together
    slowest: float  # tokens/s of a process
    median: float


def prepare(overrides: tuple[str, ...]) -> dict[str, str]:
    """Make the steps of a small model; return the reasons why some kinds of step are not there."""
    keep_freed_memory()
    command_line = replace(parse(list(overrides)), multirun=True)
    (case,) = make_cases(compose_jobs("train", command_line).jobs, "none")
    _works[PLAIN] = training_work(case, case.model())
    reasons: dict[str, str] = {}
    try:
        _works[GRAPH] = _graphed_work(case)
    except _NotAvailableError as error:
        reasons[GRAPH] = str(error)
    for work in _works.values():
        work.seconds(WARM_UP)
    return reasons


def train(kind: str, steps: int) -> tuple[float, float]:
    """Train for some steps; return tokens/s, and the seconds that it took."""
    work = _works[kind]
    seconds = work.seconds(steps)
    return work.tokens / seconds, seconds * steps


class _NotAvailableError(Exception):
    """This posenc or this device cannot do it."""


def _graphed_work(case: BenchCase) -> Work:
    """Return a step that replays loss and gradients from a CUDA graph. Raises _NotAvailableError."""
    plan = case.step
    if plan.device.type != "cuda":
        raise _NotAvailableError(f"there are no CUDA graphs on device={plan.device}")
    try:
        from posenc.training.graphs import GraphedStep
    except ImportError:
        raise _NotAvailableError("this posenc does not replay a step") from None
    model = case.model()
    loss = NextTokenLoss(model)
    optimization = plan.optimization
    optimizer = build_optimizer(model, optimization, plan.precision)
    inputs, targets = random_batch(case)
    plain_step = partial(gradients, loss, precision=plan.precision, grad_clip=optimization.grad_clip)
    step_gradients = GraphedStep(plain_step, loss)

    def step() -> None:
        model.train()
        pos = model.positions(inputs.shape[1], generator_for(plan.settings.seed, "positions", 0))
        step_gradients(inputs, targets, pos, None)
        update(optimizer, optimization.lr)

    step()
    if None in step_gradients._captured.values():
        raise _NotAvailableError("a step of this encoding cannot be captured")
    return Work(model, plan.device, step, inputs.numel(), bytes_of(model))


def measure(sizes: Sizes, device: str, log: Path, *, with_mps: bool, timeout: float) -> dict[str, object]:
    """Return the speed of one process, and of all at once. Raises WorkerFailedError."""
    if with_mps and shutil.which(MPS_CONTROL) is None:
        return {"unavailable": f"there is no {MPS_CONTROL} here"}
    with _mps(with_mps):
        workers = [Worker(log) for _ in range(sizes.nano_processes)]
        try:
            return _measured(workers, sizes, device, timeout)
        finally:
            for worker in workers:
                worker.stop()


def _measured(workers: list[Worker], sizes: Sizes, device: str, timeout: float) -> dict[str, object]:
    deadline = time.monotonic() + timeout
    overrides = (
        *sizes.nano,
        f"device={device}",
        "encoding=rope",
        "train.compile=false",
        "train.cuda_graph=false",
    )
    # All prepare at the same time; only then is each waited for.
    for worker in workers:
        worker.begin(prepare, overrides)
    reasons: dict[str, str] = {}
    for worker in workers:
        reasons = worker.result(deadline - time.monotonic())
    result: dict[str, object] = {}
    for kind in (PLAIN, GRAPH):
        if kind in reasons:
            result[kind] = {"unavailable": reasons[kind]}
            continue
        speeds = [_speed(group, kind, sizes.nano_steps, deadline) for group in (workers[:1], workers)]
        result[kind] = {"one": asdict(speeds[0]), "all": asdict(speeds[1])}
    return result


def _speed(workers: list[Worker], kind: str, steps: int, deadline: float) -> Speed:
    """Let workers train at the same time."""
    for worker in workers:
        worker.begin(train, kind, steps)
    results = [worker.result(deadline - time.monotonic()) for worker in workers]
    speeds = [tokens_per_second for tokens_per_second, _ in results]
    # All begin within milliseconds, so the slowest one was never alone: it counts for the sum.
    longest = max(seconds for _, seconds in results)
    tokens = sum(tokens_per_second * seconds for tokens_per_second, seconds in results)
    return Speed(len(workers), tokens / longest, min(speeds), statistics.median(speeds))


@contextmanager
def _mps(enabled: bool) -> Iterator[None]:
    """Run MPS for the processes that are started inside. Raises WorkerFailedError where it does not start."""
    if not enabled:
        yield
        return
    with tempfile.TemporaryDirectory(prefix="posenc-mps-") as folder:
        # its own folders, so that an MPS of somebody else on this machine is left alone
        folders = {"CUDA_MPS_PIPE_DIRECTORY": f"{folder}/pipe", "CUDA_MPS_LOG_DIRECTORY": f"{folder}/log"}
        for path in folders.values():
            Path(path).mkdir()
        with patch.dict(os.environ, folders):
            started = subprocess.run([MPS_CONTROL, "-d"], capture_output=True, text=True, timeout=20)
            if started.returncode != 0:
                raise WorkerFailedError(f"{MPS_CONTROL} -d: {started.stderr.strip() or started.returncode}")
            try:
                yield
            finally:
                subprocess.run([MPS_CONTROL], input="quit\n", capture_output=True, text=True, timeout=20)
