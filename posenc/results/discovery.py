"""Find runs below the paths that a command was given."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from posenc.core.errors import UserError, nearest, visible
from posenc.core.paths import choice_files, is_file, is_folder, named_path
from posenc.results.bundles import SUFFIX, load_bundle
from posenc.results.runs import Run, load_run

STUDIES = ("study", "study-recall", "study-room")  # names of stored records, where there is no such folder
PLAIN_NAME = re.compile(r"\w+", re.ASCII)
MARKS = ("status.json", "results.json")  # a folder with one of these files is a run directory

AnyPaths = str | Path | Iterable["AnyPaths"]  # a path, or several, one in another
Location = tuple[Path, str | None]  # a run directory or bundle, or a folder with why it cannot be read


def load_runs(paths: AnyPaths) -> list[Run]:
    """Return every run under `paths`, each once, sorted by path.

    A path is a run directory, a folder with run directories or bundles at any depth (hidden folders and
    symbolic links inside it are not followed), a results.json, a bundle, or `study`. Damaged and foreign
    files make a Run with a `problem`. Raises UserError for a path that does not exist.
    """
    runs: dict[str, Run] = {}
    for path, problem in run_places(paths_in(paths)):
        for run in _load(path, problem):
            runs[str(run.path)] = run
    return [run for _, run in sorted(runs.items())]


def paths_in(paths: AnyPaths) -> list[str | Path]:
    """Return one path, or each of several, as a list. Raises UserError for what is no path."""
    if isinstance(paths, str | Path):
        return [paths]
    if not isinstance(paths, Iterable):
        raise UserError("paths", paths, "is no path", allowed="a str, a Path, or a list of them")
    return [path for part in paths for path in paths_in(part)]


def paths_and_encodings(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments into paths, `runs` without one, and names of encodings: `study rope alibi`."""
    is_name = {text: text in choice_files("encoding") and not os.path.lexists(text) for text in texts}
    paths = [text for text in texts if not is_name[text]]
    return paths or ["runs"], [text for text in texts if is_name[text]]


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
        for start in _starts(text):
            for path, problem in _below(start):
                locations.setdefault(os.path.realpath(path), (path, problem))
    return sorted(locations.values(), key=lambda location: str(location[0]))


def _starts(text: str | Path) -> list[Path]:
    """Return the run directory, folder or bundles that a path on the command line means."""
    path = named_path(text)
    start = _start_at(path)
    if start is not None:
        return [start]
    if str(path) in STUDIES:
        return [_records_of(str(path))]
    matches = sorted(glob.glob(str(path)))  # noqa: PTH207 (absolute ones); no shell expands run=GLOB
    if matches in ([], [str(path)]):
        raise _nothing_there(text)
    starts = []
    for match in matches:
        start = _start_at(Path(match))
        if start is None:
            raise _nothing_there(match)
        starts.append(start)
    return starts


def _start_at(path: Path) -> Path | None:
    """Return the folder or bundle that a path is, or the run directory of a file; None if it is neither."""
    if path.name in MARKS and is_file(path):
        return path.parent
    is_bundle = path.name.endswith(SUFFIX) and is_file(path)
    return path if is_bundle or is_folder(path) else None


def _records_of(study: str) -> Path:
    """Return the folder of stored records: inside the installed package, or below docs/ of a clone."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "records"  # a wheel has the three folders inside the package
    in_clone = package.parent / "docs" / "records"
    return (installed if installed.is_dir() else in_clone) / study


def _nothing_there(text: str | Path) -> UserError:
    hint = "train one first: posenc train encoding=rope"
    if PLAIN_NAME.fullmatch(str(text)) and str(text) != "runs":
        close = nearest(str(text), [*STUDIES, *choice_files("encoding")])
        similar = f"did you mean: {close}" if close else f"runs of one encoding: --where encoding={text}"
        hint = f"{similar}\n{hint}"
    if "=" in str(text):
        hint = f"to choose among runs, each with its own option: --where {visible(text)}"
    return UserError("DIRS", visible(text), "no such run directory", hint=hint)


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
