"""Does the process that a status.json names still run? Told on the same host only."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any


def is_dead(status: dict[str, Any]) -> bool:
    """Whether the process of a status is gone for certain: it was on this host and is not there any more.

    Elsewhere, and on systems that do not say, nothing is certain: False.
    """
    pid = status.get("pid")
    here = status.get("host") == socket.gethostname()
    if not here or isinstance(pid, bool) or not isinstance(pid, int) or pid <= 0 or os.name != "posix":
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass  # of another user, or no number of a process
    try:  # after the name, which may hold spaces and brackets (Linux)
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    # a killed process whose parent has not asked after it, as in containers, keeps its number as a zombie
    return fields[:1] in (["Z"], ["X"]) or _began_later(fields, status)


def _began_later(fields: list[str], status: dict[str, Any]) -> bool:
    """Whether another process has the number by now: it began after the status was written."""
    try:
        written = datetime.fromisoformat(str(status.get("updated"))).timestamp()
        ticks = int(fields[19])  # field 22 of all, since the machine started
        up = float(Path("/proc/uptime").read_text().split()[0])
        began = time.time() - up + ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError):
        return False
    return began > written + 2  # the clock of a status has whole seconds
