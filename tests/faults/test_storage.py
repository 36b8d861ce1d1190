"""Locks, the order of fsync and rename, full disks; streams, limits and folders that are not as usual."""

import json
import logging
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import tiny
from battery import SAVES, SHORT, called, command, weights

from posenc.core.errors import RunError
from posenc.running import run_directory as folder
from posenc.running.invocation import WAIT
from posenc.running.locks import HeldRunError, locked

HOLD = """
import subprocess, sys, time
from pathlib import Path
from posenc.running.locks import locked

place, quiet = Path(sys.argv[1]), {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
with locked(place), locked(place, "evaluation"), locked(place, "results"):
    child = subprocess.Popen(["sleep", "600"], close_fds=False, **quiet)  # inherits every handle it can
    print(child.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path):
    """Another process that holds `tmp_path` and has a child that outlives it."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    os.kill(child, signal.SIGKILL)  # it is still there
    process.kill()
    process.communicate()


def test_a_second_process_is_refused_and_a_killed_holder_is_in_nobodys_way(holder, tmp_path):
    for name in ("run", "evaluation"):
        began = time.monotonic()
        with pytest.raises(HeldRunError) as caught, locked(tmp_path, name):
            pass
        assert f"pid {holder.pid} on {os.uname().nodename}" in caught.value.text()
        assert WAIT in caught.value.text() and time.monotonic() - began < 2
    holder.kill()
    holder.wait()
    with locked(tmp_path), locked(tmp_path, "evaluation"), locked(tmp_path, "results"):
        assert (tmp_path / ".run.holder").read_text().startswith(f"pid {os.getpid()} ")


CALL = re.compile(r"^\d+ +(fsync|fdatasync)\(\d+<(.+?)>\) += 0|^\d+ +(rename)\w*\((.*)\) += 0", re.M)


def unsynced(calls, below):
    """Of fsync(path, None), rename(from, to): what lacks an fsync of its files before, its folder after."""
    wrong = []
    synced = set()
    for i, (call, old, new) in enumerate(calls):
        if call != "rename" or new is None:
            synced.add(old)
            continue
        synced |= {new} if old in synced else set()
        if not new.is_relative_to(below) or new.parent.name.startswith("."):  # renamed again with its folder
            continue
        after = [path for name, path, _ in calls[i:] if name != "rename"]
        files = [old / path.name for path in new.iterdir()] if new.is_dir() else [old]
        wrong += [f"{file} before the rename" for file in [*files, old] if file not in synced]
        wrong += [f"{new.parent} after the rename of {new.name}"] if new.parent not in after else []
    return wrong


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_every_file_is_synced_before_its_rename_and_the_folder_after(tmp_path, corpus):
    place, out = (tmp_path / "place").resolve(), tmp_path / "strace"
    place.mkdir()
    trace = ("strace", "-fyqq", "-s4096", "-etrace=fsync,fdatasync,rename,renameat,renameat2", f"-o{out}")
    words = command(corpus, *SAVES, "train.tokens=256", f"runs_dir={place}")  # two steps, a save after each
    env = {"POSENC_CACHE": str(place / "cache")}
    done = called(*trace, sys.executable, "-m", "posenc", *words, cwd=tiny.ROOT, **env)
    if "PTRACE" in done.err:
        pytest.skip("strace may not trace here")
    assert done.code == 0, done.err
    calls = []
    for sync, path, rename, arguments in CALL.findall(out.read_text()):
        old, new = re.findall(r'"([^"]*)"', arguments) if rename else (path, None)
        calls.append((rename or sync, Path(old), new and Path(new)))
    renamed = {new.name for _, _, new in calls if new is not None}
    assert {"step-00000001", "step-00000002", "results.json", "config.yaml"} <= renamed
    assert any(new.parent.name == "tokens" for _, _, new in calls if new is not None)
    assert not unsynced(calls, place)
    last = [i for i, (name, path, _) in enumerate(calls) if name != "rename" and "step-00000002" in str(path)]
    assert len(last) == 5  # four files and their folder; each of them missing would be noticed
    assert all(unsynced(calls[:i] + calls[i + 1 :], place) for i in last)


@pytest.mark.faults
@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_logs_on_a_full_disk(tmp_path, capfd):
    full = Path("/dev/full")
    (tmp_path / "metrics.jsonl").symlink_to(full)
    (tmp_path / "log.txt").symlink_to(full)
    with pytest.raises(RunError) as caught:
        folder.append_metrics(tmp_path, {"step": 1})
    for part in (str(tmp_path / "metrics.jsonl"), "No space left", "needed: ", "free: ", "continues"):
        assert part in caught.value.text()
    with pytest.raises(KeyError, match="the first reason"), folder.log_file(tmp_path):
        logging.getLogger("posenc").warning("to be lost")
        raise KeyError("the first reason")
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.faults
@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
@pytest.mark.parametrize("error", ["ENOSPC", "EIO", "EROFS"])
@pytest.mark.parametrize("call", ["fsync", "rename", "mkdir"])
def test_a_call_that_fails_is_said_and_the_last_checkpoint_is_intact(train, place, corpus, call, error):
    assert train(*SAVES, "runs_dir=whole").code == 0
    inject = f"inject={call}:error={error}:when=12+"
    strace = ("strace", "-f", "-qq", "-o", "/dev/null", "-e", f"trace={call}", "-e", inject)
    done = called(*strace, sys.executable, "-m", "posenc", *command(corpus, *SAVES), cwd=place)
    assert done.code == 1 and "Traceback" not in done.err, done.err
    assert error != "ENOSPC" or all(part in done.err for part in ("No space left", "free: ")), done.err
    again = train(*SAVES)
    assert again.code == 0 and "damaged" not in again.err, again.err
    assert weights(place / "runs") == weights(place / "whole")


def test_a_line_that_was_cut_is_dropped_where_the_run_goes_on(tmp_path):
    folder.append_metrics(tmp_path, {"step": 1})
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'{"step": 2, "lo\n{"step": 1, "x": "\xff"}\n')
    folder.drop_after(tmp_path, 1)
    folder.append_metrics(tmp_path, {"step": 2})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


POSIX = {"LC_ALL": "POSIX", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
CASES = [  # a script, exit codes, what stderr says
    ("set -o pipefail; {} compare | head -1", (0, 1, 141), "^$", {}),
    ("{} compare --format json > /dev/full", (1,), "No space left", {}),
    ("{} runs <&- >&- 2>&-", (0, 1), "^$", {}),
    ("{} compare", (0,), "", POSIX),
    ("mkdir gone; cd gone; rmdir ../gone; {} runs", (0, 1, 2), "", {}),
    ("ulimit -n 64; {train} runs_dir=few", (0,), "", {}),
    ("ulimit -f 100; {train} runs_dir=short", (1,), "File too large", {}),
]


@pytest.mark.faults
@pytest.mark.parametrize(
    ("script", "codes", "says", "env"), CASES, ids=[case[0] + "".join(case[3]) for case in CASES]
)
def test_it_works_or_says_why(run_copy, place, corpus, script, codes, says, env):
    posenc = f"{shlex.quote(sys.executable)} -m posenc"
    train = f"{posenc} {shlex.join(command(corpus, *SHORT, 'encoding=rope'))}"
    result = called("bash", "-c", script.replace("{train}", train).replace("{}", posenc), cwd=place, **env)
    assert result.code in codes and re.search(says, result.err), result
    assert not re.search("Traceback|Exception ignored|fault of posenc", result.err), result.err
    assert not env or result.out.isascii()
