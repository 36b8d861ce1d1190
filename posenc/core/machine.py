"""Facts of the machine: cores that may be used, control groups, processes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def usable_cores() -> int:
    """Return how many cores this process may keep busy, by its binding and its container's quota."""
    from loky import cpu_count

    return int(cpu_count())


def is_gone(pid: int) -> bool:
    """Tell whether no such process runs here; a zombie has ended. False if the system does not say."""
    if os.name != "posix" or pid <= 0:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (OSError, OverflowError):
        pass  # another user's, or no process id
    import psutil  # takes 0.15 s, and most processes asked about are gone

    try:
        return bool(psutil.Process(pid).status() in (psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD))
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, OverflowError, ValueError):
        return False


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """Yield version (1 or 2) and folder of this process's control groups, innermost first.

    Containers and clusters write their limits there; the smallest one holds.
    """
    try:
        lines = (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = ["0::/", f"1:{controller}:/"]
    for line in lines:
        _, _, rest = line.partition(":")
        controllers, _, place = rest.partition(":")
        if controllers == "" or controller in controllers.split(","):
            base = root / "sys/fs/cgroup" / (controller if controllers else "")
            inside = PurePosixPath(place.lstrip("/"))
            for folder in (inside, *inside.parents):
                yield (1 if controllers else 2), base / folder
