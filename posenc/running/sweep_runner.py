"""The jobs of a sweep as processes: which begins when, and how each ended.

A run that another process works on (the same sweep, started twice) is left for later: by then that process
may have finished it.
"""

from __future__ import annotations

import math
import os
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from posenc.config.compose import ComposedJob, of_the_job
from posenc.config.overrides import CommandLine, key_of
from posenc.core.console import say
from posenc.core.errors import visible
from posenc.report.failures import DIVERGED, FINISHED, NOT_STARTED, Ended
from posenc.report.live import finished_line
from posenc.report.several import Several
from posenc.running import job_log
from posenc.running.holding import holder_of, is_held
from posenc.running.job_end import diverged, not_finished
from posenc.running.processes import Processes, Told
from posenc.running.run_directory import read_status
from posenc.running.slots import Slots
from posenc.running.sweep_state import AskedTargets, Sweep
from posenc.running.told import IF_HELD, WAIT

LOCKS = {"train": "run", "eval": "evaluation"}
HELD = 75  # exit code of a job that finds its run held; EX_TEMPFAIL of sysexits.h
REFUSED = 5  # a job that ends with HELD more often than this has failed
BETWEEN = 1.0  # seconds between two looks at runs that others hold
LINES = 20  # of what a job said last, for its log
Say = Callable[[int, str], None]


