"""Run directories and bundles: records and results.json are written atomically, all is read as plain data.

What is read may be a stranger's: no file too large, nothing is executed; what is damaged makes a Run with a
problem.
A bundle holds many runs without weights, to keep beside a paper and to compare from. It is gzipped JSON
lines: a head, then for each run its status, settings and results.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import glob
import gzip
import hashlib
import json
import os
import re
import shlex
import socket
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import write_json_atomic, write_text_atomic
from posenc.core.errors import RunError, UserError, safe_name, visible
from posenc.results.schema import SCHEMA_VERSION, PerDocument, Record, RunFacts, check_record, check_results

CELL = ("protocol", "window", "extend", "stride", "fingerprint", "split", "targets_hash", "checkpoint_step")
LARGEST = 50_000_000  # bytes
LARGEST_RESULTS = 500_000_000  # 25 cells of 2000 documents have 3 MB; 900, with every extension, 60 MB
LARGEST_CONFIG = 1_000_000
SEED = re.compile(rb"^seed: (\d{1,18})\n", re.M)


def record_path(run_dir: Path, cell: Mapping[str, Any]) -> Path:
    """Return `records/<protocol>-W<window>[-S<stride>][-<extend>]-step<N>-<hash>.json`.

    `cell` is a record, or the eight fields that identify one (CELL); the hash is of all eight.
    """
    identity = json.dumps([cell[key] for key in CELL], sort_keys=True, allow_nan=False)
    parts = [safe_name(cell["protocol"]), f"W{int(cell['window'])}"]
    if cell["stride"] is not None:
        parts.append(f"S{int(cell['stride'])}")
    if cell["extend"] is not None:
        parts.append(safe_name(str(cell["extend"].get("name", "extend"))))
    parts += [f"step{int(cell['checkpoint_step'])}", hashlib.sha256(identity.encode()).hexdigest()[:8]]
    return Path(run_dir) / "records" / ("-".join(parts) + ".json")


def write_record(run_dir: Path, record: Record) -> Path:
    """Write one finished cell, replacing the same cell; return its path. Raises as write_json_atomic."""
    path = record_path(run_dir, record)
    write_text_atomic(path, json.dumps(record, allow_nan=False) + "\n")
    return path


def find_record(run_dir: Path, **cell: Any) -> Record | None:
    """Return the stored record of this cell (the fields of CELL), or None; a damaged one is none."""
    try:
        record = _read_record(record_path(run_dir, cell))
    except (OSError, ValueError):
        return None
    return record if all(record.get(key) == cell[key] for key in CELL) else None


def read_records(run_dir: Path) -> list[Record]:
    """Return all records of a run in a fixed order. Raises RunError that names a damaged file."""
    records = []
    for path in sorted((Path(run_dir) / "records").glob("[!.]*.json")):
        try:
            records.append(_read_record(path))
        except (OSError, ValueError) as error:
            hint = "delete this file and run the same command again: only that cell is evaluated anew"
            raise RunError(f"damaged record {path}: {error}", hint=hint) from error
    return sorted(records, key=_order)


def assemble_results(run_dir: Path, run_facts: RunFacts) -> Path:
    """Write results.json from records/, a record a line; return its path. Raises as read_records.

    The curves of the protocol `positions` are written to positions.json as well.
    """
    records = read_records(run_dir)
    named = (*CELL, "corpus", "multiple", "documents")
    if curved := [record for record in records if "curve" in record]:
        curves = [{**{key: value for key, value in r.items() if key in named}, **r["curve"]} for r in curved]
        positions = {"schema_version": SCHEMA_VERSION, "curves": curves}
        write_json_atomic(Path(run_dir) / "positions.json", positions)
    lines = [json.dumps(record, allow_nan=False) for record in records]
    head = json.dumps({"schema_version": SCHEMA_VERSION, "run": run_facts}, indent=2, allow_nan=False)
    body = "[\n    " + ",\n    ".join(lines) + "\n  ]" if lines else "[]"
    path = Path(run_dir) / "results.json"
    write_text_atomic(path, head.removesuffix("\n}") + f',\n  "records": {body}\n}}\n')
    return path


def _read_record(path: Path) -> Record:
    """Return the record in a file. Raises OSError, ValueError."""
    return check_record(read_file(path.parent, path.name) or b"")


def _order(record: Record) -> tuple[Any, ...]:
    extend = "" if record["extend"] is None else json.dumps(record["extend"], sort_keys=True)
    place = (record["protocol"], extend, record["stride"] or 0, record["window"], record["checkpoint_step"])
    return (*place, record["fingerprint"], record["split"], record["targets_hash"])


def read_file(folder: Path, name: str, largest: int = LARGEST) -> bytes | None:
    """Return the bytes of a regular file; None where there is none. Raises ValueError, OSError."""
    path = folder / name
    if not path.is_file():  # opening a pipe would block
        return None
    if (size := path.stat().st_size) > largest:
        raise ValueError(f"{name}: too large ({size} bytes, at most {largest})")
    return path.read_bytes()


def read_json(folder: Path, name: str) -> dict[str, Any] | None:
    """Return the object in a JSON file; None where there is none. Raises ValueError, OSError."""
    text = read_file(folder, name)
    return None if text is None else parse_object(text, name)


def parse_object(text: bytes, name: str) -> dict[str, Any]:
    """Return the object that JSON text holds; `name` is for the error. Raises ValueError."""
    from pydantic_core import from_json

    try:
        data = from_json(text, allow_inf_nan=False)  # refuses more than 200 levels of nesting
    except ValueError as error:
        raise ValueError(f"{name}: damaged ({error})") from error
    if not isinstance(data, dict):
        raise ValueError(f"{name}: not an object")
    return data


def read_config(run_dir: Path) -> dict[str, Any] | None:
    """Return config.yaml as plain data; None where there is none. Raises ValueError, OSError."""
    text = read_file(run_dir, "config.yaml", LARGEST_CONFIG) or b""
    if not (seed := SEED.search(text)):
        return plain_yaml(text)
    data = plain_yaml(text[: seed.start()] + text[seed.end() :])  # the seeds of one setting are parsed once
    return data and {**data, "seed": int(seed[1])}


@functools.lru_cache(maxsize=256)
def plain_yaml(text: bytes) -> dict[str, Any] | None:
    """Return the mapping that YAML text holds, None where it is something else. Raises ValueError."""
    import yaml

    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # libyaml is ten times as fast
    try:
        data = yaml.load(text, Loader=loader)
    except Exception as error:  # the loader's own, and its constructors' on `!!int ''`
        raise ValueError(f"config.yaml: damaged ({(str(error) or 'no YAML').splitlines()[0]})") from error
    if json.loads(json.dumps(data, default=str)) != data:  # YAML also has dates, sets and bytes
        raise ValueError("config.yaml: holds more than text, numbers, lists and mappings")
    return data if isinstance(data, dict) else None


STUDIES = ("study", "study-recall", "study-room")  # names of stored records, where there is no such folder
MARKS = ("status.json", "results.json")
SUFFIX = ".runs.jsonl.gz"
HEAD = "posenc_bundle"
DIGITS = 7  # of the sums by document: a table shows three to five, and the others do not compress
MOST_PACKED = 50  # times smaller than its content; real ones are 5 to 10 times
TAIL = 4096  # bytes; a line of metrics.jsonl has about 150
KEPT = ("status", "reason", "step", "versions", "git_commit", "started", "updated")


@dataclass
class Run:
    """What a run directory holds. With a `problem` (why it cannot be used) no facts, no records."""

    path: Path
    status: dict[str, Any] = field(default_factory=dict)
    facts: RunFacts | None = None
    records: list[Record] = field(default_factory=list)
    config: dict[str, Any] | None = None
    problem: str | None = None

    @property
    def state(self) -> str:
        """running, finished, failed, diverged, interrupted; `damaged` with a problem; `unknown`; or `dead`:
        its process is gone and left no final status."""
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
            return f"its process {self.status.get('pid', '?')} is gone without a final status"
        reason = self.problem or self.status.get("reason")
        return reason if isinstance(reason, str) and reason else None

    @property
    def name(self) -> str:
        """The run's name: that of its directory."""
        return self.path.name or str(self.path)

    @property
    def sizes(self) -> dict[str, Any] | None:
        """The model's settings, without those that are null: runs that are older than a setting lack it."""
        model = (self.facts or {}).get("model")
        return None if model is None else {key: value for key, value in model.items() if value is not None}

    @property
    def parameters(self) -> int | None:
        """Of the whole model, where it is known."""
        total = (self.facts or {}).get("parameters", {}).get("total")
        return total if isinstance(total, int) else None

    @property
    def seed(self) -> int | None:
        """The training seed, where it is known."""
        seed = self.facts["seed"] if self.facts is not None else (self.config or {}).get("seed")
        return seed if isinstance(seed, int) else None


