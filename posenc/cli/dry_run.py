"""`posenc train --dry-run`: sizes, memory and time of each job. Nothing is written or fetched.

Time is counted and not tried: all tokens of the run, at the rates that samples of a step's gradients, of an
update and of the evaluation's passes reach in about a second.
"""

from __future__ import annotations

import gc
import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.config.compose import Jobs
from posenc.core.console import shown
from posenc.core.errors import RunError, visible
from posenc.core.machine import peak_of, wait_for
from posenc.core.seeds import generator_for
from posenc.data import CorpusFacts, Split, TokenStore, build_tokenizer, corpus_notes
from posenc.data.corpus import known_figures
from posenc.data.documents import SPLITS
from posenc.data.hub import go_offline
from posenc.data.sources import is_streamed, pinned_identity
from posenc.data.token_cache import smallest_dtype
from posenc.evaluation.evaluate import plan_cells
from posenc.evaluation.forward_cache import (
    NotApplicableError,
    OutOfMemoryError,
    free_memory,
    n_inputs,
    window_losses,
)
from posenc.model.decoder import Decoder, count_parameters, forward_flops, training_flops
from posenc.model.fused import token_losses
from posenc.report.captions import millions
from posenc.report.writers import width_of
from posenc.running.build import build_decoder, build_model
from posenc.running.jobs import applicable, validated
from posenc.running.measure import subject_and_request
from posenc.running.run_directory import OPEN, run_state
from posenc.running.train_job import TrainJob
from posenc.training.checkpoint import KEPT
from posenc.training.device import autocast, keep_freed_memory
from posenc.training.loop import NextTokenLoss, gradients

# Jobs that differ in these, or in train.lr, alone share one estimate.
NO_COST = ("seed", "name", "experiment_name", "runs_dir", "tracking")
SAMPLE = 1.1e10  # FLOPs of a sample on a CPU: a batch of nano, 0.2 s on one core; a GPU gets whole batches
SAMPLES_OF_ALL = 4e10  # of a sweep's samples
SHORTEST, LONGEST = 16, 1 << 20  # windows that are sampled, as far as their FLOPs allow
MOST_LAYERS = 4  # of the model that is sampled: deeper ones take as much longer as they have more FLOPs
UPDATE_BYTES = 40  # a parameter: clipping and AdamW read and write weight, gradient and two moments
ADD_BYTES = 12  # a number of an addition in place, which gives the rate for it
ADDED = 1_000_000  # numbers of that sample
BYTES_A_TOKEN = 3.0  # of a vocabulary of some thousands, about
MOST_TOKENS = 20_000_000  # of random ones


@dataclass(frozen=True)
class Estimate:
    """What one run takes, in seconds and bytes."""

    parameters: Mapping[str, int]
    vocab_size: int
    training_seconds: float
    evaluation_seconds: float
    training_memory: float
    evaluation_memory: float  # at the longest window
    problems: list[str]  # protocols and windows that cannot be measured

    @property
    def weight_bytes(self) -> int:
        return 4 * self.parameters["total"]


def print_dry_run(composed: Jobs) -> int:
    """Validate every job, estimate, print; return 0, or 1 where one does not fit into memory.

    Raises UserError as a real run would, RunError for a corpus or tokenizer that would have to be fetched.
    """
    go_offline()
    for one in composed.jobs:
        _refuse_to_fetch(one.settings["data"])
    jobs = [validated("train", one.settings) for one in applicable("train", composed).jobs]
    flops = min(SAMPLE, SAMPLES_OF_ALL / len({_cost_key(job) for job in jobs}))
    known: dict[str, Estimate] = {}
    with shown("estimated", len(jobs)) as progress:
        for i, job in enumerate(jobs):
            progress.update(i, job.directory.name)
            if (key := _cost_key(job)) not in known:
                try:
                    known[key] = estimate(job, random_store(job.facts, job.settings["tokenizer"]), flops)
                except (torch.OutOfMemoryError, MemoryError) as error:
                    raise RunError(f"{job.directory.name} does not fit into memory ({error})") from error
            job.facts.loaded = None
    return _print([(job, known[_cost_key(job)]) for job in jobs])


