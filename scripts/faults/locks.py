"""One writer: restarts after kill -9, a second process, one that waits, and builders of one cache at once."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import TINY, digests, environment, finish, posenc, start, write_corpus
from faults.warm import Warm

LONG = ("train.tokens=12800000", "train.checkpoint_seconds=0.2")  # 100 000 updates: longer than it lives

BUILDER = """
import json, logging, sys
logging.basicConfig(level=logging.INFO, stream=sys.stderr)
from posenc.data import prepare
prepare(*json.loads(sys.argv[1]))
"""


class Held:
    """A run that a process trains until it is killed."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.place, self.env = place, {"POSENC_CACHE": str(place / "cache")}
        self.corpus = f"data.paths={write_corpus(place / 'texts', 20)}"
        self.words = ["train", *TINY, self.corpus, *LONG]

    def holder(self) -> str:
        """The pid that the run directory names."""
        return "".join(path.read_text() for path in self.place.glob("runs/default/*/.run.holder"))

    def until(self, pattern: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not list(self.place.glob(pattern)):
            if time.monotonic() > end:
                raise TimeoutError(f"no {pattern} after {seconds} s")
            time.sleep(0.02)


def restarts(place: Path, count: int) -> Seen:
    """Killed at a random moment and started again, in one directory."""
    held, chance, refused, got = Held(place), random.Random(3), [], 0
    with Warm(place) as warm:
        warm.run(place, [*held.words, "train.tokens=128", "runs_dir=warm"])
        for i in range(count):
            before = held.holder()
            ended = warm.run(place, held.words, kill_after=chance.uniform(0, 0.3), once_held=True)
            got += held.holder() != before
            if ended.code != -9 or "error" in ended.err:
                refused.append(f"start {i}: exit {ended.code}: {ended.err[-300:]}")
    text = f"{count - len(refused)} of {count} restarts without help; {got} of them held the lock when killed"
    if got < count:
        refused.append("not every start got as far as the lock")
    return Seen(text, count, len(refused), tuple(refused[:5]))


def second(place: Path) -> Seen:
    """A second process of the same run, by a fork and by the real command."""
    held, wrong = Held(place), []
    with Warm(place) as warm:
        warm.run(place, [*held.words, "train.tokens=128", "runs_dir=warm"])
        first = start(place, *held.words, env=held.env)
        try:
            held.until("runs/default/*/checkpoints/step-*")
            quick, slow = warm.run(place, held.words), posenc(place, *held.words, env=held.env)
            for ended in (quick, slow):
                named = f"pid {first.pid} on {os.uname().nodename}" in ended.err
                if ended.code != 1 or not named or "Traceback" in ended.err:
                    wrong.append(f"exit {ended.code}: {ended.err[-300:]}")
        finally:
            first.kill()
            finish(first)
    text = f"refused after {quick.seconds:.1f} s, with start-up {slow.seconds:.1f} s"
    return Seen(text, 2, len(wrong), tuple(wrong))


def waiting(place: Path) -> Seen:
    """With POSENC_WAIT=1 the second process takes the run over when the first is gone."""
    held = Held(place)
    short = [*held.words, "train.tokens=256000"]  # 2000 updates
    first = start(place, *short, env=held.env)
    held.until("runs/default/*/checkpoints/step-*")
    other = start(place, *short, env={**held.env, "POSENC_WAIT": "1"})
    said = ""
    while "waiting for another process" not in said and (line := other.stderr.readline()):  # type: ignore[union-attr]
        said += line
    waits = f"pid {first.pid}" in said and other.poll() is None
    first.kill()
    finish(first)
    ended = finish(other)
    good = waits and ended.code == 0
    text = f"{'waited' if waits else 'did not wait'}, then exit {ended.code}"
    return Seen(text, failed=int(not good), details=() if good else (said[-400:] + ended.err[-400:],))


def builders(place: Path, count: int) -> Seen:
    """Processes that all want the tokens of one corpus."""
    held = Held(place)
    split = {"validation": 0.1, "test": 0.2}
    paths = held.corpus.removeprefix("data.paths=")
    data = {"name": "files", "source": "files", "paths": paths, "text_field": "text", "split": split}
    command = [sys.executable, "-c", BUILDER, json.dumps([data, {"name": "bpe", "vocab_size": 270}])]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    at_once = [subprocess.Popen(command, env=environment(place), **pipes) for _ in range(count)]
    ends = [finish(process) for process in at_once]
    built = sum(ended.err.count("tokenised files into") for ended in ends)
    wrong = [ended.err[-300:] for ended in ends if ended.code]
    hidden = [name for name in digests(place / "cache", "tokens/**/*") if "/." in name]
    if built != 1 or hidden:
        wrong.append(f"{built} builds, left behind: {hidden}")
    return Seen(f"{count} builders, {built} build", count, len(wrong), tuple(wrong))


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Each with a folder of its own."""
    yield Case("restarts", "all without help", lambda: restarts(place / "a", 8 if quick else 100))
    yield Case("a second process", "refused in < 2 s, host and pid named", lambda: second(place / "b"))
    yield Case("POSENC_WAIT=1", "waits, then continues", lambda: waiting(place / "c"))
    yield Case("builders of one cache", "1 build", lambda: builders(place / "d", 3 if quick else 8))


FAMILY = Family("locks", cases)
