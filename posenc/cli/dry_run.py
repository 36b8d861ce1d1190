"""`posenc train --dry-run`: sizes, memory and time of each job. Nothing is written or fetched.

Time is counted and not tried: the run's operations, by a table of what a model does to a token and the rates
of three operations, which are measured in a third of a second.
"""

from __future__ import annotations

import functools
import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text
from torch.utils.benchmark import Timer

from posenc.config.compose import Jobs
from posenc.core.errors import RunError, visible
from posenc.core.machine import wait_for
from posenc.data import CorpusFacts, Split, TokenStore, build_tokenizer, corpus_notes, vocabulary
from posenc.data.corpus import known_figures
from posenc.data.documents import SPLITS
from posenc.data.hub import go_offline
from posenc.data.sources import is_streamed, pinned_identity
from posenc.evaluation.evaluate import plan_cells
from posenc.evaluation.forward_cache import NotApplicableError, free_memory, n_inputs
from posenc.model.decoder import Decoder, count_parameters, forward_flops
from posenc.report.writers import terminal_width
from posenc.running.build import build_decoder
from posenc.running.jobs import check_jobs, seed_by_seed
from posenc.running.measure import subject_and_request
from posenc.running.run_directory import OPEN, run_state
from posenc.running.train_job import TrainJob
from posenc.training.device import fit_threads, keep_freed_memory

# Jobs that differ in these, or in train.lr, alone share one estimate.
NO_COST = ("seed", "name", "experiment_name", "runs_dir", "tracking")
# What a forward pass does beside matrix products, in multiplications of as many numbers: for each number of a
# layer's width, and for each pair of tokens and each head. Fitted on one core: nano at T = 64 and 512, tiny.
TIMES_A_WIDTH, TIMES_A_SCORE = 135, 10
CALLS_A_LAYER = 900  # of the smallest operation, as long as Python takes
UPDATE_TIMES = 16  # for a parameter: clipping and the optimizer
STEP = 3  # a step is a forward pass and a backward pass twice as long
# Numbers that a step keeps for each of a layer's width, and for each pair of tokens and each head.
KEPT_A_WIDTH, KEPT_A_SCORE = 19.0, 0.6
CALIBRATION = 0.1  # seconds for each of the three rates
NUMBERS = 1 << 20  # of a multiplication
BYTES_A_TOKEN = 3.0  # of a vocabulary of some thousands, about


@dataclass(frozen=True)
class Estimate:
    """What one run takes, in seconds and bytes."""

    parameters: int
    training_seconds: float
    evaluation_seconds: float
    memory: float
    problems: list[str]  # protocols and windows that cannot be measured


class Rates(NamedTuple):
    """Seconds of a FLOP in matrix products, of multiplying two numbers, and of calling an operation."""

    flop: float
    times: float
    call: float


def rates_of(job: TrainJob) -> Rates:
    """Return the rates of the job's device, in its precision and of its sizes."""
    rows = job.batch_windows * job.settings["context_length"]
    return _measured(job.device, job.precision, job.shape.d_model, min(rows, 4096))


@functools.cache
def _measured(device: torch.device, precision: str, width: int, rows: int) -> Rates:
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    x = torch.ones(rows, width, device=device, dtype=dtype)
    weight = torch.ones(width, 4 * width, device=device, dtype=dtype)
    many, one = torch.ones(NUMBERS, device=device), torch.ones(1, device=device)
    keep_freed_memory()
    fit_threads(device)  # threads that share a core wait for each other, up to 100 times as long

    def fastest(run: Callable[[], object]) -> float:
        """Return the seconds of one call, the least of many: what other processes take does not count."""
        names = {"run": run, "wait": functools.partial(wait_for, device)}
        timer = Timer("run(); wait()", globals=names, num_threads=torch.get_num_threads())
        return min(timer.blocked_autorange(min_run_time=CALIBRATION).times)

    return Rates(
        fastest(lambda: x @ weight) / (2 * x.numel() * 4 * width),
        fastest(lambda: many * many) / NUMBERS,
        fastest(lambda: [one.add_(one) for _ in range(100)]) / 100,
    )


def print_dry_run(composed: Jobs, *, retry: bool) -> int:
    """Validate every job, estimate, print; return 0, or 1 where one does not fit into memory.

    Raises UserError as a real run would, RunError for a corpus or tokenizer that would have to be fetched.
    """
    go_offline()
    for one in composed.jobs:
        data = one.settings["data"]
        if is_streamed(data) and known_figures(pinned_identity(data)) is None:
            problem = f"data={data['name']} is not here yet, and a dry run fetches nothing"
            raise RunError(problem, hint=f"posenc data prepare data={data['name']}")
    known: dict[str, Estimate] = {}  # by the settings that decide how long a job takes
    estimated = []
    for _, job in seed_by_seed(check_jobs("train", composed)):
        assert isinstance(job, TrainJob)
        cost = {name: value for name, value in job.settings.items() if name not in NO_COST}
        cost["train"] = {**job.settings["train"], "lr": None}
        key = json.dumps(cost, sort_keys=True, default=str)
        if key not in known:
            known[key] = estimate(job, rates_of(job))
        job.facts.loaded = None
        estimated.append((job, known[key]))
    return _print(estimated, retry)


