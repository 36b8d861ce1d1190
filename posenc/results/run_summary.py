"""Summarise runs for `posenc runs`, thousands of them: state, progress, losses, how to resume."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from posenc.results.load import SUFFIX, Run, load_run, run_places
from posenc.results.schema import HEADLINE, Record, RunFacts
from posenc.results.selection import select
from posenc.results.settings import encoding_of, value_of_key

TAIL = 4096  # bytes; a line of metrics.jsonl has about 150


@dataclass
class RunSummary:
    """One run directory. Tokens, nats per token; None where it is not known."""

    run: Run  # with the headline's records alone
    state: str  # as Run.state
    reason: str | None
    experiment: str | None = None
    encoding: str | None = None
    model: str | None = None
    context_length: int | None = None  # T
    tokens: int | None = None  # trained on so far
    tokens_asked: int | None = None
    tokens_per_second: float | None = None
    training_loss: float | None = None  # the last one logged
    losses: dict[float, float] = field(default_factory=dict)  # by multiple of T, fixed-target, as trained
    written: float | None = None  # when something was last written, seconds since the epoch

    @property
    def at_train_length(self) -> float | None:
        """The loss at T."""
        return self.losses.get(1.0)

    @property
    def longest(self) -> tuple[float, float] | None:
        """The longest measured multiple of T beyond T, and the loss there."""
        return max(((multiple, loss) for multiple, loss in self.losses.items() if multiple > 1), default=None)

    @property
    def seconds_left(self) -> float | None:
        """Of training, at the speed that is known."""
        if not (self.tokens_asked and self.tokens_per_second) or self.tokens is None:
            return None
        return max(0.0, (self.tokens_asked - self.tokens) / self.tokens_per_second)


def run_directories(paths: Iterable[str | Path]) -> list[tuple[Path, str | None]]:
    """Return the run directories below `paths` with what is wrong with them: run_places without bundles."""
    return [one for one in run_places(paths) if one[1] is not None or not one[0].name.endswith(SUFFIX)]


def bundles(paths: Iterable[str | Path]) -> list[Path]:
    """Return the bundles below `paths`."""
    return [path for path, _ in run_places(paths) if path.name.endswith(SUFFIX)]


def run_summary(path: Path) -> RunSummary:
    """Return the summary of a run directory. Never raises for what its files hold."""
    run, last = load_run(path, (HEADLINE,)), last_metrics(path)
    facts: Any = run.facts or {}
    config = run.config or {}
    train = config.get("train")
    asked = _number(train.get("tokens")) if isinstance(train, dict) else None
    finished = run.state == "finished"
    tokens = facts.get("tokens") if finished else last.get("tokens", facts.get("tokens"))
    plain = [r for r in run.records if r["protocol"] == HEADLINE and r["extend"] is None]
    return RunSummary(
        run=run,
        state=run.state,
        reason=run.reason,
        experiment=value_of_key(run, "experiment"),
        encoding=encoding_of(run),
        model=value_of_key(run, "model"),
        context_length=_whole(facts.get("context_length", config.get("context_length"))),
        tokens=_whole(tokens) if tokens is not None else (0 if asked and run.problem is None else None),
        tokens_asked=_whole(facts.get("tokens")) if finished else _whole(asked),
        tokens_per_second=_number(facts.get("tokens_per_second") or last.get("tokens_per_second")),
        training_loss=_number(last.get("loss", facts.get("final_loss"))),
        losses={} if run.facts is None else losses_by_multiple(plain, run.facts),
        written=_written(path, run.status),
    )


def last_metrics(path: Path) -> dict[str, Any]:
    """Return the last whole line of metrics.jsonl; {} without one."""
    place = path / "metrics.jsonl"
    if not place.is_file():  # opening a pipe would block
        return {}
    with contextlib.suppress(OSError), place.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        for line in reversed(file.read(TAIL).splitlines()):
            with contextlib.suppress(ValueError, RecursionError):  # a line that a kill cut short
                found = json.loads(line)
                return found if isinstance(found, dict) else {}
    return {}


def losses_by_multiple(records: Sequence[Record], facts: RunFacts) -> dict[float, float]:
    """Return the losses of one protocol and extension, of the targets that a table of this run alone shows.

    On the run's own corpus; of several sets of targets those that `select` prefers.
    """
    own = facts.get("corpus", {}).get("fingerprint")
    kept = [r for r in records if own in (None, r["fingerprint"])]
    if not kept:
        return {}
    (selected,) = select([Run(Path(), facts=facts, records=kept)], kept[0]["protocol"])
    shown = {m: r for cells in selected.cells.values() for m, r in cells.items()}
    return {m: r["nats"] for m, r in shown.items() if r["nats"] is not None and r["note"] is None}


def _written(path: Path, status: dict[str, Any]) -> float | None:
    times = []
    for name in ("metrics.jsonl", "records"):  # a folder's time is when its newest file was made
        with contextlib.suppress(OSError):
            times.append((path / name).stat().st_mtime)
    with contextlib.suppress(ValueError, OverflowError, OSError):
        times.append(datetime.fromisoformat(str(status.get("updated"))).timestamp())
    return max(times, default=None)


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None else int(number)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and abs(value) < 1e18 else None


def resume_command(run: Run) -> str | None:
    """Return `posenc train ...`, quoted for a shell; None where status.json does not name the overrides."""
    overrides = run.status.get("overrides")
    if not isinstance(overrides, list) or not all(isinstance(one, str) for one in overrides):
        return None
    return shlex.join(["posenc", "train", *overrides])
