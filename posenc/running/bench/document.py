"""Measure all cases, and hold the result as `posenc bench` prints it (docs/performance.md)."""

from __future__ import annotations

import datetime
import platform
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, TypeVar

import torch

from posenc.core.device_peaks import peak_flops
from posenc.core.errors import visible
from posenc.core.machine import usable_cores
from posenc.core.progress import progress_line
from posenc.model.decoder import Decoder, count_parameters, training_flops
from posenc.running.bench.case import BenchCase, TableTitle
from posenc.running.bench.timing import Figures, measure_figures
from posenc.running.bench.work import evaluation_work, training_work
from posenc.running.run_directory import versions
from posenc.training.device import compiled_blocks

SCHEMA_VERSION = 3


@dataclass(frozen=True)
class Mfu:
    """Hold the FLOPs a second that a training needs, as a share of what the device can do."""

    share: float
    peak_flops: float  # dense FLOPs a second of the device in the precision of the row


@dataclass(frozen=True)
class BenchRow:
    """Hold one row of a table."""

    label: str
    base: str  # label of the first row of the table, with which this one was timed in turns
    title: TableTitle
    training: Figures
    evaluation: dict[int, Figures]  # by window, in tokens
    groups: dict[str, Any]  # settings of encoding, attention and positions; empty for another package's model
    n_targets: int | None = None  # scored tokens of a window
    parameters: dict[str, int] | None = None
    forward: Figures | None = None  # logits of a step's batch (scripts/bench/peers.py)
    mfu: Mfu | None = None  # of training; None: the peak of the device is not known

    def plain(self) -> dict[str, Any]:
        """Return the row as the JSON has it, without what was not measured."""
        document = {"label": self.label, "base": self.base, **self.groups, **asdict(self.title)}
        if self.n_targets is not None:
            document["n_targets"] = self.n_targets
        if self.parameters is not None:
            document["parameters"] = self.parameters
        document["training"] = self.training.plain()
        if self.mfu is not None:
            document["training"] |= {"mfu": self.mfu.share, "peak_flops": self.mfu.peak_flops}
        document["evaluation"] = [
            {"window": window, **figures.plain()} for window, figures in self.evaluation.items()
        ]
        if self.forward is not None:
            document["forward"] = self.forward.plain()
        return document


@dataclass(frozen=True)
class Machine:
    """Describe where something was measured."""

    cpu: str
    cores: int
    threads: int
    device: str
    device_name: str | None  # of a GPU
    device_bytes: int | None  # memory of a GPU
    system: str
    versions: dict[str, str]


@dataclass(frozen=True)
class BenchDocument:
    """Hold everything that a bench measured."""

    date: str
    machine: Machine
    repeats: int  # timed pairs for each figure
    rows: list[BenchRow]

    def plain(self) -> dict[str, Any]:
        """Return the JSON document."""
        return {
            "schema_version": SCHEMA_VERSION,
            "date": self.date,
            "machine": asdict(self.machine),
            "repeats": self.repeats,
            "cells": [row.plain() for row in self.rows],
        }


class Measurable(Protocol):
    """Whatever becomes a row: a case, or in scripts/bench a model of another package."""

    @property
    def label(self) -> str: ...

    @property
    def title(self) -> TableTitle: ...


Case = TypeVar("Case", bound=Measurable)


def measure_all(
    cases: Sequence[Case],
    repeats: int,
    device: torch.device,
    measure: Callable[[Case, Any, int], BenchRow],
) -> BenchDocument:
    """Measure each case beside the first case of its table, table by table.

    `measure` takes a case, the first case of the table, and `repeats`.
    """
    cases_of_tables: dict[TableTitle, list[Case]] = {}
    for case in cases:
        cases_of_tables.setdefault(case.title, []).append(case)
    rows: list[BenchRow] = []
    with progress_line("measured", len(cases)) as progress:
        # Ratios mean something only between rows of one size, length, batch and precision.
        for title, table_cases in cases_of_tables.items():
            base = table_cases[0]
            for case in table_cases:
                progress.update(len(rows), visible(f"{case.label} at {title.context_length}"))
                rows.append(measure(case, base, repeats))
    return BenchDocument(
        date=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        machine=describe_machine(device),
        repeats=repeats,
        rows=rows,
    )


def measure_case(case: BenchCase, base: BenchCase, repeats: int) -> BenchRow:
    """Measure a training step, and an evaluation at each window."""
    model = case.model()
    base_model = base.model()
    evaluation = {}
    for window in case.windows:
        make_work = partial(evaluation_work, case, model, window)
        make_base = partial(evaluation_work, base, base_model, window)
        # Each window has its own base, since the ratio of two encodings depends on the length.
        evaluation[window] = measure_figures(make_work, make_base, repeats)
    # The evaluation above is timed uncompiled, as it runs.
    compiled = case.title.compile  # the base is in the same table, so it has the same setting
    with compiled_blocks(model, compiled), compiled_blocks(base_model, compiled):
        make_work = partial(training_work, case, model)
        make_base = partial(training_work, base, base_model)
        training = measure_figures(make_work, make_base, repeats)
    settings = case.step.settings
    return BenchRow(
        label=case.label,
        base=base.label,
        title=case.title,
        training=training,
        evaluation=evaluation,
        groups={
            "encoding": settings.encoding.plain(),
            "attention": settings.attention.plain(),
            "positions": settings.positions.plain(),
        },
        n_targets=case.n_targets,
        parameters=asdict(count_parameters(model)),
        mfu=_mfu(case, model, training),
    )


def _mfu(case: BenchCase, model: Decoder, training: Figures) -> Mfu | None:
    """Return the MFU of a training; None if it was not timed, or the peak of the device is not known."""
    # Only a GPU whose data sheet is known has a peak.
    peak = peak_flops(case.step.device, case.step.precision)
    if training.timing is None or peak is None:
        return None
    flops = training_flops(model, case.step.settings.context_length)  # for each token
    return Mfu(flops * training.timing.tokens_per_second / peak, peak)


def describe_machine(device: torch.device) -> Machine:
    """Return processor, cores, threads, device and versions."""
    device_name = None
    device_bytes = None
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        device_name = properties.name
        device_bytes = properties.total_memory
    all_versions = versions()
    return Machine(
        cpu=_processor(),
        cores=usable_cores(),
        threads=torch.get_num_threads(),
        device=str(device),
        device_name=device_name,
        device_bytes=device_bytes,
        system=platform.platform(),
        versions={name: all_versions[name] for name in ("python", "posenc", "torch")},
    )


def _processor() -> str:
    """Return the processor's model, or at least its architecture."""
    # platform.processor() is often empty on Linux.
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        model = re.search(r"^model name\s*:\s*(.+)$", cpuinfo.read_text(), re.M)
        if model is not None:
            return model[1].strip()
    return platform.processor() or platform.machine()
