"""Read and write the files of a run directory, from config.yaml to results.json.

If several processes train one run, only the first one writes; in the others the writing functions do nothing.
The folder may come from somebody else (`posenc eval`): no link is followed, only regular files are opened.
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

from posenc.core.atomic_files import CONTINUES, cannot_write, write_json_atomic, write_text_atomic
from posenc.core.errors import RunError
from posenc.core.run_states import DIVERGED, FAILED, FINISHED, RUNNING
from posenc.results.files import RESULTS_FILE
from posenc.results.record_files import assemble_results, read_records
from posenc.results.records import Record, RunFacts
from posenc.results.runs import METRICS_FILE, RunStatus, load_run, stored_status
from posenc.running.locks import locked
from posenc.running.signals import StopFlag
from posenc.settings.tree import EvalSettings, RunSettings, SubjectSettings
from posenc.tracking.tracker import EVENTS_FOLDER, STATE_FOLDER
from posenc.training.checkpoint import checkpoint_paths, drop_leftovers, leftovers, step_of
from posenc.training.distributed import current

P = ParamSpec("P")
LOG = "log.txt"
OPEN = "open"  # something is left to do
# sympy is here for its text: its source is the default corpus, so another version is another text.
PACKAGES = ("posenc", "torch", "numpy", "sympy", "tokenizers", "datasets", "hydra-core")
STEP_OF_RECORD = re.compile(r"-step(\d+)-")


def only_in_first_process(write: Callable[P, None]) -> Callable[P, None]:
    """Make a function do nothing except in the first process of a run."""

    @functools.wraps(write)
    def written_once(*args: P.args, **kwargs: P.kwargs) -> None:
        if current().is_first:
            write(*args, **kwargs)

    return written_once


# --- config.yaml


class PlainDumper(yaml.SafeDumper):
    """Write equal values in full. YAML's aliases for them are refused when a config.yaml is read."""

    def ignore_aliases(self, data: object) -> bool:
        return True


@only_in_first_process
def write_config(directory: Path, settings: RunSettings | SubjectSettings) -> None:
    """Write the settings to config.yaml as resolved plain data."""
    # People read this file: keys keep the order of the settings, and a path such as `läufe` stays legible.
    text = yaml.dump(settings.plain(), Dumper=PlainDumper, sort_keys=False, allow_unicode=True)
    write_text_atomic(directory / "config.yaml", text)


# --- status.json


def read_status(directory: Path) -> RunStatus:
    """Return status.json, or {} if it is missing or damaged."""
    try:
        return stored_status(directory)
    # JSON that is nested too deep raises RecursionError, and the file may come from somebody else.
    except (OSError, ValueError, RecursionError):
        return {}


