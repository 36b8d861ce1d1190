"""`posenc train --dry-run`: sizes, memory and time of each job. Nothing is written or fetched.

A few real steps and a share of the evaluation are timed on random tokens: which tokens makes no difference.
"""

from __future__ import annotations

import dataclasses
import json
import math
import statistics
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.config.compose import Jobs
from posenc.core.console import clock, say
from posenc.core.errors import RunError, visible
from posenc.core.machine import peak_of, resident
from posenc.core.seeds import generator_for
from posenc.data import CorpusFacts, Split, TokenStore, WindowSampler, build_tokenizer, corpus_notes
from posenc.data.corpus import known_figures
from posenc.data.documents import SPLITS
from posenc.data.hub import go_offline
from posenc.data.registry import is_streamed, needs_network, pinned_identity
from posenc.data.token_cache import smallest_dtype
from posenc.evaluation.eval_memory import OutOfMemoryError
from posenc.evaluation.evaluate import Cell, plan_cells
from posenc.evaluation.forward_cache import NotApplicableError
from posenc.model.decoder import Decoder, count_parameters
from posenc.report.captions import millions
from posenc.report.writers import width_of
from posenc.running.build import build_model
from posenc.running.jobs import applicable, each_once, validated
from posenc.running.measure import subject_and_request
from posenc.running.run_directory import OPEN, run_state
from posenc.running.train_job import TrainJob
from posenc.training.checkpoint import KEPT
from posenc.training.loop import NextTokenLoss, gradients, update
from posenc.training.oom import keep_freed_memory
from posenc.training.optimizer import build_optimizer, moments_of

# Jobs that differ in these, or in train.lr, alone share one estimate.
NO_COST = ("seed", "name", "experiment_name", "runs_dir", "tracking")
SECONDS = 7.0  # of steps and of the evaluation of one estimate, about
SECONDS_OF_ALL = 60.0  # of all estimates of a sweep
STEPS_SHARE = 0.45  # of the seconds of an estimate
MOST_STEPS, LEAST_STEPS = 40, 2
FORWARD_SHARE = 1 / 3  # of a training step
BYTES_A_TOKEN = 3.0  # of a vocabulary of some thousands, about
MOST_TOKENS = 20_000_000  # of random ones


@dataclass(frozen=True)
class Estimate:
    """What one run takes, in seconds and bytes. Gradients take as much as the weights."""

    parameters: Mapping[str, int]
    vocab_size: int
    weight_bytes: int
    optimizer_bytes: int
    step_seconds: float
    training_peak: int  # activations: above weights, gradients and moments
    evaluation_seconds: float
    evaluation_peak: int  # above the weights, at the longest window
    problems: list[str]  # protocols and windows that cannot be measured

    @property
    def training_memory(self) -> int:
        return 2 * self.weight_bytes + self.optimizer_bytes + self.training_peak

    @property
    def evaluation_memory(self) -> int:
        return self.weight_bytes + self.optimizer_bytes + self.evaluation_peak


