"""A run directory on a full disk, held by another process, or left by one that was killed."""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from posenc.core.atomic_files import this_host
from posenc.core.errors import RunError
from posenc.running import run_directory as folder
from posenc.running.holding import WAIT, HeldRunError, locked

HOLD = """
import sys, time
from pathlib import Path
from posenc.running.holding import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds `tmp_path`."""
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None and process.stdout.readline() == "held\n"
    yield process
    process.kill()
    process.communicate()


def test_the_second_is_refused_with_host_and_pid(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    with pytest.raises(HeldRunError) as caught, locked(tmp_path):
        pass
    assert f"pid {holder.pid} on {os.uname().nodename}" in caught.value.text()
    assert WAIT in caught.value.text()


def test_a_killed_holder_is_in_nobodys_way(holder: subprocess.Popen[str], tmp_path: Path) -> None:
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    with locked(tmp_path):
        assert (tmp_path / ".run.holder").read_text().startswith(f"pid {os.getpid()} ")


def test_it_waits_when_asked(
    holder: subprocess.Popen[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv(WAIT, "1")

    def killed(text: str) -> None:
        assert "waiting for another process" in text and f"pid {holder.pid}" in text
        holder.kill()
        holder.wait()

    monkeypatch.setattr("posenc.running.holding.say", killed)
    with locked(tmp_path):
        assert holder.returncode == -signal.SIGKILL


def test_leftovers_of_the_dead_are_removed_and_those_of_the_living_kept(tmp_path: Path) -> None:
    dead = subprocess.Popen([sys.executable, "-c", ""])
    dead.wait()
    (tmp_path / "records").mkdir()
    names = {
        f".status.json.{dead.pid}-{this_host()}-01234567.tmp": False,
        f"records/.a.json.{dead.pid}-{this_host()}-01234567.tmp": False,
        f"records/.a.json.{os.getppid()}-{this_host()}-01234567.tmp": True,
        f".status.json.{dead.pid}-fedcba98-01234567.tmp": True,
        ".mine.tmp": True,
    }
    for name in names:
        (tmp_path / name).write_text("")
    with locked(tmp_path):
        assert {name: (tmp_path / name).exists() for name in names} == names
    old = tmp_path / f"records/.a.json.{os.getppid()}-{this_host()}-01234567.tmp"
    os.utime(old, (time.time() - 3600,) * 2)
    with locked(tmp_path):
        assert not old.exists()


full_device = pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")


@full_device
def test_metrics_on_a_full_disk(tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(RunError) as caught:
        folder.append_metrics(tmp_path, {"step": 1})
    text = caught.value.text()
    for part in (str(tmp_path / "metrics.jsonl"), "No space left", "needed: ", "free: ", "continues"):
        assert part in text


@full_device
def test_a_log_on_a_full_disk_hides_no_error(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "log.txt").symlink_to("/dev/full")
    with pytest.raises(KeyError, match="the first reason"), folder.log_file(tmp_path):
        logging.getLogger("posenc").warning("to be lost")
        raise KeyError("the first reason")
    assert "Traceback" not in capfd.readouterr().err


def test_a_line_that_was_cut_is_dropped_where_the_run_goes_on(tmp_path: Path) -> None:
    folder.append_metrics(tmp_path, {"step": 1})
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 2, "lo')
    with (tmp_path / "metrics.jsonl").open("ab") as file:
        file.write(b'\n{"step": 1, "x": "\xff"}\n')
    folder.drop_metrics_after(tmp_path, 1)
    folder.append_metrics(tmp_path, {"step": 2})
    lines = (tmp_path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["step"] for line in lines] == [1, 2]


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write everywhere")
def test_a_directory_of_somebody_else_is_one_line(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(RunError, match="cannot write"), locked(tmp_path / "run"):
        pass