def is_dead(status: dict[str, Any]) -> bool:
    """Return whether the process of a status.json is certainly gone: it ran on this host and does not now."""
    pid = status.get("pid")
    here = status.get("host") == socket.gethostname()
    if not here or isinstance(pid, bool) or not isinstance(pid, int) or not 0 < pid < 2**31:
        return False
    import psutil  # takes 0.15 s, and most commands ask about no process

    try:
        process = psutil.Process(pid)
        written = datetime.fromisoformat(str(status.get("updated"))).timestamp()
        # a zombie has ended; one that began later has been given the number anew
        return bool(process.status() == psutil.STATUS_ZOMBIE or process.create_time() > written + 2)
    except psutil.NoSuchProcess:
        return True
    except (psutil.Error, ValueError):
        return False


# --- run directories and bundles


def load_runs(paths: Iterable[str | Path]) -> list[Run]:
    """Return every run under `paths`, each once, sorted by path.

    A path is a run directory, a folder with run directories or bundles at any depth (hidden folders and
    symbolic links inside it are not followed), a results.json, a bundle, or `study`. Damaged and foreign
    files make a Run with a `problem`. Raises UserError for a path that does not exist.
    """
    found: dict[str, Run] = {}
    gc.disable()  # there are no cycles, and among 2000 runs the search for them doubles the time
    try:
        for path, problem in run_places(paths):
            if problem is not None:
                some: Iterable[Run] = [Run(path, problem=problem)]
            elif path.name.endswith(SUFFIX):
                some = load_bundle(path)
            else:
                some = [load_run(path)]
            found.update({str(run.path): run for run in some})
    finally:
        gc.enable()
    return [run for _, run in sorted(found.items())]


