"""A run's folder: how the run stands, and writing config.yaml, status.json, metrics.jsonl and log.txt.

Of several processes only the first one writes; for the others the writing functions do nothing. The folder
may be a stranger's (`posenc eval`): no link is followed, only regular files are opened.
"""

from __future__ import annotations

import contextlib
import faulthandler
import functools
import json
import logging
import os
import platform
import re
import shutil
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec, TextIO

import yaml

from posenc.core.atomic_files import CONTINUES, cannot_write, write_json_atomic, write_text_atomic
from posenc.core.errors import RunError
from posenc.results.load import load_run
from posenc.results.schema import RunFacts
from posenc.results.store import LARGEST_CONFIG, assemble_results, read_file, read_json, read_records
from posenc.running.run_lock import results_lock
from posenc.running.signals import RETRY
from posenc.training.distributed import current

P = ParamSpec("P")
LOG = "log.txt"
FINISHED, DIVERGED, OPEN = "finished", "diverged", "open"


def by_the_first(write: Callable[P, None]) -> Callable[P, None]:
    """Let only the first process of the run do it."""

    @functools.wraps(write)
    def written(*args: P.args, **kwargs: P.kwargs) -> None:
        if current().is_first:
            write(*args, **kwargs)

    return written


def read_status(directory: Path) -> dict[str, Any]:
    """Return status.json, or {} if there is none or it is damaged."""
    try:
        return read_json(directory, "status.json") or {}
    except (OSError, ValueError, RecursionError):
        return {}


@by_the_first
def write_status(directory: Path, status: str, **more: Any) -> None:
    """Write status.json: running | finished | failed | diverged | interrupted, reason, host, pid, times."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    before = read_status(directory)
    write_json_atomic(
        directory / "status.json",
        {
            "status": status,
            "reason": None,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "processes": current().size,
            "started": before.get("started", now),
            "updated": now,
            "versions": versions(),
            "git_commit": git_commit(),
            "overrides": before.get("overrides"),
            **more,
        },
    )


@by_the_first
def write_config(directory: Path, settings: dict[str, Any] | str) -> None:
    """Write config.yaml, resolved plain data; or its text as it was."""
    if not isinstance(settings, str):
        settings = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    write_text_atomic(directory / "config.yaml", settings)


def run_state(directory: Path, evaluation: dict[str, Any]) -> str:
    """Return FINISHED (trained, evaluated by these settings), DIVERGED (final without --retry) or OPEN."""
    status = read_status(directory).get("status")
    if status == DIVERGED and RETRY not in os.environ:
        return DIVERGED
    run = load_run(directory)
    measured = {"precision": "auto", **((run.config or {}).get("eval") or {})}  # earlier runs do not say it
    return FINISHED if status == FINISHED and run.facts is not None and measured == evaluation else OPEN


def is_done(directory: Path, evaluation: dict[str, Any]) -> bool:
    """Tell whether nothing is left to do. Raises RunError for a run that diverged, without --retry."""
    state = run_state(directory, evaluation)
    if state == DIVERGED:
        raise RunError(
            f"this run diverged before: {read_status(directory).get('reason')}",
            hint="try a smaller train.lr or another seed; --retry trains it again, from the start",
        )
    return state == FINISHED


def finished_config(directory: Path) -> str | None:
    """Return the text of config.yaml of a run that some command has finished; None of any other."""
    if read_status(directory).get("status") != FINISHED or load_run(directory).facts is None:
        return None
    try:
        text = read_file(directory, "config.yaml", LARGEST_CONFIG)
    except (OSError, ValueError):
        return None
    return None if text is None else text.decode("utf-8", "replace")


def write_end(directory: Path, before: str | None, status: str, reason: str) -> None:
    """Write how an attempt ended that did not finish; a run finished `before`, by its config, stays so."""
    if before is None:
        write_status(directory, status, reason=reason)
    else:
        write_config(directory, before)
        write_status(directory, FINISHED)


def forget_diverged(directory: Path) -> None:
    """Remove the checkpoints of a run that diverged, now that it is trained again."""
    if read_status(directory).get("status") != DIVERGED:
        return
    shutil.rmtree(directory / "checkpoints", ignore_errors=True)
    write_status(directory, "running")


@by_the_first
def append_metrics(directory: Path, metrics: dict[str, float]) -> None:
    """Append a line to metrics.jsonl. Raises RunError when the disk refuses it."""
    line = (json.dumps(metrics) + "\n").encode()
    path = directory / "metrics.jsonl"
    try:
        with path.open("ab") as file:
            file.write(line)
    except OSError as error:
        raise cannot_write(path, error, needed=len(line), hint=CONTINUES) from error


@by_the_first
def drop_metrics_after(directory: Path, step: int) -> None:
    """Drop logged steps past the checkpoint that a run continues from, so that each step is there once."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line.decode())
        except (ValueError, KeyError, TypeError):
            continue  # a line that a kill cut short
    write_text_atomic(path, "".join(line + "\n" for line in kept))


