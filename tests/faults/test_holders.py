"""A run directory has one writer: others are refused and told who it is, or wait for it."""

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from fake_runs import stamps

from posenc.running.invocation import WAIT
from posenc.running.locks import HeldRunError, is_held, locked


# --- Commands
@pytest.fixture
def interrupted(run_copy):
    """A run directory that the same command would continue."""
    (run_copy / "status.json").write_text('{"status": "interrupted", "pid": 1, "host": "elsewhere"}')
    return run_copy


def test_training_in_a_held_directory_is_refused_with_its_holder(train, interrupted):
    with locked(interrupted):
        result = train("encoding=rope")
    assert result.code == 1
    assert f"pid {os.getpid()} on " in result.err
    assert interrupted.name in result.err


def test_a_held_directory_is_left_as_it_is(train, interrupted):
    with locked(interrupted):
        before = stamps(interrupted)
        train("encoding=rope")
        assert stamps(interrupted) == before


def test_an_evaluation_beside_another_one_is_refused_with_its_holder(posenc, interrupted):
    with locked(interrupted, "evaluation"):
        result = posenc("eval", f"run={interrupted}", "eval.lengths=[1x,8x]")
    assert result.code == 1
    assert f"pid {os.getpid()} on " in result.err


def test_a_directory_that_was_held_is_free_again(train, interrupted):
    with locked(interrupted):
        pass
    assert train("encoding=rope").code == 0


def test_training_does_not_hold_the_evaluation(tmp_path):
    with locked(tmp_path):
        assert is_held(tmp_path, "run")
        assert not is_held(tmp_path, "evaluation")
    assert not is_held(tmp_path, "run")


# --- Locks between processes
HOLD = """
import subprocess, sys, time
from pathlib import Path
from posenc.running.locks import locked

run = Path(sys.argv[1])
quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
with locked(run), locked(run, "evaluation"), locked(run, "results"):
    child = subprocess.Popen(["sleep", "600"], close_fds=False, **quiet)  # inherits every handle it can
    print(child.pid, flush=True)
    time.sleep(600)
"""


@contextmanager
def another_holder(folder):
    """Start a process that holds a folder and has a child that outlives it."""
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(folder)], stdout=subprocess.PIPE, text=True)
    child = int(process.stdout.readline())
    yield process
    os.kill(child, signal.SIGKILL)  # fails if the child is gone
    process.kill()
    process.communicate()


@pytest.fixture(scope="module")
def held_folder(tmp_path_factory):
    """A folder that another process holds, and the number of that process."""
    folder = tmp_path_factory.mktemp("held")
    with another_holder(folder) as process:
        yield folder, process.pid


@pytest.mark.parametrize("name", ["run", "evaluation"])
def test_a_second_process_is_refused_at_once(held_folder, name):
    folder, pid = held_folder
    began = time.monotonic()
    with pytest.raises(HeldRunError) as caught, locked(folder, name):
        pass
    message = caught.value.text()
    assert time.monotonic() - began < 2
    assert f"pid {pid} on {os.uname().nodename}" in message
    assert WAIT in message


def test_a_killed_holder_is_in_nobodys_way(tmp_path):
    with another_holder(tmp_path) as process:
        process.kill()
        process.wait()
        with locked(tmp_path), locked(tmp_path, "evaluation"), locked(tmp_path, "results"):
            assert (tmp_path / ".run.holder").read_text().startswith(f"pid {os.getpid()} ")


def test_a_run_that_is_held_is_waited_for_on_request(tmp_path, capsys):
    is_taken = threading.Event()

    def hold():
        with locked(tmp_path):
            is_taken.set()
            time.sleep(1.5)  # longer than a lock is tried for without the request

    holder = threading.Thread(target=hold)
    holder.start()
    is_taken.wait()
    with locked(tmp_path, waits=True):
        holder.join(0.2)
        assert not holder.is_alive()
    assert "waiting for another process to finish" in capsys.readouterr().err
