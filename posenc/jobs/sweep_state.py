"""What a sweep tells its jobs of each other: rows by what the jobs differ in, losses as the jobs finish."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from posenc.jobs.compose import Composed
from posenc.report.live import PENDING, RUNNING, Row, SweepState
from posenc.report.words import length
from posenc.results.glance import losses_by_multiple
from posenc.results.load import load_run
from posenc.results.records import HEADLINE
from posenc.results.settings import spoken_name

Asked = Mapping[Path, set[tuple[str, str]]]


class Sweep:
    """The jobs of a sweep, which of them are done, and what they have measured."""

    def __init__(self, jobs: Sequence[Composed], places: Sequence[Path], asked: Asked) -> None:
        self.jobs, self.places, self.asked = jobs, places, asked
        self.labels = labels_of(jobs)
        self.names = labels_of(jobs, but=())
        counts = {label: self.labels.count(label) for label in dict.fromkeys(self.labels)}
        self.rows = {label: Row(label, count) for label, count in counts.items()}
        self.seconds: list[float] = []
        self.began = 0.0

    def begin(self, i: int, remaining: int) -> SweepState:
        """What job i is told; `remaining` jobs come after it."""
        self.began = time.time()
        self.rows[self.labels[i]].state = RUNNING
        rows = list(self.rows.values())
        present = {column for row in rows for column in row.nats}
        return SweepState(
            number=i + 1,
            total=len(self.jobs),
            label=self.labels[i],
            seconds=self.seconds,
            remaining=remaining,
            began=self.began,
            rows=rows,
            columns=sorted(present, key=lambda column: float(column[:-1])),
        )

    def end(self, i: int, code: int) -> dict[str, float]:
        """Job i has run: its losses by length, which stand in the table from now on."""
        row = self.rows[self.labels[i]]
        row.state = PENDING
        if code:
            row.state = "failed"
            return {}
        self.seconds.append(time.time() - self.began)
        return self.add(i)

    def add(self, i: int) -> dict[str, float]:
        """The losses of job i, finished now or before, by length."""
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


def labels_of(jobs: Sequence[Composed], but: Sequence[str] = ("seed",)) -> list[str]:
    """The settings in which the jobs differ, some left out: what tells the rows apart, or the jobs."""
    given = [dict(override.partition("=")[::2] for override in job.overrides) for job in jobs]
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
