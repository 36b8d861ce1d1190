"""Streams, encodings, limits, folders, trackers that are not as usual: it works, or says why in a line."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny
from battery import SHORT, command, run_in, weights

sys.path.insert(0, str(Path(__file__).parents[1] / "cli"))
from pseudo_terminal import Terminal

Posenc = Callable[..., tiny.Result]
POSENC = f"{shlex.quote(sys.executable)} -m posenc"
faults = pytest.mark.faults


def shell(script: str, cwd: Path, **env: str) -> tiny.Result:
    done = subprocess.run(
        ["bash", "-c", script], cwd=cwd, env=tiny.environment(**env), stdin=subprocess.DEVNULL,
        capture_output=True, text=True, errors="replace", timeout=300, check=False,
    )  # fmt: skip
    return tiny.Result(done.returncode, done.stdout, done.stderr)


POSIX = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
CASES: list[tuple[str, tuple[int, ...], str, dict[str, str]]] = [  # a script, exit codes, what stderr says
    ("set -o pipefail; {} compare | head -1", (0, 1, 141), "^$", {}),
    ("{} compare --format json > /dev/full", (1,), "No space left", {}),
    ("{} runs <&- >&- 2>&-", (0, 1), "^$", {}),
    ("{} compare", (0,), "", POSIX),
    ("ulimit -n 64; {} compare", (0,), "", {}),
    ("mkdir gone; cd gone; rmdir ../gone; {} runs", (0, 1, 2), "", {}),
]
MORE = [
    ("set -o pipefail; {} encodings | head -1", (0, 1, 141), "^$", {}),
    ("set -o pipefail; {} train --help | head -1", (0, 1, 141), "^$", {}),
    ("{} runs > /dev/full", (1,), "No space left", {}),
    ("{} runs <&-", (0,), "", {}),
    ("{} runs >&-", (0, 1), "", {}),
    ("{} runs 2>&-", (0, 1), "^$", {}),
    ("{} encodings rope", (0,), "", POSIX),
    ("{} data list", (0,), "", {"PYTHONIOENCODING": "ascii"}),
    ("COLUMNS=20 {} compare", (0,), "", {}),
    ("NO_COLOR=1 TERM=dumb {} compare", (0,), "", {}),
    ("env -u HOME {} compare", (0,), "", {}),
    ("PATH= {} runs", (0,), "", {}),
    ("TMPDIR=/nosuch {} compare --plot a.svg", (0,), "", {}),
    ("ulimit -v 200000; {} compare", (0, 1, 127, 134), "", {}),
    ("ulimit -n 64; {train} runs_dir=few", (0,), "", {}),
    ("ulimit -n 64; {train} runs_dir=few -m seed=0,1", (0,), "", {}),
    ("ulimit -f 100; {train} runs_dir=short", (1,), "File too large", {}),
    ("touch -d 2100-01-01 runs/default/*/*; {} compare", (0,), "", {}),
]


@pytest.mark.parametrize(
    ("script", "codes", "says", "env"),
    [*CASES, *(pytest.param(*case, marks=faults) for case in MORE)],
    ids=[case[0] + "".join(case[3]) for case in (*CASES, *MORE)],
)
def test_it_works_or_says_why(
    run_copy: Path,
    place: Path,
    corpus: Path,
    script: str,
    codes: tuple[int, ...],
    says: str,
    env: dict[str, str],
) -> None:
    train = f"{POSENC} {shlex.join(command(corpus, *SHORT, 'encoding=rope'))}"
    result = shell(script.replace("{train}", train).replace("{}", POSENC), place, **env)
    assert result.code in codes and re.search(says, result.err), result
    assert not re.search("Traceback|Exception ignored|fault of posenc", result.err), result.err
    assert not env or result.out.isascii()


def test_the_exit_code_survives_a_terminal_that_is_gone(place: Path) -> None:
    result = shell(f"{{ {POSENC} train encoding=nosuch; echo $? > code; }} 2>&1 | true", place)
    assert (place / "code").read_text() == "2\n", result


@faults
@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_run_directory_is_compared(run_copy: Path, place: Path) -> None:
    run_copy.chmod(0o500)
    assert shell(f"{POSENC} compare", place).code == 0
    assert "cannot write" in shell(f"{POSENC} eval run={run_copy} eval.lengths=[8x]", place).err


ASKED = ("Enter your choice", "paste an API key", "Create a W&B account", "api key and hit enter")


@faults
@pytest.mark.parametrize("more", [(), ("-m", "seed=0,1")], ids=["a run", "a sweep"])
def test_wandb_without_a_key_asks_nothing_on_a_terminal(
    place: Path, corpus: Path, train: Posenc, more: tuple[str, ...]
) -> None:
    """The run ends by itself, with the weights and the log of one without a tracker."""
    pytest.importorskip("wandb")
    words = [sys.executable, "-m", "posenc", *command(corpus, *SHORT, "tracking=wandb", *more)]
    ours = {k: v for k, v in tiny.environment().items() if not k.startswith("WANDB_")}
    terminal = Terminal(words, place, {**ours, "HOME": str(place), "NETRC": str(place / "netrc")})
    try:
        assert terminal.wait(seconds=240) == 0, terminal.seen
    finally:
        terminal.close()
    assert not [word for word in ASKED if word.lower() in terminal.seen.lower()], terminal.seen
    assert "W&B" in terminal.seen, terminal.seen
    assert train(*SHORT, *more, "runs_dir=plain").code == 0
    assert weights(place / "runs") == weights(place / "plain")


@faults
@pytest.mark.parametrize("state", ["unauthorized", "graphql-hangs", "hanging", "nobody there"])
def test_a_bad_wandb_server_costs_seconds_and_never_the_run(
    place: Path, corpus: Path, train: Posenc, state: str
) -> None:
    pytest.importorskip("wandb")
    sys.path.insert(0, str(Path(__file__).parents[1] / "tracking"))
    from fake_wandb_server import FakeWandb

    assert train(*SHORT, "runs_dir=plain").code == 0
    fake, key = FakeWandb(), "k" * 40
    fake.state = state
    env = {"WANDB_BASE_URL": fake.url, "WANDB_API_KEY": key}
    if state == "nobody there":
        fake.close()
    began = time.monotonic()
    tiny.spawn(
        *command(corpus, *SHORT, "tracking=wandb", "tracking.mode=offline"), "runs_dir=usual", cwd=place
    )
    usual, began = time.monotonic() - began, time.monotonic()
    result = tiny.spawn(*command(corpus, *SHORT, "tracking=wandb"), cwd=place, **env)
    assert result.code == 0 and "W&B" in result.err and "Traceback" not in result.err, result.err
    assert time.monotonic() - began - usual < 20  # 10 s, and a busy machine
    assert weights(place / "runs") == weights(place / "plain")
    steps = [(run_in(place / runs) / "metrics.jsonl").read_text().count("\n") for runs in ("runs", "plain")]
    assert steps[0] == steps[1]
    found = [path for path in (place / "runs").rglob("*") if path.is_file()]
    assert not [path for path in found if key.encode() in path.read_bytes()]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to count open files")
def test_runs_in_one_process_leave_nothing_behind(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = place / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    seen = []
    for seed in range(3):
        assert train("encoding=rope", "train.tokens=512", f"seed={seed}").code == 0
        threads = sorted(thread.name for thread in threading.enumerate())
        seen.append((len([*Path("/proc/self/fd").iterdir()]), threads))
    assert seen[1] == seen[2]
    # torch makes one folder of its own when it is imported, whatever is compiled
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []
    for run in (place / "runs/default").iterdir():
        inside = {path.name for path in run.iterdir() if not path.name.startswith(".")}
        assert inside == {
            *("config.yaml", "status.json", "metrics.jsonl", "records", "results.json", "checkpoints"),
            *("log.txt", "positions.json"),
        }
        assert not list(run.rglob("*.tmp")) and not list(run.glob("checkpoints/.*"))
