"""A program that a run has started does not hold the run's lock once the run is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from posenc.jobs.holding import HeldRunError, locked, results_lock

# Started with every handle that may be inherited; it says that it lives, then lives on.
HOLD = """
import subprocess, sys, time
from pathlib import Path
from posenc.jobs.holding import locked, results_lock
child = [sys.executable, "-c", "import time; print('alive', flush=True); time.sleep(600)"]
with locked(Path(sys.argv[1])), locked(Path(sys.argv[1]), "evaluation"), results_lock(Path(sys.argv[1])):
    started = subprocess.Popen(child, close_fds=False, stdout=subprocess.PIPE, text=True)
    print(started.stdout.readline().strip(), started.pid, flush=True)
    time.sleep(600)
"""


def test_a_child_that_outlives_its_killed_holder_does_not_hold_the_run(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path)]
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
