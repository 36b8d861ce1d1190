"""A command in a pseudo-terminal."""

from __future__ import annotations

import os
import pty
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from faults.commands import Ended, environment


def in_terminal(command: Sequence[str], place: Path, env: Mapping[str, str]) -> Ended:
    """What it shows on a terminal of 80 columns, both streams as `out`."""
    ours, theirs = pty.openpty()
    given = {**environment(place), "TERM": "xterm-256color", "COLUMNS": "80", **env}
    process = subprocess.Popen(
        command, cwd=place, env=given, stdin=subprocess.DEVNULL, stdout=theirs, stderr=theirs
    )
    os.close(theirs)
    shown = b""
    while True:
        try:
            part = os.read(ours, 65536)
        except OSError:  # Linux' word for: everybody has closed it
            break
        if not part:
            break
        shown += part
    os.close(ours)
    return Ended(process.wait(), shown.decode("utf-8", "replace"), "", 0.0)