def _print(estimated: list[tuple[TrainJob, Estimate]], retry: bool) -> int:
    """Print the time of all, a row for each job, and what a single one does."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    for head in ("parameters", "training", "evaluation", "memory"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("state")
    total, code, device = 0.0, 0, estimated[0][0].device
    here = psutil.Process().memory_info().rss if device.type == "cpu" else 0
    free = free_memory() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    lines = []
    for job, found in estimated:
        state = run_state(job.directory, job.settings["eval"], retry)
        if state == OPEN:
            total += found.training_seconds + found.evaluation_seconds
            state = "to run" if found.memory <= free else f"does not fit: {_mb(free)} free"
            code = max(code, int(found.memory > free))
        times = _about(found.training_seconds), _about(found.evaluation_seconds)
        row = f"{found.parameters:,}", *times, _mb(found.memory + here)
        table.add_row(Text(visible(job.directory.name)), *row, state)
        length, windows = job.settings["context_length"], job.evaluation.windows
        lines += corpus_notes(job.facts, job.evaluation.split, max(windows), length)
    if len(estimated) == 1:
        if total:  # so long a run takes to begin, too
            total += time.time() - psutil.Process().create_time()
        speed = f"{job.steps * job.batch_windows * length / found.training_seconds:,.0f} tokens/s"
        lines = [
            "",
            f"run        {job.directory}",
            f"training   {job.steps:,} steps, a batch is ({job.batch_windows}, {length}): "
            f"{job.batch_windows * length:,} tokens; {speed} in {job.precision}",
            f"evaluation {', '.join(job.evaluation.protocols)} at {', '.join(map(str, windows))} tokens",
            *(f"left out   {problem}" for problem in found.problems),
            *lines,
        ]
    console = Console(width=terminal_width(), highlight=False)
    how_many = "1 job" if len(estimated) == 1 else f"{len(estimated)} jobs, one after the other,"
    console.print(Text(f"About {_about(total)} for {how_many} on {device}; nothing was written.\n"))
    console.print(table)
    for line in dict.fromkeys(lines):
        console.print(Text(visible(line)))
    return code


def lengths_alone(facts: CorpusFacts, tokenizer: Mapping[str, Any]) -> TokenStore:
    """Return a store whose documents have the corpus's lengths, in one and the same token."""
    if tokenizer["name"] == "bpe":  # building it would train it, and keep it
        vocab_size = int(tokenizer["vocab_size"])
    else:
        vocab_size = build_tokenizer(tokenizer, facts).vocab_size
    each = 1.0 if tokenizer["name"] == "bytes" else BYTES_A_TOKEN
    splits, start = {}, 0
    for name in SPLITS:
        lengths = (np.array(facts.sizes[name], dtype=np.int64) / each).astype(np.int64)
        places = start + np.cumsum(lengths) - lengths
        splits[name] = Split([str(i) for i in range(len(lengths))], places, lengths)
        start += int(lengths.sum())
    tokens = np.broadcast_to(np.uint8(0), max(1, start))  # of one byte, whatever the corpus's size
    return TokenStore(tokens, None, facts.fingerprint, vocab_size, dict(tokenizer), splits)


def estimate(job: TrainJob, rates: Rates) -> Estimate:
    """Count what the run does; nothing of the model's size is made."""
    store = lengths_alone(job.facts, job.settings["tokenizer"])
    with torch.device("meta"):
        size = vocabulary(job.settings["data"].get("plant"), store)
        model = build_decoder(job.settings, job.shape, size)
    parameters, length = count_parameters(model)["total"], job.settings["context_length"]
    batch, shape = job.batch_windows * length, job.shape
    step = STEP * _forward(model, rates, length, batch, batch)
    subject, request = subject_and_request(job, model, store)
    passes: dict[tuple[Any, ...], float] = {}  # several protocols share a pass
    problems = []
    for cell in plan_cells(subject, request, job.evaluation.protocols):
        targets = getattr(cell.plan, "block", None) or getattr(cell.plan, "stride", None) or cell.window
        try:
            inputs = n_inputs(model.effective_encoding, cell.window, targets)
        except NotApplicableError as reason:
            problems.append(f"{cell.module.NAME} at {cell.window}: {reason}")
            continue
        tokens = cell.plan.tokens(cell.window) * inputs / cell.window
        text = getattr(cell.plan, "blocks", cell.plan).hash
        passes[inputs, text] = _forward(model, rates, inputs, tokens, job.evaluation.batch_tokens)
    number = 2.5 if job.precision == "bf16" else 4.0  # bytes: some stay in float32
    kept = KEPT_A_WIDTH * shape.d_model + KEPT_A_SCORE * shape.n_heads * length
    return Estimate(
        parameters=parameters,
        training_seconds=job.steps * (step + UPDATE_TIMES * parameters * rates.times),
        evaluation_seconds=sum(passes.values()),
        memory=16.0 * parameters + number * batch * shape.n_layers * kept,
        problems=problems,
    )


def _forward(model: Decoder, rates: Rates, window: int, n_tokens: float, batch_tokens: int) -> float:
    """Return the seconds of forward passes over `n_tokens` tokens, in windows of `window`."""
    shape = model.shape
    times = TIMES_A_WIDTH * shape.d_model + TIMES_A_SCORE * shape.n_heads * window
    seconds = n_tokens * (forward_flops(model, window) * rates.flop + shape.n_layers * times * rates.times)
    seconds += n_tokens / max(batch_tokens, window) * shape.n_layers * CALLS_A_LAYER * rates.call
    short, long = model.effective_encoding.cost
    return seconds * (short + (long - short) * max(0.0, math.log2(window / 64)) / 3)


def _about(seconds: float) -> str:
    """Return the two digits that such an estimate has: `12 s`, `4 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e10 else f"{size / 1e9:,.1f} GB"
