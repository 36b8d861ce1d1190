"""Does the process that a status.json names still run? Told on the same host only."""

from __future__ import annotations

import os
import socket
import time
from datetime import datetime
from pathlib import Path
from typing import Any

from posenc.core.processes import is_gone, stat_fields


def is_dead(status: dict[str, Any]) -> bool:
    """Whether the process of a status is gone for certain: it was on this host and is not there any more.

    Elsewhere, and on systems that do not say, nothing is certain: False.
    """
    pid = status.get("pid")
    here = status.get("host") == socket.gethostname()
    if not here or isinstance(pid, bool) or not isinstance(pid, int) or pid <= 0:
        return False
    return is_gone(pid) or _began_later(stat_fields(pid), status)


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
