"""A run at a glance: what `posenc runs` shows of thousands of them, without reading their results in full."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from posenc.results.bundle import SUFFIX as BUNDLE
from posenc.results.check import check_facts
from posenc.results.load import (
    Run,
    load_run,
    places,
    run_directories_below,
)
from posenc.results.own_files import LARGEST_RESULTS, read_config, read_json, read_own_file
from posenc.results.records import HEADLINE, SCHEMA_VERSION
from posenc.results.settings import encoding_of

RECORDS = b'\n  "records": ['
TAIL = 4096  # bytes; a line of metrics.jsonl has about 150
# as posenc.results.store writes them: a record a line, the long lists behind the numbers
PLAIN = b'{"protocol": "%s", "extend": null, ' % HEADLINE.encode()
LISTS = b', "per_document": '


@dataclass
class Glance:
    """One run directory. Tokens, nats per token; None where it is not known."""

    run: Run  # without records
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
    """Run directories that load_runs finds below `paths`, each once, sorted; and what is wrong with it.

    Bundles hold finished runs without their directories, and are left out.
    """
    found: dict[Path, tuple[Path, str | None]] = {}
    for given in paths:
        for place in places(given):
            for path, problem in run_directories_below(place):
                if path.name.endswith(BUNDLE) and problem is None:
                    continue
                found.setdefault(Path(os.path.realpath(path)), (path, problem))
    return sorted(found.values(), key=lambda one: str(one[0]))


def bundles(paths: Iterable[str | Path]) -> list[Path]:
    """The bundles below `paths`."""
    below = [path for given in paths for place in places(given) for path, _ in run_directories_below(place)]
    return [path for path in below if path.name.endswith(BUNDLE)]


def glance(path: Path, *, config: bool = False) -> Glance:
    """What a run directory holds, with `config` its settings as well. Foreign files never raise."""
    run, losses, last = Run(path), {}, {}
    try:
        run.status = read_json(path, "status.json") or {}
        results = read_own_file(path, "results.json", LARGEST_RESULTS)
        if results is not None:
            losses = _from_results(run, results)
        if config or run.facts is None or run.state != "finished":
            run.config = read_config(path)
        last = last_metrics(path)
    except (OSError, ValueError, RecursionError) as error:
        run.facts, losses = None, {}
        run.problem = str(error) or type(error).__name__
    facts: Any = run.facts or {}
    asked = _asked(run.config)
    tokens = facts.get("tokens") if run.state == "finished" else last.get("tokens", facts.get("tokens"))
    written = _written(path, run.status)
    return Glance(
        run=run,
        state=run.state,
        encoding=encoding_of(run),
        context_length=_whole(facts.get("context_length", (run.config or {}).get("context_length"))),
        tokens=_whole(tokens) if tokens is not None else (0 if asked and run.problem is None else None),
        tokens_asked=_whole(facts.get("tokens")) if run.state == "finished" else asked,
        tokens_per_second=_number(facts.get("tokens_per_second") or last.get("tokens_per_second")),
        training_loss=_number(last.get("loss", facts.get("final_loss"))),
        losses=losses,
        written=written,
        reason=run.reason,
    )


def last_metrics(path: Path) -> dict[str, Any]:
    """The last whole line of metrics.jsonl; {} without one."""
    place = path / "metrics.jsonl"
    if not place.is_file() or not place.resolve().is_relative_to(Path(os.path.realpath(path))):
        return {}  # no pipe, no link that leaves the run directory
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
            continue  # the line that a kill cut short
        return found if isinstance(found, dict) else {}
    return {}


def _from_results(run: Run, text: bytes) -> dict[float, float]:
    """The run's facts, and its losses by multiple; other layouts than posenc's are read in full."""
    head, found, _ = text.partition(RECORDS)
    if not found or not text[-8:].rstrip().endswith(b"]\n}"):
        whole = load_run(run.path)
        if whole.problem is not None:
            raise ValueError(whole.problem)
        run.facts = whole.facts
        plain = [r for r in whole.records if r["protocol"] == HEADLINE and r["extend"] is None]
        return losses_by_multiple(plain, whole.facts)
    try:
        results = json.loads(head.removesuffix(b",") + b"}")
        records = [json.loads(numbers + b"}") for numbers in _plain_records(text, len(head))]
    except ValueError as error:
        raise ValueError(f"results.json: damaged ({error})") from error
    if results.get("schema_version") != SCHEMA_VERSION:
        version = str(results.get("schema_version"))[:40]
        raise ValueError(f"results.json: schema_version {version}, not {SCHEMA_VERSION}")
    run.facts = check_facts(results.get("run"))
    return losses_by_multiple(records, run.facts)


def _plain_records(text: bytes, start: int) -> Iterator[bytes]:
    """The beginnings, up to the long lists, of the headline's records as trained."""
    while (start := text.find(PLAIN, start)) >= 0:
        stop = text.find(LISTS, start)
        if stop < 0:
            return
        yield text[start:stop]
        start = stop


def losses_by_multiple(records: Sequence[Any], facts: Any) -> dict[float, float]:
    """Of the last checkpoint on the run's own corpus; of several sets of targets the one that `select` takes
    where it sees this run alone.
    """
    try:
        own = (facts.get("corpus") or {}).get("fingerprint")
        measured = [r for r in records if own in (None, r["fingerprint"])]
        step = max((r["checkpoint_step"] for r in measured), default=0)
        sets: dict[tuple[str, str], dict[float, Any]] = {}
        for r in measured:
            if r["checkpoint_step"] == step:
                of_set = sets.setdefault((r["split"], r["targets_hash"]), {})
                of_set[round(float(r["multiple"]), 6)] = r

        def preferred(key: tuple[str, str]) -> tuple[Any, ...]:
            """Test, then the most windows, the longest, the most targets."""
            records = sets[key].values()
            return key[0] == "test", len(records), max(sets[key]), max(r["targets"] for r in records), key

        best = sets[max(sets, key=preferred)] if sets else {}
        with_numbers = {m: r for m, r in best.items() if r["nats"] is not None and r.get("note") is None}
        return {multiple: float(r["nats"]) for multiple, r in with_numbers.items()}
    except (AttributeError, KeyError, OverflowError, TypeError, ValueError) as error:
        raise ValueError(f"results.json: not what posenc writes ({error!r})") from error


def _written(path: Path, status: dict[str, Any]) -> float | None:
    times = []
    for name in ("metrics.jsonl", "records"):  # a folder's time is that of its newest file's birth
        try:
            times.append((path / name).stat().st_mtime)
        except OSError:
            continue
    with contextlib.suppress(ValueError, OverflowError, OSError):
        times.append(datetime.fromisoformat(str(status.get("updated"))).timestamp())
    return max(times, default=None)


def _asked(config: dict[str, Any] | None) -> int | None:
    train = (config or {}).get("train")
    return _whole(train.get("tokens")) if isinstance(train, dict) else None


def _whole(value: object) -> int | None:
    number = _number(value)
    return None if number is None or number != int(number) else int(number)


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e18:
        return None
    return float(value)
