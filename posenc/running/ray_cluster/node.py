"""Run one job of a sweep on a node: what a worker of Ray imports and calls.

The job is a process of its own, as in a sweep on one machine. However it ends, that is a result, which Ray
hands back; only the loss of the worker or of its node makes Ray start the job again.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from posenc.config.keys import key_of
from posenc.config.overrides import quote
from posenc.core.paths import cache_dir
from posenc.running.ray_cluster.returned_folder import files_to_return
from posenc.running.sweep.process import ERROR, JobProcess
from posenc.settings.launchers import OWN, SHARED

BEGINS = "begins"
PRINTS = "prints"
# Ray cancels by an exception, which cannot strike while the thread waits for a process
CANCEL_LOOK_SECONDS = 0.5


@dataclass(frozen=True)
class Order:
    """Tell a node what to run, and where. Nothing of a run goes with it, only its command line."""

    task_name: str
    arguments: Sequence[str]  # of Python: -P -m posenc train ...
    variables: Mapping[str, str]  # of the environment
    folder: str  # where the command that waits was started
    # EXPERIMENT/NAME of the run directory; None: an evaluation, which needs a run that is there
    run: str | None
    folders: str  # auto, shared or own
    marker: str  # a file in the folder of the command that waits
    marker_text: str


@dataclass(frozen=True)
class JobEnd:
    """Tell how the process of a job ended on a node."""

    exit_code: int
    last_lines: Sequence[str]
    node: str  # its id in Ray
    files: Mapping[str, bytes] | None = None  # of a run directory that only the node has


class Message(NamedTuple):
    """Say something about a job to the command that waits."""

    kind: str  # BEGINS or PRINTS
    task_name: str
    text: str  # the node's address, or a line of output


class Board:
    """Take what jobs say, in an actor on the machine of the command that waits, until it is read."""

    def __init__(self) -> None:
        self._messages: list[Message] = []

    def add(self, kind: str, task_name: str, text: str) -> None:
        """Take a message: BEGINS with the node's address, or PRINTS with a line of output."""
        self._messages.append(Message(kind, task_name, text))

    def take(self) -> list[Message]:
        """Return the messages since the last call."""
        messages = self._messages
        self._messages = []
        return messages


@dataclass(frozen=True)
class _Workplace:
    """Hold where a job runs on this node."""

    folder: Path
    arguments: Sequence[str]
    own_directory: Path | None  # of the run, if the command that waits does not see it


def run_order(order: Order, board: Any) -> JobEnd:
    """Run a job in a process of its own, and return how that ended. `board` is the handle of a Board."""
    # launch.py imports this file before it is known whether Ray is installed.
    import ray

    node = ray.get_runtime_context().get_node_id()
    workplace = _workplace(order)
    if workplace is None:
        # It looks like the last line of a job that fails, in which the sweep finds the reason.
        problem = f"{ERROR}this node does not see {order.folder}, where the command was started"
        return JobEnd(1, [problem], node)
    node_text: str = ray.util.get_node_ip_address()
    if workplace.own_directory is not None:
        node_text += f", its own folder {workplace.folder}"
    board.add.remote(BEGINS, order.task_name, node_text)
    job_process = JobProcess(
        [sys.executable, *workplace.arguments],
        order.variables,
        on_line=lambda line: board.add.remote(PRINTS, order.task_name, line),
        folder=workplace.folder,
        stdin=subprocess.DEVNULL,
    )
    try:
        exit_code = _wait(job_process.process)
    finally:
        job_process.process.kill()  # it still runs only after an error of our own
    job_process.finish_reading()
    ray.get(board.add.remote(PRINTS, order.task_name, ""))  # now all earlier lines have arrived
    files = None
    if workplace.own_directory is not None:
        files = files_to_return(workplace.own_directory, is_finished=exit_code == 0)
    return JobEnd(exit_code, list(job_process.last_lines), node, files)


def _workplace(order: Order) -> _Workplace | None:
    """Return where the job runs; None if it has to see the folder of the command that waits, and does not."""
    is_shared = order.folders != OWN and _has_marker(order)
    if is_shared:
        return _Workplace(Path(order.folder), order.arguments, None)
    if order.run is None or order.folders == SHARED:
        return None
    runs_dir = own_runs_dir()
    runs_dir.mkdir(parents=True, exist_ok=True)
    # The command's own `runs_dir` is a path on a disk that this node does not see.
    arguments = [text for text in order.arguments if key_of(text) != "runs_dir"]
    arguments.append(f"runs_dir={quote(str(runs_dir))}")
    return _Workplace(runs_dir, arguments, runs_dir / order.run)


def own_runs_dir() -> Path:
    """Return the folder of a node for runs whose directories it does not share."""
    return cache_dir() / "ray"


def remove_own(run: str) -> None:
    """Remove the directory of a run, EXPERIMENT/NAME, from this node once it has come back."""
    shutil.rmtree(own_runs_dir() / run, ignore_errors=True)


def _has_marker(order: Order) -> bool:
    """Tell whether the folder of this path is the one of the command that waits, and not a namesake."""
    try:
        # A folder of the same path may exist on a node with a disk of its own: the text tells.
        return Path(order.marker).read_text() == order.marker_text
    except OSError:
        return False


def _wait(process: subprocess.Popen[str]) -> int:
    """Wait for the end of a job and return its exit code. If Ray cancels it, it saves and stops."""
    while True:
        try:
            return process.wait(CANCEL_LOOK_SECONDS)
        except subprocess.TimeoutExpired:
            continue
        # Ray cancels a task by this exception. The loop then waits until the job has saved.
        except KeyboardInterrupt:
            process.terminate()