class Runner:
    """Runs the jobs; `places` and `stands` as in run_sweep."""

    def __init__(
        self,
        command: str,
        line: CommandLine,
        jobs: Sequence[ComposedJob],
        places: Sequence[Path],
        stands: Callable[[int], str | None],
        asked: AskedTargets,
        fail_fast: bool,
    ) -> None:
        self.command, self.line, self.jobs, self.places = command, line, jobs, places
        self.stands, self.fail_fast = stands, fail_fast
        self.sweep = Sweep(jobs, places, asked)
        self.ran = 0  # jobs that had a process of their own
        self._ended: dict[int, Ended] = {}
        self._failed = False
        self._refused = Counter[int]()
        self._own_part: dict[int, int] = {}  # where it begins in the log of a job's run
        self._said: dict[int, deque[str]] = {}  # a job's last lines, where they come through us

    def ended(self) -> list[Ended]:
        """How every job ended, in order."""
        return [self._ended.get(i, Ended(self.name(i), NOT_STARTED)) for i in range(len(self.jobs))]

    def name(self, i: int) -> str:
        """`[3/12] rope seed=0`: what tells it from the others."""
        return f"[{i + 1}/{len(self.jobs)}] {visible(self.sweep.names[i])}"

    def _is_held(self, i: int) -> bool:
        return is_held(self.places[i], LOCKS[self.command])

    def _held_by(self, i: int) -> str:
        return f"{self.name(i)} ({holder_of(self.places[i], LOCKS[self.command])})"

    def settled(self, i: int, told: Say, finished: str) -> bool:
        """Whether job i needs no process, as its run is finished or has diverged: told, and noted."""
        stands = self.stands(i)
        if stands == FINISHED:
            self.sweep.add(i)
            self._ended[i] = Ended(self.name(i), FINISHED)
            told(i, finished)
        elif stands == DIVERGED:
            self.sweep.over += 1
            self._ended[i] = diverged(self.name(i), self.places[i])
            told(i, "diverged before, which is final without --retry")
        return stands in (FINISHED, DIVERGED)

    def run(
        self,
        processes: Processes,
        waiting: list[int],
        at_once: int,
        slots: Slots | None,
        devices: Mapping[int, str],
    ) -> None:
        """Up to `at_once` at a time; as soon as one ends the next of `waiting` begins."""
        running: list[int] = []
        known: set[int] = set()  # to be held by others
        with _Alone(self) if slots is None else self._several(waiting, at_once) as screen:
            while True:
                while len(running) < at_once and not self._stops(processes):
                    i = self._next(waiting, {self.places[i] for i in running}, screen.end)
                    if i is None:
                        break
                    running.append(i)
                    self._begin(
                        i, len(waiting), slots.take(i, devices[i]) if slots else {}, processes, screen
                    )
                if self._stops(processes):
                    waiting.clear()
                if not running and not waiting:
                    return
                if not running:
                    if fresh := sorted(set(waiting) - known):
                        known.update(fresh)
                        say(f"waiting for other processes to end: {', '.join(map(self._held_by, fresh))}")
                    time.sleep(BETWEEN)
                    continue
                ended = processes.next_ended(BETWEEN if waiting and len(running) < at_once else math.inf)
                if ended is not None:
                    running.remove(ended[0])
                    if slots is not None:
                        slots.give_back(ended[0])
                    self._end(*ended, waiting, processes, screen.end)

    def _stops(self, processes: Processes) -> bool:
        return bool(processes.received) or (self.fail_fast and self._failed)

    def _next(self, waiting: list[int], busy: set[Path], told: Say) -> int | None:
        """The first that can begin, taken out of `waiting`, as is what another process has finished."""
        for i in list(waiting):
            if self.places[i] in busy:
                continue
            if self.settled(i, told, "finished by another process"):
                waiting.remove(i)
            elif not self._is_held(i):
                waiting.remove(i)
                return i
        return None

    def _begin(
        self,
        i: int,
        remaining: int,
        given: Mapping[str, str],
        processes: Processes,
        screen: Several | _Alone,
    ) -> None:
        """Start job i with what is `given` to it of the machine."""
        state = self.sweep.begin(i, remaining)
        self.ran += 1
        self._own_part[i] = job_log.size(self.places[i])
        self._said[i] = deque(maxlen=LINES)
        screen.begin(i, "begins" + "".join(f", {key}={value}" for key, value in given.items()))
        told: Told | None = None
        if isinstance(screen, Several):
            environment = screen.environment

            def told(line: str) -> None:
                self._said[i].append(line)
                screen.line(i, line)
        else:
            environment = state.to_environment()
        processes.start(
            i, self.words(i), {**os.environ, **given, **environment, IF_HELD: str(HELD), WAIT: "0"}, told
        )

    def words(self, i: int) -> list[str]:
        """The command of one job."""
        elsewhere = [] if self.line.config_dir is None else ["--config-dir", self.line.config_dir]
        # -P: no module of the working folder takes the place of an installed one.
        # hydra.mode: a preset may ask for a sweep, and a job is never one.
        program = [sys.executable, "-P", "-m", "posenc", self.command]
        return [*program, *elsewhere, *self.jobs[i].overrides, "hydra.mode=RUN"]

    def _end(self, i: int, code: int, waiting: list[int], processes: Processes, told: Say) -> None:
        """Job i has run: noted and told, or put back where another process was quicker."""
        refused = code == HELD
        self._refused[i] += refused and not self._is_held(i)  # while somebody works on it, it may wait
        if refused and self._refused[i] <= REFUSED:
            self.ran -= 1
            self.sweep.put_back(i)
            waiting.append(i)
            told(i, "another process works on it; comes again later")
            return
        stands = self.stands(i)
        if stands is not None and code == 1 and read_status(self.places[i]).get("status") == DIVERGED:
            stands = DIVERGED  # also with --retry, which asks about what was before
        if code == 0 and stands in (None, FINISHED):
            self._ended[i] = Ended(self.name(i), FINISHED)
            losses = self.sweep.end(i, 0)
            told(i, finished_line(losses, self.sweep.seconds[-1]))
            return
        self.sweep.end(i, code or 1)
        self._ended[i] = ended = not_finished(
            self.name(i), self.places[i], code, stands, self._own_part[i], self._said[i]
        )
        told(i, visible(ended.state + (f", {ended.reason}" if ended.reason else "")))
        if not self._stops(processes):
            self._failed = True
            if self.fail_fast:
                say("sweep.fail_fast: the jobs that have not begun are left, those that run save and stop")
                processes.stop()

    def _several(self, waiting: list[int], at_once: int) -> Several:
        """What the jobs say is put together."""
        return Several(
            self.sweep.names,
            at_once,
            state=lambda: self.sweep.state(0, len(waiting)),
            left=lambda: self.sweep.left(len(waiting), at_once),
            over=lambda: self.sweep.over,
            pace=self.sweep.pace,
        )


class _Alone:
    """What is shown of one job at a time: it draws on the terminal itself."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def __enter__(self) -> _Alone:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def begin(self, i: int, text: str) -> None:
        """A job begins, by all that was said of it."""
        told = [o for o in of_the_job(self.runner.jobs[i]) if not key_of(o).startswith("sweep.")]
        say(f"\n[{i + 1}/{len(self.runner.jobs)}] {visible(' '.join(told))}")

    def end(self, i: int, text: str) -> None:
        """A job has ended, or needs no process."""
        say(f"{self.runner.name(i)}: {text}")
