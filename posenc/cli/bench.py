"""`posenc bench`: speed and memory of training and evaluation, by encoding and length.

Each cell is measured by a process of its own (posenc.cli.bench_cell); this one plans, waits and prints.
"""

from __future__ import annotations

import datetime
import json
import signal
import statistics
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch

from posenc.cli.bench_cell import Shape
from posenc.config.checks import between, check_batch_tokens, check_model, check_optimization, whole
from posenc.config.compose import ComposedJob, compose_jobs, own_overrides
from posenc.config.overrides import CommandLine, key_of
from posenc.core.console import say, shown
from posenc.core.errors import RunError, UserError, visible
from posenc.data import build_tokenizer, check_tokenizer
from posenc.encodings.options import check_positions
from posenc.encodings.registry import encoding_class, own_encodings
from posenc.evaluation import resolve_length
from posenc.evaluation.fixed_target import block_of
from posenc.model.decoder import training_flops
from posenc.report.bench import FORMATS, render
from posenc.report.writers import width_of, write
from posenc.results.settings import spoken_name
from posenc.running.build import build_decoder, resolve_parts
from posenc.running.signals import debugging
from posenc.training.compiling import resolve_compile
from posenc.training.precision import resolve_device, resolve_precision

SCHEMA_VERSION = 1
CELL = "from posenc.cli.bench_cell import main; main()"
# Overrides that stand in the title of a table, not in the names of its rows.
IN_TITLE = ("context_length", "model", "device", "seed", "train", "tokenizer", "optim", "data")


@dataclass(frozen=True)
class Case:
    """One row at one training length. `asked` is plain JSON: what a process needs to measure it."""

    label: str
    asked: dict[str, Any]

    @property
    def identity(self) -> str:
        """Equal for two jobs that would measure the same; seeds make no difference."""
        settings = {key: value for key, value in self.asked["settings"].items() if key != "seed"}
        return json.dumps({**self.asked, "settings": settings, "base": None}, sort_keys=True)

    @property
    def group(self) -> str:
        """Equal for all rows of one table: they differ in the encoding and in what acts beside it."""
        length = self.asked["settings"]["context_length"]
        without = {key: value for key, value in self.asked.items() if key not in ("settings", "base")}
        return json.dumps({**without, "context_length": length}, sort_keys=True)

    @property
    def target(self) -> tuple[str, str]:
        """Device and precision: cases with the same ones are held against the same rate of products."""
        return self.asked["device"], self.asked["precision"]

    @property
    def products(self) -> list[Shape]:
        """(m, k, n) of the products of a training step with its weights."""
        asked, model = self.asked, self.asked["model"]
        m = asked["batch_windows"] * asked["settings"]["context_length"]
        width, hidden = model["d_model"], model["mlp_ratio"] * model["d_model"]
        widths = [(width, 3 * width), (width, width), (width, hidden), (hidden, width)]
        return [(m, k, n) for k, n in [*widths, (width, asked["vocab_size"])]]

    def base(self) -> Case:
        """The case that this one is relative to: the encoding that does nothing, all else the same."""
        base = self.asked["base"]
        return Case(spoken_name(base["encoding"]) or "", {**self.asked, "settings": base})


def run_bench(line: CommandLine, *, repeats: int, lengths: str, format: str) -> int:
    """Measure what the overrides choose and print it; 0, or 1 where nothing could be measured."""
    if format not in FORMATS:
        raise UserError("--format", format, "no such format", allowed=list(FORMATS))
    whole("--repeats", repeats, least=1)
    for override in line.overrides:
        if key_of(override) in ("eval.lengths", "eval.protocols"):
            hint = "lengths to evaluate at: --eval-lengths 1x,8x"
            raise UserError(key_of(override), None, "is not read by bench", hint=hint)
    jobs = compose_jobs("train", replace(line, multirun=True)).jobs  # commas need no -m here
    document = _measured(with_bases(cases(jobs, repeats=repeats, lengths=lengths)), repeats)
    write(render(document, format, width_of(sys.stdout)), sys.stdout)
    return 0 if any("seconds" in cell["training"] for cell in document["cells"]) else 1


