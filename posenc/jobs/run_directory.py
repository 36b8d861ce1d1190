"""One run's folder: its lock, status, configuration and metrics.

Of several processes the first one alone writes: for the others everything here that writes does nothing.
"""

from __future__ import annotations

import functools
import json
import logging
import os
import platform
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any, ParamSpec

import yaml
from filelock import FileLock, Timeout

from posenc.errors import RunError
from posenc.results.load import load_run
from posenc.results.records import RunFacts
from posenc.results.store import assemble_results, write_json_atomic, write_text_atomic
from posenc.training.distributed import current

P = ParamSpec("P")


def by_the_first(write: Callable[P, None]) -> Callable[P, None]:
    """Done by the first process of the run alone."""

    @functools.wraps(write)
    def written(*args: P.args, **kwargs: P.kwargs) -> None:
        if current().is_first:
            write(*args, **kwargs)

    return written


def read_status(directory: Path) -> dict[str, Any]:
    """status.json, or an empty mapping where there is none or it is damaged."""
    try:
        status = json.loads((directory / "status.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return status if isinstance(status, dict) else {}


@contextmanager
def locked(directory: Path, name: str = "run") -> Iterator[None]:
    """Hold the run directory; RunError with host and pid of the holder within a second if it is held.

    The kernel releases the lock when the process dies, so there is no stale one. It is not reliable on some
    network file systems.
    """
    if not current().is_first:
        yield
        return
    try:
        directory.mkdir(parents=True, exist_ok=True)
        lock = FileLock(directory / f".{name}.lock", timeout=1)
        lock.acquire()
        # not in the lock file: whoever tries to take it empties it
        write_text_atomic(directory / f".{name}.holder", f"pid {os.getpid()} on {socket.gethostname()}")
    except Timeout as error:
        try:
            holder = (directory / f".{name}.holder").read_text(encoding="utf-8")
        except (OSError, ValueError):
            holder = "pid unknown"
        raise RunError(f"{directory} is being written by another process ({holder})") from error
    except OSError as error:
        raise RunError(f"cannot write {directory}: {error.strerror or error}") from error
    try:
        yield
    finally:
        lock.release()


def refuse_links(directory: Path) -> None:
    """RunError for a symbolic link in a run directory: posenc makes none and never follows one."""
    for pattern in ("*", "records/*", "checkpoints/*", "checkpoints/*/*"):
        for path in directory.glob(pattern):
            if path.is_symlink():
                raise RunError(f"{path} is a symbolic link; a run directory holds none")


@by_the_first
def put_together(directory: Path, facts: RunFacts, *, newer: bool) -> None:
    """results.json from records/. Facts of an earlier step, or of the same one unless `newer`, do not win.

    `train` and `eval` may end at the same time, so this waits for its own lock.
    """
    with FileLock(directory / ".results.lock", timeout=60):
        before = load_run(directory).facts
        if before is not None:
            ahead = before.get("steps", 0) - facts.get("steps", 0)
            if ahead > 0 or (ahead == 0 and not newer):
                facts = before
        assemble_results(directory, facts)


@by_the_first
def write_status(directory: Path, status: str, **more: Any) -> None:
    """status.json: running | finished | failed | diverged | interrupted, with reason, host, pid and times.

    Of several `processes` host and pid are those of the first.
    """
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
def write_config(directory: Path, settings: dict[str, Any]) -> None:
    """config.yaml: fully resolved, plain data."""
    write_text_atomic(
        directory / "config.yaml", yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    )


@by_the_first
def append_metrics(directory: Path, metrics: dict[str, float]) -> None:
    """One line of metrics.jsonl."""
    with (directory / "metrics.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(metrics) + "\n")


@by_the_first
def drop_metrics_after(directory: Path, step: int) -> None:
    """Forget logged steps past the checkpoint that a run continues from, so that each step stands once."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return
    kept = []
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line)
        except (ValueError, KeyError, TypeError):
            continue  # the line that a kill cut short
    write_text_atomic(path, "".join(line + "\n" for line in kept))


@contextmanager
def log_file(directory: Path) -> Iterator[None]:
    """Everything that is logged also goes to log.txt."""
    if not current().is_first:
        yield
        return
    handler = logging.FileHandler(directory / "log.txt", encoding="utf-8")
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()


@by_the_first
def append_log(directory: Path, text: str) -> None:
    """Text that belongs into log.txt and not on the screen: a traceback."""
    with (directory / "log.txt").open("a", encoding="utf-8", errors="backslashreplace") as file:
        file.write(text)


@functools.cache
def versions() -> dict[str, str]:
    """Versions that the numbers may depend on."""
    packages = ("posenc", "torch", "numpy", "sympy", "tokenizers", "datasets", "hydra-core")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


@functools.cache
def git_commit() -> str | None:
    """The commit of the clone that posenc runs from, with `+` if it was changed; None for a wheel."""
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
