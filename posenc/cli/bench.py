"""`posenc bench`: speed and memory of training and evaluation, by encoding and length.

Each row is timed in turns with the first row of its table. docs/performance.md has the JSON.
"""

from __future__ import annotations

import datetime
import json
import math
import platform
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.config.compose import ComposedJob, compose_jobs, own_overrides
from posenc.config.overrides import CommandLine, key_of
from posenc.core.console import shown
from posenc.core.errors import UserError, first_line, visible
from posenc.core.machine import usable_cores, wait_for
from posenc.core.seeds import generator_for, seed_for
from posenc.core.signature import between, whole
from posenc.data import Split, TokenStore, build_tokenizer, check_tokenizer
from posenc.evaluation import resolve_length
from posenc.evaluation.fixed_target import block_of
from posenc.evaluation.forward_cache import DRAWS, EvalContext, window_losses
from posenc.model.decoder import Decoder, count_parameters
from posenc.report.table import CellText, Report, Table
from posenc.report.writers import markdown, terminal, terminal_width, write
from posenc.results.load import spoken_name
from posenc.running.build import StepPlan, build_model, check_step
from posenc.running.run_directory import versions
from posenc.training.device import LiveTensors, compiled_blocks, keep_freed_memory
from posenc.training.loop import NextTokenLoss, gradients, update
from posenc.training.optimizer import build_optimizer

SCHEMA_VERSION = 3
SHORTEST = 0.05  # seconds of a sample: several calls, where one is shorter
WARM_UP = 2  # calls before anything is timed
# Overrides that stand in the title of a table, or cost nothing; not in the names of its rows.
IN_TITLE = ("context_length", "model", "device", "seed", "train", "tokenizer", "data")


@dataclass(frozen=True)
class Case:
    """One row at one training length."""

    label: str
    step: StepPlan
    vocab_size: int
    windows: Sequence[int]  # tokens, of the evaluation
    n_targets: int
    eval_batch_tokens: int

    def title(self) -> dict[str, Any]:
        """Return what the rows of a table share, as plain JSON."""
        return {
            "model": asdict(self.step.shape),
            "vocab_size": self.vocab_size,
            "context_length": self.step.parts["context_length"],
            "batch_windows": self.step.batch_windows,
            "precision": self.step.precision,
            "compile": self.step.compile,
            "device": str(self.step.device),
        }

    def model(self) -> Decoder:
        return build_model(self.step.parts, self.step.shape, self.vocab_size).to(self.step.device)


@dataclass(frozen=True)
class Work:
    """Something to repeat: `tokens` go through the model each time, `held` bytes are always there."""

    model: nn.Module
    device: torch.device
    run: Callable[[], object]
    tokens: int
    held: int

    def seconds(self, calls: int) -> float:
        """Return the seconds of one call, the mean of several in a row."""
        wait_for(self.device)
        began = perf_counter()
        for _ in range(calls):
            self.run()
        wait_for(self.device)
        return (perf_counter() - began) / calls

    def tensor_bytes(self) -> int:
        """Return what tensors hold at the peak, without compilation.

        Not the process's own peak: with the allocator's luck it was 57 to 100 MB for one batch.
        """
        meter = LiveTensors()
        meter.ignore([*self.model.parameters(), *self.model.buffers()])
        with meter:
            self.run()
        return self.held + meter.peak


Cell = dict[str, Any]


def run_bench(line: CommandLine, *, repeats: int, lengths: str | None, format: str) -> int:
    """Measure what the overrides choose and print it; 0, or 1 where nothing could be trained."""
    whole("--repeats", repeats, least=1)
    for override in line.overrides:
        if key_of(override) in ("eval.lengths", "eval.protocols"):
            hint = "lengths to evaluate at: --eval-lengths 1x,8x"
            raise UserError(key_of(override), None, "is not read by bench", hint=hint)
    jobs = compose_jobs("train", replace(line, multirun=True)).jobs  # commas need no -m here
    keep_freed_memory()
    document = measure_all(cases(jobs, lengths or "8x"), repeats, measure)
    write(render(document, format, terminal_width()), sys.stdout)
    return 0 if any("seconds" in cell["training"] for cell in document["cells"]) else 1


def measure_all(
    chosen: Sequence[Any], repeats: int, measured: Callable[[Any, Case, int], Cell]
) -> dict[str, Any]:
    """Return the document of all cases, each measured beside the first one of its table."""
    tables: dict[str, list[Any]] = {}
    for case in chosen:
        tables.setdefault(json.dumps(case.title()), []).append(case)
    rows = [(case, some[0]) for some in tables.values() for case in some]
    cells = []
    with shown("measured", len(rows)) as progress:
        for number, (case, base) in enumerate(rows):
            progress.update(number, visible(f"{case.label} at {case.title()['context_length']}"))
            cells.append(measured(case, base, repeats))
    return {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(chosen[0].step.device),
        "repeats": repeats,
        "cells": cells,
    }


