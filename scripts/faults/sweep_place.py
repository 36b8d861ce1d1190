"""A folder to sweep in, with encodings that die, each in its own way; and what a sweep left there."""

from __future__ import annotations

import json
import re
from pathlib import Path

from faults.commands import TINY, Ended, digests, posenc, write_corpus

PLUGIN = """
import os
import signal
import sys

import torch
from posenc.encodings.base import Encoding

IN_A_JOB = "POSENC_IF_HELD" in os.environ  # and not in the sweep, which validates every job first


class Own(Encoding):
    paper, formula, acts_on, past_training = "none", "none", "nothing", "none"


class Raises(Own):
    name = "raises"

    def embed(self, x, pos, layer):
        raise KeyError("boom")


class Leaves(Own):
    name = "leaves"

    def embed(self, x, pos, layer):
        sys.exit(0)


class Aborts(Own):
    name = "aborts"

    def embed(self, x, pos, layer):
        os.abort()


class Killed(Own):
    name = "killed"

    def embed(self, x, pos, layer):
        os.kill(os.getpid(), signal.SIGKILL)


class Explodes(Own):
    name = "explodes"

    def embed(self, x, pos, layer):
        return x * (1 if os.path.exists("mended") else float("inf"))


class Hungry(Own):
    name = "hungry"

    def embed(self, x, pos, layer):
        return x + torch.empty(10**15).sum()


class Early(Own):
    name = "early"

    def __init__(self, *shape, **more):
        super().__init__(*shape, **more)
        if IN_A_JOB:
            os.kill(os.getpid(), signal.SIGKILL)


class Garbage(Own):
    name = "garbage"

    def embed(self, x, pos, layer):
        os.write(2, bytes(range(256)) * 40)
        os._exit(0)
"""

DEATHS = {  # what the list at the end says of each
    "raises": "failed, KeyError: 'boom'",
    "leaves": "failed, SystemExit: 0",
    "aborts": "killed by SIGABRT",
    "killed": "killed by SIGKILL, out of memory, if nobody did that",
    "explodes": "diverged, non-finite loss at step 1",
}
ODD_DEATHS = {
    "hungry": "allocate memory",
    "early": "killed by SIGKILL",
    "garbage": "exit code 0 before it was finished",
}
IN_LOG = {"aborts": "Fatal Python error: Aborted", "raises": "Traceback", "explodes": "non-finite loss"}
CONFIG = ("--config-dir", "conf", "plugins=[plug]", "data.paths=texts")


class Sweeps:
    """A folder to sweep in, and what a sweep left in it."""

    def __init__(self, place: Path) -> None:
        self.place = place
        write_corpus(place / "texts")
        (place / "plug.py").write_text(PLUGIN)
        (place / "conf" / "encoding").mkdir(parents=True)
        for name in (*DEATHS, *ODD_DEATHS):
            (place / "conf" / "encoding" / f"{name}.yaml").write_text(f"name: {name}\n")

    def words(self, *words: str, runs: str = "runs") -> list[str]:
        return ["train", "-m", *CONFIG, *TINY, f"runs_dir={runs}", *words]

    def run(self, *words: str, runs: str = "runs") -> Ended:
        return posenc(self.place, *self.words(*words, runs=runs), env=self.env, seconds=1200)

    @property
    def env(self) -> dict[str, str]:
        return {"PYTHONPATH": str(self.place)}

    def states(self, runs: str = "runs") -> list[str]:
        paths = (self.place / runs).glob("default/*/status.json")
        return sorted(json.loads(path.read_text())["status"] for path in paths)

    def finished(self, runs: str = "runs") -> list[Path]:
        """The directories of the finished runs."""
        paths = sorted((self.place / runs).glob("default/*/status.json"))
        return [path.parent for path in paths if json.loads(path.read_text())["status"] == "finished"]

    def unlisted(self, done: Ended, deaths: dict[str, str], runs: str = "runs") -> list[str]:
        """What is wrong with the list at the end: each death with its reason and a log that tells it."""
        problems = []
        lines = done.err.splitlines()
        for name, reason in deaths.items():
            # the last line of the job, and the one below it
            found = [k for k, line in enumerate(lines) if re.match(rf"\[\d+/\d+\] {name}: ", line)]
            if not found or reason not in lines[found[-1]]:
                problems.append(f"{name}: not listed with its reason\n{done.err[-2000:]}")
                continue
            log = lines[found[-1] + 1].strip().removeprefix("log: ") if found[-1] + 1 < len(lines) else ""
            text = (self.place / log).read_text() if log and (self.place / log).is_file() else ""
            if IN_LOG.get(name, reason.removeprefix("failed, ")) not in text:
                problems.append(f"{name}: its log {log!r} does not tell why: {text[-300:]!r}")
        return problems

    def weights(self, runs: str) -> dict[str, str]:
        """sha256 of the last weights, by run."""
        found = {}
        for run in (self.place / runs / "default").iterdir():
            last = max((run / "checkpoints").glob("step-*"))
            found[run.name] = digests(last, "model.safetensors")["model.safetensors"]
        return found
