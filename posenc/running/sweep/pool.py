"""Run the tasks of a sweep as processes on this machine.

A thread waits for each process, so that nothing polls. Runs that another process holds (the same sweep,
started twice) are left for later.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass

from posenc.core.console import say
from posenc.core.machine import THREADS, threads_of_user
from posenc.core.progress import Title, progress_of
from posenc.core.quantities import duration
from posenc.running.jobs import HELD
from posenc.running.locks import holder_of, is_held
from posenc.running.signals import InterruptedRunError, StopFlag
from posenc.running.sweep.job_environment import job_environment
from posenc.running.sweep.job_output import JobOutput
from posenc.running.sweep.lines import begin_line
from posenc.running.sweep.process import JobProcess
from posenc.running.sweep.resources import GPUS, GpuSlot, gpu_slots
from posenc.running.sweep.task import SweepResult, SweepTask, outcome_of_process
from posenc.running.sweep.task_queue import TaskQueue
from posenc.running.sweep.time_left import SweepEstimate

# Nobody tells when a lock of another process becomes free.
LOOK_SECONDS = 1.0  # between two looks at runs that other processes hold, and at the time that is left
SWEEP_TITLE = Title(
    "sweep", "{done} of {total} done", separator=", ", time_text=duration, has_last_line=False
)


@dataclass(frozen=True)
class Worker:
    """Hold a task whose process runs."""

    task: SweepTask
    job_process: JobProcess
    slot: GpuSlot | None
    began_at: float  # by time.monotonic()


class WorkerPool:
    """Run tasks, `at_once` at a time. Only the main thread changes these attributes.

    gpus: the GPUs; a task on `cuda` gets one of them.
    fail_fast: the first task that does not finish ends the others.
    estimate: of the time that all tasks take; without it the time left follows from the tasks that ended.
    """

    def __init__(
        self,
        tasks: Sequence[SweepTask],
        *,
        at_once: int = 1,
        gpus: Sequence[str] = (),
        fail_fast: bool = False,
        sweep: str = "",
        estimate: SweepEstimate | None = None,
    ) -> None:
        self.queue = TaskQueue(tasks, at_once=at_once, fail_fast=fail_fast, is_held=self._is_held)
        self.running: dict[Future[int], Worker] = {}
        self.at_once = at_once
        self.slots = gpu_slots(gpus, at_once)
        self.sweep = sweep
        self.estimate = estimate
        self._output = JobOutput()
        self._announced: set[str] = set()  # names of tasks that were reported to wait for another process

    def run(self, settled: int = 0) -> SweepResult:
        """Run all tasks; return how they ended. No process outlives this call.

        The progress counts the `settled` jobs of the sweep, which had ended before.
        """
        total = settled + len(self.queue.waiting)
        with (
            StopFlag() as stop,
            ThreadPoolExecutor(self.at_once) as threads,
            progress_of(SWEEP_TITLE, total) as progress,
        ):
            progress.begin(settled)
            stop.guarded = True  # a signal is passed on, and the processes that save are waited for
            try:
                # Not a loop over tasks: one whose run another process holds waits again, while others go on.
                while self.queue.waiting or self.running:
                    if stop.received is not None and not self.queue.is_closed:
                        self._stop(stop.received)
                    self._begin_tasks(threads)
                    done = settled + len(self.queue.outcomes)
                    progress.update(done, f"{len(self.running)} running", self._seconds_left())
                    for future in self._wait_for_an_end(stop):
                        self._note_end(self.running.pop(future), future.result())
            finally:
                for worker in self.running.values():  # some are left only after an error of our own
                    worker.job_process.process.terminate()
        return SweepResult(self.queue.outcomes, stop.exit_code)

    def _seconds_left(self) -> float | None:
        """Return the seconds until all tasks have ended; None without an estimate."""
        if self.estimate is None:
            return None
        now = time.monotonic()
        seconds_running = {worker.task.name: now - worker.began_at for worker in self.running.values()}
        return self.estimate.seconds_left(seconds_running, self.queue.outcomes)

    def _begin_tasks(self, threads: ThreadPoolExecutor) -> None:
        """Begin as many tasks as can begin."""
        while (task := self.queue.next_task()) is not None:
            worker = self._start(task)
            self.running[threads.submit(worker.job_process.process.wait)] = worker

    def _is_held(self, task: SweepTask) -> bool:
        """Tell whether another process holds the run of a task, and say so once."""
        if not is_held(task.directory, task.lock):
            return False
        if task.name not in self._announced:
            self._announced.add(task.name)
            say(f"{task.name}: waits for another process ({holder_of(task.directory, task.lock)})")
        return True

    def _start(self, task: SweepTask) -> Worker:
        """Start the process of a task, and a thread that reads its output."""
        self._announced.discard(task.name)
        share: dict[str, str] = {}  # environment variables: the task's part of the machine
        # The number follows from the model's size and not from the load, so that sums have the same order
        # whatever runs beside the task.
        if threads_of_user() is None:  # the user's own number of threads stays
            share[THREADS] = str(task.threads)
        slot = None
        # `cuda:1` is the user's own choice. Among the visible GPUs
        # its number would name another one, or none.
        if task.device == "cuda" and not self.slots.empty():
            slot = self.slots.get()
            share[GPUS] = slot.gpu
        say(begin_line(task, share))
        # A task whose run is held ends at once, and comes back later.
        environment = job_environment(self.sweep, at_once=self.at_once, waits=False)
        # The arguments reach the process as a list, so no shell reads the names that users have chosen.
        job_process = JobProcess(
            task.command,
            {**share, **environment},
            on_line=self._output.of_job(task.name),
        )
        return Worker(task, job_process, slot, time.monotonic())

    def _wait_for_an_end(self, stop: StopFlag) -> Collection[Future[int]]:
        """Wait until processes end, a signal comes, or it is time to look at held runs; return what ended."""
        if self.queue.is_closed:  # a second signal changes nothing
            # Each task was told to stop, and ends within a step.
            return wait(self.running, return_when=FIRST_COMPLETED).done
        try:
            with stop.at_once():
                if self.running:
                    # With nothing to look at and no time left to show, the threads wake us at an end.
                    must_look = bool(self.queue.waiting) or self.estimate is not None
                    pause = LOOK_SECONDS if must_look else None
                    return wait(self.running, timeout=pause, return_when=FIRST_COMPLETED).done
                if self.queue.waiting:
                    time.sleep(LOOK_SECONDS)
        except InterruptedRunError:
            pass  # the caller passes the signal on
        return ()

    def _note_end(self, worker: Worker, exit_code: int) -> None:
        """Note how a task ended, and print it. A task whose run was held waits again."""
        task = worker.task
        worker.job_process.finish_reading()
        if worker.slot is not None:
            self.slots.put(worker.slot)
        if exit_code == HELD:
            # Another process took the lock between the look at it and the start of the task.
            self.queue.put_back(task)
            return
        outcome = outcome_of_process(task, exit_code, worker.job_process.last_lines)
        if self.queue.note_end(task, outcome, time.monotonic() - worker.began_at):
            # It lets the others save, so that the same command continues them.
            self._stop(signal.SIGTERM)

    def _stop(self, number: int) -> None:
        """Begin no more tasks, and pass a signal on to those that run."""
        self.queue.close()
        for worker in self.running.values():
            # A process that has ended meanwhile is left alone: Popen asks for its end before it sends.
            worker.job_process.process.send_signal(number)
