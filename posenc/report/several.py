"""Several jobs at once, on stderr: in a terminal a bar for each below the sweep's table, else lines.

The jobs write to pipes, so that nobody but the sweep draws. Of what they say, the lines of `report.progress`
move their bars; all other lines are shown as they come, with the name of the job before them.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterable
from types import TracebackType

from rich.console import Console, RenderableType
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn
from rich.text import Text

from posenc.core.console import screen
from posenc.core.errors import visible
from posenc.report.live import SweepState, sweep_table

SECONDS = "POSENC_SECONDS_BETWEEN_LINES"  # environment of a job: how often it says how far it is
ON_A_TERMINAL, IN_A_LOG = 1.0, 5.0
PROGRESS = re.compile(r"(?P<what>\w+) (?P<done>\d+)/(?P<total>\d+)  (?P<text>.*?)  (?P<left>[\d:]+) left")


class Several:
    """What is shown while `at_once` jobs run. Its methods may be called from any thread.

    `state` is the sweep as it is now; `left` the time left in all, in words; `pace` is told what a job says
    is left of what it is at, in seconds; `over` counts the jobs that have ended.
    """

    def __init__(
        self,
        names: list[str],
        at_once: int,
        *,
        state: Callable[[], SweepState],
        left: Callable[[], str],
        over: Callable[[], int],
        pace: Callable[[int, float], None],
    ) -> None:
        self.names, self.state, self.left, self.over, self.pace = names, state, left, over, pace
        self.lock = threading.Lock()
        console = Console(file=screen())
        self.bars = _Bars(console, state) if console.is_terminal else None
        self.environment = {SECONDS: str(ON_A_TERMINAL if self.bars else IN_A_LOG * at_once)}
        self.tasks: dict[int, TaskID] = {}

    def __enter__(self) -> Several:
        if self.bars is not None:
            self.bars.start()
            self.whole = self.bars.add_task("sweep", total=len(self.names), completed=self.over(), text="")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bars is not None:
            self.bars.stop()

    def name(self, job: int) -> str:
        """`[3/4] rope seed=1`."""
        return f"[{job + 1}/{len(self.names)}] {visible(self.names[job])}"

    def begin(self, job: int, text: str) -> None:
        """A job has begun."""
        with self.lock:
            self._say(f"{self.name(job)}: {text}")
            if self.bars is not None:
                self.tasks[job] = self.bars.add_task(self.name(job), total=None, text="starting")

    def line(self, job: int, line: str) -> None:
        """A job has written a line."""
        found = PROGRESS.fullmatch(line)
        with self.lock:
            if found is None:
                if line.strip():
                    self._say(f"{self.name(job)}: {visible(line)}")
                return
            self.pace(job, _seconds(found["left"]))
            whole = self.left()
            if self.bars is None:
                done = f"{self.over()} of {len(self.names)} done"
                self._say(f"{self.name(job)}: {line}; {done}" + (f", {whole} in all" if whole else ""))
            elif job in self.tasks:
                at, total = int(found["done"]), int(found["total"])
                text = f"{found['what']}  {found['text']}  {found['left']}"
                self.bars.update(self.tasks[job], completed=at, total=total, text=text)
                self.bars.update(self.whole, text=whole)

    def end(self, job: int, text: str) -> None:
        """A job has ended, or needs no process."""
        with self.lock:
            if self.bars is not None:
                if job in self.tasks:
                    self.bars.remove_task(self.tasks.pop(job))
                self.bars.update(self.whole, completed=self.over(), text=self.left())
            self._say(f"{self.name(job)}: {text}")

    def _say(self, text: str) -> None:
        if self.bars is None:
            print(text, file=screen(), flush=True)
        else:
            self.bars.console.print(Text(text), soft_wrap=True)


class _Bars(Progress):
    """The table of finished cells, a bar for each job that runs, one for the sweep."""

    def __init__(self, console: Console, state: Callable[[], SweepState]) -> None:
        self.state, self.screen = state, console  # Progress draws once before it has its own
        columns = (
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=12),
            MofNCompleteColumn(),
            TextColumn("{task.fields[text]}", markup=False),
        )
        both = sys.stdout.isatty()  # else what is printed there must not end up on this console
        super().__init__(
            *columns, console=console, transient=True, refresh_per_second=4, redirect_stdout=both
        )

    def get_renderables(self) -> Iterable[RenderableType]:
        state = self.state()
        if state.rows:
            room = self.screen.height - 6 - len(self.tasks)
            yield sweep_table(state, self.screen.width, max(3, room))
        # the whole last, whenever the jobs above it began
        yield self.make_tasks_table([*self.tasks[1:], *self.tasks[:1]])


def _seconds(text: str) -> float:
    """Of `2:05` or `1:02:05`."""
    total = 0
    for part in text.split(":"):
        total = 60 * total + int(part or 0)
    return float(total)
