"""Make a visit: warm-ups in several processes at once, then timings one after the other, then the checks.

The checks of uncompiled encodings took most of a whole visit, so timings come before them.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import asdict, dataclass

from gpu import nanos
from gpu.document import Document
from gpu.items import NanosItem, PoolItem, TimedItem, Visit, check_items, timed_items, warm_ups
from gpu.times import warm_up
from gpu.turns import Turns
from gpu.workers import Worker, WorkerFailedError

# Seconds after which an item is given up. One that compiles for minutes must not take the time of all others.
POOL_PATIENCE = 150.0
TIMED_PATIENCE = 100.0


@dataclass(frozen=True)
class Clock:
    """The time that a visit has."""

    end: float  # by time.monotonic

    @staticmethod
    def of(minutes: float) -> Clock:
        """Return a clock that starts now."""
        return Clock(time.monotonic() + 60 * minutes)

    def left(self) -> float:
        """Return the seconds that are left."""
        return self.end - time.monotonic()


class Notebook:
    """Note results in the document, and say so, with the seconds that each item took."""

    def __init__(self, document: Document, clock: Clock) -> None:
        self.document = document
        self.clock = clock

    def is_open(self, key: str) -> bool:
        """Tell whether there is no result for an item yet."""
        return key not in self.document.items

    def has_failed(self, key: str) -> bool:
        """Tell whether an item failed."""
        return "failure" in self.document.items.get(key, {})

    def note(self, key: str, result: dict[str, object], began: float) -> None:
        """Note the result of an item. One that was cut by the end of the time stays open."""
        if "failure" in result and self.clock.left() <= 0:
            return
        seconds = time.monotonic() - began
        # only a warm-up is repeated; its first time is that of compiling with nothing on the disk
        earlier = {} if self.has_failed(key) else self.document.items.get(key, {})
        self.document.add(key, {**result, "seconds": round(seconds, 2), **earlier})
        failure = f"  {result['failure']}" if "failure" in result else ""
        print(f"{seconds:6.1f} s  {key}{failure}", flush=True)


def run(visit: Visit, document: Document, clock: Clock) -> None:
    """Measure what the document does not have yet, as far as there is time."""
    notebook = Notebook(document, clock)
    checks = [item for item in check_items(visit) if notebook.is_open(item.key)]
    timed = [item for item in timed_items(visit) if notebook.is_open(item.key)]
    turns = Turns(visit.log, visit.sizes)
    if timed and clock.left() > 0:
        turns.start()  # they import while the others compile
    # What an earlier call compiled was on another machine, so warm-ups are made for every call.
    Pool(visit, notebook, warm_ups(timed, visit)).run()
    # What could not be compiled in time would now compile while the others wait: it comes last.
    timed.sort(key=lambda item: notebook.has_failed(item.warm_up))
    for item in timed:
        if clock.left() >= item.seconds:
            _measure_timed(item, visit, notebook, turns)
    turns.stop()
    Pool(visit, notebook, checks).run()
    document.set_left_out([item.key for item in (*checks, *timed) if notebook.is_open(item.key)])


def _measure_timed(item: TimedItem | NanosItem, visit: Visit, notebook: Notebook, turns: Turns) -> None:
    began = time.monotonic()
    timeout = min(notebook.clock.left(), TIMED_PATIENCE)
    result: dict[str, object]
    try:
        if isinstance(item, TimedItem):
            result = asdict(turns.measure(item.case, item.base, timeout))
        else:
            turns.stop()  # their models would wait in the GPU's memory
            result = nanos.measure(
                visit.sizes, visit.device, visit.log, with_mps=item.with_mps, timeout=timeout
            )
    except WorkerFailedError as error:
        result = {"failure": str(error)}
    notebook.note(item.key, result, began)


class Pool:
    """Make the items that are not timed, in several processes at once."""

    def __init__(self, visit: Visit, notebook: Notebook, items: list[PoolItem]) -> None:
        self._visit = visit
        self._notebook = notebook
        self._items = deque(items)

    def run(self) -> None:
        """Return when all items are done, or there is no time for them."""
        threads = [threading.Thread(target=self._work) for _ in range(self._processes())]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    def _processes(self) -> int:
        """Return how many processes there are; warm-ups need much of the GPU's memory."""
        sizes = self._visit.sizes
        are_warm_ups = any(item.function is warm_up for item in self._items)
        return min(sizes.warm_ups if are_warm_ups else sizes.pool, len(self._items))

    def _work(self) -> None:
        """Make one item after the other, in the worker of this thread."""
        worker: Worker | None = None
        while True:
            try:
                item = self._items.popleft()
            except IndexError:
                break
            if self._notebook.clock.left() >= item.seconds:
                worker = self._make(item, worker or Worker(self._visit.log))
        if worker is not None:
            worker.stop()

    def _make(self, item: PoolItem, worker: Worker) -> Worker | None:
        """Make an item; return the worker, None if it has ended."""
        began = time.monotonic()
        result: dict[str, object]
        try:
            timeout = min(self._notebook.clock.left(), POOL_PATIENCE)
            result = worker.call(item.function, *item.arguments, timeout=timeout)
        except WorkerFailedError as error:
            self._notebook.note(item.key, {"failure": str(error)}, began)
            return None
        self._notebook.note(item.key, result, began)
        return worker
