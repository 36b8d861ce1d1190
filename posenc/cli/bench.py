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
from posenc.results.load import spoken_name
from posenc.running.build import build_decoder, resolve_parts
from posenc.running.signals import debugging
from posenc.training.device import resolve_compile, resolve_device, resolve_precision

SCHEMA_VERSION = 2
CELL = "from posenc.cli.bench_cell import main; main()"
# Overrides that stand in the title of a table, not in the names of its rows.
IN_TITLE = ("context_length", "model", "device", "seed", "train", "tokenizer", "optim", "data")


@dataclass(frozen=True)
class Case:
    """One row at one training length. `asked` is plain JSON: what a process needs to measure it."""

    label: str
    asked: dict[str, Any]


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
    document = _measured(cases(jobs, repeats=repeats, lengths=lengths), repeats)
    write(render(document, format, width_of(sys.stdout)), sys.stdout)
    return 0 if any("seconds" in cell["training"] for cell in document["cells"]) else 1


def cases(jobs: Sequence[ComposedJob], *, repeats: int, lengths: str) -> list[Case]:
    """Return every case once, whatever its seed. Raises UserError for wrong settings, as `posenc train`."""
    found: dict[str, Case] = {}
    for job in jobs:
        try:
            asked = _asked(job.settings, repeats, lengths)
        except UserError as error:
            where = f"in the job {' '.join(job.overrides)}"
            raise (error.within(where) if len(jobs) > 1 else error) from None
        own = [o for o in own_overrides(job, list(jobs)) if key_of(o).partition(".")[0] not in IN_TITLE]
        label = " ".join([spoken_name(job.settings["encoding"]) or "", *own])
        seedless = {name: {**asked[name], "seed": 0} for name in ("settings", "base")}
        found.setdefault(json.dumps({**asked, **seedless}, sort_keys=True), Case(label, asked))
    return list(found.values())


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
        "settings": parts,
        "base": base,  # what the times are relative to: the encoding that does nothing, all else the same
        "model": asdict(shape),
        "vocab_size": _vocabulary(settings["tokenizer"]),
        "optimization": asdict(check_optimization(train, settings["optim"])),
        "batch_windows": batch_tokens // length,
        "precision": resolve_precision(train["precision"], device),
        "compile": resolve_compile(train["compile"], device, flops=training_flops(model, length) * tokens),
        "device": str(device),
        "windows": _windows(lengths, length, n_targets),
        "n_targets": n_targets,
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
    return build_tokenizer(tokenizer, None).vocab_size  # no text is read for it


def _measured(chosen: Sequence[Case], repeats: int) -> dict[str, Any]:
    """Measure every case in a process of its own and return the document of `--format json`."""
    answers = []
    with shown("measured", len(chosen)) as progress:
        for number, case in enumerate(chosen):
            progress.update(number, f"{visible(case.label)} at {case.asked['settings']['context_length']}")
            answers.append(_answer(case.asked))
    machine = next((one["machine"] for one in answers if "machine" in one), None)
    if machine is None:
        reason = f"no process could measure anything: {answers[0].get('reason')}"
        raise RunError(reason, hint="posenc doctor says what is missing")
    rates: dict[tuple[str, str], float] = {}  # the best of all cells
    for case, answer in zip(chosen, answers, strict=True):
        target = case.asked["device"], case.asked["precision"]
        rates[target] = max(rates.get(target, 0.0), answer.get("products_per_second", 0.0))
    return {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "rates": [
            {"device": device, "precision": precision, "flops_per_second": rate}
            for (device, precision), rate in rates.items()
        ],
        "repeats": repeats,
        "cells": [
            _cell(case, answer, rates[case.asked["device"], case.asked["precision"]])
            for case, answer in zip(chosen, answers, strict=True)
        ],
    }


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


def _cell(case: Case, answer: dict[str, Any], rate: float) -> dict[str, Any]:
    """Return one cell of the document: settings, figures, medians, and all of it relative to the base."""
    asked, lost = case.asked, {"reason": answer.get("reason")}
    training = _figures(answer.get("training", lost))
    if "tokens_per_second" in training and rate:
        training["mfu"] = answer["flops_per_token"] * training["tokens_per_second"] / rate
    own = answer.get("evaluation", [{"window": window, **lost} for window in asked["windows"]])
    settings = ("encoding", "attention", "positions", "context_length")
    keys = ("model", "vocab_size", "batch_windows", "precision", "compile", "device", "n_targets")
    return {
        "label": case.label,
        "base": spoken_name(asked["base"]["encoding"]),
        **{key: asked["settings"][key] for key in settings},
        **{key: asked[key] for key in keys},
        **{key: answer.get(key) for key in ("parameters", "product_weights", "flops_per_token")},
        "training": training,
        "evaluation": [_figures(one) for one in own],
    }


def _figures(measured: dict[str, Any]) -> dict[str, Any]:
    """Add medians and ratios to the base: of time the median over pairs with its quartiles."""
    if "seconds" not in measured:
        return measured
    ratios = [a / b for a, b in zip(measured["seconds"], measured["base_seconds"], strict=True)]
    quartiles = statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
    middle = statistics.median(measured["seconds"])
    return measured | {
        "median_seconds": middle,
        "tokens_per_second": measured["tokens"] / middle,
        **dict(zip(("ratio_low", "ratio", "ratio_high"), quartiles, strict=True)),
        "tensor_ratio": measured["tensor_bytes"] / measured["base_tensor_bytes"],
    }
