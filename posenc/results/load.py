"""Read run directories and bundles, damaged and foreign ones too: nothing is executed or raised for them."""

from __future__ import annotations

import gc
import glob
import os
import re
from collections.abc import Container, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError, safe_name, visible
from posenc.results.bundle import SUFFIX, kept_losses, unpacked
from posenc.results.run import Run
from posenc.results.safe_read import LARGEST, LARGEST_RESULTS, read_config, read_file, read_json
from posenc.results.schema import check_results

MARKS = ("status.json", "results.json")
FIRST, BETWEEN, LAST = b'\n  "records": [\n    ', b",\n    ", b"\n  ]\n}\n"  # around the lines of records
PROTOCOL = re.compile(rb'\{"protocol": "([\w-]+)", ')


def load_runs(paths: Iterable[str | Path], protocols: Container[str] | None = None) -> list[Run]:
    """Return every run under `paths`, each once, sorted by path.

    A path is a run directory, a folder with run directories or bundles at any depth (hidden folders and
    symbolic links inside it are not followed), a results.json, a bundle, or a glob. With `protocols` only
    their records are kept, which is faster; the others are named in `unread`. Damaged and foreign files make
    a Run with a `problem`. Raises UserError for a path that does not exist.
    """
    found: dict[str, Run] = {}
    with _without_collector():
        for path, problem in run_places(paths):
            if problem is not None:
                some: Iterable[Run] = [Run(path, problem=problem)]
            elif path.name.endswith(SUFFIX):
                some = load_bundle(path, protocols)
            else:
                some = [load_run(path, protocols)]
            found.update({os.path.realpath(run.path): run for run in some})
    return sorted(found.values(), key=lambda run: str(run.path))


def load_run(path: Path, protocols: Container[str] | None = None) -> Run:
    """Return one run directory's content. Never raises for what its files hold."""
    run = Run(Path(path))
    try:
        run.config = read_config(run.path)
        run.status = read_json(run.path, "status.json") or {}
        text = read_file(run.path, "results.json", LARGEST_RESULTS)
        if text is not None:
            if protocols is not None:
                text, run.unread = _only(text, protocols)
            _take(run, text)
    except (OSError, ValueError) as error:
        run.facts, run.records = None, []
        run.problem = str(error) or type(error).__name__
    return run


def load_bundle(path: Path, protocols: Container[str] | None = None) -> Iterator[Run]:
    """Yield the runs of a bundle (posenc.results.bundle), each with the path BUNDLE/NAME. Never raises."""
    try:
        data = read_file(path.parent, path.name, LARGEST)
        for line in unpacked(data or b"", LARGEST):
            run = Run(path / (safe_name(str(line.get("name"))) or "unnamed"))
            config, status, results = (line.get(key) for key in ("config", "status", "results"))
            run.config = config if isinstance(config, dict) else None
            run.status = status if isinstance(status, dict) else {}
            run.losses = kept_losses(line.get("losses")) if protocols is None else None
            try:
                if results is not None or run.status.get("status") != "diverged":
                    _take(run, results or {})
            except ValueError as error:
                run.problem = str(error)
            if protocols is not None:
                run.unread = {r["protocol"] for r in run.records if r["protocol"] not in protocols}
                run.records = [r for r in run.records if r["protocol"] in protocols]
            yield run
    except (OSError, ValueError) as error:
        yield Run(path, problem=str(error) or type(error).__name__)


def run_places(paths: Iterable[str | Path]) -> list[tuple[Path, str | None]]:
    """Return run directories and bundles below `paths`, each once, sorted, with why a folder cannot be read.

    Raises UserError for a path that does not exist.
    """
    found: dict[str, tuple[Path, str | None]] = {}
    for given in paths:
        for start in _expanded(given):
            for path, problem in _below(start):
                found.setdefault(os.path.realpath(path), (path, problem))
    return sorted(found.values(), key=lambda one: str(one[0]))


def _take(run: Run, data: bytes | dict[str, Any]) -> None:
    """Put what results.json holds into the run. Raises ValueError."""
    try:
        results = check_results(data)
    except ValueError as error:
        raise ValueError(f"results.json: {error}") from error
    run.facts, run.records = results["run"], results["records"]


def _only(text: bytes, protocols: Container[str]) -> tuple[bytes, set[str]]:
    """Return results.json without the records of other protocols, and those protocols' names.

    Where it is laid out as posenc.results.store writes it, a record a line; any other file is left whole.
    """
    head, found, rest = text.partition(FIRST)
    if not found or not rest.endswith(LAST):
        return text, set()
    kept, unread = [], set()
    for line in rest.removesuffix(LAST).split(BETWEEN):
        match = PROTOCOL.match(line)
        name = None if match is None else match[1].decode()
        if name is None or name in protocols:
            kept.append(line)
        else:
            unread.add(name)
    return head + FIRST + BETWEEN.join(kept) + LAST, unread


@contextmanager
def _without_collector() -> Iterator[None]:
    """Switch the search for cycles off: there are none, and among 2000 runs it doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _expanded(given: str | Path) -> list[Path]:
    """Return the run directory, folder or bundles that a path on the command line means."""
    path = Path(given)
    is_file = os.path.isfile(path)  # noqa: PTH113 (is_file raises for names too long)
    if path.name in MARKS and is_file:
        return [path.parent]
    if os.path.isdir(path) or (path.name.endswith(SUFFIX) and is_file):  # noqa: PTH112
        return [path]
    if glob.has_magic(str(given)):
        matches = [Path(match) for match in glob.glob(str(given), recursive=True)]  # noqa: PTH207 (absolute too)
        kept = [p for p in matches if p.is_dir() or p.name in MARKS or p.name.endswith(SUFFIX)]
        if matches:
            return sorted(p.parent if p.name in MARKS else p for p in kept)
    hint = "train one first: posenc train encoding=rope"
    if "=" in str(given):
        hint = f"to choose among runs, each with its own option: --where {visible(given)}"
    elif is_file:
        hint = f"a bundle's name ends in {SUFFIX}"
    raise UserError("DIRS", visible(given), "no such run directory", hint=hint)


def _below(start: Path) -> Iterator[tuple[Path, str | None]]:
    """Yield run directories and bundles at or below `start`, with a problem where a folder cannot be read."""
    if start.name.endswith(SUFFIX) and not start.is_dir():
        yield start, None
        return
    unreadable: list[OSError] = []
    for folder, subfolders, files in os.walk(start, onerror=unreadable.append):
        if any(mark in files for mark in MARKS):
            yield Path(folder), None
            subfolders.clear()
        else:
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            yield from ((Path(folder) / name, None) for name in files if name.endswith(SUFFIX))
    for error in unreadable:
        yield Path(error.filename), f"cannot be read: {error.strerror}"
