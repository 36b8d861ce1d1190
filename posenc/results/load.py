"""Reading run directories, damaged and foreign ones too: nothing is executed, nothing raised for them."""

from __future__ import annotations

import gc
import glob
import os
import re
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError, safe_name, visible
from posenc.results.bundle import SUFFIX as BUNDLE
from posenc.results.bundle import unpacked
from posenc.results.check import check_facts, check_record, is_shallow
from posenc.results.losses import kept
from posenc.results.own_files import (
    LARGEST,
    LARGEST_RESULTS,
    parse_object,
    read_config,
    read_json,
    read_own_file,
)
from posenc.results.processes import is_dead
from posenc.results.records import SCHEMA_VERSION, Record, RunFacts

MARKS = ("status.json", "results.json")
FIRST, BETWEEN, LAST = b'\n  "records": [\n    ', b",\n    ", b"\n  ]\n}\n"  # around the lines of records
PROTOCOL = re.compile(rb'\{"protocol": "([\w-]+)", ')


@dataclass
class Run:
    """What a run directory holds. With a `problem` (why it cannot be used) no facts, no records."""

    path: Path
    status: dict[str, Any] = field(default_factory=dict)
    facts: RunFacts | None = None
    records: list[Record] = field(default_factory=list)
    config: dict[str, Any] | None = None
    problem: str | None = None
    losses: dict[float, float] | None = None  # that a bundle keeps; posenc.results.losses reads the others
    unread: set[str] = field(default_factory=set)  # protocols whose records were left out on reading

    @property
    def state(self) -> str:
        """running, finished, failed, diverged, interrupted; `damaged` with a problem; `unknown`; or `dead`:
        its process is gone and left no word."""
        if self.problem is not None:
            return "damaged"
        state = self.status.get("status")
        if not isinstance(state, str):
            return "finished" if self.facts is not None else "unknown"
        if state == "running" and is_dead(self.status):
            return "dead"
        return visible(state)[:40]

    @property
    def reason(self) -> str | None:
        """Why it is in this state, as far as it is known. It may be a stranger's text."""
        if self.state == "dead":
            return f"its process {self.status.get('pid', '?')} is gone and left no word"
        reason = self.problem or self.status.get("reason")
        return reason if isinstance(reason, str) and reason else None

    @property
    def name(self) -> str:
        """The run's name: that of its directory. It is the user's text: escape it where it is printed."""
        return self.path.name or str(self.path)

    @property
    def seed(self) -> int | None:
        """The training seed, where it is known."""
        seed = self.facts["seed"] if self.facts is not None else (self.config or {}).get("seed")
        return seed if isinstance(seed, int) else None


def load_runs(paths: Iterable[str | Path], protocols: Container[str] | None = None) -> list[Run]:
    """Every run under `paths`, each once, sorted by path.

    A path is a run directory, a folder with run directories or bundles at any depth (hidden folders and
    symbolic links inside it are not followed), a results.json, a bundle, or a glob. With `protocols` only
    their records are kept, which is faster; the others are named in `unread`. Damaged and foreign files make
    a Run with a `problem`. Raises UserError for a path that does not exist.
    """
    found: dict[Path, Run] = {}
    with _without_collector():
        for given in paths:
            for place in places(given):
                for path, problem in run_directories_below(place):
                    key = Path(os.path.realpath(path))  # resolve() raises for a link to itself
                    if key in found:
                        continue
                    if problem is not None:
                        found[key] = Run(path, problem=problem)
                    elif path.name.endswith(BUNDLE):
                        found.update(
                            {Path(os.path.realpath(run.path)): run for run in load_bundle(path, protocols)}
                        )
                    else:
                        found[key] = load_run(path, protocols)
    return sorted(found.values(), key=lambda run: str(run.path))


def load_run(path: Path, protocols: Container[str] | None = None) -> Run:
    """One run directory. Never raises for what its files hold."""
    run = Run(Path(path))
    try:
        run.config = read_config(run.path)
        run.status = read_json(run.path, "status.json") or {}
        text = read_own_file(run.path, "results.json", LARGEST_RESULTS)
        if text is not None:
            if protocols is not None:
                text, run.unread = _only(text, protocols)
            _take(run, parse_object(text, "results.json"))
    except (OSError, ValueError, RecursionError) as error:
        run.facts, run.records = None, []
        run.problem = str(error) or type(error).__name__
    return run


