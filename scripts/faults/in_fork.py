"""Commands of posenc in forks of this process, which has imported it: without the seconds of start-up."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from faults.commands import Ended, environment

HEAVY = ("posenc.cli", "posenc.running.command", "posenc.running.eval_job", "posenc.running.train_run")
HEAVY += ("posenc.cli.show", "posenc.cli.compare", "posenc.cli.runs", "posenc.cli.check")
HEAVY += ("posenc.cli.bench", "posenc.cli.data", "matplotlib")
MEMORY = 4 * 2**30  # bytes of address space beyond what the process has already


def prepare() -> None:
    """Import what the commands need. Nothing is computed here: a thread would not survive the fork."""
    import importlib

    os.environ["OMP_NUM_THREADS"] = "1"
    root = str(Path(__file__).resolve().parents[2])
    if root not in sys.path:
        sys.path.append(root)
    for name in HEAVY:
        importlib.import_module(name)
    import torch

    torch.set_num_threads(1)


def forked(
    place: Path, words: list[str], *, env: Mapping[str, str] | None = None, seconds: float = 60, **home: Path
) -> Ended:
    """`posenc words` in `place`; killed after `seconds`, as in `commands.finish`.

    `home` may name `cache`: the folder that has it.
    """
    prepare()
    out, err = place / ".stdout", place / ".stderr"
    began = time.monotonic()
    child = os.fork()
    if not child:
        _become(place, words, {**environment(home.get("cache", place)), **(env or {})}, out, err)
    code = _wait(child, seconds)
    text = [path.read_text(encoding="utf-8", errors="replace") for path in (out, err)]
    for path in (out, err):
        path.unlink()
    if code == -signal.SIGKILL:
        text[1] += f"\nstill running after {seconds} s"
    return Ended(code, *text, time.monotonic() - began)


def _wait(child: int, seconds: float) -> int:
    stop = time.monotonic() + seconds
    while time.monotonic() < stop:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGKILL


def _become(place: Path, words: list[str], env: dict[str, str], out: Path, err: Path) -> None:
    """The child: a console of its own, then the console script's function. Never returns."""
    code = 70
    try:
        os.setsid()
        os.chdir(place)
        os.environ.clear()
        os.environ.update(env)
        for number, path in ((1, out), (2, err)):
            os.dup2(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), number)
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        sys.stdin, sys.stdout, sys.stderr = (
            open(number, mode, encoding="utf-8", errors=errors, closefd=False)  # noqa: SIM115
            for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
        )
        _limit_memory()
        sys.argv = ["posenc", *words]
        from posenc.cli import main

        try:
            main()
            code = 0
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else int(stop.code is not None)
        sys.stdout.flush()
    except BaseException:
        import traceback

        traceback.print_exc(file=sys.stderr)
    finally:
        sys.stderr.flush()
        os._exit(code)


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0]) if Path("/proc/self/statm").exists() else 0
    if pages:
        limit = pages * resource.getpagesize() + MEMORY
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
