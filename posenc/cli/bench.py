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
from dataclasses import replace
from typing import Any

from posenc.cli.bench_case import Case, cases, with_bases
from posenc.config.checks import whole
from posenc.config.compose import compose_jobs
from posenc.config.overrides import key_of, parse, refuse_unknown_flags
from posenc.core.console import say, shown
from posenc.core.errors import RunError, UserError, visible
from posenc.report.bench import FORMATS, render
from posenc.report.table import width_of, write
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.running.told import debugging

SCHEMA_VERSION = 1
CELL = "from posenc.cli.bench_cell import main; main()"


def run_bench(arguments: Sequence[str], *, repeats: int, lengths: str, format: str) -> int:
    """Measure what the overrides choose and print it. 0; 1 where nothing could be measured; 130, 143.

    Raises UserError.
    """
    if format not in FORMATS:
        raise UserError("--format", format, "no such format", allowed=list(FORMATS))
    whole("--repeats", repeats, least=1)
    refuse_unknown_flags("bench", list(arguments))
    line = parse(list(arguments))
    if line.asks_hydra:
        raise UserError("bench", None, "prints no configuration", hint="posenc train --cfg job does")
    for override in line.overrides:
        if key_of(override) in ("eval.lengths", "eval.protocols"):
            hint = "lengths to evaluate at: --eval-lengths 1x,8x"
            raise UserError(key_of(override), None, "is not read by bench", hint=hint)
    composed = compose_jobs("train", replace(line, multirun=True))  # commas need no -m here
    chosen = with_bases(cases(composed.jobs, repeats=repeats, lengths=lengths))
    with StopFlag() as stop:
        try:
            document = _measured(chosen, repeats)
        except InterruptedRunError:
            say(f"{stop.name}: stopped, nothing is kept; the same command begins again")
            return stop.exit_code
    write(render(document, format, width_of(sys.stdout)), sys.stdout)
    return 0 if any("seconds" in cell["training"] for cell in document["cells"]) else 1


def _measured(chosen: Sequence[Case], repeats: int) -> dict[str, Any]:
    machine, rates = _rates(chosen)
    answers: dict[str, dict[str, Any]] = {}
    with shown("measured", len(chosen)) as progress:
        for number, case in enumerate(chosen):
            progress.update(number, f"{visible(case.label)} at {case.asked['settings']['context_length']}")
            answers[case.identity] = _answer(case.asked)
    _, later = _rates(chosen)  # other work on the machine may have slowed the first ones
    for yardstick, rate in later.items():
        rates[yardstick] = max(rates[yardstick], rate, key=lambda one: one.get("flops_per_second", 0.0))
    return {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "rates": list(rates.values()),
        "repeats": repeats,
        "cells": [_cell(case, answers, rates[case.yardstick]) for case in chosen],
    }


def _rates(chosen: Sequence[Case]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The machine, and the best rate of matrix products by device and precision."""
    machine: dict[str, Any] = {}
    rates = {}
    for yardstick in dict.fromkeys(case.yardstick for case in chosen):
        alike = [case for case in chosen if case.yardstick == yardstick]
        shapes = list(dict.fromkeys(shape for case in alike for shape in case.products))
        device, precision = json.loads(yardstick)
        answer = _answer({"kind": "rate", "device": device, "precision": precision, "shapes": shapes})
        machine = machine or answer.get("machine", {})
        if "rate" not in answer:
            say(f"no rate of matrix products, so no MFU: {answer.get('reason')}")
        rates[yardstick] = {"device": device, "precision": precision, **answer.get("rate", {})}
    if not machine:
        raise RunError(
            "the process that measures cannot be started", hint="posenc doctor says what is missing"
        )
    return machine, rates


def _answer(asked: dict[str, Any]) -> dict[str, Any]:
    """What a process of its own measures."""
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
    """One cell of the document: what was asked and measured, medians, and all of it relative to the base."""
    asked, answer = case.asked, answers[case.identity]
    base = answers[case.base().identity]
    lost = {"reason": answer["reason"]} if "reason" in answer else {}
    training = _figures(answer.get("training", lost), base.get("training", {}))
    if "tokens_per_second" in training and "flops_per_second" in rate:
        useful = answer["flops_per_token"] * training["tokens_per_second"]
        training["mfu"] = useful / rate["flops_per_second"]
    evaluation = []
    for i, window in enumerate(asked["windows"]):
        mine = answer["evaluation"][i] if "evaluation" in answer else {"window": window, **lost}
        evaluation.append(_figures(mine, base["evaluation"][i] if "evaluation" in base else {}))
    keys = ("model", "vocab_size", "batch_windows", "precision", "compile", "device", "wanted")
    sizes = ("parameters", "product_weights", "flops_per_token")
    return {
        "label": case.label,
        "base": case.base().label,
        **{key: asked["settings"][key] for key in ("encoding", "attention", "positions", "context_length")},
        **{key: asked[key] for key in keys},
        **{key: answer.get(key) for key in sizes},
        "training": training,
        "evaluation": evaluation,
    }


def _figures(mine: dict[str, Any], base: dict[str, Any]) -> dict[str, Any]:
    """Medians and ratios: of time the median over pairs with its quartiles, of memory the quotient."""
    figures = dict(mine)
    if "seconds" in mine:
        ratios = [a / b for a, b in zip(mine["seconds"], mine["base_seconds"], strict=True)]
        middle = statistics.median(mine["seconds"])
        low, _, high = (
            statistics.quantiles(ratios, n=4, method="inclusive") if len(ratios) > 1 else ratios * 3
        )
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
