"""Bring the directory of a run from a node that has a disk of its own to the machine of the command."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.errors import RunError
from posenc.running.locks import locked
from posenc.running.run_directory import LOG

STATUS = "status.json"
# What tells why a run is not finished. Its checkpoints stay on the node, which may continue with them.
OF_UNFINISHED = ("config.yaml", LOG, STATUS)


def files_to_return(directory: Path, *, is_finished: bool) -> dict[str, bytes]:
    """Return the content of a run directory by relative path, of an unfinished run what tells why.

    Hidden files are locks, which mean nothing elsewhere.
    """
    contents = {}
    if not is_finished:
        for file_name in OF_UNFINISHED:
            path = directory / file_name
            if path.is_file():
                contents[file_name] = path.read_bytes()
        return contents
    for path in sorted(directory.rglob("*")):
        name = path.relative_to(directory)
        is_hidden = any(part.startswith(".") for part in name.parts)
        # A link would be returned as the file that it leads to, from anywhere on the node.
        if path.is_file() and not path.is_symlink() and not is_hidden:
            contents[name.as_posix()] = path.read_bytes()
    return contents


def write_returned(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write what a node returned. Raises RunError, also if another process holds the directory."""
    with locked(directory):
        for name, content in contents.items():
            if name != STATUS:
                write_bytes_atomic(directory / _inside(name), content)
        _drop_other_checkpoints(directory, contents)
        if STATUS in contents:  # last: before it, the run is not taken to be finished
            write_bytes_atomic(directory / STATUS, contents[STATUS])


def _inside(name: str) -> PurePosixPath:
    """Return a relative path that leads to no other folder. Raises RunError."""
    # The names come from another machine, and a path such as `../x` would lead out of the run directory.
    path = PurePosixPath(name)
    if path.is_absolute() or ".." in path.parts:
        raise RunError(f"a node returned {name}, which is no file of a run directory")
    return path


def _drop_other_checkpoints(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Remove checkpoints of an earlier, unfinished try here, once those of the finished run are here."""
    returned = {PurePosixPath(name).parts[1] for name in contents if name.startswith("checkpoints/")}
    # An unfinished run brings no checkpoints, and those that are here may be continued from.
    if not returned:
        return
    for folder in (directory / "checkpoints").iterdir():
        if folder.name not in returned:
            shutil.rmtree(folder, ignore_errors=True)