@by_the_first
def drop_records_after(directory: Path, step: int) -> None:
    """Drop what was measured of weights later than those that a run continues from.

    On another machine, or with other threads, they come out with other bits.
    """
    for path in (directory / "records").glob("[!.]*.json"):
        found = re.search(r"-step(\d+)-", path.name)
        if found and int(found[1]) > step:
            path.unlink(missing_ok=True)


def records_at(directory: Path, step: int) -> list[dict[str, Any]]:
    """Return all records of the weights of a step, as trackers take them."""
    return [dict(record) for record in read_records(directory) if record["checkpoint_step"] == step]


@by_the_first
def put_together(directory: Path, facts: RunFacts, *, newer: bool) -> None:
    """Write results.json from records/; facts of an earlier step, or of this one unless `newer`, lose."""
    with results_lock(directory):
        before = load_run(directory).facts
        if before is not None:
            ahead = before.get("steps", 0) - facts.get("steps", 0)
            if ahead > 0 or (ahead == 0 and not newer):
                facts = before
        assemble_results(directory, facts)


def refuse_links(directory: Path) -> None:
    """Raise RunError for a link, a pipe or a device in a run directory, except in W&B's own folder."""
    for folder, folders, files in os.walk(directory):  # follows no links
        for path in (Path(folder) / name for name in (*folders, *files)):
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a writer's temporary file, renamed meanwhile
                continue
            if stat.S_ISLNK(mode):
                raise RunError(f"{path} is a symbolic link; a run directory holds none")
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise RunError(f"{path} is neither a file nor a folder; a run directory holds nothing else")
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name != "wandb"]


class _LogFile(logging.StreamHandler[TextIO]):
    """Lacks lines on a full disk; the run itself ends, with the reason, at what it cannot write."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


def _open_log(directory: Path) -> TextIO:
    how = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
    handle = os.open(directory / LOG, how, 0o666)  # of a stranger's run: neither a link nor a pipe
    return os.fdopen(handle, "a", encoding="utf-8", errors="backslashreplace")


@contextmanager
def log_file(directory: Path) -> Iterator[None]:
    """Log to log.txt too, with the stack if a signal such as SIGSEGV ends the process."""
    if not current().is_first:
        yield
        return
    try:
        file = _open_log(directory)
    except OSError as error:
        raise cannot_write(directory / LOG, error) from error
    handler, root = _LogFile(file), logging.getLogger()
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    own = not faulthandler.is_enabled()  # else the user has chosen where it writes
    root.addHandler(handler)
    if own:
        faulthandler.enable(file)
    try:
        yield
    finally:
        if own:
            faulthandler.disable()
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            file.close()


def append_log(directory: Path, text: str, reason: str) -> None:
    """Append to log.txt, ending with a line for the reason of a failure. Raises OSError."""
    with _open_log(directory) as file:
        file.write(f"{text}failed: {' '.join(reason.split())}\n")


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that the numbers may depend on."""
    packages = ("posenc", "torch", "numpy", "sympy", "tokenizers", "datasets", "hydra-core")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


@functools.cache
def git_commit() -> str | None:
    """Return the commit of the clone that posenc runs from, with `+` if it was changed; None for a wheel."""
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    ask = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(ask, capture_output=True, text=True, timeout=5).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
