"""One run's folder: its status, configuration and metrics.

Who may write there: `holding`. Of several processes the first one alone does: for the others everything here
that writes does nothing.
"""

from __future__ import annotations

import contextlib
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
from posenc.results.own_files import read_json
from posenc.results.records import RunFacts
from posenc.results.store import assemble_results, read_records
from posenc.running import job_log
from posenc.running.holding import results_lock
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
        return read_json(directory, "status.json") or {}  # of a stranger: a pipe, a device, a link
    except (OSError, ValueError, RecursionError):
        return {}


def refuse_links(directory: Path) -> None:
    """RunError for a link, a pipe or a device in a run directory: posenc makes none and opens none.

    What W&B keeps in its own folder is left alone: it makes links there, and posenc reads nothing of it.
    """
    for path in _all_below(directory):
        try:
            mode = path.lstat().st_mode
        except FileNotFoundError:  # a writer's temporary file, renamed meanwhile
            continue
        if stat.S_ISLNK(mode):
            raise RunError(f"{path} is a symbolic link; a run directory holds none")
        if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
            raise RunError(f"{path} is neither a file nor a folder; a run directory holds nothing else")


def _all_below(directory: Path) -> Iterator[Path]:
    """Every file and folder, hidden ones too, but W&B's; a folder that goes away meanwhile is empty."""
    for folder, folders, files in os.walk(directory):  # follows no links
        yield from (Path(folder) / name for name in (*folders, *files))
        if Path(folder) == directory:
            folders[:] = [name for name in folders if name != "wandb"]


@by_the_first
def put_together(directory: Path, facts: RunFacts, *, newer: bool) -> None:
    """results.json from records/. Facts of an earlier step, or of the same one unless `newer`, do not win."""
    with results_lock(directory):
        before = load_run(directory).facts
        if before is not None:
            ahead = before.get("steps", 0) - facts.get("steps", 0)
            if ahead > 0 or (ahead == 0 and not newer):
                facts = before
        assemble_results(directory, facts)


def records_at(directory: Path, step: int) -> list[dict[str, Any]]:
    """All that was measured of the weights of a step, by this process or before, as trackers are told it."""
    return [dict(record) for record in read_records(directory) if record["checkpoint_step"] == step]


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
def write_config(directory: Path, settings: dict[str, Any] | str) -> None:
    """config.yaml: fully resolved, plain data; or its text as it was."""
    if not isinstance(settings, str):
        settings = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
    write_text_atomic(directory / "config.yaml", settings)


@by_the_first
def append_metrics(directory: Path, metrics: dict[str, float]) -> None:
    """One line of metrics.jsonl. Raises RunError when the disk refuses it."""
    line = (json.dumps(metrics) + "\n").encode()
    path = directory / "metrics.jsonl"
    try:
        with path.open("ab") as file:
            file.write(line)
    except OSError as error:
        raise cannot_write(path, error, needed=len(line), hint=CONTINUES) from error


@by_the_first
def drop_metrics_after(directory: Path, step: int) -> None:
    """Forget logged steps past the checkpoint that a run continues from, so that each step stands once."""
    path = directory / "metrics.jsonl"
    if not path.exists():
        return
    kept = []
    for line in path.read_bytes().splitlines():
        try:
            if json.loads(line)["step"] <= step:
                kept.append(line.decode())
        except (ValueError, KeyError, TypeError):
            continue  # the line that a kill cut short, or that is damaged
    write_text_atomic(path, "".join(line + "\n" for line in kept))


@by_the_first
def drop_records_after(directory: Path, step: int) -> None:
    """Forget what was measured of later weights than those that a run continues from: they come anew.

    On another machine, or with other threads, their bits would differ, and a curve would be of two models.
    """
    for path in (directory / "records").glob("[!.]*.json"):
        found = re.search(r"-step(\d+)-", path.name)
        if found and int(found[1]) > step:
            path.unlink(missing_ok=True)


class _LogFile(logging.FileHandler):
    """On a full disk lines are missing; the run ends for what it cannot write itself, and says so once."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        pass


@contextmanager
def log_file(directory: Path) -> Iterator[None]:
    """Everything that is logged also goes to log.txt."""
    if not current().is_first:
        yield
        return
    try:
        handler = _LogFile(directory / job_log.NAME, encoding="utf-8")
    except OSError as error:
        raise cannot_write(directory / job_log.NAME, error) from error
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


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
