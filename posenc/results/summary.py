"""A run in a few numbers: its progress, its headline losses, and what continues it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from posenc.core.run_states import DIVERGED, FINISHED, RESUMABLE, RUNNING
from posenc.results.pools import members_of, pool_of
from posenc.results.records import HEADLINE
from posenc.results.runs import (
    METRICS_FILE,
    Run,
    StoredSettings,
    encoding_name,
    last_metrics,
    resume_command,
)
from posenc.settings.tree import RunSettings

LARGEST = 1e18  # a larger number means that the file is damaged, or not one of posenc


@dataclass(frozen=True, kw_only=True)
class RunSummary:
    """A run in a few numbers. None stands for what is not known."""

    path: str
    status: str
    seed: int | None
    reason: str | None  # why it is in this state
    experiment: str | None
    encoding: str | None
    model: str | None
    context_length: int | None  # T, tokens
    corpus: str | None  # the training corpus; for a model that posenc did not train, the one measured on
    fingerprint: str | None  # of the training corpus; null until it is read
    precision: str | None  # fp32 or bf16; `auto` until it is resolved
    tokens: int | None  # trained on so far
    tokens_asked: int | None  # to train on in all
    tokens_per_second: float | None
    training_loss: float | None  # nats per token, the last one
    written: float | None  # time of the last write, seconds since the epoch
    seconds_left: float | None  # of training, while it is running
    host: Any
    pid: Any
    nats_at_train_length: float | None
    longest_multiple: float | None  # of T
    nats_at_longest: float | None
    continue_: str | None  # the command that continues it; `continue` in JSON

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        return {field.name.rstrip("_"): getattr(self, field.name) for field in fields(self)}


def summarize(run: Run) -> RunSummary:
    """Return the summary of a run directory."""
    facts: Mapping[str, Any] = run.facts or {}
    last = last_metrics(run.path)
    tokens, planned = _tokens(run, facts, last)
    speed = _number(facts.get("tokens_per_second") or last.get("tokens_per_second"))
    # Only of a run that trains. What is left of a run that stopped depends on when somebody continues it.
    seconds_left = None
    if run.state == RUNNING and planned and speed and tokens is not None:
        seconds_left = max(0.0, (planned - tokens) / speed)
    losses = headline_losses(run)
    longest = max((multiple for multiple in losses if multiple > 1), default=None)
    # What results.json does not say is taken from the settings: all of it before there are results, and the
    # text that a model was measured on if posenc did not train it.
    settings = run.settings
    planned_model = settings.model.name if isinstance(settings, RunSettings) else None
    planned_length = None if settings is None else settings.context_length
    planned_corpus = None if settings is None else settings.data.name
    trained = run.training_text
    return RunSummary(
        path=str(run.path),
        status=run.state,
        seed=run.seed,
        reason=run.reason,
        experiment=run.experiment,
        encoding=run.encoding,
        model=encoding_name(facts.get("model", planned_model)),
        context_length=_whole(facts.get("context_length", planned_length)),
        corpus=planned_corpus if trained is None else trained["name"],
        fingerprint=None if trained is None else trained["fingerprint"],
        precision=facts.get("precision", _planned_precision(settings)),
        tokens=_whole(tokens),
        tokens_asked=_whole(planned),
        tokens_per_second=speed,
        training_loss=_number(last.get("loss", facts.get("final_loss"))),
        written=_written(run),
        seconds_left=seconds_left,
        host=run.status.get("host"),
        pid=run.status.get("pid"),
        nats_at_train_length=losses.get(1.0),
        longest_multiple=longest,
        nats_at_longest=None if longest is None else losses[longest],
        continue_=_continuing_command(run),
    )


def _planned_precision(settings: StoredSettings | None) -> str | None:
    """Return the precision of the weights that the settings name."""
    if isinstance(settings, RunSettings):
        return settings.train.precision
    return None if settings is None else settings.precision


def headline_losses(run: Run) -> dict[float, float]:
    """Return the losses that `posenc compare` shows of the model as trained, by multiple of T."""
    losses = {}
    # By the same choice as `posenc compare`, so that both commands print the same loss of a run.
    for member in members_of(pool_of([run], HEADLINE)):
        if member.extension is not None:
            continue
        for multiple, measurement in member.by_multiple.items():
            if measurement.nats is not None and not measurement.note:
                losses[multiple] = measurement.nats
    return losses


def _tokens(run: Run, facts: Mapping[str, Any], last: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """Return how many tokens a run was trained on so far, and how many it should be trained on."""
    # A finished run was trained on whole updates, which may be a few tokens less than were asked for.
    if run.state == FINISHED:
        tokens = _number(facts.get("tokens"))
        return tokens, tokens
    planned = run.settings.train.tokens if isinstance(run.settings, RunSettings) else None
    tokens = _number(last.get("tokens", facts.get("tokens")))
    if tokens is None and planned and run.problem is None:
        tokens = 0.0
    return tokens, planned


def _continuing_command(run: Run) -> str | None:
    """Return the command that continues a run; None if it is running, or has nothing left to do."""
    command = resume_command(run) or "the command that began it"
    if run.state in RESUMABLE:
        return command
    # The same command alone refuses a run that diverged (running/run_directory.py).
    return f"{command} --retry" if run.state == DIVERGED else None


def _written(run: Run) -> float | None:
    """Return when the run last wrote its metrics or its status, in seconds since the epoch."""
    times = []
    with contextlib.suppress(OSError):
        times.append((run.path / METRICS_FILE).stat().st_mtime)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        times.append(datetime.fromisoformat(str(run.status.get("updated"))).timestamp())
    return max(times, default=None)


def _number(value: object) -> float | None:
    """Return a number of a file; None for anything else, and for a number that cannot be true."""
    # `not <` also refuses nan, which is not smaller than anything.
    if not isinstance(value, int | float) or not abs(value) < LARGEST:
        return None
    return float(value)


def _whole(value: object) -> int | None:
    """Return a whole number of a file; None for anything that is not a number."""
    number = _number(value)
    return None if number is None else int(number)
