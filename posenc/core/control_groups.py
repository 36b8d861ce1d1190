"""The control groups that this process is in: where a container or a cluster writes its limits."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path, PurePosixPath


def own_groups(controller: str, root: Path = Path("/")) -> Iterator[tuple[int, Path]]:
    """Version (1 or 2) and folder of each, from its own to the outermost: a limit of any of them holds."""
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
