"""What a training run would take: a few real steps and a part of its evaluation, timed and thrown away."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import torch

from posenc.core.memory_meter import peak_of
from posenc.core.seeds import generator_for
from posenc.data import TokenStore, WindowSampler
from posenc.evaluation.eval_memory import OutOfMemoryError
from posenc.evaluation.evaluate import Cell, plan_cells
from posenc.evaluation.forward_cache import NotApplicableError
from posenc.model.decoder import Decoder, count_parameters
from posenc.running.build import build_model
from posenc.running.measure import subject_and_asked
from posenc.running.train_job import TrainJob
from posenc.training.loop import NextTokenLoss, gradients, update
from posenc.training.oom import keep_freed_memory
from posenc.training.optimizer import build_optimizer, moments_of

SECONDS = 7.0  # of steps and of the evaluation, about
STEPS_SHARE = 0.45  # of them
MOST_STEPS, LEAST_STEPS = 40, 2
REPEATS = 2  # the first is slower for what it sets up, either for what else the machine does
FORWARD_SHARE = 1 / 3  # of a training step


@dataclass(frozen=True)
class Estimate:
    """Of one run. Seconds; bytes; parameters by part."""

    parameters: Mapping[str, int]
    weight_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    step_seconds: float
    steps_timed: int
    training_peak: (
        int  # above weights, gradients and the optimizer's moments: activations and what comes of them
    )
    evaluation_seconds: float
    evaluation_share: float  # of the targets that were measured for it
    evaluation_peak: int  # above the weights, at the longest window
    longest: int  # tokens
    problems: tuple[str, ...] = ()  # protocols and windows that cannot be measured


def estimate(job: TrainJob, store: TokenStore, seconds: float = SECONDS) -> Estimate:
    """Build the model, run a few steps, measure a part of the targets; about as long as `seconds` say, and
    what setting it up takes. Raises OutOfMemoryError."""
    keep_freed_memory()
    model = build_model(job.settings, job.shape, store.vocab_size)
    parameters = parts_of(model)
    weights = _bytes(model.parameters())
    try:
        step, count, peak, moments = _training(job, model, store, seconds * STEPS_SHARE)
        whole, share, top, problems = _evaluation(job, model, store, step, seconds * (1 - STEPS_SHARE))
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemoryError(str(error).partition("\n")[0] or type(error).__name__) from error
    return Estimate(
        parameters=parameters,
        weight_bytes=weights,
        gradient_bytes=weights,
        optimizer_bytes=moments,
        step_seconds=step,
        steps_timed=count,
        training_peak=peak,
        evaluation_seconds=whole,
        evaluation_share=share,
        evaluation_peak=top,
        longest=max(job.evaluation.windows),
        problems=problems,
    )


def parts_of(model: Decoder) -> dict[str, int]:
    """Parameters by part; `total` is their sum."""
    counts = count_parameters(model)
    named = dict(model.blocks.named_parameters())
    attention = sum(p.numel() for name, p in named.items() if ".attention." in name)
    mlp = sum(p.numel() for name, p in named.items() if ".mlp." in name)
    known = counts["embedding"] + attention + mlp + counts["encoding"] + counts["options"]
    return {
        "embedding": counts["embedding"],
        "attention": attention,
        "MLP": mlp,
        "norms": counts["total"] - known,
        "encoding": counts["encoding"],
        "options": counts["options"],
        "total": counts["total"],
    }


def _training(job: TrainJob, model: Decoder, store: TokenStore, budget: float) -> tuple[float, int, int, int]:
    """Seconds a step (median), how many were timed, the peak above what a run holds anyway, bytes of moments.

    The steps are those of posenc.training.loop, at a learning rate of zero.
    """
    model.to(job.device).train()
    optimizer, loss_of = build_optimizer(model, job.optimization), NextTokenLoss(model)
    length, seed = job.settings["context_length"], job.settings["seed"]
    sampler = WindowSampler(store, length, seed)

    def step(number: int) -> None:
        batch = sampler.batch(number, job.batch_windows)
        inputs, targets = (torch.from_numpy(part).to(job.device, non_blocking=True) for part in batch)
        pos = model.positions(length, generator_for(seed, "positions", number))
        clip = job.optimization.grad_clip
        _, norm = gradients(loss_of, inputs, targets, pos, precision=job.precision, grad_clip=clip)
        norm.item()
        update(optimizer, 0.0)

    step(0)  # makes the moments
    moments = _bytes(moments_of(optimizer))
    before = [*model.parameters(), *model.buffers(), *moments_of(optimizer)]
    with peak_of(job.device, before) as held:
        step(1)
    times: list[float] = []
    while len(times) < LEAST_STEPS or (sum(times) < budget and len(times) < MOST_STEPS):
        began = time.perf_counter()
        step(2 + len(times))
        times.append(time.perf_counter() - began)
    return statistics.median(times), len(times), max(0, held[0] - _bytes(model.parameters())), moments


def _evaluation(
    job: TrainJob, model: Decoder, store: TokenStore, step_seconds: float, budget: float
) -> tuple[float, float, int, tuple[str, ...]]:
    """Seconds of all cells, from a share of the targets; that share; the peak at the longest window."""
    subject, asked = subject_and_asked(job.settings, model, store, job.evaluation, job.device)
    tokens = job.batch_windows * job.settings["context_length"]
    whole = plan_cells(subject, asked, job.evaluation.protocols)
    expected = sum(_passed(cell) for cell in whole) * step_seconds * FORWARD_SHARE / tokens
    share = min(1.0, budget / REPEATS / max(expected, 1e-9))
    fewer = dataclasses.replace(asked, max_targets=max(1, math.ceil(asked.max_targets * share)))
    seconds, peak, problems = 0.0, 0, []
    longest, before = max(job.evaluation.windows), [*model.parameters(), *model.buffers()]
    for cell, small in zip(whole, plan_cells(subject, fewer, job.evaluation.protocols), strict=True):
        took = []
        try:
            for _ in range(REPEATS):
                began = time.perf_counter()
                small.module.measure(subject, small.plan, small.window, lambda: None)
                took.append(time.perf_counter() - began)
            if cell.window == longest:
                with peak_of(job.device, before) as held:
                    small.module.measure(subject, small.plan, small.window, lambda: None)
                peak = max(peak, held[0])
        except (NotApplicableError, OutOfMemoryError) as reason:
            problems.append(f"{cell.module.NAME} at {cell.window}: {reason}")
        seconds += min(took, default=0.0) * _passed(cell) / _passed(small)
    return seconds, share, peak, tuple(problems)


def _passed(cell: Cell) -> int:
    """Tokens that go through the model for a cell; at least one, to divide by."""
    return max(1, cell.plan.tokens(cell.window))


def _bytes(tensors: Iterator[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)