def print_dry_run(composed: Jobs) -> int:
    """Validate every job, estimate, print; return 0, or 1 where one does not fit into memory.

    Raises UserError as a real run would, RunError for a corpus or tokenizer that would have to be fetched.
    """
    go_offline()
    for one in composed.jobs:
        _refuse_to_fetch(one.settings["data"])
    jobs = [validated("train", one.settings) for one in each_once(applicable("train", composed)).jobs]
    seconds = min(SECONDS, SECONDS_OF_ALL / len({_cost_key(job) for job in jobs}))
    known: dict[str, Estimate | str] = {}
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    for head in ("parameters", "training", "evaluation", "memory"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("state")
    base, total = resident("VmRSS") or 0, 0.0
    for i, job in enumerate(jobs, 1):
        if len(jobs) > 1:
            say(f"[{i}/{len(jobs)}] {job.directory.name}")
        if (key := _cost_key(job)) not in known:
            known[key] = _estimated(job, seconds)
        name, found = Text(job.directory.name), known[key]
        state = run_state(job.directory, job.settings["eval"])
        if isinstance(found, str):
            table.add_row(name, "-", "-", "-", "-", Text(visible(found)))
            continue
        training, evaluation = job.steps * found.step_seconds, found.evaluation_seconds
        total += training + evaluation if state == OPEN else 0.0
        memory = base + max(found.training_memory, found.evaluation_memory)
        numbers = millions(found.parameters["total"]), clock(training), clock(evaluation), _mb(memory)
        table.add_row(name, *numbers, "to run" if state == OPEN else state)
    console = Console(width=width_of(sys.stdout), highlight=False)
    console.print(table)
    if len(jobs) == 1 and isinstance(found, Estimate):
        for line in _details(jobs[0], found, base):
            console.print(Text(visible(line)))
    for note in dict.fromkeys(note for job in jobs for note in _notes(job)):
        console.print(Text(visible(note)))
    how_many = "1 job" if len(jobs) == 1 else f"{len(jobs)} jobs, one after the other,"
    end = f"about {clock(total)} for {how_many} on {jobs[0].device}; nothing was written"
    console.print(Text(end, style="bold"))
    return 1 if any(isinstance(one, str) for one in known.values()) else 0


def _details(job: TrainJob, found: Estimate, base: int) -> list[str]:
    """Return sizes, corpus and memory of one job as lines."""
    length, shape, facts = job.settings["context_length"], job.shape, job.facts
    batch_tokens = job.batch_windows * length
    parts = ", ".join(f"{name} {n:,}" for name, n in found.parameters.items() if n and name != "total")
    train_mb, documents = sum(facts.sizes["train"]) / 1e6, sum(map(len, facts.sizes.values()))
    where = "on the GPU" if job.device.type == "cuda" else f"with {_mb(base)} for Python and torch"
    speed = f"{batch_tokens / found.step_seconds:,.0f} tokens/s in {job.precision}"
    checkpoints = _mb(KEPT * (found.weight_bytes + found.optimizer_bytes))
    return [
        f"run        {job.directory}",
        f"parameters {found.parameters['total']:,}: {parts}",
        f"shapes     {shape.n_layers} layers of width {shape.d_model}, {shape.n_heads} heads of "
        f"{shape.head_dim}, vocabulary {found.vocab_size:,}",
        f"training   {job.steps:,} steps, a batch is ({job.batch_windows}, {length}): "
        f"{batch_tokens:,} tokens; {speed}",
        f"corpus     {facts.name}: {documents:,} documents, {train_mb:,.1f} MB to train "
        f"on, fingerprint {facts.fingerprint[:8]}",
        f"evaluation {', '.join(job.evaluation.protocols)} at {', '.join(map(str, job.evaluation.windows))} "
        "tokens",
        f"memory     training {_mb(found.training_memory + base)}, evaluation "
        f"{_mb(found.evaluation_memory + base)}, {where}: weights {_mb(found.weight_bytes)}, "
        f"optimizer {_mb(found.optimizer_bytes)}",
        f"disk       {checkpoints} for {KEPT} checkpoints, about 1 MB for results",
        *(f"cannot     {problem}" for problem in found.problems),
    ]


def _notes(job: TrainJob) -> list[str]:
    return corpus_notes(job.facts, job.evaluation.split, max(job.evaluation.windows))


def _refuse_to_fetch(data: Mapping[str, Any]) -> None:
    """Raise RunError for a corpus that would have to be fetched, or noted down, to be looked at."""
    pinned = pinned_identity(data)
    away = needs_network(data) or is_streamed(data)
    if (away or pinned is not None) and known_figures(pinned) is None:
        problem = f"data={data['name']} is not here yet, and a dry run fetches nothing"
        raise RunError(problem, hint=f"posenc data prepare data={data['name']}")


def _cost_key(job: TrainJob) -> str:
    """Return the settings that decide how long a job takes, as JSON."""
    settings = {name: value for name, value in job.settings.items() if name not in NO_COST}
    settings["train"] = {name: value for name, value in job.settings["train"].items() if name != "lr"}
    return json.dumps(settings, sort_keys=True, default=str)


def _estimated(job: TrainJob, seconds: float) -> Estimate | str:
    """Return what the job takes, or why it does not fit into memory."""
    try:
        return estimate(job, random_store(job.facts, job.settings["tokenizer"]), seconds)
    except (torch.OutOfMemoryError, MemoryError, OutOfMemoryError) as error:
        return f"does not fit into memory: {str(error).partition(chr(10))[0] or type(error).__name__}"
    finally:
        job.facts.loaded = None


def random_store(facts: CorpusFacts, tokenizer: Mapping[str, Any]) -> TokenStore:
    """Return random tokens in documents of the corpus's lengths."""
    if tokenizer["name"] == "bpe":  # building it would train it, and keep it
        vocab_size = int(tokenizer["vocab_size"])
    else:
        vocab_size = build_tokenizer(tokenizer, facts).vocab_size
    each = 1.0 if tokenizer["name"] == "bytes" else BYTES_A_TOKEN
    splits, start = {}, 0
    for name in SPLITS:
        lengths = (np.array(facts.sizes[name], dtype=np.int64) / each).astype(np.int64)
        lengths = lengths[np.cumsum(lengths) <= max(MOST_TOKENS // 3, lengths[:1].sum())]
        starts = start + np.cumsum(lengths) - lengths
        splits[name] = Split([str(i) for i in range(len(lengths))], starts, lengths)
        start += int(lengths.sum())
    dtype = smallest_dtype(vocab_size)
    tokens = np.random.default_rng(0).integers(0, vocab_size, size=max(1, start), dtype=dtype)
    return TokenStore(tokens, None, facts.fingerprint, vocab_size, dict(tokenizer), splits)


def estimate(job: TrainJob, store: TokenStore, seconds: float) -> Estimate:
    """Build the model, run a few steps, measure a part of the targets, in about so many seconds."""
    keep_freed_memory()
    model = build_model(job.settings, job.shape, store.vocab_size)
    trained = _training(job, model, store, seconds * STEPS_SHARE)
    measured = _evaluation(job, model, store, trained["step_seconds"], seconds * (1 - STEPS_SHARE))
    counts, weights = count_parameters(model), _bytes(model.parameters())
    return Estimate(
        parameters=counts, vocab_size=store.vocab_size, weight_bytes=weights, **trained, **measured
    )


def _training(job: TrainJob, model: Decoder, store: TokenStore, budget: float) -> dict[str, Any]:
    """Time steps as posenc.training.loop makes them, at a learning rate of zero."""
    model.to(job.device).train()
    optimizer, loss_of = build_optimizer(model, job.optimization), NextTokenLoss(model)
    length, seed, clip = job.settings["context_length"], job.settings["seed"], job.optimization.grad_clip
    sampler = WindowSampler(store, length, seed)

    def step(number: int) -> None:
        batch = sampler.batch(number, job.batch_windows)
        inputs, targets = (torch.from_numpy(part).to(job.device) for part in batch)
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
        "training_peak": max(0, held[0] - _bytes(model.parameters())),
        "optimizer_bytes": _bytes(moments_of(optimizer)),
    }


def _evaluation(
    job: TrainJob, model: Decoder, store: TokenStore, step_seconds: float, budget: float
) -> dict[str, Any]:
    """Time every cell of the evaluation on a share of its targets, the second time: the first one sets up."""
    subject, asked = subject_and_request(job.settings, model, store, job.evaluation, job.device)
    cells = plan_cells(subject, asked, job.evaluation.protocols)
    batch_tokens = job.batch_windows * job.settings["context_length"]
    expected = sum(map(_tokens, cells)) * step_seconds * FORWARD_SHARE / batch_tokens
    targets = max(1, math.ceil(asked.max_targets * min(1.0, budget / 2 / max(expected, 1e-9))))
    fewer = plan_cells(subject, dataclasses.replace(asked, max_targets=targets), job.evaluation.protocols)
    seconds, peak, problems = 0.0, 0, []
    for cell, small in zip(cells, fewer, strict=True):
        try:
            with peak_of(job.device, [*model.parameters(), *model.buffers()]) as held:
                small.module.measure(subject, small.plan, small.window)
            began = time.perf_counter()
            small.module.measure(subject, small.plan, small.window)
            seconds += (time.perf_counter() - began) * _tokens(cell) / _tokens(small)
            peak = max(peak, held[0])
        except (NotApplicableError, OutOfMemoryError) as reason:
            problems.append(f"{cell.module.NAME} at {cell.window}: {reason}")
    return {"evaluation_seconds": seconds, "evaluation_peak": peak, "problems": problems}


def _tokens(cell: Cell) -> int:
    """Return the tokens that go through the model for a cell; at least one, to divide by."""
    return max(1, cell.plan.tokens(cell.window))


def _bytes(tensors: Iterable[torch.Tensor]) -> int:
    return sum(one.numel() * one.element_size() for one in tensors)


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e10 else f"{size / 1e9:,.1f} GB"
