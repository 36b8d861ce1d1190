"""Find runs below the paths that a command was given."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from posenc.core.errors import UserError, nearest, suggestion, visible
from posenc.core.paths import choice_files, is_file, is_folder, named_path, nearest_beside
from posenc.results.bundles import SUFFIX, load_bundle
from posenc.results.files import RESULTS_FILE
from posenc.results.runs import Run, load_run

# Names of the records that posenc ships. A folder of the same name comes first.
STUDIES = ("study", "study-recall", "study-room")
LENGTH = re.compile(r"\d+(\.\d+)?x")
# A text that could be a name: no part of a path, and no glob.
PLAIN_NAME = re.compile(r"[\w-]+", re.ASCII)
MARKS = ("status.json", RESULTS_FILE)  # a folder with one of these files is a run directory

AnyPaths = str | Path | Iterable["AnyPaths"]  # a path, or a nested list of paths


class Location(NamedTuple):
    """A run directory, a bundle, or a folder that cannot be read."""

    path: Path
    problem: str | None = None  # why the folder cannot be read


def load_runs(paths: AnyPaths) -> list[Run]:
    """Return every run under `paths`, each once, sorted by path.

    A path is one of:
    - a run directory, or the results.json or status.json in it
    - a bundle
    - a folder with run directories or bundles at any depth; hidden folders and symbolic links are not
    followed
    - a glob
    - one of STUDIES
    Damaged and foreign files make a Run with a `problem`. Raises UserError for a path that does not exist.
    """
    runs: dict[str, Run] = {}
    for location in find_locations(paths_in(paths)):
        for run in _load(location):
            runs[str(run.path)] = run  # if a bundle holds a name twice, the last run counts
    return [runs[path] for path in sorted(runs)]


def paths_in(paths: AnyPaths) -> list[str | Path]:
    """Flatten a path or a nested list of paths. Raises UserError for anything else."""
    if isinstance(paths, str | Path):
        return [paths]
    if not isinstance(paths, Iterable):
        raise UserError("paths", paths, "is no path", allowed="a str, a Path, or a list of them")
    flat: list[str | Path] = []
    for part in paths:
        flat += paths_in(part)
    return flat


def paths_and_encodings(texts: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split arguments such as `study rope alibi` into paths (or `runs` if there is none) and encodings."""
    known_encodings = choice_files("encoding")
    paths = []
    encodings = []
    for text in texts:
        # A folder with the name of an encoding comes first, as with the names of studies.
        is_encoding = text in known_encodings and not os.path.lexists(text)
        if is_encoding:
            encodings.append(text)
        else:
            paths.append(text)
    return paths or ["runs"], encodings


def _load(location: Location) -> Iterable[Run]:
    """Return the runs at a location."""
    if location.problem is not None:
        return [Run(location.path, problem=location.problem)]
    if location.path.name.endswith(SUFFIX):
        return load_bundle(location.path)
    return [load_run(location.path)]


def find_locations(paths: Iterable[str | Path]) -> list[Location]:
    """Return run directories and bundles below `paths`, each once, sorted, and folders that cannot be read.

    Raises UserError for a path that does not exist.
    """
    # By the real path: a folder may be named twice, by its path and through a link or a folder above it.
    by_real_path: dict[str, Location] = {}
    for path in paths:
        for start in _starting_points(path):
            for location in _below(start):
                by_real_path.setdefault(os.path.realpath(location.path), location)
    return sorted(by_real_path.values(), key=lambda location: str(location.path))


def _starting_points(text: str | Path) -> list[Path]:
    """Return the run directories, folders or bundles that a path on the command line stands for."""
    path = named_path(text)
    # A path that exists is taken as it is: a folder's name may hold `[` or `*`, which a glob would read
    # otherwise.
    start = _start_of(path)
    if start is not None:
        return [start]
    if str(path) in STUDIES:
        return [_records_of(str(path))]
    # A shell does not expand the glob in `run=GLOB`.
    matches = sorted(glob.glob(str(path)))  # noqa: PTH207 (Path.glob refuses absolute patterns)
    is_other_file = matches == [str(path)]  # it exists, but is no run, folder or bundle
    if not matches or is_other_file:
        raise _nothing_there(text)
    starts = []
    for match in matches:
        start = _start_of(Path(match))
        if start is None:
            raise _nothing_there(match)
        starts.append(start)
    return starts


def _start_of(path: Path) -> Path | None:
    """Return the folder, bundle or run directory that `path` names; None for anything else."""
    if path.name in MARKS and is_file(path):
        return path.parent
    is_bundle = path.name.endswith(SUFFIX) and is_file(path)
    if is_bundle or is_folder(path):
        return path
    return None


def _records_of(study: str) -> Path:
    """Return the folder of stored records: inside the installed package, or below docs/ of a clone."""
    package = Path(__file__).resolve().parents[1]
    installed = package / "records"  # a wheel has the three folders inside the package
    in_clone = package.parent / "docs" / "records"
    records = installed if installed.is_dir() else in_clone
    return records / study


def _nothing_there(text: str | Path) -> UserError:
    """Return the error for a path that holds no runs."""
    return UserError("DIRS", visible(text), "no such run directory", hint=_hint_at_runs(str(text)))


def _hint_at_runs(text: str) -> str:
    """Return what a user may have meant by a path that does not exist."""
    if "=" in text:
        return f"to choose among runs, each with its own option: --where {visible(text)}"
    names = text.split(",")
    if len(names) > 1 and set(names) <= {*choice_files("encoding")}:
        return f"runs of these encodings: --where encoding={text}"
    if LENGTH.fullmatch(text):  # the shell has split `--columns 1x 8x`
        return f"several lengths have commas between them, and no spaces: --columns 1x,{text}"
    train_first = "train one first: posenc train encoding=rope"
    folder = nearest_beside(text, folders_only=True)
    if folder is not None:
        return suggestion(visible(folder))
    if text == "runs" or not PLAIN_NAME.fullmatch(text):
        return train_first
    # The names of encodings count as well: `posenc compare study rope` takes both kinds in the same place.
    close = nearest(text, [*STUDIES, *choice_files("encoding")])
    if close:
        return f"{suggestion(close)}\n{train_first}"
    # it may be an encoding of a plugin, which `choice_files` does not list
    return f"runs of one encoding: --where encoding={text}\n{train_first}"


def _below(start: Path) -> Iterator[Location]:
    """Yield the run directories and bundles at or below `start`, and the folders that cannot be read."""
    if start.name.endswith(SUFFIX) and not start.is_dir():
        yield Location(start)
        return
    # Not os.walk: before Python 3.12 it calls itself for each folder, and ends at a thousand of them.
    pending = [str(start)]
    while pending:
        folder = pending.pop()
        try:
            with os.scandir(folder) as entries:
                all_entries = list(entries)
        except OSError as error:
            yield Location(Path(folder), f"cannot be read: {error.strerror}")
            continue
        is_folder_of = {entry.path: entry.is_dir(follow_symlinks=False) for entry in all_entries}
        if any(entry.name in MARKS and not is_folder_of[entry.path] for entry in all_entries):
            yield Location(Path(folder))
            continue  # a run directory holds no other runs
        for entry in all_entries:
            if is_folder_of[entry.path] and not entry.name.startswith("."):
                pending.append(entry.path)
            elif entry.name.endswith(SUFFIX) and not entry.is_dir():
                yield Location(Path(entry.path))
