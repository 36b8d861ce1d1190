"""stderr as what may go away while the work goes on: a closed terminal, `2>&1 | head`."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, TextIO, cast


def screen() -> TextIO:
    """stderr as it is now; what it does not take is not shown, and nothing is raised."""
    return cast("TextIO", _Screen(sys.stderr))


class _Screen:
    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError):
            self._stream.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)
