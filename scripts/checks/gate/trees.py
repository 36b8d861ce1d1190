"""Run posenc from a source tree, in a folder with a home, a cache and compiled files of its own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

DROPPED_VARIABLES = (
    # settings of the caller that change what posenc prints or computes
    *("HYDRA_FULL_ERROR", "HF_ENDPOINT", "WANDB_API_KEY", "RANK", "WORLD_SIZE"),
    # with it Python compiles all modules for each command, 0.1 to 0.3 s that nobody else waits for
    "PYTHONDONTWRITEBYTECODE",
)
FORK_SERVER = Path(__file__).with_name("fork_server.py")
LONGEST_COMMAND = 1200  # seconds; a full machine made a run of 10 s take 90


@dataclass(frozen=True)
class Outcome:
    """What a finished process left: exit code, both streams, and how long it took."""

    code: int
    stdout: str
    stderr: str
    seconds: float


@dataclass(frozen=True)
class Tree:
    """A source tree of posenc, the interpreter that runs it, and a folder for all that it writes."""

    path: Path
    python: str
    work: Path

    def environment(self) -> dict[str, str]:
        """Return variables under which this tree is imported and nothing of the user is read or written."""
        variables = {name: value for name, value in os.environ.items() if name not in DROPPED_VARIABLES}
        variables = {name: value for name, value in variables.items() if not name.startswith("POSENC_")}
        return variables | {
            "PYTHONPATH": str(self.path),
            "PYTHONPYCACHEPREFIX": str(self.work / "compiled"),  # a tree under test is never written to
            "HOME": str(self.work / "home"),
            "XDG_CACHE_HOME": str(self.work / "home/cache"),
            "POSENC_CACHE": str(self.work / "cache"),
            "POSENC_PROGRESS": "100000",  # else the number of progress lines depends on the machine's load
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",  # sums in parallel have another order, so other last bits
            "COLUMNS": "100",
            "TERM": "dumb",
            "LC_ALL": "C.UTF-8",
        }

    def folder_tags(self, folder: Path) -> dict[str, str]:
        """Return what stands for paths of this machine in an observation: path -> tag, longest first."""
        return {
            str(folder): "<folder>",
            str(self.work): "<work>",
            f"{self.path}/docs/records/": "<records>/",  # stored records moved here from docs/
            f"{self.path}/docs/": "<records>/",
            str(self.path): "<tree>",
            self.python: "<python>",
        }

    def start(self, arguments: list[str], cwd: Path) -> subprocess.Popen[str]:
        """Start the interpreter with these arguments, streams captured, in a process group of its own."""
        (self.work / "home").mkdir(parents=True, exist_ok=True)
        return subprocess.Popen(
            [self.python, *arguments],
            cwd=cwd,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run_python(self, arguments: list[str], cwd: Path) -> Outcome:
        """Run the interpreter with these arguments to its end."""
        began = time.monotonic()
        return _wait(self.start(arguments, cwd), began)

    def run(self, words: list[str], cwd: Path) -> Outcome:
        """Run `posenc WORDS` to its end."""
        return self.run_python(["-m", "posenc", *words], cwd)

    def run_interrupted(self, words: list[str], cwd: Path, runs_dir: Path) -> Outcome:
        """Start `posenc WORDS`, send SIGTERM once a metrics.jsonl below `runs_dir` has grown, and wait."""
        lines_before = _count_metric_lines(runs_dir)
        began = time.monotonic()
        process = self.start(["-m", "posenc", *words], cwd)
        while process.poll() is None and _count_metric_lines(runs_dir) == lines_before:
            time.sleep(0.02)
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        return _wait(process, began)

    def check_import(self) -> None:
        """Exit with a message unless `import posenc` takes the package of this tree."""
        self.work.mkdir(parents=True, exist_ok=True)
        outcome = self.run_python(["-c", "import posenc; print(posenc.__file__)"], self.work)
        expected = self.path / "posenc" / "__init__.py"
        if outcome.code or Path(outcome.stdout.strip()).resolve() != expected.resolve():
            sys.exit(f"{self.path}: posenc is not imported from it\n{outcome.stdout}{outcome.stderr}")


class ForkServer:
    """A process of a tree that has imported the large libraries; every command is a fork of it."""

    def __init__(self, tree: Tree, name: str) -> None:
        self.streams = tree.work / f"streams-{name}"
        self.streams.mkdir(parents=True)
        errors = (self.streams / "server-stderr").open("w")
        self.process = subprocess.Popen(
            [tree.python, str(FORK_SERVER)],
            env=tree.environment(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
        )

    def run(self, words: list[str], cwd: Path) -> Outcome:
        """Run `posenc WORDS` to its end."""
        stdout, stderr = self.streams / "stdout", self.streams / "stderr"
        request = {"words": words, "cwd": str(cwd), "stdout": str(stdout), "stderr": str(stderr)}
        assert self.process.stdin
        assert self.process.stdout
        began = time.monotonic()
        print(json.dumps(request), file=self.process.stdin, flush=True)
        code = int(self.process.stdout.readline())
        return Outcome(code, stdout.read_text(), stderr.read_text(), time.monotonic() - began)

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def open_tree(path: Path, python: str, work: Path) -> Tree:
    """Return the tree at `path`, after a check that the interpreter imports posenc from there."""
    tree = Tree(path.resolve(), python, work.resolve())
    tree.check_import()
    return tree


def _count_metric_lines(runs_dir: Path) -> int:
    return sum(len(path.read_text().splitlines()) for path in runs_dir.rglob("metrics.jsonl"))


def _wait(process: subprocess.Popen[str], began: float) -> Outcome:
    try:
        stdout, stderr = process.communicate(timeout=LONGEST_COMMAND)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        stdout, stderr = process.communicate()
        stderr += f"\nthe gate stopped it after {LONGEST_COMMAND} s"
    return Outcome(process.returncode, stdout, stderr, time.monotonic() - began)
