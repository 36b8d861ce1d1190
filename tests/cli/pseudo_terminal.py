"""A command on a terminal of its own, so that shells complete and bars are drawn."""

from __future__ import annotations

import fcntl
import os
import re
import select
import struct
import subprocess
import termios
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

ESCAPES = re.compile(
    r"\x1b(\[[0-9;?>=]*[ -/]*[@-~]|\][^\x07\x1b]*(\x07|\x1b\\)|[()][0-9A-B]|[=>78cDEHMNOZ])|\x07"
)


class Terminal:
    """A process on a pseudo-terminal; `seen` is everything it has written, without escape sequences."""

    def __init__(self, command: Sequence[str], cwd: Path, env: Mapping[str, str], columns: int = 100) -> None:
        ours, theirs = os.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        self.process = subprocess.Popen(
            list(command),
            cwd=cwd,
            env={**env, "TERM": "xterm"},
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(theirs)
        self.handle, self.raw = ours, b""

    @property
    def seen(self) -> str:
        return ESCAPES.sub("", self.raw.decode(errors="replace"))

    def send(self, keys: str) -> None:
        os.write(self.handle, keys.encode())

    def read(self, seconds: float) -> bool:
        """What comes within so many seconds of silence; False when the process has closed its end."""
        while select.select([self.handle], [], [], seconds)[0]:
            try:
                data = os.read(self.handle, 65536)
            except OSError:
                return False
            if not data:
                return False
            self.raw += data
        return True

    def until(self, text: str, start: int = 0, seconds: float = 30) -> str:
        """Everything seen from `start` on, once `text` stands there."""
        end = time.monotonic() + seconds
        while text not in self.seen[start:]:
            assert time.monotonic() < end, f"{text!r} did not come:\n{self.seen[start:]}"
            assert self.read(0.05) or text in self.seen[start:], (
                f"ended without {text!r}:\n{self.seen[start:]}"
            )
        return self.seen[start:]

    def wait(self, seconds: float = 60) -> int:
        """The exit code, with all output read."""
        end = time.monotonic() + seconds
        while self.read(0.05):
            assert time.monotonic() < end, f"still running:\n{self.seen}"
            if self.process.poll() is not None:
                self.read(0.05)
                break
        return self.process.wait(10)

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        os.close(self.handle)