def cases(jobs: Sequence[ComposedJob], *, repeats: int, lengths: str) -> list[Case]:
    """Return every case once, in order. Raises UserError for wrong settings, as `posenc train` does."""
    found: dict[str, Case] = {}
    for job in jobs:
        try:
            asked = _asked(job.settings, repeats, lengths)
        except UserError as error:
            where = f"in the job {' '.join(job.overrides)}"
            raise (error.within(where) if len(jobs) > 1 else error) from None
        own = [o for o in own_overrides(job, list(jobs)) if key_of(o).partition(".")[0] not in IN_TITLE]
        one = Case(" ".join([spoken_name(job.settings["encoding"]) or "", *own]), asked)
        found.setdefault(one.identity, one)
    return list(found.values())


def with_bases(chosen: Sequence[Case]) -> list[Case]:
    """Return the cases by groups, each group's bases first; a base that was asked for keeps its label."""
    by_identity = {one.identity: one for one in chosen}
    ordered: dict[str, Case] = {}
    for group in dict.fromkeys(one.group for one in chosen):
        members = [one for one in chosen if one.group == group]
        for base in [one.base() for one in members]:
            ordered.setdefault(base.identity, by_identity.get(base.identity, base))
        for one in members:
            ordered.setdefault(one.identity, one)
    return list(ordered.values())


def _asked(settings: dict[str, Any], repeats: int, lengths: str) -> dict[str, Any]:
    """Check the settings as `posenc train` does and return what a process needs to measure them."""
    train, evaluation = settings["train"], settings["eval"]
    length = whole("context_length", settings["context_length"], least=2)
    batch_tokens = check_batch_tokens(train["batch_tokens"], length)
    shape = check_model(settings["model"])
    device = resolve_device(settings["device"])
    fraction = between("eval.target_fraction", evaluation["target_fraction"], 0, 1, open_low=True)
    n_targets = block_of(fraction, length)
    parts = {**resolve_parts(settings, length), "seed": whole("seed", settings["seed"], least=0)}
    base = {**parts, "encoding": {"name": base_name()}, "positions": check_positions({"name": "contiguous"})}
    with torch.device("meta"):  # values out of range show when it is built; nothing is allocated
        build_decoder(base, shape, vocab_size=2)
        model = build_decoder(parts, shape, vocab_size=2)
    tokens = whole("train.tokens", train["tokens"], least=1)
    return {
        "kind": "cell",
        "settings": parts,
        "base": base,
        "model": asdict(shape),
        "vocab_size": _vocabulary(settings["tokenizer"]),
        "optimization": asdict(check_optimization(train, settings["optim"])),
        "batch_windows": batch_tokens // length,
        "precision": resolve_precision(train["precision"], device),
        "compile": resolve_compile(train["compile"], device, flops=training_flops(model, length) * tokens),
        "device": str(device),
        "windows": _windows(lengths, length, n_targets),
        "wanted": n_targets,
        "eval_batch_tokens": whole("eval.batch_tokens", evaluation["batch_tokens"], least=1),
        "repeats": repeats,
    }


def base_name() -> str:
    """Return the encoding that does nothing: no hook, no parameter."""
    return next(name for name in own_encodings() if encoding_class(name).acts_on == "nothing")


def _windows(lengths: str, length: int, n_targets: int) -> list[int]:
    """Return `1x,512` as tokens, ascending."""
    if lengths.strip() == "none":
        return []
    windows = {resolve_length("--eval-lengths", one, length) for one in lengths.strip("[] ").split(",")}
    if min(windows) < n_targets:
        why = f"shorter than the {n_targets} tokens that are scored (eval.target_fraction * context_length)"
        raise UserError("--eval-lengths", min(windows), why, allowed=f"lengths from {n_targets} tokens")
    return sorted(windows)


def _vocabulary(tokenizer: dict[str, Any]) -> int:
    """Return the vocabulary's size; no tokenizer is trained for it."""
    check_tokenizer(tokenizer)
    if tokenizer["name"] == "bpe":
        return int(tokenizer["vocab_size"])
    return build_tokenizer(tokenizer, _NoText()).vocab_size


class _NoText:
    """A corpus without documents."""

    train_fingerprint = ""

    def read(self) -> list[Any]:
        return []


