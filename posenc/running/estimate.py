"""Estimate what a job takes without running it: parameters, seconds, memory.

Time is counted and not tried: the operations of the run, by a table of what a model does to a token, times
the rates of three operations, which are measured in a third of a second.
"""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from time import perf_counter

import numpy as np
import torch

from posenc.core.machine import wait_for
from posenc.data import CorpusFacts, Split, TokenStore, build_tokenizer, vocabulary
from posenc.data.documents import SPLITS
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.evaluate import plan_cells
from posenc.evaluation.passes import inputs_given
from posenc.model.decoder import Decoder, count_parameters, forward_flops
from posenc.running.evaluate import eval_context, request_of
from posenc.running.job import Job
from posenc.running.model_parts import build_outline
from posenc.settings.base import Mark
from posenc.settings.tree import RunSettings, TokenizerSettings
from posenc.training.device import fit_threads, keep_freed_memory

# What a layer computes for a token besides matrix products, counted in multiplications of two numbers: for
# each number of the layer's width, and for each score. Fitted on one core to nano and tiny, T = 64 and 512.
TIMES_A_WIDTH = 135
TIMES_A_SCORE = 10
CALLS_A_LAYER = 900  # the time that Python takes for a layer, counted in calls of the smallest operation
UPDATE_TIMES = 16  # multiplications for each parameter in clipping and the optimizer
PASSES_A_STEP = 3  # a step is a forward pass, and a backward pass twice as long
# Numbers that a step keeps for a token and a layer: for each number of the width, and for each score.
KEPT_A_WIDTH = 19.0
KEPT_A_SCORE = 0.6
BYTES_A_PARAMETER = 16.0  # value, gradient and two moments in float32
BYTES_A_NUMBER = {"bf16": 2.5, "fp32": 4.0}  # with bf16 some numbers stay in float32
BYTES_A_TOKEN = 3.0  # about, for a vocabulary of some thousands
CALIBRATION_SECONDS = 0.1  # of measuring each of the three rates
NUMBERS = 1 << 20  # numbers in the multiplication that is timed


@dataclass(frozen=True)
class Estimate:
    """Hold what one run takes."""

    parameters: int
    training_seconds: float
    evaluation_seconds: float
    memory: float  # bytes
    problems: list[str]  # protocols and windows that cannot be measured


@dataclass(frozen=True)
class Rates:
    """Hold the seconds of three operations on a device."""

    flop: float  # one FLOP of a matrix product
    times: float  # multiplying two numbers
    call: float  # calling the smallest operation


def cost_key(settings: RunSettings) -> str:
    """Return as text what decides how long a job takes. Jobs with equal texts share one estimate."""
    defining = settings.marked(Mark.DEFINES, Mark.SIZE)
    defining["train"].pop("lr")
    shared = {
        **defining,
        "data": settings.data.plain(),
        "eval": settings.eval.plain(),
        "device": settings.device,
        "compile": settings.train.compile,
    }
    return json.dumps(shared, sort_keys=True, default=str)


def estimate(job: Job, threads: int | None = None) -> Estimate:
    """Count what the run does. Nothing of the model's size is allocated.

    `threads` is what a sweep gives the job on a CPU; None for a run alone, which takes the free cores.
    """
    training = job.training
    assert training is not None
    settings = job.run_settings
    shape = job.shape
    store = store_of_lengths(job.facts, settings.tokenizer)
    model = build_outline(settings, shape, vocabulary(settings.data.plant, store))
    parameters = count_parameters(model).total
    length = settings.context_length
    batch_tokens = training.batch_windows * length
    rows = min(batch_tokens, 4096)
    rates = measure_rates(job.device, training.precision, shape.d_model, rows, threads)
    pass_seconds = forward_seconds(model, rates, length, batch_tokens, batch_tokens)
    step_seconds = PASSES_A_STEP * pass_seconds + UPDATE_TIMES * parameters * rates.times
    evaluation_seconds, problems = _evaluation_seconds(job, model, store, rates)
    numbers_a_token = KEPT_A_WIDTH * shape.d_model + KEPT_A_SCORE * shape.n_heads * length
    activation_bytes = BYTES_A_NUMBER[training.precision] * batch_tokens * shape.n_layers * numbers_a_token
    return Estimate(
        parameters=parameters,
        training_seconds=training.steps * step_seconds,
        evaluation_seconds=evaluation_seconds,
        memory=BYTES_A_PARAMETER * parameters + activation_bytes,
        problems=problems,
    )