@only_in_first_process
def write_status(directory: Path, status: str, **facts: Any) -> None:
    """Write status.json; `status` is running, finished, failed, diverged or interrupted."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    # `started` is that of the first status. The overrides are those of the last command that names some, and
    # `posenc runs` makes of them the command that continues the run.
    earlier_status = read_status(directory)
    common_facts: RunStatus = {
        "status": status,
        "reason": None,
        "host": socket.gethostname(),
        "pid": os.getpid(),
        "processes": current().size,
        "started": earlier_status.get("started", now),
        "updated": now,
        "versions": versions(),
        "git_commit": git_commit(),
        "overrides": earlier_status.get("overrides"),
        "config_dir": earlier_status.get("config_dir"),
    }
    write_json_atomic(directory / "status.json", {**common_facts, **facts})


def status_after(error: BaseException) -> str:
    """Return the status of a run that an error ends: InterruptedRunError and DivergedRunError say it."""
    # The class is not asked: DivergedRunError is of train.py, which imports this module.
    return str(getattr(error, "status", FAILED))


@contextmanager
def recorded_status(directory: Path, stop: StopFlag, **facts: object) -> Iterator[None]:
    """Write the status `running`, and how the run ended if an exception leaves the block.

    The caller writes `finished` and `diverged`.
    """
    write_status(directory, RUNNING, **facts)
    try:
        yield
    except BaseException as error:
        status = status_after(error)
        reason = stop.name
        if status == FAILED:
            reason = getattr(error, "problem", f"{type(error).__name__}: {error}")
        if status != DIVERGED:
            with contextlib.suppress(OSError, RunError):  # a full disk must not hide the first reason
                # The whole text, with the traceback, goes to log.txt.
                # Lists of runs have one line for the reason.
                write_status(directory, status, reason=reason.partition("\n")[0])
        raise


def run_state(directory: Path, evaluation: EvalSettings, *, retry: bool = False) -> str:
    """Return FINISHED if a run is trained and evaluated by these settings, else DIVERGED or OPEN.

    With `retry` a run that diverged is open.
    """
    if read_status(directory).get("status") == DIVERGED and not retry:
        return DIVERGED
    # Whoever asks for other `eval` settings has something left to measure, so the run is open again.
    settings = load_run(directory).settings
    is_measured = settings is not None and settings.eval == evaluation
    is_complete = is_measured and was_finished(directory)
    return FINISHED if is_complete else OPEN


def step_to_continue_from(directory: Path) -> int:
    """Return the step of the newest checkpoint, by its name; 0 if the training begins anew."""
    # The training of a run that diverged is forgotten before it is tried again.
    if read_status(directory).get("status") == DIVERGED:
        return 0
    paths = checkpoint_paths(directory / "checkpoints")
    return step_of(paths[-1]) if paths else 0


def is_done(directory: Path, evaluation: EvalSettings, *, retry: bool = False) -> bool:
    """Tell whether nothing is left to do. Raises RunError for a run that diverged, unless `retry`."""
    state = run_state(directory, evaluation, retry=retry)
    if state == DIVERGED:
        hint = "try a smaller train.lr or another seed; --retry trains it again, from the start"
        raise RunError(f"this run diverged before: {read_status(directory).get('reason')}", hint=hint)
    return state == FINISHED


def was_finished(directory: Path) -> bool:
    """Tell whether the run is trained, and measured by whatever settings."""
    # A run is not done without a readable results.json: the same command then writes the file again.
    return read_status(directory).get("status") == FINISHED and load_run(directory).facts is not None


@only_in_first_process
def forget_diverged(directory: Path) -> None:
    """Remove what is left of a training that diverged, before the run is trained again.

    What trackers were told counts as well: they would take no step again that they have.
    """
    if read_status(directory).get("status") == DIVERGED:
        # metrics.jsonl and the records go by `drop_after`, once the new training begins at step 0.
        for folder in ("checkpoints", STATE_FOLDER, EVENTS_FOLDER):
            shutil.rmtree(directory / folder, ignore_errors=True)
        (directory / RESULTS_FILE).unlink(missing_ok=True)


@only_in_first_process
def drop_leftovers_of(directory: Path) -> None:
    """Remove what a finished run could not remove; not if another process holds it, or none may write."""
    checkpoints = directory / "checkpoints"
    # The look comes first, since the lock writes two files into a run that is finished.
    if leftovers(checkpoints):
        with contextlib.suppress(RunError), locked(directory):
            drop_leftovers(checkpoints)


# --- metrics.jsonl


@only_in_first_process
def append_metrics(directory: Path, metrics: dict[str, float]) -> None:
    """Append a line to metrics.jsonl. Raises RunError if the disk refuses it."""
    line = (json.dumps(metrics) + "\n").encode()
    path = directory / METRICS_FILE
    try:
        # Appended in place. If a kill cuts the line short, `drop_after` drops it when the run continues.
        with path.open("ab") as file:
            file.write(line)
    except OSError as error:
        raise cannot_write(path, error, needed=len(line), hint=CONTINUES) from error


@only_in_first_process
def drop_after(directory: Path, step: int) -> None:
    """Drop metrics and records of steps after the checkpoint that a run continues from."""
    # each step is logged once; records go because weights trained elsewhere would differ in the last bits
    path = directory / METRICS_FILE
    if path.exists():
        lines = [line for line in path.read_bytes().splitlines() if _is_logged_until(line, step)]
        write_text_atomic(path, "".join(line.decode() + "\n" for line in lines))
    for record in (directory / "records").glob("[!.]*.json"):
        match = STEP_OF_RECORD.search(record.name)
        # A record of this very step stays, since it is of the weights that the run continues from.
        if match and int(match[1]) > step:
            record.unlink(missing_ok=True)


def _is_logged_until(line: bytes, step: int) -> bool:
    try:
        return bool(json.loads(line)["step"] <= step)
    except (ValueError, KeyError, TypeError):  # a kill cut the line short
        return False


# --- records and results.json


def records_at(directory: Path, step: int) -> list[Record]:
    """Return all records of the weights of a step."""
    return [record for record in read_records(directory) if record["checkpoint_step"] == step]


@only_in_first_process
def put_together(directory: Path, facts: RunFacts, *, replaces_same_step: bool) -> None:
    """Write results.json from the files in records/.

    Stored facts stay if they are from a later step. With `replaces_same_step`, those of the same step are
    replaced.
    """
    with locked(directory, "results", seconds=60):  # train and eval may end at the same time
        stored = load_run(directory).facts
        stored_step = -1 if stored is None else stored.get("steps", 0)
        is_later = stored_step > facts["steps"]
        is_same = stored_step == facts["steps"]
        if stored is not None and (is_later or (is_same and not replaces_same_step)):
            facts = stored
        assemble_results(directory, facts)


# --- folders from somebody else


def refuse_links(directory: Path) -> None:
    """Raise RunError for a link, a pipe or a device in a run directory, except in W&B's own folder."""
    for folder, subfolders, files in os.walk(directory):  # follows no links
        for name in (*subfolders, *files):
            path = Path(folder) / name
            with contextlib.suppress(FileNotFoundError):  # a writer's temporary file, renamed meanwhile
                mode = path.lstat().st_mode
                if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                    kind = "a symbolic link" if stat.S_ISLNK(mode) else "neither a file nor a folder"
                    raise RunError(f"{path} is {kind}; a run directory holds files and folders only")
        # W&B links its newest run and its log inside of its folder. posenc reads nothing there.
        if Path(folder) == directory:
            subfolders[:] = [name for name in subfolders if name != "wandb"]  # os.walk skips the others


