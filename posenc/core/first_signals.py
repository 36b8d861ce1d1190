"""Handle signals from a command's first line on, until posenc.running.signals takes over.

This module imports next to nothing: a command's own imports take half a second or more, and Ctrl-C during
them would print Python's traceback.
"""

from __future__ import annotations

import os
import signal

from posenc.core.torchrun import is_another_process

TYPE_CHECKING = False  # see posenc/__init__.py
if TYPE_CHECKING:
    from types import FrameType

CODES = {signal.SIGINT: 130, signal.SIGTERM: 143, signal.SIGUSR1: 143, signal.SIGHUP: 143}
STOPPED = "stopped; what is on disk stays; the same command begins again"
erase_progress = b""  # removes the progress that is drawn on the terminal, while there is some


def leave_at_signals() -> None:
    """Exit at once at a signal, except at signals that nohup or a shell has switched off."""
    for number in CODES:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, leave)


def leave(number: int, frame: FrameType | None = None) -> None:
    """Print which signal ended the command, and exit without clearing up, as there is nothing to save."""
    if not is_another_process():
        # The signal may have struck inside a print, and Python refuses to enter the buffer of stderr twice.
        try:  # noqa: SIM105 (contextlib may be what is being imported)
            os.write(2, erase_progress + f"{signal.Signals(number).name}: {STOPPED}\n".encode())
        except OSError:  # the terminal is gone
            pass
    os._exit(CODES[signal.Signals(number)])
