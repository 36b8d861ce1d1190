"""Make faults in a copy of a source tree, one at a time, and note which test of the tree catches each.

    python scripts/checks/mutations/run.py TREE --side new [--deep package] [--only NAME ...] [--workers N]
    python scripts/checks/mutations/run.py --table

`mutations.yaml` has the faults, with their texts in both trees. Of each fault the tests named there run
first. Where they pass, `--deep package` runs those of its package, and `--deep all` the whole default suite
too. A test counts if it fails with the fault and passes without it. results.json is written after each fault:
a command that was stopped goes on where it was, and `--only` runs a fault again.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
SIDES = ("old", "new")
STAGES = ("first", "package", "all")  # which tests ran, few to many
TEST_SECONDS = 120  # of a single test: a fault may hang
STAGE_SECONDS = 1800
FAILED = re.compile(r"^(tests/.+?) (?:FAILED|ERROR)\b", re.MULTILINE)
NOT_COLLECTED = re.compile(r"^ERROR (tests/\S+)", re.MULTILINE)
BEGUN = re.compile(r"^(tests/\S+::.*?)\s*$", re.MULTILINE)  # a test of which no result was printed
# exit codes of pytest
NOTHING_FAILED = (0, 5)  # 5: no test was chosen
SOMETHING_FAILED = (1, 2)  # 2: a file of tests could not be imported
OPTIONS = (
    *("-n", "0", "-x", "-vv", "--tb=no", "-p", "no:cacheprovider"),
    *("-o", f"faulthandler_timeout={TEST_SECONDS}", "-o", "faulthandler_exit_on_timeout=true"),
)

Results = dict[str, dict[str, Any]]  # by side and name


@dataclass(frozen=True)
class Fault:
    """A text of one tree and what stands there in its place; paths are relative to the tree."""

    name: str
    file: str
    before: str
    after: str
    tests: dict[str, list[str]]  # by stage: paths with options, as pytest takes them


@dataclass(frozen=True)
class Copy:
    """A copy of a tree that may be changed, and a folder for all that its tests write."""

    tree: Path
    work: Path
    python: str

    def environment(self) -> dict[str, str]:
        """Return variables under which this copy is imported and nothing of the user is read or written."""
        return os.environ | {
            "PYTHONPATH": str(self.tree),
            "PYTHONPYCACHEPREFIX": str(self.work / "compiled"),
            "HOME": str(self.work / "home"),
            "XDG_CACHE_HOME": str(self.work / "home/cache"),
            "TMPDIR": str(self.work / "tmp"),
            "OMP_NUM_THREADS": "1",
        }

    @contextmanager
    def with_fault(self, fault: Fault) -> Iterator[None]:
        """Have the fault in the copy inside, and the text as it was outside."""
        path = self.tree / fault.file
        text = path.read_text(encoding="utf-8")
        path.write_text(changed(text, fault), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(text, encoding="utf-8")

    def failing_test(self, tests: Sequence[str]) -> str | None:
        """Return the first test that fails, or None. Raises RuntimeError where pytest itself fails."""
        command = [self.python, "-m", "pytest", *OPTIONS, *tests]
        process = subprocess.Popen(
            command,
            cwd=self.tree,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        try:
            output, _ = process.communicate(timeout=STAGE_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            output, _ = process.communicate()
            return _last_begun(output)
        if process.returncode in NOTHING_FAILED:
            return None
        if process.returncode not in SOMETHING_FAILED:
            raise RuntimeError(f"{shlex.join(command)}\n{output[-3000:]}")
        failed = FAILED.search(output) or NOT_COLLECTED.search(output)
        return failed[1] if failed else _last_begun(output)


def _last_begun(output: str) -> str:
    """Return the test that a time limit ended."""
    begun = BEGUN.findall(output)
    if not begun:
        raise RuntimeError(f"no test is named in\n{output[-3000:]}")
    return str(begun[-1])


def changed(text: str, fault: Fault) -> str:
    """Return a file's text with the fault. Raises ValueError unless its place occurs exactly once."""
    count = text.count(fault.before)
    if count != 1:
        raise ValueError(f"{fault.name}: its text occurs {count} times in {fault.file}")
    faulty = text.replace(fault.before, fault.after)
    compile(faulty, fault.file, "exec")  # else every test would catch it
    return faulty


# --- Faults and results


def read_faults(side: str) -> list[Fault]:
    """Return the faults of mutations.yaml as one tree has them."""
    document = read_document()
    faults = []
    for mutation in document["mutations"]:
        text = mutation[side]
        of_package = document["packages"][mutation["package"]][side]
        tests = {"first": text["tests"], "package": of_package, "all": ["tests"]}
        faults.append(Fault(mutation["name"], text["file"], text["before"], text["after"], tests))
    return faults


def read_document() -> dict[str, Any]:
    """Return mutations.yaml as plain data."""
    document: dict[str, Any] = yaml.safe_load((HERE / "mutations.yaml").read_text(encoding="utf-8"))
    return document


def read_results(path: Path) -> Results:
    """Return the results so far; none without a file."""
    if not path.exists():
        return {side: {} for side in SIDES}
    results: Results = json.loads(path.read_text(encoding="utf-8"))
    return results


def stages_left(result: dict[str, Any] | None, deepest: str) -> list[str]:
    """Return the stages that a fault still has to go through, up to the deepest."""
    wanted = list(STAGES[: STAGES.index(deepest) + 1])
    if result is None:
        return wanted
    if result["caught_by"] is not None:
        return []
    return wanted[STAGES.index(result["stage"]) + 1 :]


# --- Running


