"""Full and read-only disks: path, needed and free are said, what was saved stays, the same command works."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from faults.case import Case, Family, Seen
from faults.commands import TINY, Ended, digests, finish, posenc, start, write_corpus
from faults.kills import SAVES, Killer, compared, result_of
from faults.warm import Point, Warm

LONG = ("train.tokens=64000", "train.checkpoint_seconds=0")  # 500 updates, as many saves


def problems_of(ended: Ended, *said: str, code: int = 1) -> str:
    """Empty, or what is wrong with how a command ended that could not write: one screen, its exit code."""
    missing = [word for word in said if word not in ended.err]
    if ended.code != code or missing or "Traceback" in ended.err or len(ended.err.splitlines()) > 24:
        return f"exit {ended.code}, not said: {missing}: {ended.err[-500:]}"
    return ""


def failing_calls(killer: Killer, act: str, calls: tuple[str, ...], said: str) -> Seen:
    """One call of a run fails each time. It may only end in two ways: done, or exit 1 with the reason."""
    words, wrong, ends = killer.words(*SAVES), [], {0: 0, 1: 0}
    with Warm(killer.place, "watch") as watch:
        for name in ("first", "whole"):
            watch.run(killer.folder(name), words, cache=killer.place)
        points = [point for point in watch.points() if point.call in calls]
        whole = result_of(killer.place / "whole")
    points = points[:: max(1, len(points) // killer.full)]
    with Warm(killer.place, act) as failing, Warm(killer.place) as plain:
        failing.run(killer.folder("warm"), words, cache=killer.place)
        for point in points:
            folder = killer.folder("run")
            problem = at(failing, folder, words, point, killer.place, said, ends)
            again = plain.run(folder, words, cache=killer.place)
            problem = problem or (again.err[-300:] if again.code else compared(whole, folder))
            if problem:
                wrong.append(f"{point}: {problem}")
            shutil.rmtree(folder)
    text = f"{len(points)} calls: {ends[1]} times exit 1 with the reason, {ends[0]} times done without it"
    return Seen(text, len(points), len(wrong), tuple(wrong))


def at(
    warm: Warm, folder: Path, words: list[str], point: Point, cache: Path, said: str, ends: dict[int, int]
) -> str:
    """What is wrong with how the command ended whose call failed, and with the checkpoints it left."""
    from posenc.training.checkpoint import checkpoint_paths, problem_of

    ended = warm.run(folder, words, point, cache=cache)
    ends[ended.code] = ends.get(ended.code, 0) + 1
    wrong = "" if ended.code == 0 else problems_of(ended, said)
    for run in folder.glob("runs/default/*"):
        damaged = [path.name for path in checkpoint_paths(run / "checkpoints") if problem_of(path)]
        wrong = wrong or (f"left damaged: {damaged}" if damaged else "")
    return wrong


@contextlib.contextmanager
def mounted(size: str) -> Iterator[Path]:
    """A small file system of its own; PermissionError where mounting is not permitted."""
    place = Path(tempfile.mkdtemp(prefix="posenc-disk-"))
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "posenc", str(place)], capture_output=True, text=True
    )
    if done.returncode:
        place.rmdir()
        raise PermissionError(done.stderr.strip())
    try:
        yield place
    finally:
        subprocess.run(["umount", str(place)], check=True)
        place.rmdir()


def remounted(place: Path, options: str) -> None:
    subprocess.run(["mount", "-o", f"remount,{options}", str(place)], check=True)


class Disk:
    """The command on such a file system; its corpus and its cache lie elsewhere."""

    def __init__(self, place: Path) -> None:
        place.mkdir()
        self.place, self.env = place, {"POSENC_CACHE": str(place / "cache")}
        self.corpus = f"data.paths={write_corpus(place / 'texts', 20)}"

    def words(self, disk: Path, *more: str) -> tuple[str, ...]:
        return ("train", *TINY, self.corpus, f"runs_dir={disk / 'runs'}", *more)

    def posenc(self, disk: Path, *more: str) -> Ended:
        return posenc(self.place, *self.words(disk, *more), env=self.env)


def before_step_1(place: Path) -> Seen:
    """Too small for the checkpoints: said before anything is trained."""
    own = Disk(place)
    with mounted("1200k") as disk:
        ended = own.posenc(disk)
        wrong = problems_of(ended, "not enough room", str(disk), "needed: ", "free: ")
        wrong = wrong or ("trained all the same" if list(disk.rglob("metrics.jsonl")) else "")
        remounted(disk, "size=20m")
        again = own.posenc(disk)
        wrong = wrong or (again.err[-400:] if again.code else "")
    return Seen(
        "refused, then done" if not wrong else "see below",
        failed=int(bool(wrong)),
        details=(wrong,) * bool(wrong),
    )


def while_training(place: Path) -> Seen:
    """Somebody else fills the disk between two saves."""
    own = Disk(place)
    whole = own.posenc(place / "whole", *LONG)
    expected = last_of(place / "whole")
    with mounted("20m") as disk:
        process = start(place, *own.words(disk, *LONG), env=own.env)
        until = time.monotonic() + 120
        while len(list(disk.rglob("step-*"))) < 2 and time.monotonic() < until:
            time.sleep(0.02)
        with contextlib.suppress(OSError), (disk / "filler").open("wb", buffering=0) as file:
            while True:
                file.write(b"x" * 4096)
        ended = finish(process)
        wrong = problems_of(ended, "cannot write", str(disk), "free: ", "the same command continues")
        kept = [path.name for path in disk.glob("runs/default/*/checkpoints/step-*")]
        (disk / "filler").unlink()
        again = own.posenc(disk, *LONG)
        if again.code or "continuing at step" not in again.err or last_of(disk) != expected:
            wrong = wrong or f"exit {again.code}: {again.err[-400:]}"
    said = next((line for line in ended.err.splitlines() if line.startswith("error")), "nothing")
    text = f"kept {', '.join(sorted(kept))}; then the same weights"
    wrong = wrong or (whole.err[-300:] if whole.code else "")
    return Seen(text if not wrong else said, failed=int(bool(wrong)), details=(wrong,) * bool(wrong))


def last_of(disk: Path) -> dict[str, str]:
    """Weights and moments of the last checkpoint of the only run."""
    return digests(max(disk.glob("runs/default/*/checkpoints/step-*")), "*.safetensors")


def full_cache(place: Path) -> Seen:
    """The token cache on a file system that is too small for it."""
    own = Disk(place)
    with mounted("16k") as disk:
        env = {"POSENC_CACHE": str(disk / "cache")}
        ended = posenc(place, *own.words(place), env=env)
        wrong = problems_of(ended, str(disk), "needed: ", "free: ", "POSENC_CACHE")
        wrong = wrong or ("a run directory was made" if (place / "runs").exists() else "")
        remounted(disk, "size=4m")
        again = posenc(place, *own.words(place), env=env)
        wrong = wrong or (again.err[-400:] if again.code else "")
    return Seen(
        "said, then done" if not wrong else "see below",
        failed=int(bool(wrong)),
        details=(wrong,) * bool(wrong),
    )


def read_only(place: Path) -> Seen:
    """A run that is done is shown, one that is not is refused in a line; a cache that is there is used."""
    own, wrong = Disk(place), []
    with mounted("20m") as disk:
        first = own.posenc(disk)
        remounted(disk, "ro")
        shown, other, compare = (
            own.posenc(disk),
            own.posenc(disk, "seed=5"),
            posenc(place, "compare", str(disk / "runs"), env=own.env),
        )
        if first.code or shown.code or shown.out != first.out:
            wrong.append(f"finished: exit {shown.code}: {shown.err[-300:]}")
        wrong += filter(None, [problems_of(other, "Read-only file system", str(disk), code=2)])
        wrong += [f"compare: exit {compare.code}: {compare.err[-300:]}"] if compare.code else []
    with mounted("20m") as disk:
        own.env["POSENC_CACHE"] = str(disk / "cache")
        own.posenc(place, "seed=1")
        remounted(disk, "ro")
        there, missing = (
            own.posenc(place, "seed=2"),
            own.posenc(place, "tokenizer=bpe", "tokenizer.vocab_size=270"),
        )
        wrong += [f"cache: exit {there.code}: {there.err[-300:]}"] if there.code else []
        wrong += filter(None, [problems_of(missing, "Read-only file system", "POSENC_CACHE")])
    return Seen("5 commands as they should" if not wrong else "see below", 5, len(wrong), tuple(wrong))


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """Calls that fail by strace, and small file systems where those may be mounted."""

    def killer(name: str) -> Killer:
        folder = place / name
        folder.mkdir()
        return Killer(folder, full=5 if quick else 30)

    good = "exit 1 with path and reason, checkpoints intact, then the same result"
    if shutil.which("strace"):
        full, broken = ("write", "mkdir", "ftruncate"), ("fsync", "write", "rename")
        yield Case(
            "calls fail: disk full", good, lambda: failing_calls(killer("f"), "error=ENOSPC", full, "free: ")
        )
        yield Case(
            "calls fail: disk broken",
            good,
            lambda: failing_calls(killer("b"), "error=EIO", broken, "cannot write"),
        )
    if os.geteuid() == 0 and shutil.which("mount"):
        yield Case("too small", "said before step 1: path, needed, free", lambda: before_step_1(place / "1"))
        yield Case("filled while training", good, lambda: while_training(place / "2"))
        yield Case("token cache, full", "path, needed, free; then done", lambda: full_cache(place / "3"))
        yield Case("read-only", "shown, used, or refused in a line", lambda: read_only(place / "4"))


FAMILY = Family("disk", cases)