def _evaluation_seconds(job: Job, model: Decoder, store: TokenStore, rates: Rates) -> tuple[float, list[str]]:
    """Return the seconds of every pass of the evaluation, and what cannot be measured, in words."""
    evaluation = job.evaluation
    context = eval_context(job, model, store)
    request = request_of(job, store)
    passes: dict[
        tuple[int, str], float
    ] = {}  # by inputs and targets: protocols that agree in them share a pass
    problems = []
    for cell in plan_cells(context, request, evaluation.protocols):
        try:
            inputs = inputs_given(model.effective_encoding, cell.window, cell.plan.targets_in(cell.window))
        except NotApplicableError as error:
            problems.append(f"{cell.protocol.name} at {cell.window}: {error}")
            continue
        tokens = cell.plan.tokens(cell.window) * inputs / cell.window
        passes[inputs, cell.plan.hash] = forward_seconds(
            model, rates, inputs, tokens, evaluation.settings.batch_tokens
        )
    return sum(passes.values()), problems


def forward_seconds(model: Decoder, rates: Rates, window: int, n_tokens: float, batch_tokens: int) -> float:
    """Return the seconds of forward passes over `n_tokens` tokens, in windows of `window`."""
    shape = model.shape
    times = TIMES_A_WIDTH * shape.d_model + TIMES_A_SCORE * shape.n_heads * window
    seconds_a_token = forward_flops(model, window) * rates.flop + shape.n_layers * times * rates.times
    calls = n_tokens / max(batch_tokens, window) * shape.n_layers * CALLS_A_LAYER
    seconds = n_tokens * seconds_a_token + calls * rates.call
    # An encoding's cost was measured at 64 and at 512 tokens, which are three doublings apart
    cost_at_64, cost_at_512 = model.effective_encoding.cost
    doublings = max(0.0, math.log2(window / 64))
    return seconds * (cost_at_64 + (cost_at_512 - cost_at_64) * doublings / 3)


@functools.cache
def measure_rates(device: torch.device, precision: str, width: int, rows: int, threads: int | None) -> Rates:
    """Time the three operations on a device, in a precision, at the sizes of a model."""
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    x = torch.ones(rows, width, device=device, dtype=dtype)
    weight = torch.ones(width, 4 * width, device=device, dtype=dtype)
    many = torch.ones(NUMBERS, device=device)
    single = torch.ones(1, device=device)
    keep_freed_memory()
    fit_threads(device)  # threads that share a core wait for each other, and take up to 100 times as long

    def fastest(run: Callable[[], object]) -> float:
        """Return the seconds of the fastest of many calls, which other processes disturb least.

        torch.utils.benchmark would do: it imports what compiles C++, which warns on a machine that has a
        torch for GPUs and none of them.
        """
        run()  # the first call sets up
        wait_for(device)
        seconds: list[float] = []
        end = perf_counter() + CALIBRATION_SECONDS
        while not seconds or perf_counter() < end:
            began = perf_counter()
            run()
            wait_for(device)
            seconds.append(perf_counter() - began)
        return min(seconds)

    threads_before = torch.get_num_threads()
    torch.set_num_threads(threads or threads_before)
    try:
        return Rates(
            flop=fastest(lambda: x @ weight) / (2 * x.numel() * 4 * width),
            times=fastest(lambda: many * many) / NUMBERS,
            call=fastest(lambda: [single.add_(single) for _ in range(100)]) / 100,
        )
    finally:
        torch.set_num_threads(threads_before)


def store_of_lengths(facts: CorpusFacts, tokenizer: TokenizerSettings) -> TokenStore:
    """Return a store whose documents are as long as the corpus's, all of the same token."""
    if tokenizer.name == "bpe":  # building the tokenizer would train it, and write it to the cache
        vocab_size = int(tokenizer.parameters["vocab_size"])
    else:
        vocab_size = build_tokenizer(tokenizer, facts).vocab_size
    bytes_a_token = 1.0 if tokenizer.name == "bytes" else BYTES_A_TOKEN
    splits: dict[str, Split] = {}
    start = 0
    for name in SPLITS:
        lengths = (np.array(facts.sizes[name], dtype=np.int64) / bytes_a_token).astype(np.int64)
        starts = start + np.cumsum(lengths) - lengths
        splits[name] = Split([str(index) for index in range(len(lengths))], starts, lengths)
        start += int(lengths.sum())
    tokens = np.broadcast_to(np.uint8(0), max(1, start))  # takes one byte of memory, however long
    return TokenStore(tokens, None, facts.fingerprint, vocab_size, tokenizer.plain(), splits)
