"""The battery's families of storage, fewer attempts of each."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("family", ["kills", "damage", "resume", "locks", "disk"])
def test_nothing_is_lost(family: str, tmp_path: Path) -> None:
    if family == "kills" and shutil.which("strace") is None:
        pytest.skip("needs strace")
    seen = tmp_path / "seen.json"
    script = tiny.ROOT / "scripts" / "fault_battery.py"
    command = [sys.executable, str(script), "--quick", "--json", str(seen), family]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=tiny.environment())
    rows = json.loads(seen.read_text()) if seen.exists() else []
    assert rows and not [row for row in rows if row["failed"]], done.stderr[-3000:]
    assert done.returncode == 0
