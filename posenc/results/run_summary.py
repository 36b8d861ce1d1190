"""Summarise runs for `posenc runs`, thousands of them: state, progress and headline losses."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from posenc.results.bundle import SUFFIX
from posenc.results.load import load_run, run_places
from posenc.results.run import Run
from posenc.results.schema import HEADLINE, Record, RunFacts
from posenc.results.selection import select
from posenc.results.settings import encoding_of

TAIL = 4096  # bytes; a line of metrics.jsonl has about 150


@dataclass
class RunSummary:
    """One run directory. Tokens, nats per token; None where it is not known."""

    run: Run  # with the headline's records alone
    state: str  # as Run.state
    encoding: str | None
    context_length: int | None  # T
    tokens: int | None  # trained on so far
    tokens_asked: int | None
    tokens_per_second: float | None
    training_loss: float | None  # the last one logged
    losses: dict[float, float]  # by multiple of T, fixed-target, as trained
    written: float | None  # when something was last written, seconds since the epoch
    reason: str | None

    @property
    def at_train_length(self) -> float | None:
        """The loss at T."""
        return self.losses.get(1.0)

    @property
    def longest(self) -> tuple[float, float] | None:
        """The longest measured multiple of T beyond T, and the loss there."""
        beyond = max((multiple for multiple in self.losses if multiple > 1), default=None)
        return None if beyond is None else (beyond, self.losses[beyond])

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
    asked = _whole(train.get("tokens")) if isinstance(train, dict) else None
    finished = run.state == "finished"
    tokens = facts.get("tokens") if finished else last.get("tokens", facts.get("tokens"))
    plain = [r for r in run.records if r["protocol"] == HEADLINE and r["extend"] is None]
    return RunSummary(
        run=run,
        state=run.state,
        encoding=encoding_of(run),
        context_length=_whole(facts.get("context_length", config.get("context_length"))),
        tokens=_whole(tokens) if tokens is not None else (0 if asked and run.problem is None else None),
        tokens_asked=_whole(facts.get("tokens")) if finished else asked,
        tokens_per_second=_number(facts.get("tokens_per_second") or last.get("tokens_per_second")),
        training_loss=_number(last.get("loss", facts.get("final_loss"))),
        losses={} if run.facts is None else losses_by_multiple(plain, run.facts),
        written=_written(path, run.status),
        reason=run.reason,
    )


def last_metrics(path: Path) -> dict[str, Any]:
    """Return the last whole line of metrics.jsonl; {} without one."""
    place = path / "metrics.jsonl"
    if not place.is_file():  # opening a pipe would block
        return {}
    try:
        with place.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - TAIL))
            lines = file.read(TAIL).splitlines()
    except OSError:
        return {}
    for line in reversed(lines):
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            continue  # a line that a kill cut short
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
    return None if number is None or number != int(number) else int(number)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        return None
    return float(value)