def copy_tree(source: Path, destination: Path) -> None:
    """Copy the files of a tree that git knows or would take; its history stays behind."""
    listing = subprocess.run(
        ["git", "-C", str(source), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        check=True,
        capture_output=True,
        text=True,
    )
    for name in filter(None, listing.stdout.split("\0")):
        if (source / name).is_file():
            (destination / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source / name, destination / name)


def make_copy(source: Path, folder: Path, python: str) -> Copy:
    """Copy a tree into a new folder."""
    copy = Copy(folder / "tree", folder / "work", python)
    copy_tree(source, copy.tree)
    (copy.work / "tmp").mkdir(parents=True)
    return copy


def try_stages(copy: Copy, fault: Fault, stages: Sequence[str]) -> dict[str, Any]:
    """Return which test caught the fault, or None, after which stage, and the seconds that took."""
    began = time.monotonic()
    caught_by = None
    stage = stages[0]
    for stage in stages:
        caught_by = catching_test(copy, fault, stage)
        if caught_by is not None:
            break
    return {"caught_by": caught_by, "stage": stage, "seconds": round(time.monotonic() - began)}


def pytest_runs(fault: Fault, stage: str) -> list[list[str]]:
    """Return the arguments of each run of pytest: first tests have options of their own."""
    if stage == "first":
        return [shlex.split(tests) for tests in fault.tests[stage]]
    return [fault.tests[stage]]


def catching_test(copy: Copy, fault: Fault, stage: str) -> str | None:
    """Return a test of a stage that fails with the fault and passes without it; None if there is none."""
    for tests in pytest_runs(fault, stage):
        passed_over: list[str] = []
        while True:
            with copy.with_fault(fault):
                failing = copy.failing_test([*tests, *passed_over])
            if failing is None:
                break
            if copy.failing_test([failing]) is None:
                return failing
            passed_over.append(f"--deselect={failing}")  # it fails in this place anyway
    return None


def run_faults(source: Path, side: str, faults: Sequence[Fault], arguments: argparse.Namespace) -> None:
    """Try the faults in as many copies of the tree as there are workers; write each result at once."""
    results = read_results(arguments.results)
    writing = threading.Lock()
    copies: queue.Queue[Copy] = queue.Queue()

    def try_fault(fault: Fault) -> None:
        stored = None if arguments.only else results[side].get(fault.name)
        stages = stages_left(stored, arguments.deep)
        if not stages:
            return
        copy = copies.get()
        try:
            result = try_stages(copy, fault, stages)
        finally:
            copies.put(copy)
        with writing:
            results[side][fault.name] = result
            arguments.results.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n")
        print(f"{side} {fault.name}: {result['caught_by'] or 'SURVIVED'} ({result['seconds']} s)", flush=True)

    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        for number in range(arguments.workers):
            copies.put(make_copy(source, Path(folder) / str(number), arguments.python))
        with ThreadPoolExecutor(max_workers=arguments.workers) as pool:
            for waiting in [pool.submit(try_fault, fault) for fault in faults]:
                waiting.result()


# --- The table


def table(results: Results) -> str:
    """Return how many faults of each package each tree's tests caught, as Markdown, and who survived."""
    package_of = {mutation["name"]: mutation["package"] for mutation in read_document()["mutations"]}
    totals = Counter(package_of.values())
    caught = {side: Counter(_caught_packages(results[side], package_of)) for side in results}
    lines = [f"| package | faults | {' | '.join(results)} |", f"|---|---|{'---|' * len(results)}"]
    for package, total in totals.items():
        counts = [str(caught[side][package]) for side in results]
        lines.append(f"| {package} | {total} | {' | '.join(counts)} |")
    sums = [str(caught[side].total()) for side in results]
    lines.append(f"| all | {totals.total()} | {' | '.join(sums)} |")
    for side, by_name in results.items():
        survivors = [name for name, result in by_name.items() if result["caught_by"] is None]
        lines.append(f"\n{side}: {len(by_name)} tried, survived: {', '.join(survivors) or 'none'}")
    return "\n".join(lines)


def _caught_packages(by_name: dict[str, Any], package_of: dict[str, str]) -> Iterator[str]:
    for name, result in by_name.items():
        if result["caught_by"] is not None:
            yield package_of[name]


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path, nargs="?")
    parser.add_argument("--side", choices=SIDES, help="which of the two texts the tree has")
    parser.add_argument(
        "--deep", choices=STAGES, default="first", help="what runs where the first tests pass"
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these faults, also if they have a result")
    parser.add_argument("--workers", type=int, default=1, help="copies of the tree that are tested at once")
    parser.add_argument("--python", default=sys.executable, help="interpreter that has the dependencies")
    parser.add_argument("--results", type=Path, default=HERE / "results.json")
    parser.add_argument(
        "--table", action="store_true", help="print the table of the results, and run nothing"
    )
    arguments = parser.parse_args()
    if arguments.table:
        print(table(read_results(arguments.results)))
        return 0
    if arguments.tree is None or arguments.side is None:
        parser.error("TREE and --side are needed")
    faults = read_faults(arguments.side)
    for fault in faults:
        changed((arguments.tree / fault.file).read_text(encoding="utf-8"), fault)
    if arguments.only:
        unknown = {*arguments.only} - {fault.name for fault in faults}
        if unknown:
            parser.error(f"there is no fault {', '.join(sorted(unknown))}")
        faults = [fault for fault in faults if fault.name in arguments.only]
    run_faults(arguments.tree.resolve(), arguments.side, faults, arguments)
    return 0


if __name__ == "__main__":
    sys.exit(main())
