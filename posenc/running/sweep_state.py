"""What a sweep tells its jobs of each other: rows by what the jobs differ in, losses as the jobs finish."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc.config.compose import ComposedJob
from posenc.config.overrides import key_of
from posenc.report.live import PENDING, RUNNING, Row, SweepState, left_words, seconds_left
from posenc.report.words import length
from posenc.results.load import load_run
from posenc.results.run_summary import last_metrics, losses_by_multiple
from posenc.results.schema import HEADLINE
from posenc.results.settings import spoken_name

AskedTargets = Mapping[Path, set[tuple[str, str]]]


class Sweep:
    """The jobs of a sweep, which of them run or are done, and what they have measured."""

    def __init__(self, jobs: Sequence[ComposedJob], places: Sequence[Path], asked: AskedTargets) -> None:
        self.jobs, self.places, self.asked = jobs, places, asked
        self.labels = labels_of(jobs)
        self.names = labels_of(jobs, but=())
        counts = {label: self.labels.count(label) for label in dict.fromkeys(self.labels)}
        self.rows = {label: Row(label, count) for label, count in counts.items()}
        self.seconds: list[float] = []
        self.over = 0  # jobs that are finished or have failed
        self._began: dict[int, float] = {}  # of the jobs that run
        self._ends: dict[int, float] = {}  # when what they are at is over, by their own pace
        self._tokens: dict[int, int] = {}  # trained on before this sweep
        self.trained = 0  # tokens, in this sweep

    def begin(self, i: int, remaining: int) -> SweepState:
        """What job i is told; `remaining` jobs come after it."""
        self._began[i] = time.time()
        self._tokens[i] = self._tokens_of(i)
        self.rows[self.labels[i]].state = RUNNING
        return self.state(i, remaining)

    def state(self, i: int, remaining: int) -> SweepState:
        """The sweep as it is now, as job i sees it."""
        rows = list(self.rows.values())
        present = {column for row in rows for column in list(row.nats)}  # a copy: another thread may draw
        return SweepState(
            number=i + 1,
            total=len(self.jobs),
            label=self.labels[i],
            seconds=self.seconds,
            remaining=remaining,
            began=self._began.get(i, 0.0),
            rows=rows,
            columns=sorted(present, key=lambda column: float(column[:-1])),
        )

    def pace(self, i: int, left: float) -> None:
        """Job i has said that what it is at will be over in so many seconds."""
        if i in self._began:
            self._ends[i] = time.time() + left

    def left(self, waiting: int, at_once: int) -> str:
        """The time left in all in words, or nothing; `waiting` jobs have not begun."""
        now = time.time()
        began, ends = dict(self._began), dict(self._ends)
        running = [(now - began[i], max(0.0, ends[i] - now) if i in ends else None) for i in began]
        return left_words(seconds_left(running, waiting, at_once, self.seconds))

    def end(self, i: int, code: int) -> dict[str, float]:
        """Job i has run: its losses by length, which stand in the table from now on."""
        seconds = time.time() - self._began.pop(i)
        self._ends.pop(i, None)
        self.trained += max(0, self._tokens_of(i) - self._tokens[i])
        row = self.rows[self.labels[i]]
        row.state = "failed" if code else PENDING
        if any(self.labels[other] == row.label for other in self._began):
            row.state = RUNNING
        if code:
            self.over += 1
            return {}
        self.seconds.append(seconds)
        return self.add(i)

    def put_back(self, i: int) -> None:
        """Job i has not run after all."""
        self._began.pop(i)
        self._ends.pop(i, None)
        row = self.rows[self.labels[i]]
        if not any(self.labels[other] == row.label for other in self._began):
            row.state = PENDING

    def _tokens_of(self, i: int) -> int:
        tokens = last_metrics(self.places[i]).get("tokens")
        return tokens if isinstance(tokens, int) else 0

    def add(self, i: int) -> dict[str, float]:
        """The losses of job i, finished now or before, by length."""
        self.over += 1
        row = self.rows[self.labels[i]]
        row.done += 1
        found = self._losses(i)
        for column, nats in found.items():
            row.nats.setdefault(column, []).append(nats)
        return found

    def _losses(self, i: int) -> dict[str, float]:
        """By fixed-target, or by the first protocol that is measured instead."""
        settings, run = self.jobs[i].settings, load_run(self.places[i])
        hashes = self.asked.get(self.places[i])
        extend = (settings.get("extend") or {}).get("name", "none")
        records = [
            record
            for record in run.records
            if (record["extend"] or {}).get("name", "none") == extend
            and (hashes is None or (record["protocol"], record["targets_hash"]) in hashes)
        ]
        protocols = [record["protocol"] for record in records]
        protocol = HEADLINE if HEADLINE in protocols else next(iter(protocols), None)
        kept: list[Any] = [record for record in records if record["protocol"] == protocol]
        elsewhere = bool(settings.get("data")) and "run" in settings  # measured on text that was asked for
        losses = losses_by_multiple(kept, {} if elsewhere else run.facts or {})
        return {length(multiple): nats for multiple, nats in sorted(losses.items())}


def labels_of(jobs: Sequence[ComposedJob], but: Sequence[str] = ("seed",)) -> list[str]:
    """The settings in which the jobs differ, some left out: what tells the rows apart, or the jobs."""
    given = [{key_of(o): o.partition("=")[2] for o in job.overrides} for job in jobs]
    keys = dict.fromkeys(key for one in given for key in one)
    telling = [key for key in keys if key not in but and len({one.get(key) for one in given}) > 1]
    return [_label(one, telling, job.settings) for one, job in zip(given, jobs, strict=True)]


def _label(given: Mapping[str, str], telling: Sequence[str], settings: Mapping[str, Any]) -> str:
    words = []
    for key in telling:
        if key in given:
            value = Path(given[key]).name if key == "run" else given[key]
            words.append(value if key in ("encoding", "run") else f"{key}={value}")
    own = spoken_name(settings.get("encoding")) or Path(str(settings.get("run", ""))).name
    return " ".join(words) or own
