"""Run the tasks of a sweep as processes on this machine.

A thread waits for each process, so that nothing polls. Runs that another process holds (the same sweep,
started twice) are left for later.
"""

from __future__ import annotations

import os
import signal
import subprocess
import threading
import time
from collections import deque
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from posenc.core.console import PROGRESS, say
from posenc.core.errors import visible
from posenc.running.invocation import PARENT, SWEEP, WAIT
from posenc.running.jobs import HELD
from posenc.running.locks import holder_of, is_held
from posenc.running.run_directory import FINISHED
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.running.sweep.lines import begin_line, end_line, settled_line
from posenc.running.sweep.resources import GPUS, THREADS, GpuSlot, gpu_slots
from posenc.running.sweep.task import (
    NOT_STARTED,
    SweepResult,
    SweepTask,
    TaskOutcome,
    outcome_of_process,
    outcome_on_disk,
)

LOOK_AGAIN = 1.0  # seconds between two looks at runs that other processes hold
STATUS_SECONDS = 10  # between two lines of progress, of all running tasks in turn
LAST_LINES = (
    2.0  # seconds to read on after the end: what a job leaves behind may hold its output open for ever
)
KEPT_LINES = 20  # of each task's output, to find the error in


@dataclass(frozen=True)
class Worker:
    """A task whose process runs."""

    task: SweepTask
    process: subprocess.Popen[str]
    slot: GpuSlot | None
    began: float  # by time.monotonic()
    last_lines: deque[str]
    reader: threading.Thread  # of its output


class WorkerPool:
    """Run tasks, `at_once` at a time. Only the main thread changes what stands here.

    lock: the name of the lock that a task's process takes, "run" or "evaluation".
    gpus: a task on `cuda` gets one of them.
    fail_fast: the first task that does not finish ends the others.
    """

    def __init__(
        self,
        tasks: Sequence[SweepTask],
        *,
        lock: str = "run",
        at_once: int = 1,
        gpus: Sequence[str] = (),
        fail_fast: bool = False,
        sweep: str = "",
    ) -> None:
        self.waiting = list(tasks)
        self.running: dict[Future[int], Worker] = {}
        self.outcomes: dict[str, TaskOutcome] = {}
        self.lock = lock
        self.at_once = at_once
        self.slots = gpu_slots(gpus, at_once)
        self.fail_fast = fail_fast
        self.sweep = sweep
        self.stopping = False  # no more tasks begin
        self._announced: set[str] = set()  # tasks of which it is said that they wait for another process

    def run(self) -> SweepResult:
        """Run all tasks; return how they ended. No process outlives this call."""
        with StopFlag() as stop, ThreadPoolExecutor(self.at_once) as threads:
            stop.guarded = True  # a signal is passed on, and the processes that save are waited for
            try:
                while self.waiting or self.running:
                    if stop.received is not None and not self.stopping:
                        self._stop(stop.received)
                    self._begin_tasks(threads)
                    for future in self._wait_for_an_end(stop):
                        self._note_end(self.running.pop(future), future.result())
            finally:
                for worker in self.running.values():  # some are left only after an error of our own
                    worker.process.terminate()
        return SweepResult(self.outcomes, stop.exit_code)

    def _begin_tasks(self, threads: ThreadPoolExecutor) -> None:
        """Begin what can begin; once stopping, note that what waits is not started."""
        if self.stopping:
            self.outcomes |= {task.name: TaskOutcome(NOT_STARTED) for task in self.waiting}
            self.waiting = []
        while len(self.running) < self.at_once:
            task = self._next_task()
            if task is None:
                return
            self.waiting.remove(task)
            worker = self._start(task)
            self.running[threads.submit(worker.process.wait)] = worker

    def _next_task(self) -> SweepTask | None:
        """Return the first task that can begin; those that another process has ended are noted."""
        busy = {worker.task.directory for worker in self.running.values()}
        for task in list(self.waiting):
            if task.directory in busy:  # two tasks of one run go one after the other
                continue
            if is_held(task.directory, self.lock):
                self._announce(task)
                continue
            outcome = outcome_on_disk(task)
            if outcome is None:
                return task
            self.waiting.remove(task)
            self.outcomes[task.name] = outcome
            say(settled_line(task, outcome, "finished by another process"))
        return None

    def _announce(self, task: SweepTask) -> None:
        """Say once that a task waits for another process."""
        if task.name not in self._announced:
            self._announced.add(task.name)
            say(f"{task.name}: waits for another process ({holder_of(task.directory, self.lock)})")

    def _start(self, task: SweepTask) -> Worker:
        """Start the process of a task, and a thread that reads its output."""
        self._announced.discard(task.name)
        share: dict[str, str] = {}
        if not os.environ.get(THREADS):  # what the user has set is left alone
            share[THREADS] = str(task.threads)
        slot = None
        if task.device == "cuda" and not self.slots.empty():
            slot = self.slots.get()
            share[GPUS] = slot.gpu
        say(begin_line(task, share))
        process = subprocess.Popen(
            list(task.command),
            env={**os.environ, **share, **self._environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            errors="replace",
        )
        last_lines: deque[str] = deque(maxlen=KEPT_LINES)
        # a daemon: what a job leaves behind may hold its output open for ever
        reader = threading.Thread(target=_read, args=(task, process, last_lines), daemon=True)
        reader.start()
        return Worker(task, process, slot, time.monotonic(), last_lines, reader)

    def _environment(self) -> dict[str, str]:
        """Return what tells a process that it runs one task of this sweep."""
        return {
            SWEEP: self.sweep,
            PARENT: str(os.getpid()),
            PROGRESS: str(STATUS_SECONDS * self.at_once),
            WAIT: "0",  # a run that is held comes back later, and others go first
            "PYTHONIOENCODING": "utf-8",
        }

    def _wait_for_an_end(self, stop: StopFlag) -> Collection[Future[int]]:
        """Wait until a process has ended, a signal has come, or held runs are worth another look."""
        if self.stopping:  # a second signal changes nothing
            return wait(self.running, return_when=FIRST_COMPLETED).done
        try:
            with stop.at_once():
                if self.running:
                    pause = LOOK_AGAIN if self.waiting else None
                    return wait(self.running, timeout=pause, return_when=FIRST_COMPLETED).done
                if self.waiting:
                    time.sleep(LOOK_AGAIN)
        except InterruptedRunError:
            pass  # the caller passes it on
        return ()

    def _note_end(self, worker: Worker, exit_code: int) -> None:
        """Note how a task ended, and say it; one whose run was held waits again."""
        task = worker.task
        worker.reader.join(LAST_LINES)
        if worker.slot is not None:
            self.slots.put(worker.slot)
        if exit_code == HELD:
            self.waiting.insert(0, task)
            return
        outcome = outcome_of_process(task, exit_code, worker.last_lines)
        self.outcomes[task.name] = outcome
        say(end_line(task, outcome, time.monotonic() - worker.began))
        if self.fail_fast and outcome.state != FINISHED and not self.stopping:
            say("sweep.fail_fast: no more jobs begin, and those that run save and stop")
            self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Begin no more tasks, and pass a signal on to those that run."""
        self.stopping = True
        for worker in self.running.values():
            worker.process.send_signal(number)


def _read(task: SweepTask, process: subprocess.Popen[str], last_lines: deque[str]) -> None:
    """Pass the output of a task on, line by line, and keep the last lines."""
    assert process.stdout is not None
    for line in process.stdout:
        text = line.rstrip()
        if text:
            last_lines.append(text)
            say(f"{task.name}: {visible(text)}")
