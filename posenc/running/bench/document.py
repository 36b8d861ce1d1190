"""Measure all cases and return the JSON document of `posenc bench` (docs/performance.md)."""

from __future__ import annotations

import datetime
import json
import platform
import re
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from posenc.core.console import progress_line
from posenc.core.errors import visible
from posenc.core.machine import usable_cores
from posenc.model.decoder import count_parameters
from posenc.running.bench.case import BenchCase
from posenc.running.bench.timing import figures
from posenc.running.bench.work import evaluation_work, training_work
from posenc.running.run_directory import versions
from posenc.training.device import compiled_blocks

SCHEMA_VERSION = 3
RowDocument = dict[str, Any]  # an entry of `cells` in the JSON


class Titled(Protocol):
    """Whatever can be a row: a case, or in scripts/bench a model of another package."""

    @property
    def label(self) -> str: ...

    def title(self) -> dict[str, Any]: ...


Row = TypeVar("Row", bound=Titled)


def measure_all(
    rows: Sequence[Row],
    repeats: int,
    measure_row: Callable[[Row, Any, int], RowDocument],
    device: torch.device,
) -> dict[str, Any]:
    """Return the document of all rows, each measured beside the first row of its table."""
    bases: dict[str, Row] = {}
    for row in rows:
        bases.setdefault(json.dumps(row.title()), row)
    by_table = sorted(rows, key=lambda row: list(bases).index(json.dumps(row.title())))
    documents = []
    with progress_line("measured", len(rows)) as progress:
        for number, row in enumerate(by_table):
            progress.update(number, visible(f"{row.label} at {row.title()['context_length']}"))
            base = bases[json.dumps(row.title())]
            documents.append(measure_row(row, base, repeats))
    return {
        "schema_version": SCHEMA_VERSION,
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "machine": machine(device),
        "repeats": repeats,
        "cells": documents,
    }


def measure_case(case: BenchCase, base: BenchCase, repeats: int) -> RowDocument:
    """Return a row of the document: settings, parameters, figures of training and of each window."""
    model = case.model()
    base_model = base.model()
    evaluation = []
    for window in case.windows:
        make_work = partial(evaluation_work, case, model, window)
        make_base = partial(evaluation_work, base, base_model, window)
        evaluation.append({"window": window, **figures(make_work, make_base, repeats)})
    settings = case.step.settings
    compiled = bool(settings.train.compile)  # the base is in the same table, so it has the same setting
    with compiled_blocks(model, compiled), compiled_blocks(base_model, compiled):
        make_work = partial(training_work, case, model)
        make_base = partial(training_work, base, base_model)
        training = figures(make_work, make_base, repeats)
    return {
        "label": case.label,
        "base": base.label,
        "encoding": settings.encoding.plain(),
        "attention": settings.attention.plain(),
        "positions": settings.positions.plain(),
        **case.title(),
        "n_targets": case.n_targets,
        "parameters": count_parameters(model),
        "training": training,
        "evaluation": evaluation,
    }


def machine(device: torch.device) -> dict[str, Any]:
    """Return processor, cores, threads, device and versions, as plain JSON."""
    device_name = None
    device_bytes = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        device_name = properties.name
        device_bytes = properties.total_memory
    all_versions = versions()
    return {
        "cpu": _processor(),
        "cores": usable_cores(),
        "threads": torch.get_num_threads(),
        "device": str(device),
        "device_name": device_name,
        "device_bytes": device_bytes,
        "system": platform.platform(),
        "versions": {name: all_versions[name] for name in ("python", "posenc", "torch")},
    }


def _processor() -> str:
    """Return the processor's model, or at least its architecture."""
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.M)
        if model is not None:
            return model[1].strip()
    return platform.processor() or platform.machine()
