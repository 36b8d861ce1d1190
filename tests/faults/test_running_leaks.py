"""Runs one after another in one process leave no file, thread or temporary folder behind."""

from __future__ import annotations

import tempfile
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import tiny

Posenc = Callable[..., tiny.Result]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="needs /proc to count open files")
def test_runs_in_one_process_give_everything_back(
    train: Posenc, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = place / "tmp"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    seen = []
    for seed in range(4):
        assert train("encoding=rope", "train.tokens=512", f"seed={seed}").code == 0
        threads = sorted(thread.name for thread in threading.enumerate())
        seen.append((len([*Path("/proc/self/fd").iterdir()]), threads))
    assert seen[1] == seen[2] == seen[3]
    # torch makes one folder of its own when it is imported, whatever is compiled
    assert [path for path in temporary.iterdir() if not path.name.startswith("torchinductor_")] == []
    for run in (place / "runs/default").iterdir():
        inside = {path.name for path in run.iterdir() if not path.name.startswith(".")}
        assert inside == {
            *("config.yaml", "status.json", "metrics.jsonl", "records", "results.json", "checkpoints"),
            *("log.txt", "positions.json"),
        }
        assert not list(run.rglob("*.tmp")) and not list(run.glob("checkpoints/.*"))
