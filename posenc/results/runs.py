"""A run as it lies on disk: settings, status, facts and records, read as plain data.

What is read may be a stranger's. Nothing is executed, and what is damaged makes a Run with a `problem`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import re
import shlex
import socket
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from posenc.core.errors import visible
from posenc.results.files import LARGEST_CONFIG, LARGEST_RESULTS, read_file, read_json
from posenc.results.records import Record, RunFacts, check_results
from posenc.settings.stored import read_settings
from posenc.settings.tree import RunSettings, SubjectSettings

SEED_LINE = re.compile(rb"^seed: (\d{1,18})\n", re.M)
METRICS = "metrics.jsonl"
TAIL = 4096  # bytes; a line of metrics.jsonl has about 150
StoredSettings = RunSettings | SubjectSettings


@dataclass(frozen=True)
class Run:
    """What a run directory or a line of a bundle holds. Its path identifies it.

    With a `problem`, which says why the run cannot be used, there are no facts and no records.
    """

    path: Path
    status: dict[str, Any] = field(default_factory=dict)
    facts: RunFacts | None = None
    records: list[Record] = field(default_factory=list)
    settings: StoredSettings | None = None
    problem: str | None = None

    @property
    def config(self) -> dict[str, Any] | None:
        """The settings as plain data, as config.yaml holds them."""
        return None if self.settings is None else self.settings.plain()

    @property
    def state(self) -> str:
        """Its status on disk, or `damaged` (with a problem), `dead` (without its process), `unknown`.

        A status is running, finished, failed, diverged or interrupted. A dead run left no final status.
        """
        if self.problem is not None:
            return "damaged"
        state = self.status.get("status")
        if not isinstance(state, str):
            return "finished" if self.facts is not None else "unknown"
        if state == "running" and is_dead(self.status):
            return "dead"
        return visible(state)[:40]

    @property
    def reason(self) -> str | None:
        """Why it is in this state, as far as that is known. It may be a stranger's text."""
        if self.state == "dead":
            return f"its process {self.status.get('pid', '?')} is gone without a final status"
        reason = self.problem or self.status.get("reason")
        return reason if isinstance(reason, str) and reason else None

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.name or str(self.path)

    @property
    def encoding(self) -> str | None:
        """The encoding's name, where it is known; of a sum the names of its parts: `alibi+rope`."""
        if self.facts is not None:
            return encoding_name(self.facts["encoding"])
        return None if self.settings is None else encoding_name(self.settings.encoding.plain())

    @property
    def seed(self) -> int | None:
        """The training seed, where it is known."""
        if self.facts is not None:
            return self.facts["seed"]
        return None if self.settings is None else self.settings.seed

    @property
    def model(self) -> dict[str, Any] | None:
        """The model's name and sizes, without those that are null."""
        model = None if self.facts is None else self.facts.get("model")
        return None if model is None else {key: value for key, value in model.items() if value is not None}

    @property
    def parameters(self) -> int | None:
        """Parameters of the whole model, where they are known."""
        counts: dict[str, Any] = {} if self.facts is None else self.facts.get("parameters", {})
        total = counts.get("total")
        return total if isinstance(total, int) else None

    @property
    def experiment(self) -> str | None:
        """The name of its experiment, or of the folder that it lies in."""
        if self.settings is not None:
            return self.settings.experiment_name
        return self.path.parent.name or None


def load_run(path: str | Path) -> Run:
    """Return the content of one run directory. Never raises for what its files hold."""
    run = Run(Path(path))
    try:
        run = replace(run, settings=_settings(run.path))
        run = replace(run, status=read_json(run.path, "status.json") or {})
        text = read_file(run.path, "results.json", LARGEST_RESULTS)
        return run if text is None else with_results(run, text)
    except (OSError, ValueError) as error:
        return replace(run, problem=str(error) or type(error).__name__)


def with_results(run: Run, data: bytes | dict[str, Any]) -> Run:
    """Return the run with the facts and records that results.json holds. Raises ValueError."""
    try:
        results = check_results(data)
    except ValueError as error:
        raise ValueError(f"results.json: {error}") from error
    return replace(run, facts=results["run"], records=results["records"])


def _settings(run_dir: Path) -> StoredSettings | None:
    """Return the settings in config.yaml; None without the file. Raises ValueError, OSError."""
    text = read_file(run_dir, "config.yaml", LARGEST_CONFIG)
    if text is None:
        return None
    # The seeds of one setting have the same text but for this line, so YAML is parsed once for all of them:
    # among 2,000 runs of four settings that saves 1.9 of 3.5 s.
    seed = SEED_LINE.search(text)
    if seed is None:
        return read_settings(text)
    alike = _parsed(text[: seed.start()] + b"seed: 0\n" + text[seed.end() :])
    return alike.with_changes(seed=int(seed[1]))


@functools.lru_cache(maxsize=256)
def _parsed(text: bytes) -> StoredSettings:
    return read_settings(text)


# --- the process of a run


def is_dead(status: dict[str, Any]) -> bool:
    """Return whether the process of a status.json is certainly gone: it ran on this host and does not now."""
    pid = status.get("pid")
    is_number = isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < 2**31
    if not is_number or status.get("host") != socket.gethostname():
        return False
    import psutil  # takes 0.15 s, and most commands ask about no process

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # a zombie has ended
            return True
        written = datetime.fromisoformat(str(status.get("updated"))).timestamp()
        return bool(process.create_time() > written + 2)  # a later process was given the same number
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError):
        return False


def last_metrics(run_dir: Path) -> dict[str, Any]:
    """Return the last whole line of metrics.jsonl; {} without one."""
    path = run_dir / METRICS
    if not path.is_file():  # opening a pipe would block
        return {}
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        for line in reversed(file.read(TAIL).splitlines()):
            with contextlib.suppress(ValueError, RecursionError):  # a line that a kill cut short
                metrics = json.loads(line)
                return metrics if isinstance(metrics, dict) else {}
    return {}


def resume_command(run: Run) -> str | None:
    """Return `posenc train ...`, quoted for a shell; None where status.json does not name the overrides."""
    overrides = run.status.get("overrides")
    if not isinstance(overrides, list) or not all(isinstance(text, str) for text in overrides):
        return None
    return shlex.join(["posenc", "train", *overrides])


# --- names


def encoding_name(encoding: object) -> str | None:
    """Return `rope`; for settings of an encoding that has parts `alibi+rope`, of a pattern `3xrope+nope`."""
    if isinstance(encoding, str):
        return encoding
    if not isinstance(encoding, dict):
        return None
    parts = encoding.get("parts")
    names = [encoding_name(part) for part in parts] if isinstance(parts, list) else []
    if names and all(names):
        return "+".join(_counted_parts(names, encoding.get("period")))
    name = encoding.get("name")
    return name if isinstance(name, str) else None


def _counted_parts(names: list[str | None], period: object) -> list[str]:
    """Return the names of parts with how many layers of a period each has; without a period once each."""
    parts = []
    for index, name in enumerate(names):
        layers = period.count(index) if isinstance(period, list) else 1
        if layers > 1:
            parts.append(f"{layers}x{name}")
        elif layers == 1:
            parts.append(str(name))
    return parts
