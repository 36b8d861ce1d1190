"""Measure one cell of `posenc bench` in a process of its own: JSON on stdin, JSON on stdout.

A process for each cell, so that its peak is its own, and running out of memory ends nothing but the cell.
"""

from __future__ import annotations

import json
import math
import platform
import re
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from posenc.core.errors import first_line
from posenc.core.machine import LiveTensors, compiler_works, peak_of, usable_cores, wait_for
from posenc.core.seeds import generator_for, seed_for
from posenc.data import Split, TokenStore
from posenc.evaluation.forward_cache import DRAWS, EvalContext, window_losses
from posenc.model.decoder import Decoder, ModelShape, count_parameters, product_weights, training_flops
from posenc.running.build import build_model
from posenc.running.run_directory import versions
from posenc.running.signals import debugging
from posenc.training.device import compiled_blocks, keep_freed_memory
from posenc.training.loop import NextTokenLoss, gradients, update
from posenc.training.optimizer import Optimization, build_optimizer

SHORTEST = 0.05  # seconds of a sample: several calls, where one is shorter
WARM_UP = 2  # calls before anything is timed
PRODUCT_SECONDS = 0.1  # of products for each shape
SQUARE = {"cuda": 8192}  # side of the large square product
SMALLER_SQUARE = 1024  # elsewhere: 2048 was no faster on two cores

Settings = dict[str, Any]


def main() -> None:
    """Answer one request. What cannot be measured has a `reason` instead of figures."""
    answer_to, sys.stdout = sys.stdout, sys.stderr  # a plug-in may print
    asked, answer = json.load(sys.stdin), dict[str, Any]()
    with _reason_in(answer):
        device = torch.device(asked["device"])
        answer["machine"] = machine(device)
        answer |= measure(asked, device)
    json.dump(answer, answer_to)


@dataclass(frozen=True)
class Work:
    """Something to repeat: `tokens` go through the model each time, `held` bytes are always there."""

    model: Decoder
    run: Callable[[], object]
    tokens: int
    held: int

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def tensors(self) -> list[torch.Tensor]:
        return [*self.model.parameters(), *self.model.buffers()]

    def peak(self) -> int:
        """Return the bytes at the peak of one call, weights and moments counted, the rest measured."""
        with peak_of(self.device) as found:
            self.run()
            wait_for(self.device)
        return self.held + found[0]


def training(asked: Settings, settings: Settings, model: Decoder) -> Work:
    """Return a step as posenc.training.loop makes it: loss, gradients, clipping, AdamW."""
    length, seed, device = settings["context_length"], settings["seed"], next(model.parameters()).device
    how = Optimization(**{**asked["optimization"], "betas": tuple(asked["optimization"]["betas"])})
    optimizer, loss_of = build_optimizer(model, how), NextTokenLoss(model)
    drawn = torch.Generator().manual_seed(seed_for(seed, "bench"))
    size = (asked["batch_windows"], length + 1)
    tokens = torch.randint(asked["vocab_size"], size, generator=drawn).to(device)
    inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

    def step() -> None:
        model.train()
        pos = model.positions(length, generator_for(seed, "positions", 0))
        gradients(loss_of, inputs, targets, pos, precision=asked["precision"], grad_clip=how.grad_clip)
        update(optimizer, how.lr)

    step()  # makes the moments
    moments = (value for state in optimizer.state.values() for value in state.values())
    held = _weights(model) + sum(one.nbytes for one in moments if isinstance(one, torch.Tensor))
    return Work(model, step, inputs.numel(), held)


