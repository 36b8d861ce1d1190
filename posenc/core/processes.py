"""Is a process of this host still there? Zombies are not: nothing runs in them any more."""

from __future__ import annotations

import os
from pathlib import Path


def stat_fields(pid: int) -> list[str]:
    """What Linux says of a process after its name, its state first; [] where it says nothing."""
    try:  # the name may hold spaces and brackets
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
    except OSError:
        return []


def is_gone(pid: int) -> bool:
    """Whether there is no such process for certain. On systems that do not say, nothing is certain: False."""
    if os.name != "posix":  # there os.kill ends it
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # of another user, or no number of a process
    # a killed process whose parent has not asked after it, as in containers, keeps its number as a zombie
    return stat_fields(pid)[:1] in (["Z"], ["X"])
