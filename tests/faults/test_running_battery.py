"""The battery's families of a running process, few attempts of each: nothing that they promise is broken."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import tiny


@pytest.mark.slow
@pytest.mark.parametrize("family", ["signals", "numbers", "leaks", "trackers", "ranks"])
def test_the_quick_battery_finds_nothing(family: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(tiny.ROOT / "scripts" / "fault_battery.py"), "--quick", family],
        cwd=tmp_path,
        env=tiny.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=3600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert " 0 failed" in done.stdout
