"""Hand the jobs of a sweep to Ray, pass on what they print, and note how they end."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import write_text_atomic
from posenc.core.console import say
from posenc.core.errors import RunError, UserError, first_line, plural, visible
from posenc.core.first_signals import CODES
from posenc.core.machine import THREADS, usable_cores
from posenc.core.run_states import FAILED, INTERRUPTED
from posenc.running.invocation import Invocation
from posenc.running.ray_cluster.node import BEGINS, Board, JobEnd, Message, Order, remove_own, run_order
from posenc.running.ray_cluster.returned_folder import write_returned
from posenc.running.signals import StopFlag
from posenc.running.sweep.job_environment import job_environment
from posenc.running.sweep.lines import begin_line
from posenc.running.sweep.resources import slots_of_a_gpu, threads_of
from posenc.running.sweep.task import (
    NOT_STARTED,
    SAVED,
    SweepResult,
    SweepTask,
    TaskOutcome,
    outcome_of_process,
    outcome_on_disk,
    wait_until,
)
from posenc.running.sweep.task_queue import TaskQueue
from posenc.settings.launchers import LAUNCHER, OWN, RayLauncherSettings
from posenc.settings.tree import SweepSettings

ADDRESS = "hydra.launcher.address"
USAGE_STATISTICS = "RAY_USAGE_STATS_ENABLED"
CONNECT_SECONDS = 5.0
LOOK_SECONDS = 1.0  # between two looks at what jobs have printed


@dataclass(frozen=True)
class NodeShare:
    """Hold what each job gets of its node."""

    cpus: int
    gpus: float


@dataclass(frozen=True)
class RemoteTask:
    """Hold a task of the sweep with what a node is told of it, and what it gets there."""

    local: SweepTask
    order: Order
    share: NodeShare

    @property
    def name(self) -> str:
        """Return the name of the task."""
        return self.local.name


def launch(
    settings: RayLauncherSettings, sweep: SweepSettings, invocation: Invocation, tasks: Sequence[SweepTask]
) -> SweepResult:
    """Run the tasks on a Ray cluster and return how they ended. A signal ends them; what runs saves.

    Raises UserError if there is no Ray or no cluster.
    """
    is_evaluation = tasks[0].evaluation is None
    if is_evaluation and settings.folders == OWN:
        problem = "an evaluation needs the directory of its run"
        raise UserError("hydra.launcher.folders", OWN, problem, allowed=["auto", "shared"])
    for task in tasks:
        if task.device.startswith("cuda:"):  # a job sees its own GPU alone, whatever its number is
            problem = "Ray chooses the GPU of a job"
            raise UserError("device", task.device, problem, allowed=["auto", "cpu", "cuda"])
    with (
        _without_rays_messages(debug=invocation.debug),
        _connected(settings.address) as ray,
        _marker(tasks[0]) as marker,
    ):
        shares = {task.name: _share(task, settings, sweep) for task in tasks}
        at_once = min(_room(ray, list(shares.values())), sweep.jobs or len(tasks))
        # The process of a lost worker may still be saving. Whoever continues the run waits for its lock.
        variables = job_environment(invocation.sweep or "", at_once=at_once, waits=True)
        remote_tasks = []
        for task in tasks:
            share = shares[task.name]
            order = _order(task, settings, {**variables, THREADS: str(share.cpus)}, marker)
            remote_tasks.append(RemoteTask(task, order, share))
        return RaySweep(ray, remote_tasks, settings.restarts, sweep).run()


def _share(task: SweepTask, settings: RayLauncherSettings, sweep: SweepSettings) -> NodeShare:
    """Return what a job gets: what the settings say, or as much as it would get on one machine."""
    gpus = settings.gpus_per_task
    if gpus is None:
        # Ray takes parts of a GPU: four jobs with a quarter each go to one.
        gpus = 1 / slots_of_a_gpu([task], sweep) if task.device == "cuda" else 0
    return NodeShare(settings.cpus_per_task or threads_of(task), gpus)


@contextmanager
def _without_rays_messages(*, debug: bool) -> Iterator[None]:
    """Drop what Ray prints on stdout from a thread, some fifty lines for a lost node; `debug`: to stderr."""
    with (
        Path(os.devnull).open("w") as nowhere,
        contextlib.redirect_stdout(sys.stderr if debug else nowhere),
    ):
        yield


@contextmanager
def _connected(address: str) -> Iterator[Any]:
    """Connect to a cluster, or begin one of this machine alone; yield the module `ray`. Raises UserError."""
    if importlib.util.find_spec("ray") is None:
        raise UserError(
            LAUNCHER, "ray", "needs Ray, which is not installed", hint="pip install 'posenc[ray]'"
        )
    if address.startswith("ray://"):
        problem = "is Ray's client, which starts nothing again"
        raise UserError(
            ADDRESS, address, problem, hint="run the command on a machine of the cluster, with auto"
        )
    _check_answers(address)
    os.environ.setdefault(USAGE_STATISTICS, "0")  # before Ray is imported
    handlers_before = {number: signal.getsignal(number) for number in CODES}
    import ray

    options: dict[str, Any] = {}
    if address == "local":
        # The cores are counted as for a sweep on this machine, by its binding and its container's quota.
        options = {"num_cpus": usable_cores(), "include_dashboard": False}
    try:
        # What a job prints comes by the board. Ray's own logs of its workers would stand between those lines.
        ray.init(address=address, log_to_driver=False, logging_level=logging.ERROR, **options)
    except (OSError, RuntimeError, ValueError, AssertionError) as error:  # ConnectionError is an OSError
        raise _no_cluster(address, error) from error
    finally:
        for number, handler in handlers_before.items():  # Ray has set its own
            signal.signal(number, handler)
    try:
        yield ray
    finally:
        ray.shutdown()


def _check_answers(address: str) -> None:
    """Raise UserError for HOST:PORT where nobody listens: Ray itself would try for two minutes."""
    host, colon, port = address.rpartition(":")
    if not colon or not port.isdecimal():
        return
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS).close()
    except (OSError, OverflowError) as error:
        raise _no_cluster(address, error) from error


def _no_cluster(address: str, error: Exception) -> UserError:
    hint = "ray start --head begins one, and prints how others join it\nlocal: this machine alone"
    return UserError(ADDRESS, address, f"no Ray cluster: {first_line(error)}", hint=hint)


@contextmanager
def _marker(task: SweepTask) -> Iterator[tuple[Path, str]]:
    """Write a file by which a node knows whether it sees the run directories; yield its path and text."""
    text = secrets.token_hex(16)
    is_training = task.evaluation is not None
    folder = task.directory.parents[1] / ".sweeps" if is_training else task.directory
    # Nobody else has this name: two sweeps may wait in one folder.
    path = folder.absolute() / f".ray-{text[:8]}"
    write_text_atomic(path, text)
    try:
        yield path, text
    finally:
        path.unlink(missing_ok=True)
        if is_training:
            with suppress(OSError):  # there is more in it
                folder.rmdir()


def _room(ray: Any, shares: Sequence[NodeShare]) -> int:
    """Print how many jobs the cluster has room for, each as large as the largest; return it, at least 1."""
    cpus = max(share.cpus for share in shares)
    gpus = max(share.gpus for share in shares)
    rooms = []
    for node in ray.nodes():
        if not node["Alive"]:
            continue
        # A job cannot be spread over nodes, so the rooms of nodes are rounded down one by one.
        room = int(node["Resources"].get("CPU", 0) // cpus)
        if gpus:
            room = min(room, int(node["Resources"].get("GPU", 0) / gpus))
        rooms.append(room)
    each = plural(cpus, "core")
    if gpus:
        each += f" and {gpus:g} GPU"
    say(f"Ray: {plural(len(rooms), 'node')}, room for {plural(sum(rooms), 'job')} with {each} each")
    if not any(rooms):
        say("no node has that much now: the jobs wait until one joins")
    return max(1, sum(rooms))


def _order(
    task: SweepTask, settings: RayLauncherSettings, variables: dict[str, str], marker: tuple[Path, str]
) -> Order:
    """Return what a node is told of a task."""
    arguments = task.with_precision(task.command[1:])  # each node has its own Python
    path, text = marker
    # EXPERIMENT/NAME is the same below any runs_dir, also below that of a node.
    run = None if task.evaluation is None else Path(*task.directory.parts[-2:]).as_posix()
    return Order(
        task_name=task.name,
        arguments=arguments,
        variables=variables,
        folder=str(Path.cwd()),
        run=run,
        folders=settings.folders,
        marker=str(path),
        marker_text=text,
    )


class RaySweep:
    """Run tasks on a cluster. Ray decides which runs where; tasks of one run go one after the other."""

    def __init__(self, ray: Any, tasks: Sequence[RemoteTask], restarts: int, settings: SweepSettings) -> None:
        self.ray = ray
        self.tasks = {task.name: task for task in tasks}
        self.queue = TaskQueue(
            [task.local for task in tasks],
            at_once=settings.jobs or len(tasks),
            fail_fast=settings.fail_fast,
        )
        self.running: dict[Any, RemoteTask] = {}  # by Ray's reference of the result
        self.restarts = restarts
        self.times_begun: Counter[str] = Counter()  # by the name of the task
        self.began_at: dict[str, float] = {}  # by time.monotonic()
        # the actor stays on this machine, so that no loss of a node takes it away
        on_this_machine = self._on(ray.get_runtime_context().get_node_id())
        self.board = ray.remote(Board).options(num_cpus=0, scheduling_strategy=on_this_machine).remote()

    def _on(self, node: str) -> Any:
        """Return what makes Ray run something on a certain node and nowhere else."""
        return self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(node, soft=False)

    def run(self) -> SweepResult:
        """Run all tasks; return how they ended."""
        with StopFlag() as stop:
            stop.guarded = True  # a signal is passed on, and the jobs that save are waited for
            while self.queue.waiting or self.running:
                if stop.received is not None and not self.queue.is_closed:
                    self._stop()
                self._submit_tasks()
                # The pause is short, since the lines of all jobs are printed between two such waits.
                ended, _ = self.ray.wait(list(self.running), timeout=LOOK_SECONDS)
                # The messages come before the ends: a job's last lines
                # stand above the line that says how it ended.
                self._pass_on_messages()
                for reference in ended:
                    self._note_end(self.running.pop(reference), reference)
        return SweepResult(self.queue.outcomes, stop.exit_code)

    def _submit_tasks(self) -> None:
        """Hand Ray all tasks that can begin."""
        while (local := self.queue.next_task()) is not None:
            task = self.tasks[local.name]
            self.running[self._submit(task)] = task

    def _submit(self, task: RemoteTask) -> Any:
        """Hand a task to Ray, and return the reference of its result."""
        run = self.ray.remote(run_order).options(
            name=task.name,
            num_cpus=task.share.cpus,
            num_gpus=task.share.gpus,
            max_retries=self.restarts,  # after the loss of a worker or a node
            # Only the loss of a worker or a node is tried again. A job that fails has a result, too.
            retry_exceptions=False,
        )
        return run.remote(task.order, self.board)

    def _pass_on_messages(self) -> None:
        """Print what the jobs have said since the last call."""
        messages: list[Message] = self.ray.get(self.board.take.remote())
        for message in messages:
            if message.kind == BEGINS:
                self._note_begin(self.tasks[message.task_name], message.text)
            elif message.text:
                say(f"{message.task_name}: {visible(message.text)}")

    def _note_begin(self, task: RemoteTask, node: str) -> None:
        """Print that a job begins on a node, for the first time or again."""
        self.times_begun[task.name] += 1
        if self.times_begun[task.name] == 1:
            self.began_at[task.name] = time.monotonic()
        else:
            say(f"{task.name}: its node or its worker is lost, so it is started again")
        say(begin_line(task.local, {"node": node, THREADS: str(task.share.cpus)}))
        if self.times_begun[task.name] > self.restarts + 1:
            # Ray does not count the workers that it ends itself where a node runs out of memory
            self._cancel(task, force=True)

    def _note_end(self, task: RemoteTask, reference: Any) -> None:
        """Note how a task ended, and print it."""
        outcome = self._outcome(task, reference)
        began_at = self.began_at.get(task.name, time.monotonic())
        if self.queue.note_end(task.local, outcome, time.monotonic() - began_at):
            self._stop()

    def _outcome(self, task: RemoteTask, reference: Any) -> TaskOutcome:
        """Return how a task ended."""
        try:
            end: JobEnd = self.ray.get(reference)
        except Exception as error:  # each loss has an exception of its own, and so has each fault of a node
            return self._outcome_without_end(task, first_line(error))
        try:
            if end.files is not None:
                self._bring_back(task, end)
        except RunError as error:
            return TaskOutcome(FAILED, error.problem)
        if end.exit_code == 0:
            wait_until(lambda: task.local.is_finished)  # a network disk may take seconds to show it
        return outcome_of_process(task.local, end.exit_code, end.last_lines)

    def _outcome_without_end(self, task: RemoteTask, reason: str) -> TaskOutcome:
        """Return how a task ended that was cancelled, or lost too often."""
        times_begun = self.times_begun[task.name]
        if not self.queue.is_closed:
            return TaskOutcome(FAILED, f"Ray gave it up after {plural(times_begun, 'start')}: {reason}")
        if times_begun == 0:
            return TaskOutcome(NOT_STARTED)
        return outcome_on_disk(task.local) or TaskOutcome(INTERRUPTED, SAVED)

    def _bring_back(self, task: RemoteTask, end: JobEnd) -> None:
        """Write the run directory that a node has returned, then remove it there if the run is finished."""
        assert end.files is not None
        write_returned(task.local.directory, end.files)
        # The node keeps what it could continue from.
        if not task.local.is_finished:
            return
        on_its_node = self._on(end.node)
        remove = self.ray.remote(remove_own).options(
            # The task asks for no core: all of the node's may be busy with jobs.
            num_cpus=0,
            scheduling_strategy=on_its_node,
            max_retries=0,
        )
        with suppress(Exception):  # the node may be gone
            self.ray.get(remove.remote(task.order.run))

    def _stop(self) -> None:
        """Begin no more tasks, and let those that run save and stop."""
        self.queue.close()
        for task in list(self.running.values()):
            self._cancel(task, force=False)

    def _cancel(self, task: RemoteTask, *, force: bool) -> None:
        """Let a task stop, or with `force` end its worker; a task that is not running any more is left."""
        for reference, running_task in self.running.items():
            if running_task is task:
                self.ray.cancel(reference, force=force, recursive=False)