def load_run(path: Path) -> Run:
    """Return one run directory's content. Never raises for what its files hold."""
    run = Run(Path(path))
    try:
        run.config = read_config(run.path)
        run.status = read_json(run.path, "status.json") or {}
        text = read_file(run.path, "results.json", LARGEST_RESULTS)
        if text is not None:
            _take(run, text)
    except (OSError, ValueError) as error:
        run.problem = str(error) or type(error).__name__
    return run


def load_bundle(path: Path) -> Iterator[Run]:
    """Yield the runs of a bundle, each with the path BUNDLE/NAME. Never raises."""
    try:
        for line in unpacked(read_file(path.parent, path.name) or b""):
            run = Run(path / (safe_name(str(line.get("name"))) or "unnamed"))
            config, status, results = (line.get(key) for key in ("config", "status", "results"))
            run.config = config if isinstance(config, dict) else None
            run.status = status if isinstance(status, dict) else {}
            try:
                if results is not None or run.status.get("status") != "diverged":
                    _take(run, results or {})
            except ValueError as error:
                run.problem = str(error)
            yield run
    except (OSError, ValueError) as error:
        yield Run(path, problem=str(error) or type(error).__name__)


def _take(run: Run, data: bytes | dict[str, Any]) -> None:
    """Put what results.json holds into the run. Raises ValueError."""
    try:
        results = check_results(data)
    except ValueError as error:
        raise ValueError(f"results.json: {error}") from error
    run.facts, run.records = results["run"], results["records"]


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


def _expanded(given: str | Path) -> list[Path]:
    """Return the run directory, folder or bundles that a path on the command line means."""
    path = Path(given)
    is_file = os.path.isfile(path)  # noqa: PTH113 (is_file raises for names too long)
    if path.name in MARKS and is_file:
        return [path.parent]
    if os.path.isdir(path) or (path.name.endswith(SUFFIX) and is_file):  # noqa: PTH112
        return [path]
    if str(given) in STUDIES:
        package = Path(__file__).resolve().parents[1]
        installed = package / "records"  # a wheel has the three folders inside the package
        in_clone = package.parent / "docs" / "records"
        records = installed if installed.is_dir() else in_clone
        return [records / given]
    matches = sorted(glob.glob(str(path)))  # noqa: PTH207 (absolute ones); no shell expands run=GLOB
    if matches not in ([], [str(path)]):
        return [path for match in matches for path in _expanded(match)]
    hint = "train one first: posenc train encoding=rope"
    if "=" in str(given):
        hint = f"to choose among runs, each with its own option: --where {visible(given)}"
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


