"""The run directory: its locks, the run's state, and config.yaml, status.json, metrics.jsonl and log.txt.

Of several processes only the first one writes; for the others the writing functions do nothing. The folder
may be a stranger's (`posenc eval`): no link is followed, only regular files are opened.
"""

from __future__ import annotations

import contextlib
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
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec

import yaml
from filelock import Timeout

from posenc.core.atomic_files import (
    CONTINUES,
    cannot_write,
    file_lock,
    write_json_atomic,
    write_text_atomic,
)
from posenc.core.console import say
from posenc.core.errors import RunError, visible
from posenc.results.load import assemble_results, load_run, read_file, read_json, read_records
from posenc.results.schema import RunFacts
from posenc.running.invocation import WAIT
from posenc.running.signals import StopFlag
from posenc.training.distributed import current

P = ParamSpec("P")
LOG = "log.txt"
FINISHED, DIVERGED, OPEN = "finished", "diverged", "open"


class HeldRunError(RunError):
    """Another process holds the run directory."""


@contextmanager
def locked(
    directory: Path, name: str = "run", seconds: float = 0.5, *, waits: bool = False
) -> Iterator[None]:
    """Hold the run directory, made if need be; HeldRunError with the holder's pid and host after `seconds`.

    With `waits` it waits instead. The kernel releases the lock when its holder dies;
    not reliable on some network file systems.
    """
    if not current().is_first:
        yield
        return
    lock = file_lock(directory / f".{name}.lock")
    try:
        directory.mkdir(parents=True, exist_ok=True)
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            holder = holder_of(directory, name)
            if not waits:
                problem = f"{visible(directory)} is being written by another process ({holder})"
                raise HeldRunError(problem, hint=f"{WAIT}=1 in the environment waits for it") from None
            say(f"waiting for another process to finish {visible(directory)} ({holder})")
            lock.acquire()
    except OSError as error:
        raise cannot_write(directory, error) from error
    try:
        # not in the lock file, which whoever tries to take it may empty
        write_text_atomic(directory / f".{name}.holder", f"pid {os.getpid()} on {socket.gethostname()}")
        yield
    finally:
        lock.release()


def holder_of(directory: Path, name: str) -> str:
    """Return `pid N on HOST` of the last holder, safe to print."""
    with contextlib.suppress(OSError, ValueError):
        if text := read_file(directory, f".{name}.holder", 1000):
            return visible(text.decode("utf-8", "replace"))
    return "pid unknown"


def is_held(directory: Path, name: str) -> bool:
    """Tell whether a process holds it now."""
    path = directory / f".{name}.lock"
    try:
        with file_lock(path, timeout=0) if path.exists() else contextlib.nullcontext():
            return False
    except Timeout:
        return True
    except OSError:
        return False  # whoever takes it will say why


def by_the_first(write: Callable[P, None]) -> Callable[P, None]:
    """Let only the first process of the run call the function."""

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
    now, before = datetime.now(UTC).isoformat(timespec="seconds"), read_status(directory)
    found = {
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
    }
    write_json_atomic(directory / "status.json", {**found, **more})


@contextmanager
def status_kept(directory: Path, stop: StopFlag, **about: object) -> Iterator[None]:
    """Write `running` with `about`, and how it ends unless it finishes or diverges: that says itself."""
    write_status(directory, "running", **about)
    try:
        yield
    except BaseException as error:
        status, reason = getattr(error, "status", "failed"), stop.name
        if status == "failed":
            reason = getattr(error, "problem", f"{type(error).__name__}: {error}")
        if status != DIVERGED:
            with contextlib.suppress(OSError, RunError):  # a full disk must not hide the first reason
                write_status(directory, status, reason=reason.partition("\n")[0])
        raise


@by_the_first
def write_config(directory: Path, settings: dict[str, Any]) -> None:
    """Write config.yaml, resolved plain data."""
    text = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    write_text_atomic(directory / "config.yaml", text)


