"""Jobs as processes, so that the death of one is its own: started, read, waited for, signals passed on."""

from __future__ import annotations

import math
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import IO, Any

from posenc.running.signals import to_take_over

Told = Callable[[str], None]  # one line of a job's output, without its end
PAUSE = 0.05  # seconds between two looks at who has ended
LAST_LINES = 2.0  # seconds for them: what a job leaves running behind it may hold its output open for ever


class Processes:
    """The jobs that run. As a context manager it passes signals on to them, and outlives none of them."""

    def __init__(self) -> None:
        self.received: list[int] = []  # signals, in order
        self._running: dict[int, tuple[subprocess.Popen[str], list[threading.Thread]]] = {}
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Processes:
        self._before = {number: signal.signal(number, self._pass_on) for number in to_take_over()}
        return self

    def __exit__(self, *_: object) -> None:
        for process, _readers in self._running.values():  # only after an error of our own
            process.terminate()
        for process, _readers in self._running.values():
            process.wait()
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        self.received.append(number)
        for process, _ in list(self._running.values()):
            if process.poll() is None:
                process.send_signal(number)

    def stop(self) -> None:
        """Ask all that run to save and end."""
        for process, _ in list(self._running.values()):
            if process.poll() is None:
                process.terminate()

    def start(
        self, job: int, words: Sequence[str], environment: Mapping[str, str], told: Told | None = None
    ) -> None:
        """Start one. With `told` it is called with every line of the job's stderr, from another thread.

        Without, the job writes to our own stderr. What it says on stdout goes to ours in any case.
        """
        pipe = None if told is None else subprocess.PIPE
        process = subprocess.Popen(
            list(words),
            env=dict(environment) if told is None else {**environment, "PYTHONIOENCODING": "utf-8"},
            stdout=pipe,
            stderr=pipe,
            text=True,
            encoding="utf-8",
            errors="replace",
        )
        readers = []
        if told is not None:
            readers = [_reader(process.stderr, told), _reader(process.stdout, _print)]
        self._running[job] = process, readers
        if self.received:  # it came while this one was being started
            process.send_signal(self.received[-1])

    def next_ended(self, seconds: float = math.inf) -> tuple[int, int] | None:
        """Wait until one has ended: which, and its exit code (the negative signal that killed it).

        None when none has after so many `seconds`.
        """
        end = time.monotonic() + seconds
        while True:
            for job, (process, readers) in self._running.items():
                if process.poll() is not None:
                    for reader in readers:
                        reader.join(LAST_LINES)
                    del self._running[job]
                    return job, process.returncode
            if time.monotonic() >= end:
                return None
            time.sleep(PAUSE)


def _reader(stream: IO[str] | None, told: Told) -> threading.Thread:
    assert stream is not None

    def read() -> None:
        for line in stream:
            try:
                told(line.rstrip("\r\n"))
            except (OSError, ValueError):  # nobody reads ours, or it has no such letter: the job goes on
                continue

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    return thread


def _print(line: str) -> None:
    try:
        print(line, file=sys.stdout, flush=True)
    except UnicodeEncodeError:
        print(ascii(line)[1:-1], file=sys.stdout, flush=True)
