"""Make faults in a copy of a source tree, one at a time, and note which test of the tree catches each.

    python scripts/checks/mutations/run.py TREE --side new [--deep package] [--only NAME ...] [--workers N]
    python scripts/checks/mutations/run.py --table

`mutations.yaml` has the faults, with their texts in both trees. Of each fault the tests named there run
first. Where they pass, `--deep package` runs those of its package, and `--deep all` the whole default suite
too. A test counts if it fails with the fault and passes without it. results.json is written after each
fault: a command that was stopped goes on where it was, and `--only` runs a fault again.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import re
import shlex
import shutil
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
    *("-n", "0", "-vv", "--tb=no", "-p", "no:cacheprovider"),
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


class Copy:
    """A copy of a tree that may be changed, and a process that runs its tests."""

    def __init__(self, source: Path, folder: Path, python: str) -> None:
        """Copy the tree into a new folder, which also holds all that the tests write."""
        self.tree = folder / "tree"
        self.work = folder / "work"
        self.deselected: list[str] = []  # options that leave out what fails without a fault too
        copy_tree(source, self.tree)
        (self.work / "tmp").mkdir(parents=True)
        self.server = subprocess.Popen(
            [python, "-P", str(HERE / "fork_tests.py")],
            cwd=self.tree,
            env=self.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

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

    def failing_tests(self, arguments: Sequence[str]) -> list[str]:
        """Return the tests that fail, or the one that a time limit ended.

        Raises RuntimeError where pytest itself fails.
        """
        output = self.work / "output"
        pytest_arguments = [*OPTIONS, *self.deselected, *arguments]
        request = {"arguments": pytest_arguments, "output": str(output), "seconds": STAGE_SECONDS}
        assert self.server.stdin
        assert self.server.stdout
        print(json.dumps(request), file=self.server.stdin, flush=True)
        exit_code = int(self.server.stdout.readline())
        printed = output.read_text(errors="replace")
        if exit_code in NOTHING_FAILED:
            return []
        if exit_code not in SOMETHING_FAILED and exit_code >= 0:
            raise RuntimeError(f"{shlex.join(pytest_arguments)}\n{printed[-3000:]}")
        # A test that hangs takes pytest down with it, which prints no result: it is the last one begun.
        failing = FAILED.findall(printed) or NOT_COLLECTED.findall(printed) or BEGUN.findall(printed)[-1:]
        if not failing:
            raise RuntimeError(f"no test is named in\n{printed[-3000:]}")
        return [str(test) for test in failing]

    def close(self) -> None:
        """End the process."""
        assert self.server.stdin
        self.server.stdin.close()
        self.server.wait()


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


def write_results(results: Results, path: Path) -> None:
    path.write_text(json.dumps(results, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def stages_left(result: dict[str, Any] | None, deepest: str) -> list[str]:
    """Return the stages that a fault still has to go through, up to the deepest."""
    stages = list(STAGES[: STAGES.index(deepest) + 1])
    if result is None:
        return stages
    if result["caught_by"] is not None:
        return []
    return stages[STAGES.index(result["stage"]) + 1 :]


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


def try_stages(copy: Copy, fault: Fault, stages: Sequence[str]) -> dict[str, Any]:
    """Return which test caught the fault, or None, after which stage, and the seconds that took."""
    began = time.monotonic()
    caught_by = None
    stage = stages[0]
    for stage in stages:
        caught_by = catching_test(copy, fault, stage)
        if caught_by is not None:
            break
    return {
        "caught_by": caught_by,
        "passes_without": False,  # not known yet
        "stage": stage,
        "seconds": round(time.monotonic() - began),
    }


def pytest_runs(fault: Fault, stage: str) -> list[list[str]]:
    """Return the arguments of each run of pytest: first tests have options of their own."""
    if stage == "first":
        return [shlex.split(tests) for tests in fault.tests[stage]]
    return [fault.tests[stage]]


def catching_test(copy: Copy, fault: Fault, stage: str) -> str | None:
    """Return the first test of a stage that fails with the fault; None if there is none."""
    with copy.with_fault(fault):
        for tests in pytest_runs(fault, stage):
            failing = copy.failing_tests(["-x", *tests])
            if failing:
                return failing[0]
    return None


class Session:
    """Faults tried in as many copies of a tree as there are workers, each result written at once."""

    def __init__(self, side: str, copies: Sequence[Copy], deepest: str, path: Path) -> None:
        self.side = side
        self.deepest = deepest
        self.path = path
        self.results = read_results(path)
        self.writing = threading.Lock()
        self.all_copies = copies
        self.copies: queue.Queue[Copy] = queue.Queue()  # those that are free
        for copy in copies:
            self.copies.put(copy)

    def try_all(self, faults: Sequence[Fault]) -> None:
        """Try faults without a result, until each test that caught one is known to pass without it."""
        while True:
            with ThreadPoolExecutor(max_workers=len(self.all_copies)) as pool:
                for future in [pool.submit(self.try_fault, fault) for fault in faults]:
                    future.result()
            # A fault whose result was dropped is open again, now without the test that fails in any case.
            if not self.drop_unfounded():
                return

    def try_fault(self, fault: Fault) -> None:
        stages = stages_left(self.results[self.side].get(fault.name), self.deepest)
        if not stages:
            return
        copy = self.copies.get()
        try:
            result = try_stages(copy, fault, stages)
        finally:
            self.copies.put(copy)
        with self.writing:
            self.results[self.side][fault.name] = result
            write_results(self.results, self.path)
        print(
            f"{self.side} {fault.name}: {result['caught_by'] or 'SURVIVED'}, {result['seconds']} s",
            flush=True,
        )

    def drop_unfounded(self) -> bool:
        """Drop results whose test fails without a fault too, and leave it out; tell whether there are any."""
        by_name = self.results[self.side]
        unchecked = {result["caught_by"] for result in by_name.values() if not result["passes_without"]}
        tests = sorted(unchecked - {None})
        copy = self.copies.get()
        failing = copy.failing_tests(tests) if tests else []
        for name, result in list(by_name.items()):
            if result["caught_by"] in failing:
                del by_name[name]
            elif result["caught_by"] is not None:
                result["passes_without"] = True
        self.copies.put(copy)
        for copy in self.all_copies:
            copy.deselected += [f"--deselect={test}" for test in failing]
        write_results(self.results, self.path)
        print(
            f"{self.side}: {len(tests) - len(failing)} tests pass without a fault, fail: {failing}",
            flush=True,
        )
        return bool(failing)


def run_faults(source: Path, side: str, faults: Sequence[Fault], arguments: argparse.Namespace) -> None:
    """Try faults in copies of a tree, which are removed at the end."""
    with tempfile.TemporaryDirectory(prefix="mutations-") as folder:
        folders = [Path(folder) / str(number) for number in range(arguments.workers)]
        copies = [Copy(source, copy_folder, arguments.python) for copy_folder in folders]
        session = Session(side, copies, arguments.deep, arguments.results)
        if arguments.only:
            for fault in faults:
                session.results[side].pop(fault.name, None)
        session.try_all(faults)
        for copy in copies:
            copy.close()


# --- The table


def table(results: Results) -> str:
    """Return how many faults of each package each tree's tests caught, as Markdown, and who survived."""
    package_of = {mutation["name"]: mutation["package"] for mutation in read_document()["mutations"]}
    totals = Counter(package_of.values())
    results = {side: results[side] for side in sorted(results, reverse=True)}  # the old tree first
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