# --- log.txt


@contextmanager
def log_file(directory: Path) -> Iterator[None]:
    """Log to log.txt too, and why the run ends if it fails."""
    if not current().is_first:
        yield
        return
    try:
        # The name of a file that is not UTF-8 reaches Python with characters that UTF-8 cannot write.
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
    # A plug-in may leave by sys.exit. KeyboardInterrupt and our own interruption are no failures.
    except (Exception, SystemExit) as error:
        _log_failure(handler, error)
        raise
    finally:
        root.removeHandler(handler)
        with contextlib.suppress(OSError):
            handler.close()


def _log_failure(handler: logging.Handler, error: BaseException) -> None:
    """Write why a run failed, with the traceback, to its log and nowhere else."""
    reason = getattr(error, "problem", f"{type(error).__name__}: {error}")
    attributes = {"name": "posenc", "levelname": "ERROR", "msg": f"failed: {' '.join(reason.split())}"}
    # Straight to the file: the command itself prints the reason on the screen.
    handler.handle(logging.makeLogRecord({**attributes, "exc_info": sys.exc_info()}))


# --- what the numbers may depend on


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions that the numbers may depend on."""
    return {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}}


@functools.cache
def git_commit() -> str | None:
    """Return the commit of the clone that posenc runs from, with `+` if it was changed; None for a wheel."""
    # In a wheel this folder is site-packages. git would look further up from there, and would name the commit
    # of the project that the virtual environment lies in. In a worktree `.git` is a file.
    root = Path(__file__).resolve().parents[2]
    if not (root / ".git").exists():
        return None
    # `--exclude=*` leaves out all tags, so that the answer is always the commit.
    command = ["git", "-C", str(root), "describe", "--always", "--abbrev=40", "--exclude=*", "--dirty=+"]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=5).stdout.strip() or None
    except (OSError, subprocess.SubprocessError):
        return None
