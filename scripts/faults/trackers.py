"""Trackers whose server, key or folder is bad: what it costs, and that the run has everything."""

from __future__ import annotations

import importlib.util
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType
from typing import Any

from faults.case import Case, Family, Seen
from faults.commands import STEPS, TINY, Ended, digests, environment, finish, write_corpus

COST = 10.0  # seconds more than the same tracker takes with nobody to talk to
KEY = "k" * 40
RUN = ("train", *TINY, "data.paths=texts", "encoding=rope")
# posenc with the seconds that its tracker takes, and when it is done: what is left is wandb's exit hook.
PROGRAM = """
import json, pathlib, sys, time
import posenc.running.train_run as job
spent, real = [0.0], job.build_tracker
def timed(do):
    def call(*given, **named):
        began = time.monotonic()
        try:
            return do(*given, **named)
        finally:
            spent[0] += time.monotonic() - began
    return call
class Timed:
    def __init__(self, tracker):
        self.log, self.evaluation, self.finish = map(timed, (tracker.log, tracker.evaluation, tracker.finish))
job.build_tracker = timed(lambda *given, **named: Timed(real(*given, **named)))
note = pathlib.Path(sys.argv.pop(1))
from posenc.cli import main
try:
    main()
finally:
    note.write_text(json.dumps([spent[0], time.monotonic()]))
"""


def cases(place: Path, quick: bool) -> Iterator[Case]:
    """W&B in each kind of trouble, then the trackers that write files."""
    write_corpus(place / "texts")
    ended, _ = _run(place, "none", ())
    if ended.code:
        raise RuntimeError(ended.err[-600:])
    expected = f"at most {COST:.0f} s, exit 0, the run's files as without"
    if importlib.util.find_spec("wandb") is not None:
        _, usual = _run(place, "offline", ("tracking=wandb", "tracking.mode=offline"))
        for name in ("no key", "wrong key", "nobody there", "silent", "hangs", "hangs later", "dies later"):
            if not quick or name in ("no key", "nobody there", "hangs later"):
                yield Case(f"W&B: {name}", expected, lambda name=name: _wandb(place, name, usual))
    for name in ("tensorboard", "trackio"):
        if importlib.util.find_spec(name) is not None:
            yield Case(f"{name}: no place to write", expected, lambda name=name: _unwritable(place, name))


def _run(
    place: Path,
    folder: str,
    words: tuple[str, ...],
    env: dict[str, str] | None = None,
    meanwhile: Callable[[], None] = lambda: None,
) -> tuple[Ended, float]:
    """How it ended, and the seconds that its tracker took, at the exit of the process too."""
    note = place / f"{folder}.json"
    home = place / "home"
    home.mkdir(exist_ok=True)
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(note), *RUN, *words, f"runs_dir={folder}"],
        cwd=place,
        env=environment(place, HOME=str(home), NETRC=str(home / "netrc"), **(env or {})),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    while process.poll() is None and not list(place.glob(f"{folder}/default/*/metrics.jsonl")):
        time.sleep(0.01)
    meanwhile()
    ended = finish(process)
    spent, over = json.loads(note.read_text())
    return ended, spent + time.monotonic() - over


def _wandb(place: Path, name: str, usual: float) -> Seen:
    folder = name.replace(" ", "-")
    fake: Any = _server()
    words = ["tracking=wandb"]
    with ExitStack() as stack:
        stack.callback(fake.close)
        env = {"WANDB_BASE_URL": fake.url, "WANDB_API_KEY": KEY}

        def later() -> None:
            fake.state = "hanging"
            if name == "dies later":
                fake.server.server_close()
                fake.release.set()

        if name == "no key":
            del env["WANDB_API_KEY"]
        elif name == "wrong key":
            fake.state = "unauthorized"
        elif name == "hangs":
            fake.state = "graphql-hangs"
        elif name in ("silent", "nobody there"):
            listener = stack.enter_context(socket.create_server(("127.0.0.1", 0), backlog=64))
            env["WANDB_BASE_URL"] = f"http://127.0.0.1:{listener.getsockname()[1]}"
            if name == "nobody there":
                listener.close()
        if name.endswith("later"):
            words.append("train.tokens=76800")  # some seconds in which it may happen
            _run(place, f"{folder}-none", tuple(words[1:]))
        ended, seconds = _run(
            place, folder, tuple(words), env, later if name.endswith("later") else lambda: None
        )
    wrong = _trouble(place, folder, ended, f"{folder}-none" if name.endswith("later") else "none")
    wrong += [] if seconds - usual < COST else [f"{seconds - usual:.1f} s more than offline"]
    return Seen(
        f"{seconds:.1f} s, {max(0.0, seconds - usual):.1f} more than offline", 1, len(wrong), tuple(wrong)
    )


def _unwritable(place: Path, name: str) -> Seen:
    """A file where its folder would be, which stops root too."""
    folder = f"unwritable-{name}"
    (run,) = (place / "none/default").iterdir()
    own = place / folder / "default" / run.name
    own.mkdir(parents=True)
    (own / "tensorboard").write_text("")
    (place / f"{folder}-file").write_text("")
    ended, seconds = _run(
        place, folder, (f"tracking={name}",), {"TRACKIO_DIR": str(place / f"{folder}-file/database")}
    )
    wrong = _trouble(place, folder, ended, "none")
    wrong += [] if seconds < COST else [f"{seconds:.1f} s"]
    return Seen(f"{seconds:.1f} s", 1, int(bool(wrong)), tuple(wrong))


def _trouble(place: Path, folder: str, ended: Ended, like: str) -> list[str]:
    """What differs from the run without a tracker, and what was said that should not be."""
    wrong = [] if ended.code == 0 else [f"exit {ended.code}: {ended.err[-400:]}"]
    if "Traceback" in ended.err or not any(word in ended.err for word in ("W&B", "TensorBoard", "trackio")):
        wrong.append(f"said: {ended.err[-400:]}")
    (run,), (other,) = (list((place / one / "default").iterdir()) for one in (folder, like))
    steps, others = (
        [json.loads(line)["step"] for line in (one / "metrics.jsonl").read_text().splitlines()]
        for one in (run, other)
    )
    wrong += [] if steps == others and steps[-1] >= STEPS else [f"metrics.jsonl ends at step {steps[-1:]}"]
    if digests(run, "checkpoints/*/*.safetensors") != digests(other, "checkpoints/*/*.safetensors"):
        wrong.append("other weights")
    for path in run.rglob("*"):
        if path.is_file() and KEY.encode() in path.read_bytes():
            wrong.append(f"the key stands in {path.relative_to(run)}")
    return wrong


def _server() -> Any:
    """The server of the tests."""
    root = Path(__file__).resolve().parents[2]
    spec = importlib.util.spec_from_file_location(
        "fake_wandb_server", root / "tests" / "tracking" / "fake_wandb_server.py"
    )
    assert spec is not None and spec.loader is not None
    module: ModuleType = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.FakeWandb()


FAMILY = Family("trackers", cases)
