"""A run whose process was killed is dead, also while the process is a zombie that nobody asked after."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from datetime import datetime
from pathlib import Path

import pytest

from posenc.results.run import is_dead


@pytest.mark.skipif(not Path("/proc/self/stat").is_file(), reason="only Linux tells the state of a process")
def test_a_killed_process_is_dead_before_its_parent_asks_after_it() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    now = datetime.now().astimezone().isoformat()
    status = {"pid": process.pid, "host": socket.gethostname(), "updated": now}
    try:
        assert not is_dead(status)
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert is_dead(status)
    finally:
        process.kill()
        process.communicate()
    assert is_dead(status)
