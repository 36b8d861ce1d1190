"""Estimate what a training run would take: a few real steps and a part of its evaluation, timed."""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from posenc.core.machine import peak_of
from posenc.core.seeds import generator_for
from posenc.data import TokenStore, WindowSampler
from posenc.evaluation.eval_memory import OutOfMemoryError
from posenc.evaluation.evaluate import Cell, plan_cells
from posenc.evaluation.forward_cache import NotApplicableError
from posenc.model.decoder import Decoder, count_parameters
from posenc.running.build import build_model
from posenc.running.measure import subject_and_request
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
    """What one run takes: seconds, bytes, parameters by part. Gradients take as much as the weights."""

    parameters: Mapping[str, int]
    weight_bytes: int
    optimizer_bytes: int
    step_seconds: float
    steps_timed: int
    training_peak: int  # activations: above weights, gradients and moments
    evaluation_seconds: float
    evaluation_share: float  # of the targets that were measured for it
    evaluation_peak: int  # above the weights, at the longest window
    longest: int  # tokens
    problems: list[str]  # protocols and windows that cannot be measured


def estimate(job: TrainJob, store: TokenStore, seconds: float = SECONDS) -> Estimate:
    """Build the model, run a few steps, measure a part of the targets, in about so many seconds.

    Raises OutOfMemoryError.
    """
    keep_freed_memory()
    model = build_model(job.settings, job.shape, store.vocab_size)
    try:
        trained = _training(job, model, store, seconds * STEPS_SHARE)
        measured = _evaluation(job, model, store, trained["step_seconds"], seconds * (1 - STEPS_SHARE))
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise OutOfMemoryError(str(error).partition("\n")[0] or type(error).__name__) from error
    return Estimate(
        parameters=_parameters(model),
        weight_bytes=_bytes(model.parameters()),
        longest=max(job.evaluation.windows),
        **trained,
        **measured,
    )


def _parameters(model: Decoder) -> dict[str, int]:
    """Return parameters by part; `total` is their sum."""
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


def _training(job: TrainJob, model: Decoder, store: TokenStore, budget: float) -> dict[str, Any]:
    """Time steps as posenc.training.loop makes them, at a learning rate of zero."""
    model.to(job.device).train()
    optimizer, loss_of = build_optimizer(model, job.optimization), NextTokenLoss(model)
    length, seed, clip = job.settings["context_length"], job.settings["seed"], job.optimization.grad_clip
    sampler = WindowSampler(store, length, seed)

    def step(number: int) -> None:
        batch = sampler.batch(number, job.batch_windows)
        inputs, targets = (torch.from_numpy(part).to(job.device, non_blocking=True) for part in batch)
        pos = model.positions(length, generator_for(seed, "positions", number))
        _, norm = gradients(loss_of, inputs, targets, pos, precision=job.precision, grad_clip=clip)
        norm.item()
        update(optimizer, 0.0)

    step(0)  # makes the moments
    with peak_of(job.device, [*model.parameters(), *model.buffers(), *moments_of(optimizer)]) as held:
        step(1)
    times: list[float] = []
    while len(times) < LEAST_STEPS or (sum(times) < budget and len(times) < MOST_STEPS):
        began = time.perf_counter()
        step(2 + len(times))
        times.append(time.perf_counter() - began)
    return {
        "step_seconds": statistics.median(times),
        "steps_timed": len(times),
        "training_peak": max(0, held[0] - _bytes(model.parameters())),
        "optimizer_bytes": _bytes(moments_of(optimizer)),
    }


def _evaluation(
    job: TrainJob, model: Decoder, store: TokenStore, step_seconds: float, budget: float
) -> dict[str, Any]:
    """Time every cell of the evaluation on a share of its targets; its peak is that of the longest window."""
    subject, asked = subject_and_request(job.settings, model, store, job.evaluation, job.device)
    cells = plan_cells(subject, asked, job.evaluation.protocols)
    batch_tokens = job.batch_windows * job.settings["context_length"]
    expected = sum(map(_tokens, cells)) * step_seconds * FORWARD_SHARE / batch_tokens
    share = min(1.0, budget / REPEATS / max(expected, 1e-9))
    fewer = dataclasses.replace(asked, max_targets=max(1, math.ceil(asked.max_targets * share)))
    seconds, peak, problems = 0.0, 0, []
    longest, held_anyway = max(job.evaluation.windows), [*model.parameters(), *model.buffers()]
    for cell, small in zip(cells, plan_cells(subject, fewer, job.evaluation.protocols), strict=True):
        took = []
        try:
            for _ in range(REPEATS):
                began = time.perf_counter()
                small.module.measure(subject, small.plan, small.window, lambda: None)
                took.append(time.perf_counter() - began)
            if cell.window == longest:
                with peak_of(job.device, held_anyway) as held:
                    small.module.measure(subject, small.plan, small.window, lambda: None)
                peak = max(peak, held[0])
        except (NotApplicableError, OutOfMemoryError) as reason:
            problems.append(f"{cell.module.NAME} at {cell.window}: {reason}")
        seconds += min(took, default=0.0) * _tokens(cell) / _tokens(small)
    return {
        "evaluation_seconds": seconds,
        "evaluation_share": share,
        "evaluation_peak": peak,
        "problems": problems,
    }


def _tokens(cell: Cell) -> int:
    """Return the tokens that go through the model for a cell; at least one, to divide by."""
    return max(1, cell.plan.tokens(cell.window))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)
