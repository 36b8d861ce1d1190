"""Measure one cell of `posenc bench` in a process of its own: JSON on stdin, JSON on stdout.

A process for each cell, so that its peak is its own, and running out of memory ends nothing but the cell.
"""

from __future__ import annotations

import json
import math
import platform
import re
import subprocess
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.benchmark import Timer

from posenc.core.machine import LiveTensors, peak_of, usable_cores
from posenc.core.seeds import generator_for, seed_for
from posenc.data import Split, TokenStore
from posenc.evaluation.eval_memory import OutOfMemoryError
from posenc.evaluation.forward_cache import DRAWS, EvalContext, NotApplicableError, window_losses
from posenc.model.decoder import ModelShape, count_parameters, product_weights, training_flops
from posenc.running.build import build_model
from posenc.running.run_directory import versions
from posenc.running.signals import debugging
from posenc.training.compiling import compiled_blocks, works
from posenc.training.loop import NextTokenLoss, gradients, update
from posenc.training.oom import keep_freed_memory
from posenc.training.optimizer import Optimization, build_optimizer, moments_of

SHORTEST = 0.05  # seconds of a sample: several calls, where one is shorter
WARM_UP = 2  # calls before anything is timed
PRODUCT_SECONDS = 0.25  # of products for each shape
SQUARE = {"cuda": 8192}  # side of the large square product
SMALLER_SQUARE = 1024  # elsewhere: 2048 was no faster on two cores

Shape = tuple[int, int, int]


def main() -> None:
    """Answer one request. What cannot be measured has a `reason` instead of figures."""
    answer_to, sys.stdout = sys.stdout, sys.stderr  # a plug-in may print
    asked = json.load(sys.stdin)
    device = torch.device(asked["device"])
    answer: dict[str, Any] = {}
    if asked["kind"] == "rate":
        answer["machine"] = machine(device)
        _fill(answer, lambda: {"rate": measured_rate(device, asked["precision"], asked["shapes"])})
    else:
        _fill(answer, lambda: measure(asked, device))
    json.dump(answer, answer_to)


@dataclass(frozen=True)
class Work:
    """Something to repeat: `tokens` go through the model each time, `held` bytes are always there."""

    run: Callable[[], object]
    tokens: int
    held: int


