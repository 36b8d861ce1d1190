"""Say which task of a sweep begins next, and note how each ended, wherever the tasks run."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from posenc.core.console import say
from posenc.core.run_states import FINISHED
from posenc.running.sweep.lines import end_line, settled_line
from posenc.running.sweep.task import NOT_STARTED, SweepTask, TaskOutcome, outcome_on_disk


class TaskQueue:
    """Hold the tasks that wait, and how the others ended. Tasks of one run go one after the other.

    at_once: so many tasks run at the same time, at most.
    fail_fast: the first task that does not finish is to end the sweep.
    is_held: tells whether a task has to wait for a process that is not of this sweep.
    """

    def __init__(
        self,
        tasks: Sequence[SweepTask],
        *,
        at_once: int,
        fail_fast: bool,
        is_held: Callable[[SweepTask], bool] = lambda task: False,
    ) -> None:
        self.waiting = list(tasks)
        self.outcomes: dict[str, TaskOutcome] = {}  # by name of the task
        self.is_closed = False  # no more tasks begin
        self._running: list[SweepTask] = []
        self._at_once = at_once
        self._fail_fast = fail_fast
        self._is_held = is_held

    def close(self) -> None:
        """Begin no more tasks."""
        self.is_closed = True

    def next_task(self) -> SweepTask | None:
        """Take out the first task that can begin, and note those that another process has ended.

        None if no task can begin now. Once the queue is closed, the tasks that wait never start.
        """
        if self.is_closed:
            # Each of them gets an outcome, so that the list at the end tells it from tasks that failed.
            self.outcomes |= {task.name: TaskOutcome(NOT_STARTED) for task in self.waiting}
            self.waiting = []
        if len(self._running) >= self._at_once:
            return None
        busy = {task.directory for task in self._running}
        # The list is copied, since tasks that have ended elsewhere are taken out on the way.
        for task in list(self.waiting):
            # The lock is looked at before the run. So a run that its holder has just finished is not begun
            # again.
            if task.directory in busy or self._is_held(task):
                continue
            self.waiting.remove(task)
            outcome = outcome_on_disk(task)
            if outcome is None:
                self._running.append(task)
                return task
            self.outcomes[task.name] = outcome
            say(settled_line(task, outcome, "finished by another process"))
        return None

    def put_back(self, task: SweepTask) -> None:
        """Let a task that was taken out wait again, before all others."""
        self._running.remove(task)
        self.waiting.insert(0, task)

    def note_end(self, task: SweepTask, outcome: TaskOutcome, seconds: float) -> bool:
        """Note and print how a task ended. Return True if it is to end the sweep by `fail_fast`."""
        self._running.remove(task)
        self.outcomes[task.name] = outcome
        say(end_line(task, outcome, seconds))
        ends_sweep = self._fail_fast and outcome.state != FINISHED and not self.is_closed
        if ends_sweep:
            say("sweep.fail_fast: no more jobs begin, and those that run save and stop")
        return ends_sweep
