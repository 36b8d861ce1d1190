"""A job of a dry run, and how one or several of them are shown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.cli.estimate import Estimate
from posenc.core.console import clock
from posenc.core.errors import visible
from posenc.report.runs_table import count
from posenc.running.train_job import TrainJob
from posenc.training.checkpoint import KEPT


@dataclass
class Planned:
    """One job: where it would lie, how far it is, and what it would take (None: it does not fit)."""

    job: TrainJob
    state: str
    step: int  # done already
    found: Estimate | None
    real_tokens: bool
    vocab_size: int
    base_bytes: int | None  # what the process holds before there is a model
    problem: str | None = None

    @property
    def training_seconds(self) -> float:
        return 0.0 if self.found is None else (self.job.steps - self.step) * self.found.step_seconds

    @property
    def evaluation_seconds(self) -> float:
        return 0.0 if self.found is None or self.state == "finished" else self.found.evaluation_seconds


def print_one(console: Console, one: Planned) -> None:
    """All that is known of one job."""
    job, settings, found = one.job, one.job.settings, one.found
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(min_width=10, style="bold")
    table.add_column(overflow="fold")

    def row(name: str, *lines: str) -> None:
        table.add_row(Text(name), Text("\n".join(visible(line) for line in lines if line)))

    row("run", str(job.directory), _goes_on(one))
    if found is not None:
        parts = [f"{name} {n:,}" for name, n in found.parameters.items() if n and name != "total"]
        row("parameters", f"{found.parameters['total']:,}: {', '.join(parts)}")
    shape = job.shape
    row(
        "shapes",
        f"{shape.n_layers} layers of width {shape.d_model}, {shape.n_heads} heads of {shape.head_dim}, "
        f"vocabulary {one.vocab_size:,}",
        f"a batch is ({job.batch_windows}, {settings['context_length']}): "
        f"{job.batch_windows * settings['context_length']:,} tokens; {job.steps:,} steps",
    )
    row("corpus", *_corpus(one))
    windows = ", ".join(map(str, job.evaluation.windows))
    row("measured", f"{', '.join(job.evaluation.protocols)} at {windows} tokens")
    if found is not None:
        row("time", *_time(one, found))
        row("memory", *_memory(one, found))
        row("disk", _disk(found))
        for problem in found.problems:
            row("cannot", problem)
    if one.problem:
        row("problem", one.problem)
    console.print(table)
    console.print(Text("a dry run: nothing was written", style="dim"))


def _goes_on(one: Planned) -> str:
    return {
        "new": "new",
        "finished": "finished: the command would only print its table",
        "diverged": "diverged before: the command would refuse it without --retry",
    }.get(one.state, one.state)


def _corpus(one: Planned) -> list[str]:
    facts, job = one.job.facts, one.job
    documents, size = sum(facts.documents.values()), sum(facts.bytes.values())
    tokens = job.steps * job.batch_windows * job.settings["context_length"]
    passes = tokens / max(1, facts.bytes["train"])
    tokenizer = job.settings["tokenizer"]["name"]
    per = f", {passes:.2f} of the training text" if tokenizer == "bytes" else ""
    there = "cached" if one.real_tokens else "not tokenised yet (the real run does it first)"
    return [
        f"{facts.name}: {documents:,} documents, {size / 1e6:,.1f} MB, of them "
        f"{facts.bytes['train'] / 1e6:,.1f} MB to train on; fingerprint {facts.fingerprint[:8]}",
        f"tokens of {tokenizer}: {there}; trained on {count(tokens)}{per}",
    ]


def _time(one: Planned, found: Estimate) -> list[str]:
    tokens = one.job.batch_windows * one.job.settings["context_length"]
    rate = tokens / found.step_seconds
    whole = one.training_seconds + one.evaluation_seconds
    compiled = "; without train.compile" if one.job.settings["train"]["compile"] else ""
    parts = f"training {clock(one.training_seconds)}, evaluation {clock(one.evaluation_seconds)}"
    return [
        f"about {clock(whole)}: {parts}",
        f"{one.job.precision} on {one.job.device}: {found.steps_timed} steps timed, {rate:,.0f} tokens/s; "
        f"{max(0.01, found.evaluation_share):.0%} of the targets measured{compiled}",
    ]


def _memory(one: Planned, found: Estimate) -> list[str]:
    held = found.weight_bytes + found.optimizer_bytes
    base = one.base_bytes or 0
    training = base + held + found.gradient_bytes + found.training_peak
    evaluation = base + held + found.evaluation_peak
    where = "on the GPU" if one.job.device.type == "cuda" else f"with {_mb(base)} for Python and torch"
    return [
        f"about {_mb(max(training, evaluation))} at its peak {where}",
        f"training {_mb(training)}: weights {_mb(found.weight_bytes)}, gradients "
        f"{_mb(found.gradient_bytes)}, optimizer {_mb(found.optimizer_bytes)} (counted), "
        f"activations {_mb(found.training_peak)} (measured in one step)",
        f"evaluation at {found.longest} tokens {_mb(evaluation)}: "
        f"activations {_mb(found.evaluation_peak)} (measured)",
    ]


def _disk(found: Estimate) -> str:
    each = found.weight_bytes + found.optimizer_bytes
    return f"{_mb(KEPT * each)} for {KEPT} checkpoints, about 1 MB for results"


def print_all(console: Console, planned: Sequence[Planned]) -> None:
    """A row for each job of a sweep, and what all of them take."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    for head in ("parameters", "training", "evaluation", "memory"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("state")
    for one in planned:
        found = one.found
        numbers = ["-"] * 4
        if found is not None:
            held = found.weight_bytes + found.optimizer_bytes
            peak = max(found.gradient_bytes + found.training_peak, found.evaluation_peak)
            numbers = [
                count(found.parameters["total"]),
                clock(one.training_seconds),
                clock(one.evaluation_seconds),
                _mb((one.base_bytes or 0) + held + peak),
            ]
        table.add_row(Text(one.job.directory.name), *numbers, Text(visible(one.problem or one.state)))
    console.print(table)
    seconds = sum(one.training_seconds + one.evaluation_seconds for one in planned)
    new = sum(one.state != "finished" for one in planned)
    where = planned[0].job.device
    told = f"{len(planned)} jobs, {new} to run, about {clock(seconds)} one after the other on {where}"
    console.print(Text(told, style="bold"))
    console.print(Text("a dry run: nothing was written", style="dim"))


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e10 else f"{size / 1e9:,.1f} GB"
