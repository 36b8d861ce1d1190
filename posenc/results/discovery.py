"""Find runs below the paths that a command was given."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator
from pathlib import Path

from posenc.core.errors import UserError, visible
from posenc.results.bundles import SUFFIX, load_bundle
from posenc.results.runs import Run, load_run

STUDIES = ("study", "study-recall", "study-room")  # names of stored records, where there is no such folder
MARKS = ("status.json", "results.json")  # a folder with one of these files is a run directory

Location = tuple[Path, str | None]  # a run directory or bundle, or a folder with why it cannot be read


def load_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Return every run under `paths`, each once, sorted by path.

    A path is a run directory, a folder with run directories or bundles at any depth (hidden folders and
    symbolic links inside it are not followed), a results.json, a bundle, or `study`. Damaged and foreign
    files make a Run with a `problem`. Raises UserError for a path that does not exist.
    """
    runs: dict[str, Run] = {}
    for path, problem in run_places(paths):
        for run in _load(path, problem):
            runs[str(run.path)] = run
    return [run for _, run in sorted(runs.items())]


def _load(path: Path, problem: str | None) -> Iterable[Run]:
    if problem is not None:
        return [Run(path, problem=problem)]
    if path.name.endswith(SUFFIX):
        return load_bundle(path)
    return [load_run(path)]


def run_places(paths: Iterable[str | Path]) -> list[Location]:
    """Return run directories and bundles below `paths`, each once, sorted, with why a folder cannot be read.

    Raises UserError for a path that does not exist.
    """
    locations: dict[str, Location] = {}
    for text in paths:
        for start in _expanded(text):
            for path, problem in _below(start):
                locations.setdefault(os.path.realpath(path), (path, problem))
    return sorted(locations.values(), key=lambda location: str(location[0]))


def _expanded(text: str | Path) -> list[Path]:
    """Return the run directory, folder or bundles that a path on the command line means."""
    path = Path(text)
    is_file = os.path.isfile(path)  # noqa: PTH113 (is_file raises for names too long)
    if path.name in MARKS and is_file:
        return [path.parent]
    if os.path.isdir(path) or (path.name.endswith(SUFFIX) and is_file):  # noqa: PTH112
        return [path]
    if str(text) in STUDIES:
        package = Path(__file__).resolve().parents[1]
        installed = package / "records"  # a wheel has the three folders inside the package
        in_clone = package.parent / "docs" / "records"
        records = installed if installed.is_dir() else in_clone
        return [records / text]
    matches = sorted(glob.glob(str(path)))  # noqa: PTH207 (absolute ones); no shell expands run=GLOB
    if matches not in ([], [str(path)]):
        return [path for match in matches for path in _expanded(match)]
    hint = "train one first: posenc train encoding=rope"
    if "=" in str(text):
        hint = f"to choose among runs, each with its own option: --where {visible(text)}"
    raise UserError("DIRS", visible(text), "no such run directory", hint=hint)


def _below(start: Path) -> Iterator[Location]:
    """Yield run directories and bundles at or below `start`, with a problem where a folder cannot be read."""
    if start.name.endswith(SUFFIX) and not start.is_dir():
        yield start, None
        return
    unreadable: list[OSError] = []
    for folder, subfolders, files in os.walk(start, onerror=unreadable.append):
        if any(mark in files for mark in MARKS):
            yield Path(folder), None
            subfolders.clear()  # a run directory holds no other runs
            continue
        subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
        for name in files:
            if name.endswith(SUFFIX):
                yield Path(folder) / name, None
    for error in unreadable:
        yield Path(error.filename), f"cannot be read: {error.strerror}"
