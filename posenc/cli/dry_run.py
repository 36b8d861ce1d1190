"""`posenc train --dry-run`: what each job would take and where it would lie. Nothing is written."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table
from rich.text import Text

from posenc.cli.estimate import SECONDS, Estimate, estimate
from posenc.config.compose import ComposedJob, Jobs
from posenc.core.console import clock, say
from posenc.core.errors import RunError, UserError, visible
from posenc.core.machine import resident
from posenc.data import CorpusFacts, Split, TokenStore, build_tokenizer
from posenc.data.corpus import known_figures
from posenc.data.documents import SPLITS
from posenc.data.hub import go_offline
from posenc.data.registry import is_streamed, needs_network, pinned_identity
from posenc.data.token_cache import cached_tokens, entry_of, open_entry, smallest_dtype
from posenc.evaluation.eval_memory import OutOfMemoryError
from posenc.report.captions import millions
from posenc.report.runs_table import DIVERGED, FINISHED
from posenc.report.writers import color_of, width_of
from posenc.running.jobs import each_once, validated
from posenc.running.run_directory import is_finished, read_status
from posenc.running.signals import RETRY
from posenc.running.train_job import TrainJob
from posenc.training.checkpoint import KEPT

# Jobs that differ in these, or in train.lr, alone share one estimate.
NO_COST = ("seed", "name", "experiment_name", "runs_dir", "tracking")
SECONDS_OF_ALL = 60.0  # for the estimates of a sweep: the more there are, the shorter each
BYTES_A_TOKEN = 3.0  # of a vocabulary of some thousands, about
MOST_TOKENS = 20_000_000  # of random ones
GOES_ON = {
    FINISHED: "finished: the command would only print its table",
    DIVERGED: "diverged before: the command would refuse it without --retry",
}


@dataclass
class Planned:
    """One job: its state on disk, the steps that are done, and what it would take (None: does not fit)."""

    job: TrainJob
    state: str
    step: int
    found: Estimate | None
    real_tokens: bool
    vocab_size: int
    base_bytes: int  # what the process holds before there is a model
    problem: str | None = None

    @property
    def training_seconds(self) -> float:
        return 0.0 if self.found is None else (self.job.steps - self.step) * self.found.step_seconds

    @property
    def evaluation_seconds(self) -> float:
        return 0.0 if self.found is None or self.state == FINISHED else self.found.evaluation_seconds


def print_dry_run(composed: Jobs) -> int:
    """Validate every job, estimate, print; return 0, or 1 where one does not fit into memory.

    Raises UserError as a real run would, RunError for a corpus or tokenizer that would have to be fetched.
    """
    go_offline()
    for number, one in enumerate(composed.jobs, 1):
        checked = _validated(one, number, len(composed.jobs))
        if len(composed.jobs) > 1:
            checked.facts.loaded = None  # all texts at once may be gigabytes
    jobs = [validated("train", one.settings) for one in each_once(composed).jobs]
    base, planned, load = resident("VmRSS") or 0, [], _high_load()
    known: dict[str, tuple[Any, ...]] = {}
    seconds = min(SECONDS, SECONDS_OF_ALL / len({_cost_key(job) for job in jobs}))
    for i, job in enumerate(jobs, 1):
        if len(jobs) > 1:
            say(f"[{i}/{len(jobs)}] {job.directory.name}")
        key = _cost_key(job)
        if key not in known:
            known[key] = _estimated(job, seconds)
        found, real, vocab_size, problem = known[key]
        planned.append(Planned(job, *_state(job), found, real, vocab_size, base, problem))
    color = "auto" if color_of(sys.stdout) else None
    console = Console(width=width_of(sys.stdout), highlight=False, color_system=color)  # type: ignore[arg-type]
    if len(planned) == 1:
        _print_one(console, planned[0])
    else:
        _print_all(console, planned)
    console.print(Text("a dry run: nothing was written", style="dim"))
    if load is not None:
        console.print(load)
    return 1 if any(one.problem for one in planned) else 0


def _high_load() -> str | None:
    """Return a warning if other work keeps the machine busy before anything is timed."""
    try:
        load = os.getloadavg()[0]
    except (AttributeError, OSError):  # Windows
        return None
    cores = os.cpu_count() or 1
    if load < cores / 2:
        return None
    return f"the machine is at work (load {load:.1f}, {cores} cores): the times may be several times too long"


def _validated(job: ComposedJob, number: int, total: int) -> TrainJob:
    try:
        _refuse_to_fetch(job.settings["data"])
        return validated("train", job.settings)
    except UserError as error:
        where = f"in job {number} of {total} ({' '.join(job.overrides)})"
        raise error.within(where) if total > 1 else error from None


def _refuse_to_fetch(data: Mapping[str, Any]) -> None:
    """Raise RunError for a corpus that would have to be fetched, or noted down, to be looked at."""
    pinned = pinned_identity(data)
    away = needs_network(data) or is_streamed(data)
    if (away or pinned is not None) and known_figures(pinned) is None:
        problem = f"data={data['name']} is not here yet, and a dry run fetches nothing"
        raise RunError(problem, hint=f"posenc data prepare data={data['name']}")


def _cost_key(job: TrainJob) -> str:
    """Return the settings that decide how long a job takes, as JSON."""
    settings = {name: value for name, value in job.settings.items() if name not in NO_COST}
    settings["train"] = {name: value for name, value in job.settings["train"].items() if name != "lr"}
    return json.dumps(settings, sort_keys=True, default=str)


def _estimated(job: TrainJob, seconds: float) -> tuple[Estimate | None, bool, int, str | None]:
    store, real = store_for(job.facts, job.settings["tokenizer"])
    try:
        return estimate(job, store, seconds), real, store.vocab_size, None
    except OutOfMemoryError as error:
        return None, real, store.vocab_size, f"does not fit into memory: {error}"
    finally:
        job.facts.loaded = None


def _state(job: TrainJob) -> tuple[str, int]:
    """Return `new`, `finished`, `diverged` or how the run would go on, and the steps that are done."""
    if not job.directory.is_dir():
        return "new", 0
    status = read_status(job.directory).get("status")
    if status == DIVERGED:
        return ("new", 0) if RETRY in os.environ else (DIVERGED, 0)
    if is_finished(job.directory, job.settings["eval"]):
        return FINISHED, job.steps
    steps = [int(path.name[5:]) for path in (job.directory / "checkpoints").glob("step-*") if path.is_dir()]
    step = min(job.steps, max(steps, default=0))
    return f"{status or 'begun'}, would continue at step {step}", step


def store_for(facts: CorpusFacts, tokenizer: Mapping[str, Any]) -> tuple[TokenStore, bool]:
    """Return the cached tokens and True, or random ones in documents of the corpus's lengths and False."""
    cached = None
    if tokenizer["name"] != "bpe":
        built = build_tokenizer(tokenizer, facts)
        vocab_size, cached = built.vocab_size, open_entry(entry_of(facts.fingerprint, built.identity()))
    else:  # building one that is not cached would train it, and keep it
        vocab_size = int(tokenizer["vocab_size"])
        wanted = (facts.fingerprint, "bpe", vocab_size)
        for row in cached_tokens():
            if cached is None and (row["fingerprint"], row["tokenizer"], row["vocab_size"]) == wanted:
                cached = open_entry(Path(row["path"]))
    if cached is not None:
        return cached, True
    each = 1.0 if tokenizer["name"] == "bytes" else BYTES_A_TOKEN
    splits, start = {}, 0
    for name in SPLITS:
        lengths = (_document_bytes(facts, name) / each).astype(np.int64)
        lengths = lengths[np.cumsum(lengths) <= max(MOST_TOKENS // 3, lengths[:1].sum())]
        starts = start + np.cumsum(lengths) - lengths
        splits[name] = Split([str(i) for i in range(len(lengths))], starts, lengths)
        start += int(lengths.sum())
    dtype = smallest_dtype(vocab_size)
    tokens = np.random.default_rng(0).integers(0, vocab_size, size=max(1, start), dtype=dtype)
    return TokenStore(tokens, None, facts.fingerprint, vocab_size, dict(tokenizer), splits), False


def _document_bytes(facts: CorpusFacts, split: str) -> np.ndarray:
    """Return the bytes of a split's documents, equal ones where only the longest and the sum are known."""
    if facts.loaded is not None:
        return np.array([len(d.text) for d in facts.loaded if d.split == split], dtype=np.int64)
    documents = max(1, facts.documents[split])
    rest = (facts.bytes[split] - facts.longest[split]) // max(1, documents - 1)
    return np.array([facts.longest[split], *[rest] * (documents - 1)], dtype=np.int64)


def _print_one(console: Console, one: Planned) -> None:
    """Print all that is known of one job."""
    job, found, shape, facts = one.job, one.found, one.job.shape, one.job.facts
    length, tokenizer = job.settings["context_length"], job.settings["tokenizer"]["name"]
    batch_tokens = job.batch_windows * length
    tokens = job.steps * batch_tokens
    rows: list[tuple[str, list[str]]] = [("run", [str(job.directory), GOES_ON.get(one.state, one.state)])]
    if found is not None:
        parts = ", ".join(f"{name} {n:,}" for name, n in found.parameters.items() if n and name != "total")
        rows.append(("parameters", [f"{found.parameters['total']:,}: {parts}"]))
    sizes = f"{shape.n_layers} layers of width {shape.d_model}, {shape.n_heads} heads of {shape.head_dim}"
    steps = f"a batch is ({job.batch_windows}, {length}): {batch_tokens:,} tokens; {job.steps:,} steps"
    rows.append(("shapes", [f"{sizes}, vocabulary {one.vocab_size:,}", steps]))
    total, size = sum(facts.documents.values()), sum(facts.bytes.values()) / 1e6
    training = f"{facts.bytes['train'] / 1e6:,.1f} MB to train on"
    corpus = f"{facts.name}: {total:,} documents, {size:,.1f} MB, of them {training}; "
    there = "cached" if one.real_tokens else "not tokenised yet (the real run does it first)"
    seen = f"tokens of {tokenizer}: {there}; trained on {millions(tokens)}"
    if tokenizer == "bytes":
        seen += f", {tokens / max(1, facts.bytes['train']):.2f} of the training text"
    rows.append(("corpus", [f"{corpus}fingerprint {facts.fingerprint[:8]}", seen]))
    windows = ", ".join(map(str, job.evaluation.windows))
    rows.append(("measured", [f"{', '.join(job.evaluation.protocols)} at {windows} tokens"]))
    if found is not None:
        rows += [("time", _time(one, found, batch_tokens)), ("memory", _memory(one, found))]
        checkpoints = _mb(KEPT * (found.weight_bytes + found.optimizer_bytes))
        rows.append(("disk", [f"{checkpoints} for {KEPT} checkpoints, about 1 MB for results"]))
        rows += [("cannot", [problem]) for problem in found.problems]
    if one.problem:
        rows.append(("problem", [one.problem]))
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    table.add_column(min_width=10, style="bold")
    table.add_column(overflow="fold")
    for name, lines in rows:
        table.add_row(Text(name), Text("\n".join(map(visible, lines))))
    console.print(table)


def _time(one: Planned, found: Estimate, batch_tokens: int) -> list[str]:
    whole = clock(one.training_seconds + one.evaluation_seconds)
    compiled = "; without train.compile" if one.job.settings["train"]["compile"] else ""
    rate = f"{found.steps_timed} steps timed, {batch_tokens / found.step_seconds:,.0f} tokens/s"
    share = f"{max(0.01, found.evaluation_share):.0%} of the targets measured{compiled}"
    return [
        f"about {whole}: training {clock(one.training_seconds)}, evaluation {clock(one.evaluation_seconds)}",
        f"{one.job.precision} on {one.job.device}: {rate}; {share}",
    ]


def _memory(one: Planned, found: Estimate) -> list[str]:
    training, evaluation = _peaks(one, found)
    where = "on the GPU"
    if one.job.device.type != "cuda":
        where = f"with {_mb(one.base_bytes)} for Python and torch"
    return [
        f"about {_mb(max(training, evaluation))} at its peak {where}",
        f"training {_mb(training)}: weights {_mb(found.weight_bytes)}, gradients {_mb(found.weight_bytes)}, "
        f"optimizer {_mb(found.optimizer_bytes)} (counted), "
        f"activations {_mb(found.training_peak)} (measured in one step)",
        f"evaluation at {found.longest} tokens {_mb(evaluation)}: "
        f"activations {_mb(found.evaluation_peak)} (measured)",
    ]


def _peaks(one: Planned, found: Estimate) -> tuple[int, int]:
    """Return the bytes at the peak of training and of evaluation."""
    held = one.base_bytes + found.weight_bytes + found.optimizer_bytes
    return held + found.weight_bytes + found.training_peak, held + found.evaluation_peak


def _print_all(console: Console, planned: Sequence[Planned]) -> None:
    """Print a row for each job of a sweep, and what all of them take."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    table.add_column("run", overflow="fold")
    for head in ("parameters", "training", "evaluation", "memory"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("state")
    for one in planned:
        numbers = ["-"] * 4
        if one.found is not None:
            times = clock(one.training_seconds), clock(one.evaluation_seconds)
            numbers = [millions(one.found.parameters["total"]), *times, _mb(max(_peaks(one, one.found)))]
        table.add_row(Text(one.job.directory.name), *numbers, Text(visible(one.problem or one.state)))
    console.print(table)
    seconds = sum(one.training_seconds + one.evaluation_seconds for one in planned)
    new = sum(one.state != FINISHED for one in planned)
    text = f"{len(planned)} jobs, {new} to run, about {clock(seconds)} one after the other on "
    console.print(Text(text + str(planned[0].job.device), style="bold"))


def _mb(size: float) -> str:
    return f"{size / 1e6:,.0f} MB" if size < 1e10 else f"{size / 1e9:,.1f} GB"
