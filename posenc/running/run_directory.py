"""Write a run's folder: config.yaml, status.json, metrics.jsonl, results.json and log.txt.

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
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec

import yaml

from posenc.core.atomic_files import CONTINUES, cannot_write, write_json_atomic, write_text_atomic
from posenc.core.errors import RunError
from posenc.results.load import load_run
from posenc.results.schema import RunFacts
from posenc.results.store import assemble_results, read_json, read_records
from posenc.running.run_lock import results_lock
from posenc.training.distributed import current

P = ParamSpec("P")
LOG = "log.txt"
FAILED = re.compile(r"^failed: (.*)$", re.M)  # the line of a log that gives the reason of a failure
LOG_TAIL = 100_000  # bytes of a log that are searched for it
REGULAR = getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0)


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
            **more,
        },
    )


@by_the_first
def write_config(directory: Path, settings: dict[str, Any] | str) -> None:
    """Write config.yaml, resolved plain data; or its text as it was."""
    if not isinstance(settings, str):
        settings = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    write_text_atomic(directory / "config.yaml", settings)


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


class _LogFile(logging.FileHandler):
    """Lacks lines on a full disk; the run itself ends, with the reason, at what it cannot write."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


@contextmanager
def log_file(directory: Path) -> Iterator[None]:
    """Log to log.txt too, with the stack if a signal such as SIGSEGV ends the process."""
    if not current().is_first:
        yield
        return
    with contextlib.ExitStack() as stack:
        try:
            handler = _LogFile(directory / LOG, encoding="utf-8")
            stack.callback(_close, handler)
            if not faulthandler.is_enabled():  # else the user has chosen where it writes
                faulthandler.enable(stack.enter_context(os.fdopen(_open_log(directory, APPEND), "a")))
                stack.callback(faulthandler.disable)
        except OSError as error:
            raise cannot_write(directory / LOG, error) from error
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        logging.getLogger().addHandler(handler)
        yield


def _close(handler: logging.Handler) -> None:
    logging.getLogger().removeHandler(handler)
    with contextlib.suppress(OSError):
        handler.close()


APPEND = os.O_WRONLY | os.O_APPEND | os.O_CREAT


def _open_log(directory: Path, how: int) -> int:
    descriptor = os.open(directory / LOG, how | REGULAR, 0o666)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(f"{directory / LOG} is not a regular file")
    return descriptor


def append_log(directory: Path, text: str, reason: str) -> None:
    """Append to log.txt, ending with a line for the reason of a failure. Raises OSError."""
    directory.mkdir(parents=True, exist_ok=True)
    with os.fdopen(_open_log(directory, APPEND), "w", encoding="utf-8", errors="backslashreplace") as file:
        file.write(f"{text}failed: {' '.join(reason.split())}\n")


def log_size(directory: Path) -> int:
    """Return the bytes of log.txt; 0 if there is none."""
    try:
        return (directory / LOG).lstat().st_size
    except OSError:
        return 0


def logged_reason(directory: Path, offset: int) -> str | None:
    """Return the last reason of a failure in log.txt after `offset` bytes."""
    try:
        with os.fdopen(_open_log(directory, os.O_RDONLY), "rb") as file:
            file.seek(max(offset, log_size(directory) - LOG_TAIL))
            found = FAILED.findall(file.read(LOG_TAIL).decode("utf-8", "replace"))
    except OSError:
        return None
    return str(found[-1]) if found else None


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
    try:
        ask = ["git", "-C", str(root)]
        head = subprocess.run([*ask, "rev-parse", "HEAD"], capture_output=True, text=True, timeout=5)
        dirty = subprocess.run([*ask, "diff", "--quiet", "HEAD"], capture_output=True, timeout=5)
    except (OSError, subprocess.SubprocessError):
        return None
    return head.stdout.strip() + ("+" if dirty.returncode else "") if head.returncode == 0 else None