def _print(estimated: list[tuple[TrainJob, Estimate]]) -> int:
    """Print the time of all, a row for each job, and the sizes of a single one."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    for head in ("parameters", "training", "evaluation", "memory"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("state")
    total, code, device = 0.0, 0, estimated[0][0].device
    here = psutil.Process().memory_info().rss if device.type == "cpu" else 0
    free = free_memory() if device.type == "cpu" else torch.cuda.mem_get_info(device)[0]
    for job, found in estimated:
        state = run_state(job.directory, job.settings["eval"])
        need = max(found.training_memory, found.evaluation_memory)
        if state == OPEN:
            total += found.training_seconds + found.evaluation_seconds
            state = "to run" if need <= free else f"does not fit: {_mb(free)} free"
            code = max(code, int(need > free))
        times = _about(found.training_seconds), _about(found.evaluation_seconds)
        numbers = millions(found.parameters["total"]), *times, _mb(need + here)
        table.add_row(Text(visible(job.directory.name)), *numbers, state)
    console = Console(width=width_of(sys.stdout), highlight=False)
    how_many = "1 job" if len(estimated) == 1 else f"{len(estimated)} jobs, one after the other,"
    console.print(Text(f"About {_about(total)} for {how_many} on {device}; nothing was written.\n"))
    console.print(table)
    for line in _details(*estimated[0], here) if len(estimated) == 1 else ():
        console.print(Text(visible(line)))
    for note in dict.fromkeys(note for job, _ in estimated for note in _notes(job)):
        console.print(Text(visible(note)))
    return code


def _notes(job: TrainJob) -> list[str]:
    longest, length = max(job.evaluation.windows), job.settings["context_length"]
    return corpus_notes(job.facts, job.evaluation.split, longest, length)


def _details(job: TrainJob, found: Estimate, here: int) -> list[str]:
    """Return sizes, corpus and memory of one job as lines."""
    length, shape, facts = job.settings["context_length"], job.shape, job.facts
    batch_tokens = job.batch_windows * length
    parts = ", ".join(f"{name} {n:,}" for name, n in found.parameters.items() if n and name != "total")
    speed = f"{job.steps * batch_tokens / found.training_seconds:,.0f} tokens/s in {job.precision}"
    return [
        "",
        f"run        {job.directory}",
        f"parameters {found.parameters['total']:,}: {parts}",
        f"shapes     {shape.n_layers} layers of width {shape.d_model}, {shape.n_heads} heads of "
        f"{shape.head_dim}, vocabulary {found.vocab_size:,}",
        f"training   {job.steps:,} steps, a batch is ({job.batch_windows}, {length}): "
        f"{batch_tokens:,} tokens; {speed}",
        f"corpus     {facts.name}: {sum(map(len, facts.sizes.values())):,} documents, "
        f"{sum(facts.sizes['train']) / 1e6:,.1f} MB to train on, fingerprint {facts.fingerprint[:8]}",
        f"evaluation {', '.join(job.evaluation.protocols)} at {', '.join(map(str, job.evaluation.windows))} "
        "tokens",
        f"memory     training {_mb(found.training_memory + here)}, evaluation "
        f"{_mb(found.evaluation_memory + here)}: weights {_mb(found.weight_bytes)}, "
        f"optimizer {_mb(2 * found.weight_bytes)}" + (f", Python and torch {_mb(here)}" if here else ""),
        f"disk       {_mb(KEPT * 3 * found.weight_bytes)} for {KEPT} checkpoints, about 1 MB for results",
        *(f"cannot     {problem}" for problem in found.problems),
    ]


def _refuse_to_fetch(data: Mapping[str, Any]) -> None:
    """Raise RunError for a corpus that would have to be fetched, or noted down, to be looked at."""
    pinned = pinned_identity(data)
    if is_streamed(data) and known_figures(pinned) is None:
        problem = f"data={data['name']} is not here yet, and a dry run fetches nothing"
        raise RunError(problem, hint=f"posenc data prepare data={data['name']}")


def _cost_key(job: TrainJob) -> str:
    """Return the settings that decide how long a job takes, as JSON."""
    settings = {name: value for name, value in job.settings.items() if name not in NO_COST}
    settings["train"] = {name: value for name, value in job.settings["train"].items() if name != "lr"}
    return json.dumps(settings, sort_keys=True, default=str)


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


def estimate(job: TrainJob, store: TokenStore, flops: float) -> Estimate:
    """Count what the run does and sample at what rate; a sample has about so many FLOPs."""
    keep_freed_memory()
    gc.freeze()  # or every look at the memory searches what was imported: 0.1 s
    with torch.device("meta"):
        whole = build_decoder(job.settings, job.shape, store.vocab_size)
    fewer = replace(job.shape, n_layers=min(job.shape.n_layers, MOST_LAYERS))
    model = build_model(job.settings, fewer, store.vocab_size).to(job.device)
    sampler = Sampler(job, model, whole, flops if job.device.type == "cpu" else math.inf)
    counts, length = count_parameters(whole), job.settings["context_length"]
    weights, batch = 4 * counts["total"], job.batch_windows * length
    step, held = sampler.step_rates([length])[length]
    evaluation_seconds, pass_held, problems = _evaluation(job, store, sampler)
    return Estimate(
        parameters=counts,
        vocab_size=store.vocab_size,
        training_seconds=job.steps * (batch * step + counts["total"] * sampler.update_rate()),
        evaluation_seconds=evaluation_seconds,
        training_memory=4 * weights + batch * held * job.shape.n_layers / fewer.n_layers,
        evaluation_memory=3 * weights + pass_held,
        problems=problems,
    )


def _evaluation(job: TrainJob, store: TokenStore, sampler: Sampler) -> tuple[float, float, list[str]]:
    """Return the seconds of all passes, the bytes of the longest one, and what cannot be measured."""
    subject, request = subject_and_request(job, sampler.model, store)
    passes: dict[int | None, dict[tuple[int, str], float]] = {}  # tokens, by targets of a window and by pass
    problems = []
    for cell in plan_cells(subject, request, job.evaluation.protocols):
        targets = int(getattr(cell.plan, "block", None) or getattr(cell.plan, "stride", None) or cell.window)
        try:
            window_losses(subject, store.tokens.__getitem__, 0, cell.window, targets)  # of no window
            inputs = n_inputs(subject.effective_encoding(cell.window), cell.window, targets)
        except (NotApplicableError, OutOfMemoryError) as reason:
            problems.append(f"{cell.module.NAME} at {cell.window}: {reason}")
            continue
        alike = passes.setdefault(targets if targets < inputs else None, {})  # None: all are scored
        # several protocols share a pass
        alike[inputs, cell.plan.hash] = cell.plan.tokens(cell.window) * inputs / cell.window
    seconds, held = 0.0, 0.0
    for count, alike in passes.items():
        windows = sorted({window for window, _ in alike})
        rates = sampler.pass_rates(windows, count, subject.precision)
        seconds += sum(tokens * rates[window].seconds for (window, _), tokens in alike.items())
        held = max(held, rates[windows[-1]].bytes * max(job.evaluation.batch_tokens, windows[-1]))
    return seconds, held, problems


class Rate(NamedTuple):
    """What a token takes: seconds of the whole model, bytes of the sampled one."""

    seconds: float
    bytes: float


class Sampler:
    """Time a model of few layers on few tokens: what a token takes in windows of several lengths."""

    def __init__(self, job: TrainJob, model: Decoder, whole: Decoder, flops: float) -> None:
        self.job, self.model, self.whole, self.flops = job, model, whole, flops
        self.longest = LONGEST  # window that is sampled
        while self.longest > SHORTEST and self._windows(self.longest) < 1:
            self.longest //= 2

    def step_rates(self, windows: Sequence[int]) -> dict[int, Rate]:
        """Return the rates of loss and gradients."""
        return self._line(windows, self._step)

    def pass_rates(self, windows: Sequence[int], targets: int | None, precision: str) -> dict[int, Rate]:
        """Return the rates of passes that score the last `targets` tokens, or all."""
        return self._line(
            windows, lambda window: self._pass(window, min(targets or window, window), precision)
        )

    def update_rate(self) -> float:
        """Return the seconds of the optimizer for a parameter: as fast as memory is read and written."""
        numbers, others = torch.ones(2, ADDED, device=self.job.device)
        return self._sampled(lambda: numbers.add_(others), ADDED).seconds * UPDATE_BYTES / ADD_BYTES

    def _line(self, windows: Sequence[int], sample: Callable[[int], Rate]) -> dict[int, Rate]:
        """Sample the shortest and the longest window, as far as they can be; the others lie on a line."""
        high = min(max(windows), self.longest)
        low = min(min(windows), high if high == max(windows) else high // 2)
        two = sample(high)
        one = two if low == high else sample(low)
        slope = (two.seconds - one.seconds) / max(1, high - low)
        least = min(one.seconds, two.seconds) / 2
        return {w: Rate(max(least, one.seconds + slope * (w - low)), two.bytes) for w in windows}

    def _step(self, window: int) -> Rate:
        tokens, pos = self._batch(window)
        job, loss_of = self.job, NextTokenLoss(self.model.train())
        batch, clip = (tokens[:, :-1], tokens[:, 1:].contiguous(), pos), job.optimization.grad_clip

        def run() -> None:
            self.model.zero_grad()
            gradients(loss_of, *batch, precision=job.precision, grad_clip=clip)

        return self._sampled(run, tokens.shape[0] * window, window)

    @torch.no_grad()
    def _pass(self, window: int, targets: int, precision: str) -> Rate:
        (tokens, pos), encoding = self._batch(window), self.model.eval().effective_encoding

        def run() -> None:
            with autocast(precision, self.job.device):
                hidden = self.model.hidden(tokens[:, :-1], pos, targets, encoding)
            weight = self.model.embedding.weight.to(hidden.dtype)
            token_losses(hidden.flatten(0, 1), weight, tokens[:, -targets:].flatten())

        return self._sampled(run, tokens.shape[0] * window, window)

    def _batch(self, window: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return random windows (B, T + 1) and their positions (T,)."""
        batch_tokens = self.job.batch_windows * self.job.settings["context_length"]
        count = int(max(1, min(self._windows(window), batch_tokens // window)))
        tokens = torch.randint(self.model.vocab_size, (count, window + 1), device=self.job.device)
        return tokens, self.model.positions(window, generator_for(0, "dry run"))

    def _windows(self, window: int) -> float:
        """Return how many windows a sample's FLOPs allow."""
        return self.flops / (training_flops(self.model, window) * window)

    def _sampled(self, run: Callable[[], object], tokens: int, window: int = 0) -> Rate:
        # on a CPU the thread's own seconds: what other processes take does not count
        clock = time.thread_time if self.job.device.type == "cpu" else time.perf_counter

        def timed() -> float:
            wait_for(self.job.device)
            began = clock()
            run()
            wait_for(self.job.device)
            return clock() - began

        timed()  # the first time sets up
        with peak_of(self.job.device) as held:
            seconds = timed()
        seconds = min(seconds, timed())
        deeper = forward_flops(self.whole, window) / forward_flops(self.model, window) if window else 1.0
        return Rate(seconds * deeper / tokens, held[0] / tokens)


def _about(seconds: float) -> str:
    """Return the two digits that such an estimate has: `12 s`, `4 min`, `2.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e10 else f"{size / 1e9:,.1f} GB"