def _measured(chosen: Sequence[Case], repeats: int) -> dict[str, Any]:
    """Measure every case in a process of its own and return the document of `--format json`."""
    machine, rates = _rates(chosen)
    answers: dict[str, dict[str, Any]] = {}
    with shown("measured", len(chosen)) as progress:
        for number, case in enumerate(chosen):
            progress.update(number, f"{visible(case.label)} at {case.asked['settings']['context_length']}")
            answers[case.identity] = _answer(case.asked)
    return {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "rates": list(rates.values()),
        "repeats": repeats,
        "cells": [_cell(case, answers, rates[case.target]) for case in chosen],
    }


def _rates(chosen: Sequence[Case]) -> tuple[dict[str, Any], dict[tuple[str, str], dict[str, Any]]]:
    """Return the machine, and the best rate of matrix products by device and precision."""
    machine: dict[str, Any] = {}
    rates = {}
    for target in dict.fromkeys(case.target for case in chosen):
        shapes = dict.fromkeys(shape for case in chosen if case.target == target for shape in case.products)
        device, precision = target
        answer = _answer({"kind": "rate", "device": device, "precision": precision, "shapes": list(shapes)})
        machine = machine or answer.get("machine", {})
        if "rate" not in answer:
            say(f"no rate of matrix products, so no MFU: {answer.get('reason')}")
        rates[target] = {"device": device, "precision": precision, **answer.get("rate", {})}
    if not machine:
        hint = "posenc doctor says what is missing"
        raise RunError("the process that measures cannot be started", hint=hint)
    return machine, rates


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    """Return what a process of its own measures, or the reason why it does not."""
    # -P: no module of the working folder takes the place of an installed one
    command = [sys.executable, "-P", "-c", CELL]
    done = subprocess.run(command, input=json.dumps(asked), capture_output=True, text=True, check=False)
    if debugging() and done.stderr:
        say(done.stderr.rstrip())
    if done.returncode == 0:
        answer: dict[str, Any] = json.loads(done.stdout)
        return answer
    if done.returncode < 0:
        name = signal.Signals(-done.returncode).name
        return {"reason": f"killed by {name}" + (": out of memory?" if name == "SIGKILL" else "")}
    return {"reason": (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]}


def _cell(case: Case, answers: dict[str, dict[str, Any]], rate: dict[str, Any]) -> dict[str, Any]:
    """Return one cell of the document: settings, figures, medians, and all of it relative to the base."""
    asked, answer = case.asked, answers[case.identity]
    base = answers[case.base().identity]
    lost = {"reason": answer.get("reason")}
    training = _figures(answer.get("training", lost), base.get("training", {}))
    if "tokens_per_second" in training and "flops_per_second" in rate:
        useful = answer["flops_per_token"] * training["tokens_per_second"]
        training["mfu"] = useful / rate["flops_per_second"]
    own = answer.get("evaluation", [{"window": window, **lost} for window in asked["windows"]])
    others = base.get("evaluation", [{}] * len(own))
    keys = ("model", "vocab_size", "batch_windows", "precision", "compile", "device", "wanted")
    sizes = ("parameters", "product_weights", "flops_per_token")
    return {
        "label": case.label,
        "base": case.base().label,
        **{key: asked["settings"][key] for key in ("encoding", "attention", "positions", "context_length")},
        **{key: asked[key] for key in keys},
        **{key: answer.get(key) for key in sizes},
        "training": training,
        "evaluation": [_figures(mine, other) for mine, other in zip(own, others, strict=True)],
    }


def _figures(mine: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Add medians and ratios: of time the median over pairs with its quartiles, of memory the quotient."""
    figures = dict(mine)
    if "seconds" in mine:
        ratios = [a / b for a, b in zip(mine["seconds"], mine["base_seconds"], strict=True)]
        low, high = min(ratios), max(ratios)
        if len(ratios) > 1:
            low, _, high = statistics.quantiles(ratios, n=4, method="inclusive")
        middle = statistics.median(mine["seconds"])
        figures |= {
            "median_seconds": middle,
            "tokens_per_second": mine["tokens"] / middle,
            "ratio": statistics.median(ratios),
            "ratio_low": low,
            "ratio_high": high,
        }
    for kind in ("peak", "tensor"):
        if f"{kind}_bytes" in mine and f"{kind}_bytes" in base:
            figures[f"{kind}_ratio"] = mine[f"{kind}_bytes"] / base[f"{kind}_bytes"]
    return figures
