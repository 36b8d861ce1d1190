"""A program that a run has started does not hold the run's lock once the run is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posenc.running.run_lock import HeldRunError, locked, results_lock

# It says that its child lives, then lives on.
HOLD = """
import os, subprocess, sys, time
from pathlib import Path
from posenc.running.run_lock import locked, results_lock

def program():  # with every handle that may be inherited
    code = "import time; print('alive', flush=True); time.sleep(600)"
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
    started = subprocess.Popen([sys.executable, "-c", code], close_fds=False, text=True, **pipes)
    return started.stdout.readline().strip(), started.pid

def fork():
    pid = os.fork()
    if not pid:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, 1)
        os.dup2(nowhere, 2)
        time.sleep(600)
        os._exit(0)
    return "alive", pid

with locked(Path(sys.argv[1])), locked(Path(sys.argv[1]), "evaluation"), results_lock(Path(sys.argv[1])):
    print(*{"program": program, "fork": fork}[sys.argv[2]](), flush=True)
    time.sleep(600)
"""


@pytest.mark.parametrize("kind", ["program", "fork"])
def test_a_child_that_outlives_its_killed_holder_does_not_hold_the_run(tmp_path: Path, kind: str) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path), kind]
    holder = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    word, _, child = holder.stdout.readline().partition(" ")
    try:
        assert word == "alive"
        for name in ("run", "evaluation"):
            with pytest.raises(HeldRunError), locked(tmp_path, name):
                pass
        holder.kill()
        holder.wait()
        os.kill(int(child), 0)  # it is still there
        with locked(tmp_path), locked(tmp_path, "evaluation"), results_lock(tmp_path):
            assert (tmp_path / ".run.holder").read_text().startswith(f"pid {os.getpid()} ")
        os.kill(int(child), 0)
    finally:
        holder.kill()
        holder.communicate()
        if child:
            os.kill(int(child), signal.SIGKILL)