def _take(run: Run, results: dict[str, Any]) -> None:
    """Check what results.json holds and put it into the run. Raises ValueError."""
    if results.get("schema_version") != SCHEMA_VERSION:
        version = str(results.get("schema_version"))[:40]
        raise ValueError(f"results.json: schema_version {version}, not {SCHEMA_VERSION}")
    records = results.get("records")
    if not isinstance(records, list):
        raise ValueError("results.json: records is not a list")
    facts = check_facts(results.get("run"))
    run.records = [check_record(record) for record in records]
    run.facts = facts


def load_bundle(path: Path, protocols: Container[str] | None = None) -> Iterator[Run]:
    """The runs of a bundle (posenc.results.bundle), each with the path BUNDLE/NAME. Never raises."""
    try:
        data = read_own_file(path.parent, path.name, LARGEST)
        for line in unpacked(data or b"", LARGEST):
            run = Run(path / (safe_name(str(line.get("name"))) or "unnamed"))
            try:
                config, status = line.get("config"), line.get("status")
                if not is_shallow(config) or not is_shallow(status):
                    raise ValueError("nested too deeply")
                run.config = config if isinstance(config, dict) else None
                run.status = status if isinstance(status, dict) else {}
                run.losses = kept(line.get("losses")) if protocols is None else None
                if line.get("results") is not None or run.status.get("status") != "diverged":
                    _take(run, line["results"] if isinstance(line.get("results"), dict) else {})
                if protocols is not None:
                    run.unread = {r["protocol"] for r in run.records if r["protocol"] not in protocols}
                    run.records = [r for r in run.records if r["protocol"] in protocols]
            except (ValueError, RecursionError) as error:
                run.facts, run.records, run.problem = None, [], str(error)
            yield run
    except (OSError, ValueError, RecursionError) as error:
        yield Run(path, problem=str(error) or type(error).__name__)


def _only(text: bytes, protocols: Container[str]) -> tuple[bytes, set[str]]:
    """results.json without the records of other protocols, and whose they are.

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
    """Without the search for cycles: there are none, and among 2000 runs it doubles the time."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def places(given: str | Path) -> list[Path]:
    path = Path(given)
    if path.name in MARKS and os.path.isfile(path):  # noqa: PTH113 (is_file raises for names too long)
        return [path.parent]
    if os.path.isdir(path) or (path.name.endswith(BUNDLE) and os.path.isfile(path)):  # noqa: PTH112, PTH113
        return [path]
    if glob.has_magic(str(given)):
        matches = [Path(match) for match in glob.glob(str(given), recursive=True)]  # noqa: PTH207 (absolute too)
        if matches:
            return sorted(
                p.parent if p.name in MARKS else p
                for p in matches
                if p.is_dir() or p.name in MARKS or p.name.endswith(BUNDLE)
            )
    hint = "train one first: posenc train encoding=rope"
    if "=" in str(given):
        hint = f"to choose among runs, each with its own option: --where {visible(given)}"
    elif os.path.isfile(path):  # noqa: PTH113
        hint = f"a bundle's name ends in {BUNDLE}"
    raise UserError("DIRS", visible(given), "no such run directory", hint=hint)


def run_directories_below(place: Path) -> list[tuple[Path, str | None]]:
    """Run directories and bundles at or below `place`, with a problem where a folder cannot be read."""
    if place.name.endswith(BUNDLE) and not place.is_dir():
        return [(place, None)]
    found: list[tuple[Path, str | None]] = []

    def unreadable(error: OSError) -> None:
        found.append((Path(error.filename), f"cannot be read: {error.strerror}"))

    for folder, subfolders, files in os.walk(place, onerror=unreadable):
        if any(mark in files for mark in MARKS):
            found.append((Path(folder), None))
            subfolders.clear()
        else:
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            found += [(Path(folder) / name, None) for name in sorted(files) if name.endswith(BUNDLE)]
    return found


def run_names(runs: Sequence[Run], most: int = 3, among: Sequence[Run] = ()) -> str:
    """A few names for a message: `a, b, c and 4 more`; paths where another of `among` has the same name."""
    others = [run.name for run in among]
    names = [str(run.path) if others.count(run.name) > 1 else run.name for run in runs[:most]]
    return ", ".join(names) + (f" and {len(runs) - most} more" if len(runs) > most else "")
