"""A run as it lies on disk: settings, status, facts and records, read as plain data.

The files may come from somebody else. Nothing in them is executed. Damaged ones make a Run with a `problem`.
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
from typing import Any, TypedDict, cast

from posenc.core.errors import visible
from posenc.core.run_states import DAMAGED, DEAD, FINISHED, RUNNING, UNKNOWN_STATE
from posenc.results.files import LARGEST_CONFIG, LARGEST_RESULTS, RESULTS_FILE, read_file, read_json
from posenc.results.records import Record, RunFacts, TrainingText, check_results
from posenc.settings.stored import read_settings
from posenc.settings.tree import RunSettings, SubjectSettings

SEED_LINE = re.compile(rb"\nseed: (\d{1,18})\n")
METRICS_FILE = "metrics.jsonl"
TAIL = 4096  # bytes; a line of metrics.jsonl has about 150
StoredSettings = RunSettings | SubjectSettings


class RunStatus(TypedDict, total=False):
    """Hold what status.json says, as posenc writes it.

    Reading checks no type: the file may be damaged or come from somebody else.
    """

    status: str  # running, finished, failed, diverged or interrupted
    reason: str | None  # why it failed, diverged or was interrupted
    step: int  # the last one, of a run that finished or diverged
    host: str
    pid: int  # of the first process
    processes: int  # that train the run
    started: str  # ISO 8601, UTC
    updated: str  # ISO 8601, UTC
    versions: dict[str, str]  # of Python and the libraries
    git_commit: str | None  # of the clone, with `+` if it was changed
    overrides: list[str] | None  # of the command line; null for a model that was given
    config_dir: str | None  # the folder of --config-dir


@dataclass(frozen=True)
class Run:
    """What a run directory or a line of a bundle holds. Its path identifies it."""

    path: Path
    status: RunStatus = field(default_factory=RunStatus)  # status.json
    facts: RunFacts | None = None  # the part `run` of results.json
    records: list[Record] = field(default_factory=list)  # the part `records` of results.json
    settings: StoredSettings | None = None  # config.yaml
    problem: str | None = None  # why the run cannot be used; then there are no facts and no records

    @property
    def config(self) -> dict[str, Any] | None:
        """Return the settings as plain data, as config.yaml holds them."""
        return None if self.settings is None else self.settings.plain()

    @property
    def state(self) -> str:
        """Return the status on disk: running, finished, failed, diverged or interrupted.

        Or one of three others: `damaged` (it has a problem), `dead` (its process is gone, and it left no
        final status), `unknown`.
        """
        if self.problem is not None:
            return DAMAGED
        state = self.status.get("status")
        if not isinstance(state, str):
            return FINISHED if self.facts is not None else UNKNOWN_STATE
        if state == RUNNING and is_dead(self.status):
            return DEAD
        # The file may be from somebody else, and its state is printed in tables. It must be short and must
        # not move the cursor.
        return visible(state)[:40]

    @property
    def reason(self) -> str | None:
        """Return why it is in this state, as far as that is known. Escape the text before you print it."""
        if self.state == DEAD:
            return f"its process {self.status.get('pid', '?')} is gone without a final status"
        reason = self.problem or self.status.get("reason")
        if not isinstance(reason, str):
            return None
        return reason or None

    @property
    def name(self) -> str:
        """Return the name of its directory."""
        return self.path.name or str(self.path)

    @property
    def encoding(self) -> str | None:
        """Return the encoding's name if it is known; for a sum the names of its parts, `alibi+rope`."""
        # Facts say what was trained. Settings are what is left if the results are missing or damaged.
        if self.facts is not None:
            return encoding_name(self.facts["encoding"])
        return None if self.settings is None else encoding_name(self.settings.encoding.plain())

    @property
    def seed(self) -> int | None:
        """Return the training seed if it is known."""
        if self.facts is not None:
            return self.facts["seed"]
        return None if self.settings is None else self.settings.seed

    @property
    def model(self) -> dict[str, Any] | None:
        """Return the model's name and sizes, without those that are null."""
        # Options that a later version added are null, and older runs lack their keys. Both have to count as
        # one model (docs/log.md, 2026-11-25: new runs had a table of their own).
        model = None if self.facts is None else self.facts.get("model")
        return None if model is None else {key: value for key, value in model.items() if value is not None}

    @property
    def parameters(self) -> int | None:
        """Return the number of parameters of the whole model if it is known."""
        counts = None if self.facts is None else self.facts.get("parameters")
        return None if counts is None else counts.get("total")

    @property
    def training_text(self) -> TrainingText | None:
        """Return the text that it was trained on; None without facts, and of a model that was given."""
        return None if self.facts is None else self.facts.get("corpus")

    @property
    def experiment(self) -> str | None:
        """Return the name of its experiment, or of the folder that it lies in."""
        if self.settings is not None:
            return self.settings.experiment_name
        return self.path.parent.name or None