class Worker:
    """A model with its initial values on random tokens, and what is timed: a step, a batch of windows."""

    def __init__(self, asked: Mapping[str, Any], settings: Mapping[str, Any], device: torch.device) -> None:
        self.asked, self.settings, self.device = asked, settings, device
        shape = ModelShape(**asked["model"])
        self.model = build_model(dict(settings), shape, asked["vocab_size"]).to(device)
        self.weights = sum(one.nbytes for one in (*self.model.parameters(), *self.model.buffers()))
        self._training: Work | None = None

    def training(self) -> Work:
        """Return a step as posenc.training.loop makes it: loss, gradients, clipping, AdamW."""
        if self._training is None:
            self._training = self._train()
        return self._training

    def _train(self) -> Work:
        asked, length, seed = self.asked, self.settings["context_length"], self.settings["seed"]
        how = Optimization(**{**asked["optimization"], "betas": tuple(asked["optimization"]["betas"])})
        optimizer, loss_of = build_optimizer(self.model, how), NextTokenLoss(self.model)
        drawn = torch.Generator().manual_seed(seed_for(seed, "bench"))
        size = (asked["batch_windows"], length + 1)
        tokens = torch.randint(asked["vocab_size"], size, generator=drawn).to(self.device)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

        def step() -> None:
            self.model.train()
            pos = self.model.positions(length, generator_for(seed, "positions", 0))
            gradients(loss_of, inputs, targets, pos, precision=asked["precision"], grad_clip=how.grad_clip)
            update(optimizer, how.lr)

        step()  # makes the moments
        return Work(step, inputs.numel(), self.weights + sum(one.nbytes for one in moments_of(optimizer)))

    def evaluation(self, window: int) -> Work:
        """Return one batch of windows as fixed-target has them: their last `wanted` targets are scored."""
        asked = self.asked
        tokens = np.random.default_rng(0).integers(asked["vocab_size"], size=2 * window + 1)
        split = Split(["random"], np.array([0]), np.array([len(tokens)]))
        store = TokenStore(tokens, None, "", asked["vocab_size"], {"name": "random"}, {"test": split})
        subject = EvalContext(
            model=self.model,
            train_length=self.settings["context_length"],
            seed=self.settings["seed"],
            precision=asked["precision"],
            device=self.device,
            store=store,
            split="test",
            batch_tokens=asked["eval_batch_tokens"],
        )
        count = max(1, asked["eval_batch_tokens"] // window)
        if "positions" in self.model.effective_encoding.hooks:
            count *= DRAWS  # windows with positions of their own go in batches of their own

        def tokens_of(i: int) -> np.ndarray:
            return tokens[i % window : i % window + window + 1]

        def score() -> None:
            window_losses(subject, tokens_of, count, window, asked["wanted"])

        return Work(score, count * window, self.weights)


def measure(asked: Mapping[str, Any], device: torch.device) -> dict[str, Any]:
    """Return sizes, and figures of training and each evaluation window, timed in turns with the base."""
    keep_freed_memory()
    own = Worker(asked, asked["settings"], device)
    answer: dict[str, Any] = {
        "parameters": count_parameters(own.model),
        "product_weights": product_weights(own.model),
        "flops_per_token": training_flops(own.model, asked["settings"]["context_length"]),
        "evaluation": [{"window": window} for window in asked["windows"]],
        "training": {},
    }
    windows = [(into, partial(Worker.evaluation, window=into["window"])) for into in answer["evaluation"]]
    for into, work_of in windows:
        _fill(into, partial(_peak, own, work_of))
    if asked["compile"] and not works(device):
        answer["training"]["reason"] = "torch.compile does not work here"
    else:
        with compiled_blocks(own.model, asked["compile"]):
            _fill(answer["training"], partial(_peak, own, Worker.training))
    base = Worker(asked, asked["base"], device)
    for into, work_of in windows:
        if "reason" not in into:
            _fill(into, partial(_in_turns, own, base, work_of, asked["repeats"]))
    if "reason" not in answer["training"]:
        with compiled_blocks(own.model, asked["compile"]), compiled_blocks(base.model, asked["compile"]):
            _fill(answer["training"], partial(_in_turns, own, base, Worker.training, asked["repeats"]))
    return answer


def _peak(own: Worker, work_of: Callable[[Worker], Work]) -> dict[str, Any]:
    """Return bytes at the peak of the work: what the process takes, and the tensors alone.

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
    """Return seconds of one call, `repeats` times, each beside one of the base, taken in turns.

    By hand: a Timer calls twice before each sample, which would triple the time of long ones.
    """
    mine, other = work_of(own), work_of(base)
    for work in (mine, other):
        for _ in range(WARM_UP):
            work.run()
    calls = max(1, math.ceil(SHORTEST / _seconds(mine, own.device, 1)))
    seconds: dict[str, list[float]] = {"seconds": [], "base_seconds": []}
    for i in range(repeats):
        both = [("seconds", mine), ("base_seconds", other)]
        for name, work in both if i % 2 else reversed(both):
            seconds[name].append(_seconds(work, own.device, calls))
    return {**seconds, "calls": calls}


def _seconds(work: Work, device: torch.device, calls: int) -> float:
    """Return the seconds of one call, the mean of several in a row."""
    wait_for(device)
    began = perf_counter()
    for _ in range(calls):
        work.run()
    wait_for(device)
    return (perf_counter() - began) / calls


def wait_for(device: torch.device) -> None:
    """Wait until everything that was asked of the device is done."""
    if device.type != "cpu":
        torch.accelerator.synchronize(device)


def _fill(into: dict[str, Any], figures: Callable[[], dict[str, Any]]) -> None:
    """Add figures, or the reason why there are none; what was known before stays."""
    try:
        into.update(figures())
    except Exception as error:
        if debugging():
            traceback.print_exc()
        first = (str(error).strip().splitlines() or [""])[0]
        if isinstance(error, NotApplicableError | OutOfMemoryError):
            into["reason"] = first
        elif isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in first:
            into["reason"] = "out of memory"
        else:
            into["reason"] = f"{type(error).__name__}: {first}"


def measured_rate(device: torch.device, precision: str, shapes: Iterable[Shape]) -> dict[str, Any]:
    """Return the best operations per second of products (m, k) x (k, n), over the shapes and a square."""
    side = SQUARE.get(device.type, SMALLER_SQUARE)
    dtype = torch.bfloat16 if precision == "bf16" else torch.float32
    found: list[dict[str, Any]] = []
    for m, k, n in dict.fromkeys([*map(tuple, shapes), (side, side, side)]):
        x = torch.randn(m, k, device=device).to(dtype)
        weight = torch.randn(n, k, device=device).to(dtype)
        product = {"linear": F.linear, "x": x, "weight": weight}
        timer = Timer("linear(x, weight)", globals=product, num_threads=torch.get_num_threads())
        best = min(timer.blocked_autorange(min_run_time=PRODUCT_SECONDS).times)
        found.append({"shape": [m, k, n], "flops_per_second": 2.0 * m * k * n / best})
    return {**max(found, key=lambda one: one["flops_per_second"]), "shapes": found}


def machine(device: torch.device) -> dict[str, Any]:
    """Return processor, cores, threads, device and versions, as plain JSON."""
    cuda = torch.cuda.get_device_properties(device) if device.type == "cuda" else None
    return {
        "cpu": _processor(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": None if cuda is None else cuda.name,
        "device_bytes": None if cuda is None else cuda.total_memory,
        "system": platform.platform(),
        "versions": {name: n for name, n in versions().items() if name in ("python", "torch", "posenc")},
    }


def _processor() -> str:
    """Return the processor's own name, or its architecture where the system does not say."""
    text = ""
    if platform.system() == "Darwin":
        command = ["sysctl", "-n", "machdep.cpu.brand_string"]
        text = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    elif (path := Path("/proc/cpuinfo")).exists():
        found = re.search(r"^model name\s*:\s*(.+)$", path.read_text(), re.M)
        text = found[1].strip() if found else ""
    return text or platform.processor() or platform.machine()