def cases(jobs: Sequence[ComposedJob], lengths: str) -> list[Case]:
    """Return every case once, whatever its seed. Raises UserError for wrong settings."""
    found: dict[str, Case] = {}
    for job in jobs:
        own = [o for o in own_overrides(job, list(jobs)) if key_of(o).partition(".")[0] not in IN_TITLE]
        label = " ".join([spoken_name(job.settings["encoding"]) or "", *own])
        try:
            case = _case(label, job.settings, lengths)
        except UserError as error:
            where = f"in the job {' '.join(job.overrides)}"
            raise (error.within(where) if len(jobs) > 1 else error) from None
        found.setdefault(json.dumps([label, case.title()]), case)
    return list(found.values())


def _case(label: str, settings: dict[str, Any], lengths: str) -> Case:
    evaluation, tokenizer, step = settings["eval"], settings["tokenizer"], check_step(settings)
    length = step.parts["context_length"]
    fraction = between("eval.target_fraction", evaluation["target_fraction"], 0, 1, open_low=True)
    n_targets = block_of(fraction, length)
    named = [] if lengths.strip() == "none" else lengths.strip("[] ").split(",")
    windows = sorted({resolve_length("--eval-lengths", one, length) for one in named})
    if windows and windows[0] < n_targets:
        why = f"shorter than the {n_targets} tokens that are scored (eval.target_fraction * context_length)"
        raise UserError("--eval-lengths", windows[0], why, allowed=f"lengths from {n_targets} tokens")
    check_tokenizer(tokenizer)
    trained = tokenizer["name"] == "bpe"  # none is, for its size alone
    vocab_size = int(tokenizer["vocab_size"]) if trained else build_tokenizer(tokenizer, None).vocab_size
    batch_tokens = whole("eval.batch_tokens", evaluation["batch_tokens"], least=1)
    return Case(label, step, vocab_size, windows, n_targets, batch_tokens)


def measure(case: Case, base: Case, repeats: int) -> Cell:
    """Return one cell of the document: settings, parameters, figures of training and each window."""
    pairs = [(one, one.model()) for one in (case, base)]
    models, compiled = [model for _, model in pairs], case.step.compile
    evaluated = []
    for window in case.windows:
        works = [partial(_evaluation, *pair, window) for pair in pairs]
        evaluated.append({"window": window, **figures(works, repeats)})
    with compiled_blocks(models[0], compiled), compiled_blocks(models[1], compiled):
        trained = figures([partial(training, *pair) for pair in pairs], repeats)
    return {
        "label": case.label,
        "base": base.label,
        **{key: case.step.parts[key] for key in ("encoding", "attention", "positions")},
        **case.title(),
        "n_targets": case.n_targets,
        "parameters": count_parameters(models[0]),
        "training": trained,
        "evaluation": evaluated,
    }


def batch(case: Case) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a step, (B, T): random tokens."""
    size = case.step.batch_windows, case.step.parts["context_length"] + 1
    drawn = torch.Generator().manual_seed(seed_for(case.step.parts["seed"], "bench"))
    tokens = torch.randint(case.vocab_size, size, generator=drawn).to(case.step.device)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def training(case: Case, model: Any, loss: Callable[[Any], nn.Module] = NextTokenLoss) -> Work:
    """Return a step as posenc.training.loop makes it: loss, gradients, clipping, the optimizer's update."""
    plan, how, seed = case.step, case.step.optimization, case.step.parts["seed"]
    optimizer, loss_of = build_optimizer(model, how, plan.precision), loss(model)
    inputs, targets = batch(case)

    def step() -> None:
        model.train()
        pos = model.positions(inputs.shape[1], generator_for(seed, "positions", 0))
        gradients(loss_of, inputs, targets, pos, precision=plan.precision, grad_clip=how.grad_clip)
        update(optimizer, how.lr)

    step()  # makes the moments
    return Work(model, plan.device, step, inputs.numel(), 3 * weights_of(model))  # with two moments


