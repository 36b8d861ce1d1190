"""Does the process that a status.json names still run? Told on the same host only."""

from __future__ import annotations

import socket
from datetime import datetime
from typing import Any

from posenc.core.machine import is_gone


def is_dead(status: dict[str, Any]) -> bool:
    """Whether the process of a status is gone for certain: it was on this host and is not there any more.

    Elsewhere, and on systems that do not say, nothing is certain: False.
    """
    pid = status.get("pid")
    here = status.get("host") == socket.gethostname()
    if not here or isinstance(pid, bool) or not isinstance(pid, int) or pid <= 0:
        return False
    return is_gone(pid) or _began_later(pid, status)


def _began_later(pid: int, status: dict[str, Any]) -> bool:
    """Tell whether another process has the number by now: it began after the status was written."""
    import psutil

    try:
        written = datetime.fromisoformat(str(status.get("updated"))).timestamp()
        began = float(psutil.Process(pid).create_time())
    except (psutil.Error, ValueError):
        return False
    return began > written + 2  # the clock of a status has whole seconds
