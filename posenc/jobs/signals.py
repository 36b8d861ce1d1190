"""SIGINT, SIGTERM and SIGUSR1 (Slurm) ask the run to stop: it finishes its step, saves and exits."""

from __future__ import annotations

import signal
import threading
from types import FrameType

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
if hasattr(signal, "SIGUSR1"):  # not on Windows
    CODES[signal.SIGUSR1] = 143


class InterruptedRunError(Exception):
    """Raised where a stop was asked for and everything finished so far is on disk."""


class StopFlag:
    """Set by the first signal; a second one changes nothing, so that a save is never cut short."""

    def __init__(self) -> None:
        self.received: int | None = None

    def install(self) -> StopFlag:
        """Take the signals over; only the main thread may."""
        if threading.current_thread() is threading.main_thread():
            for number in CODES:
                signal.signal(number, self._handle)
        return self

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self.received = self.received or number

    def requested(self) -> bool:
        return self.received is not None

    def check(self) -> None:
        """Raise InterruptedRunError if a stop was asked for."""
        if self.received is not None:
            raise InterruptedRunError

    @property
    def exit_code(self) -> int:
        return CODES[signal.Signals(self.received)] if self.received is not None else 0

    @property
    def name(self) -> str:
        return signal.Signals(self.received).name if self.received is not None else "none"