def _evaluation(case: Case, model: Decoder, window: int) -> Work:
    """Return one batch of windows as fixed-target has them: their last `n_targets` targets are scored."""
    tokens = np.random.default_rng(0).integers(case.vocab_size, size=2 * window + 1)
    split = Split(["random"], np.array([0]), np.array([len(tokens)]))
    context = EvalContext(
        model=model,
        train_length=case.step.parts["context_length"],
        seed=case.step.parts["seed"],
        precision=case.step.precision,
        device=case.step.device,
        store=TokenStore(tokens, None, "", case.vocab_size, {"name": "random"}, {"test": split}),
        split="test",
        batch_tokens=case.eval_batch_tokens,
    )
    count = max(1, case.eval_batch_tokens // window)
    if "positions" in model.effective_encoding.hooks:
        count *= DRAWS  # windows with positions of their own go in batches of their own

    def tokens_of(i: int) -> np.ndarray:
        return tokens[i % window : i % window + window + 1]

    def score() -> None:
        window_losses(context, tokens_of, count, window, case.n_targets)

    return Work(model, case.step.device, score, count * window, weights_of(model))


def weights_of(model: nn.Module) -> int:
    return sum(one.nbytes for one in (*model.parameters(), *model.buffers()))


def figures(makers: Sequence[Callable[[], Work]], repeats: int) -> dict[str, Any]:
    """Return figures of the first work, timed in turns with the second, or the reason why there are none."""
    found: dict[str, Any] = {}
    try:
        began = perf_counter()
        own = makers[0]()
        own.run()  # sets up, compiles
        wait_for(own.device)
        found |= {"tokens": own.tokens, "first_seconds": perf_counter() - began}
        base = makers[1]()
        held = own.tensor_bytes()
        found |= {"tensor_bytes": held, "tensor_ratio": held / base.tensor_bytes()}
        for work in (own, base):
            work.seconds(WARM_UP)
        calls = max(1, math.ceil(SHORTEST / own.seconds(1)))
        seconds: dict[str, list[float]] = {"seconds": [], "base_seconds": []}
        for i in range(repeats):
            both = [("seconds", own), ("base_seconds", base)]
            for name, work in both if i % 2 else reversed(both):
                seconds[name].append(work.seconds(calls))
    except Exception as error:
        return found | {"reason": first_line(error)}
    ratios = [a / b for a, b in zip(seconds["seconds"], seconds["base_seconds"], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if repeats > 1 else ratios * 3
    rate = own.tokens / statistics.median(seconds["seconds"])
    middle = dict(zip(("ratio_low", "ratio", "ratio_high"), quartiles, strict=True))
    return found | seconds | {"tokens_per_second": rate} | middle


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


def render(document: Mapping[str, Any], format: str, width: int) -> str:
    """Return the document as text: table, markdown or json; `width` in columns."""
    if format == "json":
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    tables: dict[str, Table] = {}
    reasons = []
    for cell in document["cells"]:
        compiled = ", compiled" if cell["compile"] else ""
        title = (
            f"{cell['model']['name']}, T = {cell['context_length']}, {cell['precision']} on {cell['device']}"
            f"{compiled}; a step of {cell['batch_windows']} x {cell['context_length']} tokens"
        )
        heads = ["encoding", "tokens/s", "time", "quartiles", "MB"]
        phases = [name.removeprefix("evaluation ") for name, _ in _phases(cell)][1:]
        heads += [f"{what} {phase}" for phase in phases for what in ("tokens/s", "time")]
        table = tables.setdefault(f"{title} {cell['vocab_size']}", Table(heads, [], title))
        table.rows.append([CellText(text) for text in _texts(cell)])
        for phase, found in _phases(cell):
            if "reason" in found:
                reasons.append(f"{cell['label']}, {phase}: {found['reason']}")
    notes = [
        *reasons,
        f"time: of a step or an evaluation at W tokens, relative to the first row: median (and quartiles) of "
        f"{document['repeats']} pairs, taken in turns",
        "MB: of the tensors at a step's peak",
    ]
    where = document["machine"]
    device = f"{where['device_name']}, " if where["device_name"] else ""
    threads = f"{where['threads']} of {where['cores']} cores, torch {where['versions']['torch']}"
    head = f"{device}{where['cpu']}, {threads}, {document['date'][:10]}"
    report = Report([head], "", list(tables.values()), notes, gap=True)
    return markdown([report]) if format == "markdown" else terminal([report], width, color=False)


def _texts(cell: Mapping[str, Any]) -> Iterator[str]:
    """Yield a row; `-` where nothing was measured."""
    yield cell["label"]
    for phase, found in _phases(cell):
        there = "ratio" in found
        yield f"{found['tokens_per_second']:,.0f}" if there else "-"
        yield f"{found['ratio']:.2f}x" if there else "-"
        if phase == "training":
            yield f"{found['ratio_low']:.2f}-{found['ratio_high']:.2f}" if there else "-"
            yield f"{found['tensor_bytes'] / 1e6:,.0f}" if there else "-"


def _phases(cell: Mapping[str, Any]) -> list[tuple[str, Mapping[str, Any]]]:
    evaluated = [(f"evaluation at {one['window']}", one) for one in cell["evaluation"]]
    return [("training", cell["training"]), *evaluated]