def evaluation(asked: Settings, window: int, settings: Settings, model: Decoder) -> Work:
    """Return one batch of windows as fixed-target has them: their last `n_targets` targets are scored."""
    tokens = np.random.default_rng(0).integers(asked["vocab_size"], size=2 * window + 1)
    split = Split(["random"], np.array([0]), np.array([len(tokens)]))
    context = EvalContext(
        model=model,
        train_length=settings["context_length"],
        seed=settings["seed"],
        precision=asked["precision"],
        device=next(model.parameters()).device,
        store=TokenStore(tokens, None, "", asked["vocab_size"], {"name": "random"}, {"test": split}),
        split="test",
        batch_tokens=asked["eval_batch_tokens"],
    )
    count = max(1, asked["eval_batch_tokens"] // window)
    if "positions" in model.effective_encoding.hooks:
        count *= DRAWS  # windows with positions of their own go in batches of their own

    def tokens_of(i: int) -> np.ndarray:
        return tokens[i % window : i % window + window + 1]

    def score() -> None:
        window_losses(context, tokens_of, count, window, asked["n_targets"])

    return Work(model, score, count * window, _weights(model))


def _weights(model: Decoder) -> int:
    return sum(one.nbytes for one in (*model.parameters(), *model.buffers()))


def measure(asked: Settings, device: torch.device) -> dict[str, Any]:
    """Return sizes, and figures of each evaluation window and of training, timed in turns with the base."""
    keep_freed_memory()
    shape, size, compiled = ModelShape(**asked["model"]), asked["vocab_size"], asked["compile"]
    chosen = asked["settings"], asked["base"]
    both = [(settings, build_model(settings, shape, size).to(device)) for settings in chosen]
    own = both[0][1]
    answer: dict[str, Any] = {
        "parameters": count_parameters(own),
        "product_weights": product_weights(own),
        "flops_per_token": training_flops(own, asked["settings"]["context_length"]),
        "evaluation": [{"window": window} for window in asked["windows"]],
        "training": {},
    }
    for into in answer["evaluation"]:
        _compare(into, partial(evaluation, asked, into["window"]), both, asked["repeats"], compiled=False)
    if compiled and not compiler_works(device):
        answer["training"]["reason"] = "torch.compile does not work here"
        return answer
    with compiled_blocks(both[0][1], compiled), compiled_blocks(both[1][1], compiled):
        _compare(answer["training"], partial(training, asked), both, asked["repeats"], compiled=compiled)
    return answer | {"products_per_second": products_per_second(asked, device)}


def _compare(
    into: dict[str, Any],
    work_of: Callable[[Settings, Decoder], Work],
    both: list[tuple[Settings, Decoder]],
    repeats: int,
    *,
    compiled: bool,
) -> None:
    """Add peaks and times of the work with the first model, in turns with that of the second, the base."""
    with _reason_in(into):
        began = perf_counter()
        mine = work_of(*both[0])
        mine.run()  # sets up, compiles
        wait_for(mine.device)
        into |= {"tokens": mine.tokens, "first_seconds": perf_counter() - began}
        into["peak_bytes"] = mine.peak()
        base = work_of(*both[1])
        into["tensor_bytes"] = _tensor_bytes(mine, compiled)
        into["base_tensor_bytes"] = _tensor_bytes(base, compiled)
        into |= _in_turns(mine, base, repeats)


def _tensor_bytes(work: Work, compiled: bool) -> int:
    """Return what tensors hold at the peak of the work.

    The process's own figure varies with the allocator's luck: 57 to 100 MB for one and the same batch.
    """
    if work.device.type != "cpu" or compiled:
        return work.peak()
    meter = LiveTensors()
    meter.ignore(work.tensors)
    with meter:
        work.run()
    return work.held + meter.peak


def _in_turns(mine: Work, base: Work, repeats: int) -> dict[str, Any]:
    """Return seconds of one call, `repeats` times, each beside one of the base, taken in turns.

    By hand: a Timer calls twice before each sample, which would triple the time of long ones.
    """
    for work in (mine, base):
        for _ in range(WARM_UP):
            work.run()
    calls = max(1, math.ceil(SHORTEST / _seconds(mine, 1)))
    seconds: dict[str, list[float]] = {"seconds": [], "base_seconds": []}
    for i in range(repeats):
        both = [("seconds", mine), ("base_seconds", base)]
        for name, work in both if i % 2 else reversed(both):
            seconds[name].append(_seconds(work, calls))
    return {**seconds, "calls": calls}


def _seconds(work: Work, calls: int) -> float:
    """Return the seconds of one call, the mean of several in a row."""
    wait_for(work.device)
    began = perf_counter()
    for _ in range(calls):
        work.run()
    wait_for(work.device)
    return (perf_counter() - began) / calls


@contextmanager
def _reason_in(into: dict[str, Any]) -> Iterator[None]:
    """Put the reason into `into` if the work inside fails; what was known before stays."""
    try:
        yield
    except Exception as error:
        if debugging():
            traceback.print_exc()
        into["reason"] = first_line(error)


def products_per_second(asked: Settings, device: torch.device) -> float:
    """Return the best FLOP/s of matrix products, over those of a training step and a large square."""
    model, m = asked["model"], asked["batch_windows"] * asked["settings"]["context_length"]
    width, hidden = model["d_model"], model["mlp_ratio"] * model["d_model"]
    widths = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
    side = SQUARE.get(device.type, SMALLER_SQUARE)
    dtype = torch.bfloat16 if asked["precision"] == "bf16" else torch.float32
    best = 0.0
    for a, b, c in [(side, side, side), *((m, k, n) for k, n in [*widths, (width, asked["vocab_size"])])]:
        given = {"x": torch.randn(a, b, device=device).to(dtype), "linear": F.linear}
        given["weight"] = torch.randn(c, b, device=device).to(dtype)
        timer = Timer("linear(x, weight)", globals=given, num_threads=torch.get_num_threads())
        seconds = min(timer.blocked_autorange(min_run_time=PRODUCT_SECONDS).times)
        best = max(best, 2.0 * a * b * c / seconds)
    return best


def machine(device: torch.device) -> dict[str, Any]:
    """Return processor, cores, threads, device and versions, as plain JSON."""
    cuda = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    cpuinfo = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text() if cpuinfo.exists() else "", re.M)
    return {
        "cpu": found[1].strip() if found else platform.processor() or platform.machine(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": None if cuda is None else cuda.name,
        "device_bytes": None if cuda is None else cuda.total_memory,
        "system": platform.platform(),
        "versions": {name: n for name, n in versions().items() if name in ("python", "torch", "posenc")},
    }