def load_run(path: str | Path) -> Run:
    """Read a run directory. Whatever its files hold, it never raises."""
    run = Run(Path(path))
    try:
        # Settings come first, so that a run with damaged results keeps them: by them it finds its row.
        run = replace(run, settings=_settings(run.path))
        run = replace(run, status=stored_status(run.path))
        text = read_file(run.path, RESULTS_FILE, LARGEST_RESULTS)
        return run if text is None else with_results(run, text)
    except (OSError, ValueError) as error:
        return replace(run, problem=str(error) or type(error).__name__)


def stored_status(run_dir: Path) -> RunStatus:
    """Return status.json; {} without the file. Raises ValueError, OSError."""
    return cast(RunStatus, read_json(run_dir, "status.json") or {})


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
    # The files of several seeds differ in this line alone. So each text is parsed once, with seed 0 in it:
    # for 2,000 runs of four settings that saves 1.9 of 3.5 s.
    seed = SEED_LINE.search(text)
    if seed is None:
        return read_settings(text)
    settings_of_seed_0 = _parsed(text[: seed.start()] + b"\nseed: 0\n" + text[seed.end() :])
    return settings_of_seed_0.with_changes(seed=int(seed[1]))


@functools.lru_cache(maxsize=256)
def _parsed(text: bytes) -> StoredSettings:
    return read_settings(text)


# --- the process of a run


def is_dead(status: RunStatus) -> bool:
    """Tell whether the process of a status.json surely is gone: it ran on this host, and no longer does."""
    pid = status.get("pid")
    # The file may be damaged or somebody else's. JSON's `true` is an int in Python and would mean process 1.
    is_number = isinstance(pid, int) and not isinstance(pid, bool) and 0 < pid < 2**31
    if not is_number or status.get("host") != socket.gethostname():
        return False
    import psutil  # here, since it takes 0.15 s and most commands look for no process

    try:
        process = psutil.Process(pid)
        if process.status() == psutil.STATUS_ZOMBIE:  # a zombie has ended
            return True
        written = datetime.fromisoformat(str(status.get("updated"))).timestamp()
        # Two seconds of margin, since the two times come from two clocks. In doubt a run counts as running.
        return bool(process.create_time() > written + 2)  # then a later process was given the same number
    except psutil.NoSuchProcess:
        return True
    # A process that may not be looked at, or a time that cannot be read, leaves a doubt. In doubt a run is
    # not dead.
    except (psutil.Error, ValueError):
        return False


def last_metrics(run_dir: Path) -> dict[str, Any]:
    """Return the last complete line of metrics.jsonl; {} if there is none."""
    path = run_dir / METRICS_FILE
    if not path.is_file():  # opening a pipe would block
        return {}
    # Only the end is read: `posenc runs` asks every run, and a long training has a long file.
    with contextlib.suppress(OSError), path.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        for line in reversed(file.read(TAIL).splitlines()):
            with contextlib.suppress(ValueError, RecursionError):  # a killed run may leave half a line
                metrics = json.loads(line)
                return metrics if isinstance(metrics, dict) else {}
    return {}


def resume_command(run: Run) -> str | None:
    """Return `posenc train ...`, quoted for a shell; None if status.json does not name the overrides."""
    overrides = run.status.get("overrides")
    if not isinstance(overrides, list) or not all(isinstance(text, str) for text in overrides):
        return None
    config_dir = run.status.get("config_dir")
    flags = ["--config-dir", config_dir] if isinstance(config_dir, str) else []
    return shlex.join(["posenc", "train", *flags, *overrides])


# --- names


def encoding_name(encoding: object) -> str | None:
    """Return an encoding's name such as `rope`, given the name or the settings; None if they have none.

    A sum is `alibi+rope`. A pattern over layers is `3xrope+nope`.
    """
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
    """Return the names of parts, with the number of layers that each has in a period, if there is one."""
    parts = []
    for index, name in enumerate(names):
        layers = period.count(index) if isinstance(period, list) else 1
        if layers > 1:
            parts.append(f"{layers}x{name}")
        elif layers == 1:
            parts.append(str(name))
    return parts
