"""Read what installed packages declare for posenc, once for each state of Python's path."""

from __future__ import annotations

import functools
import importlib.metadata
import os
import sys
from importlib.metadata import EntryPoint

# a folder of Python's path, and when a package was last installed there or removed; None: no such folder
FolderStamp = tuple[str, int | None]


def entry_points(group: str) -> tuple[EntryPoint, ...]:
    """Return the entry points of a group, by installed packages."""
    return _entry_points(group, _path_stamps())


@functools.lru_cache(maxsize=16)
def _entry_points(group: str, stamps: tuple[FolderStamp, ...]) -> tuple[EntryPoint, ...]:
    # Python opens a file of every installed package: 5 ms, and as much again for every encoding that is built
    return tuple(importlib.metadata.entry_points(group=group))


def _path_stamps() -> tuple[FolderStamp, ...]:
    """Return what tells whether a package was installed or removed since: in a notebook that may happen."""
    stamps: list[FolderStamp] = []
    for folder in sys.path:
        name = folder or os.getcwd()  # noqa: PTH109 (an empty entry is the working folder, wherever it is)
        try:
            changed = os.stat(name).st_mtime_ns  # noqa: PTH116 (also the path of a zip file)
        except OSError:
            changed = None
        stamps.append((name, changed))
    return tuple(stamps)
