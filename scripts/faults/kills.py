"""kill -9 at every write, fsync, rename, unlink and mkdir of a run and of the token cache; and at random."""

from __future__ import annotations

import json
import random
import shutil
import sys
import time
from collections.abc import Iterator
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import TINY, Ended, digests, finish, posenc, start, write_corpus
from faults.warm import Point, Warm

SAVES = ("train.tokens=384", "train.log_every=1", "train.checkpoint_seconds=0")  # 3 updates, 3 checkpoints
LONG = ("train.tokens=7680", "train.log_every=1", "train.checkpoint_seconds=0")  # 60 of each
BPE = ("tokenizer=bpe", "tokenizer.vocab_size=270")


class Killer:
    """One corpus, and what an undisturbed run leaves."""

    def __init__(self, place: Path, *, full: int) -> None:
        self.place, self.full = place, full
        self.texts = write_corpus(place / "texts", 20)
        self.struck = 0
        self.lost: list[str] = []

    def words(self, *more: str) -> list[str]:
        return ["train", *TINY, f"data.paths={self.texts}", "eval.max_targets=100", *more]

    def folder(self, name: str) -> Path:
        made = self.place / name
        made.mkdir()
        return made

    def tell(self) -> None:
        """How far it is, for who waits."""
        if self.struck % 10 == 0 or self.lost:
            print(f"  {self.struck} kills, {len(self.lost)} lost", file=sys.stderr, flush=True)

    def seen(self, what: str) -> Seen:
        text = f"{self.struck} kills{what}, lost runs {len(self.lost)}, manual steps 0"
        return Seen(text, self.struck, len(self.lost), tuple(self.lost))


def result_of(folder: Path) -> dict[str, object]:
    """What a run left, without times: weights and moments, logged steps, numbers, and names of all files."""
    (run,) = (path for path in (folder / "runs" / "default").iterdir() if not path.name.startswith("."))
    newest = max((run / "checkpoints").iterdir())
    records = json.loads((run / "results.json").read_text())["records"]
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return {
        "weights": digests(newest, "*.safetensors"),
        "steps": [(line["step"], line["loss"]) for line in lines],
        "records": [{**record, "seconds": 0} for record in records],
        "status": json.loads((run / "status.json").read_text())["status"],
        "leftovers": [p.name for p in run.rglob("*") if p.name.endswith(".tmp") or ".tmp-" in p.name],
    }


def compared(whole: dict[str, object], folder: Path) -> str:
    """Empty, or what differs from an undisturbed run."""
    try:
        found = result_of(folder)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ", ".join(key for key, value in whole.items() if found[key] != value)