def run_state(directory: Path, evaluation: dict[str, Any], retry: bool = False) -> str:
    """Return FINISHED (trained, evaluated by these settings), DIVERGED (final without `retry`) or OPEN."""
    if read_status(directory).get("status") == DIVERGED and not retry:
        return DIVERGED
    measured = (load_run(directory).config or {}).get("eval") or {}
    later = {"precision": "auto", "base_length": None, "key_tokens": None}  # earlier runs do not say them
    measured = {**later, **measured}
    if "recall" not in evaluation["protocols"]:  # nor this
        measured["recall"] = evaluation.get("recall")
    return FINISHED if was_finished(directory) and measured == evaluation else OPEN


def is_done(directory: Path, evaluation: dict[str, Any], retry: bool = False) -> bool:
    """Tell whether nothing is left to do. Raises RunError for a run that diverged, without `retry`."""
    if (state := run_state(directory, evaluation, retry)) == DIVERGED:
        hint = "try a smaller train.lr or another seed; --retry trains it again, from the start"
        raise RunError(f"this run diverged before: {read_status(directory).get('reason')}", hint=hint)
    return state == FINISHED


def was_finished(directory: Path) -> bool:
    """Tell whether the run is trained, and measured by some settings."""
    return read_status(directory).get("status") == FINISHED and load_run(directory).facts is not None


@by_the_first
def forget_diverged(directory: Path) -> None:
    """Remove the checkpoints of a run that diverged, now that it is trained again."""
    if read_status(directory).get("status") == DIVERGED:
        shutil.rmtree(directory / "checkpoints", ignore_errors=True)


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
def drop_after(directory: Path, step: int) -> None:
    """Drop what was logged or measured past the checkpoint that a run continues from.

    Each step is logged once; and on another machine, or with other threads, weights have other bits.
    """
    path = directory / "metrics.jsonl"
    if path.exists():
        kept = []
        for line in path.read_bytes().splitlines():
            with contextlib.suppress(ValueError, KeyError, TypeError):  # a line that a kill cut short
                if json.loads(line)["step"] <= step:
                    kept.append(line.decode() + "\n")
        write_text_atomic(path, "".join(kept))
    for record in (directory / "records").glob("[!.]*.json"):
        found = re.search(r"-step(\d+)-", record.name)
        if found and int(found[1]) > step:
            record.unlink(missing_ok=True)


def records_at(directory: Path, step: int) -> list[dict[str, Any]]:
    """Return all records of the weights of a step, as trackers take them."""
    return [dict(record) for record in read_records(directory) if record["checkpoint_step"] == step]


@by_the_first
def put_together(directory: Path, facts: RunFacts, *, newer: bool) -> None:
    """Write results.json from records/; stored facts of a later step, or of this one unless `newer`, stay."""
    with locked(directory, "results", seconds=60):  # train and eval may end at the same time
        before = load_run(directory).facts
        if before is not None and before.get("steps", 0) >= facts["steps"] + int(newer):
            facts = before
        assemble_results(directory, facts)


def refuse_links(directory: Path) -> None:
    """Raise RunError for a link, a pipe or a device in a run directory, except in W&B's own folder."""
    for folder, folders, files in os.walk(directory):  # follows no links
        for path in (Path(folder) / name for name in (*folders, *files)):
            with contextlib.suppress(FileNotFoundError):  # a writer's temporary file, renamed meanwhile
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    kind = "a symbolic link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                    raise RunError(f"{path} is {kind}; a run directory holds files and folders only")
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name != "wandb"]


@contextmanager
def log_file(directory: Path) -> Iterator[None]:
    """Log to log.txt too, and why it ends if it fails."""
    if not current().is_first:
        yield
        return
    try:
        handler = logging.FileHandler(directory / LOG, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise cannot_write(directory / LOG, error) from error
    root = logging.getLogger()
    # on a full disk lines are lost; the run itself ends, with the reason, at what it cannot write
    handler.handleError = lambda record: None  # type: ignore[method-assign]
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root.addHandler(handler)
    try:
        yield
    except (Exception, SystemExit) as error:
        reason = getattr(error, "problem", f"{type(error).__name__}: {error}")
        failed = {"name": "posenc", "levelname": "ERROR", "msg": f"failed: {' '.join(reason.split())}"}
        handler.handle(logging.makeLogRecord({**failed, "exc_info": sys.exc_info()}))
        raise
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


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