def bundled(run: Run) -> bytes:
    """Return a run as a line of a bundle: no host, no process; of its owner's folders only `data.paths`."""
    import orjson

    config = {key: value for key, value in (run.config or {}).items() if key != "runs_dir"}
    records = [{**record, "per_document": _rounded(record["per_document"])} for record in run.records]
    results = {"schema_version": SCHEMA_VERSION, "run": run.facts, "records": records} if run.facts else None
    status = {key: run.status[key] for key in KEPT if key in run.status}
    line = {"name": run.name, "status": status, "config": config, "results": results}
    return orjson.dumps(line) + b"\n"


def _rounded(sums: PerDocument | None) -> Mapping[str, Any] | None:
    return sums and {**sums, "nats": [float(f"{one:.{DIGITS}g}") for one in sums["nats"]]}


def packed(lines: Sequence[bytes]) -> bytes:
    """Return the bundle of these lines: the same bytes for the same lines."""
    head = f'{{"{HEAD}":1,"schema_version":{SCHEMA_VERSION},"runs":{len(lines)}}}\n'.encode()
    return gzip.compress(head + b"".join(lines), compresslevel=9, mtime=0)


def unpacked(data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the runs of a bundle, a line each. Raises ValueError for a damaged or foreign one."""
    unzip, most = zlib.decompressobj(wbits=31), MOST_PACKED * len(data) + 10_000  # 31: gzip
    try:
        first, *lines = unzip.decompress(data, most).splitlines() or [b""]
    except zlib.error as error:
        raise ValueError(f"damaged ({error})") from error
    head = parse_object(first, "head")
    if head.get(HEAD) != 1 or head.get("schema_version") != SCHEMA_VERSION:
        raise ValueError("not a bundle of runs, or one of another version")
    for number, line in enumerate(lines, 2):
        yield parse_object(line, f"line {number}")
    if not unzip.eof or len(lines) != head.get("runs"):
        raise ValueError(f"damaged, or longer than {most} bytes ({len(lines)} of {head.get('runs')} runs)")


def last_metrics(path: Path) -> dict[str, Any]:
    """Return the last whole line of metrics.jsonl; {} without one."""
    place = path / "metrics.jsonl"
    if not place.is_file():  # opening a pipe would block
        return {}
    with contextlib.suppress(OSError), place.open("rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL))
        for line in reversed(file.read(TAIL).splitlines()):
            with contextlib.suppress(ValueError, RecursionError):  # a line that a kill cut short
                found = json.loads(line)
                return found if isinstance(found, dict) else {}
    return {}


def resume_command(run: Run) -> str | None:
    """Return `posenc train ...`, quoted for a shell; None where status.json does not name the overrides."""
    overrides = run.status.get("overrides")
    if not isinstance(overrides, list) or not all(isinstance(one, str) for one in overrides):
        return None
    return shlex.join(["posenc", "train", *overrides])


def encoding_of(run: Run) -> str | None:
    """Return the encoding's name, where it is known; of a sum the names of its parts."""
    return spoken_name((run.facts or run.config or {}).get("encoding"))


def spoken_name(encoding: object) -> str | None:
    """Return `rope`; `alibi+rope` for settings of an encoding that has `parts`."""
    if not isinstance(encoding, dict):
        return encoding if isinstance(encoding, str) else None
    parts, period = encoding.get("parts"), encoding.get("period")
    names = [spoken_name(part) for part in parts] if isinstance(parts, list) else []
    if names and all(names):
        times = [period.count(i) for i in range(len(names))] if isinstance(period, list) else [1] * len(names)
        counted = zip(times, names, strict=True)  # of a pattern of layers: 3xrope+nope
        return "+".join(f"{n}x{name}" if n > 1 else str(name) for n, name in counted if n)
    name = encoding.get("name")
    return name if isinstance(name, str) else None