def at_every_call(killer: Killer) -> Seen:
    """Each kill in a run of its own, which the same command then finishes."""
    words = killer.words(*SAVES)
    with Warm(killer.place, "watch") as watch:
        for name in ("first", "whole"):
            watch.run(killer.folder(name), words, cache=killer.place)
        points, whole = watch.points(), result_of(killer.place / "whole")
    chosen = points[:: max(1, len(points) // killer.full)]
    random.Random(0).shuffle(chosen)  # what was seen half-way is seen of all of it
    with Warm(killer.place, "signal=KILL") as killing, Warm(killer.place) as plain:
        plain.run(killer.folder("warm"), words, cache=killer.place)
        killing.run(killer.folder("warm-too"), words, cache=killer.place)
        for point in chosen:
            folder = killer.folder("run")
            ended = killing.run(folder, words, point, cache=killer.place)
            if ended.code != -9:
                killer.lost.append(f"{point}: was not killed, exit {ended.code}")
            killer.struck += 1
            again = plain.run(folder, words, cache=killer.place)
            differs = again.err[-300:] if again.code else compared(whole, folder)
            if differs:
                killer.lost.append(f"{point}: {differs}")
            killer.tell()
            shutil.rmtree(folder)
    return killer.seen(f" at {len(chosen)} of {len(points)} calls of 3 saves and their evaluation")


def one_after_another(killer: Killer) -> Seen:
    """Kills at random calls and random times in one directory, until the run is through; and again."""
    words, chance = killer.words(*LONG), random.Random(1)
    with Warm(killer.place, "signal=KILL") as killing, Warm(killer.place) as plain:
        plain.run(killer.folder("whole-long"), words, cache=killer.place)
        killing.run(killer.folder("warm-long"), words, cache=killer.place)
        whole, chains = result_of(killer.place / "whole-long"), 0
        while killer.struck < killer.full:
            folder, chains = killer.folder(f"chain-{chains}"), chains + 1
            for _ in range(10):
                if chance.random() < 0.5:
                    at = Point(chance.choice(("write", "fsync", "rename", "unlinkat")), chance.randint(8, 90))
                    ended = killing.run(folder, words, at, cache=killer.place)
                else:
                    after = chance.uniform(0, 0.5)
                    ended = plain.run(folder, words, kill_after=after, once_held=True, cache=killer.place)
                killer.struck += ended.code == -9
                if ended.code not in (-9, 0):
                    killer.lost.append(f"exit {ended.code}: {ended.err[-300:]}")
            again = plain.run(folder, words, cache=killer.place)
            differs = again.err[-300:] if again.code else compared(whole, folder)
            if differs:
                killer.lost.append(f"chain {chains}: {differs}")
            killer.tell()
    return killer.seen(f" in {chains} runs of 60 saves, one after another")


def in_real_processes(killer: Killer) -> Seen:
    """`python -m posenc train` itself: killed by strace inside a save, and at random times.

    A run that is through is compared, and the next begins in a folder of its own.
    """
    words, chance = killer.words(*LONG), random.Random(2)
    env = {"POSENC_CACHE": str(killer.place / "cache")}
    posenc(killer.folder("whole-real"), *words, env=env)
    whole, folders = result_of(killer.place / "whole-real"), [killer.folder("real-0")]

    def compare(ended: Ended) -> None:
        differs = ended.err[-300:] if ended.code else compared(whole, folders[-1])
        if differs:
            killer.lost.append(f"{folders[-1].name}: {differs}")

    for i in range(3 * killer.full):  # a start may be through before it is struck
        if killer.struck == killer.full:
            break
        folder = folders[-1]
        if i % 2:
            call, number = chance.choice([("fsync", 40), ("write", 50), ("rename", 12), ("unlinkat", 10)])
            inject = f"inject={call}:signal=KILL:when={number}"
            strace = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)
            ended = posenc(folder, *words, before=strace, env=env)
        else:
            began, process, until = logged(folder), start(folder, *words, env=env), time.monotonic() + 120
            while logged(folder) <= began and process.poll() is None and time.monotonic() < until:
                time.sleep(0.01)
            time.sleep(chance.uniform(0, 0.5))
            process.kill()
            ended = finish(process)
        if ended.code in (-9, 137):
            killer.struck += 1
        else:
            compare(ended)
            folders.append(killer.folder(f"real-{len(folders)}"))
    compare(posenc(folders[-1], *words, env=env))
    if killer.struck < killer.full:
        killer.lost.append(f"only {killer.struck} of {killer.full} were struck")
    return killer.seen(f" of real processes in {len(folders)} runs")


def logged(folder: Path) -> int:
    """Lines of its log of training."""
    return sum(len(path.read_text().splitlines()) for path in folder.glob("runs/default/*/metrics.jsonl"))


def token_cache(killer: Killer, *tokenizer: str) -> Seen:
    """Each kill with a cache of its own; the next command leaves the bytes of an undisturbed one."""
    words = ["data", "prepare", "data=files", f"data.paths={killer.texts}", *tokenizer]

    def kept(folder: Path) -> dict[str, str]:
        found = digests(folder / "cache").items()
        return {name: digest for name, digest in found if not name.endswith(".lock")}

    with Warm(killer.place, "watch") as watch:
        for name in ("cache-first", "cache-whole"):
            watch.run(killer.folder(name), words)
        points, whole = watch.points(), kept(killer.place / "cache-whole")
    chosen = points[:: max(1, len(points) // killer.full)]
    with Warm(killer.place, "signal=KILL") as killing, Warm(killer.place) as plain:
        for warm in (killing, plain):
            warm.run(killer.place / "cache-whole", words)
        for point in chosen:
            folder = killer.folder("cached")
            ended = killing.run(folder, words, point)
            killer.struck += ended.code == -9
            if ended.code != -9:
                killer.lost.append(f"{point}: was not killed, exit {ended.code}")
            again = plain.run(folder, words)
            if again.code or kept(folder) != whole:
                killer.lost.append(f"{point}: {again.err[-200:] or sorted(kept(folder))}")
            shutil.rmtree(folder)
    return killer.seen(f" at {len(chosen)} of {len(points)} calls")


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Each with a folder of its own."""

    def killer(name: str, few: int, many: int) -> Killer:
        folder = place / name
        folder.mkdir()
        return Killer(folder, full=few if quick else many)

    same = "the same command ends with the weights, numbers and log of an undisturbed run"
    yield Case("every call of 3 saves", same, lambda: at_every_call(killer("calls", 8, 10**6)))
    yield Case("one kill after another", same, lambda: one_after_another(killer("chains", 5, 80)))
    yield Case("real processes", same, lambda: in_real_processes(killer("real", 2, 10)))
    bytes_too = "the next command leaves the same bytes"
    yield Case("token cache, bytes", bytes_too, lambda: token_cache(killer("bytes", 4, 10**6)))
    yield Case("token cache, bpe", bytes_too, lambda: token_cache(killer("bpe", 4, 10**6), *BPE))


FAMILY = Family("kills", cases, needs=("strace",))
