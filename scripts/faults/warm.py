"""posenc in forks of one process that has imported it, under strace: a call of choice kills it or fails.

strace counts the calls of each process by name and acts at call number AT. A fork that is to be struck at its
k-th `fsync` first makes AT - k that do nothing, so one strace and one import serve hundreds of kills.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import io
import json
import os
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from faults.commands import Ended, environment

AT = 400  # more calls of one name than any run here makes
CALLS = ("write", "fsync", "rename", "renameat", "unlink", "unlinkat", "rmdir", "mkdir", "ftruncate")
VAIN: dict[str, tuple[Any, ...]] = {  # arguments that make the call fail at once
    "write": (-1, b"", 0),
    "fsync": (-1,),
    "rename": (b"", b""),
    "renameat": (-1, b"", -1, b""),
    "unlink": (b"",),
    "unlinkat": (-1, b"", 0),
    "rmdir": (b"",),
    "mkdir": (b"", 0),
    "ftruncate": (-1, 0),
}


@dataclass(frozen=True)
class Point:
    """The `number`-th call of that name, from 1."""

    call: str
    number: int


class Warm:
    """A process that has imported posenc and forks for every command. Close it."""

    def __init__(self, place: Path, act: str | None = None) -> None:
        """`act` is what strace does at a point (`signal=KILL`, `error=EIO`), "watch" writes the calls down.

        None: no strace, so no points.
        """
        self.log = place / f"calls-{time.monotonic_ns()}.txt"
        strace = []
        if act is not None:  # without --seccomp-bpf: with it 6.1 sends no signal to a fork
            out = str(self.log) if act == "watch" else os.devnull
            strace = ["strace", "-f", "-qq", "-o", out, "-e", f"trace={','.join(CALLS)}"]
        if act not in (None, "watch"):
            strace += ["-e", f"inject={','.join(CALLS)}:{act}:when={AT}"]
        scripts = str(Path(__file__).resolve().parents[1])
        path = os.pathsep.join(filter(None, (scripts, os.environ.get("PYTHONPATH"))))
        self.process = subprocess.Popen(
            [*strace, sys.executable, "-m", "faults.warm"],
            cwd=place,
            env=environment(place, PYTHONPATH=path),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __enter__(self) -> Warm:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.communicate(timeout=60)

    def run(
        self,
        place: Path,
        words: Sequence[str],
        at: Point | None = None,
        *,
        kill_after: float | None = None,
        once_held: bool = False,
        env: Mapping[str, str] | None = None,
        cache: Path | None = None,
    ) -> Ended:
        """`posenc words` in `place`, struck at a point or killed after some seconds.

        `once_held`: seconds since it has taken the lock of a run directory in `place`.
        """
        asked = {
            "place": str(place),
            "words": list(words),
            "vain": None if at is None else [at.call, AT - at.number],
            "kill_after": kill_after,
            "once_held": once_held,
            "env": environment(cache or place, **(env or {})),
        }
        assert self.process.stdin is not None and self.process.stdout is not None
        began = time.monotonic()
        self.process.stdin.write(json.dumps(asked) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError("the process that forks has ended")
        self.answer = json.loads(line)
        return Ended(self.answer["code"], self.answer["out"], self.answer["err"], time.monotonic() - began)

    def points(self) -> list[Point]:
        """The calls of the last command, in order; of a Warm that writes them down."""
        pid, counts, found = str(self.answer["pid"]), dict.fromkeys(CALLS, 0), []
        for line in self.log.read_text(errors="replace").splitlines():
            match = re.match(rf"{pid}\s+(\w+)\((.*)", line)
            if match and match[1] in counts:
                counts[match[1]] += 1
                if counts[match[1]] < AT and not re.match(r"[012],", match[2]):
                    found.append(Point(match[1], counts[match[1]]))
        return found


def serve() -> None:
    """Fork for every line on stdin, answer on stdout."""
    load(["posenc.cli", "posenc.running.train_run", "posenc.running.command", "torch"])
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(answered(asked)), file=answers, flush=True)


def load(names: Sequence[str]) -> None:
    """Import what commands before needed, so that forks find it. Nothing is computed here."""
    for name in names:
        if name not in sys.modules and not name.startswith(("__", "faults")):
            with contextlib.suppress(Exception):
                importlib.import_module(name)


def answered(asked: dict[str, Any]) -> dict[str, Any]:
    """Fork, wait, and say how it ended."""
    out, err, modules = (Path(asked["place"]) / f".{name}.txt" for name in ("out", "err", "modules"))
    pid = os.fork()
    if not pid:
        become(asked, out, err, modules)
    if asked["once_held"]:
        until_held(pid, Path(asked["place"]))
    code = waited(pid, asked["kill_after"])
    texts = [path.read_text(errors="replace") if path.exists() else "" for path in (out, err, modules)]
    for path in (out, err, modules):
        path.unlink(missing_ok=True)
    load(texts[2].split())
    return {"pid": pid, "code": code, "out": texts[0], "err": texts[1]}


def until_held(pid: int, place: Path) -> None:
    """Wait, at most two minutes, until the process says that it holds a run directory."""
    end = time.monotonic() + 120
    while time.monotonic() < end:
        if any(f"pid {pid} " in path.read_text() for path in place.glob("runs/default/*/.run.holder")):
            return
        time.sleep(0.01)


def waited(pid: int, kill_after: float | None) -> int:
    """Its exit code; killed after so many seconds, or after 300."""
    handle = os.pidfd_open(pid)
    if not select.select([handle], [], [], 300 if kill_after is None else kill_after)[0]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    os.close(handle)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


class Unseen(io.RawIOBase):
    """A file written by a call that is not in CALLS, so that what is said neither counts nor fails."""

    def __init__(self, path: Path) -> None:
        self.handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        return os.writev(self.handle, [data])


def become(asked: dict[str, Any], out: Path, err: Path, modules: Path) -> None:
    """The child: the console script's function, after calls made in vain. Never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(asked["place"])
        os.environ.clear()
        os.environ.update(asked["env"])
        os.dup2(os.open(os.devnull, os.O_RDWR), 0)
        sys.stdout, sys.stderr = (
            io.TextIOWrapper(io.BufferedWriter(Unseen(path)), "utf-8", "backslashreplace", write_through=True)
            for path in (out, err)
        )
        sys.argv = ["posenc", *asked["words"]]
        from posenc.cli import main

        if asked["vain"] is not None:
            name, times = asked["vain"]
            call = getattr(ctypes.CDLL(None), name)
            for _ in range(times):
                call(*VAIN[name])
        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        Unseen(modules).write("\n".join(sorted(sys.modules)).encode())
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        os._exit(code)


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError, KeyboardInterrupt):  # whoever asked is gone
        serve()
