"""What a save says to the disk, seen by strace: every file before its rename, the folder after it."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tiny

CALL = re.compile(r"^\d+ +(fsync|fdatasync)\(\d+<(.+?)>\) += 0|^\d+ +(rename)\w*\((.*)\) += 0", re.M)
TWO_CHECKPOINTS = """
import sys
from pathlib import Path
import torch
from posenc.core.atomic_files import write_sealed
from posenc.encodings import build_encoding
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.store import write_json_atomic
from posenc.training.checkpoint import save_checkpoint
from posenc.training.optimizer import Optimization, build_optimizer

place = Path(sys.argv[1])
shape = ModelShape("nano", d_model=16, n_layers=1, n_heads=2, mlp_ratio=2)
sizes = {"d_model": 16, "n_heads": 2, "head_dim": 8, "n_layers": 1, "train_length": 8}
model = Decoder(shape, 32, build_encoding("rope", **sizes))
optimizer = build_optimizer(model, Optimization(1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0, 0.1, 0.0))
state = {"tokens": 0, "seconds": 0.0, "final_loss": None}
for step in (1, 2):
    save_checkpoint(place / "checkpoints", step, model, optimizer, state, {"tokenizer.json": "{}"})
write_json_atomic(place / "results.json", {"a": 1})
write_sealed(place / "facts.json", {"a": 1})
"""


def seen(trace: str) -> list[tuple[str, Path, Path | None]]:
    """fsync(path, None) and rename(from, to), in order."""
    calls: list[tuple[str, Path, Path | None]] = []
    for sync, path, rename, arguments in CALL.findall(trace):
        if rename:
            old, new = re.findall(r'"([^"]*)"', arguments)
            calls.append(("rename", Path(old), Path(new)))
        else:
            calls.append((sync, Path(path), None))
    return calls


def unsynced(calls: list[tuple[str, Path, Path | None]], below: Path) -> list[str]:
    """What was renamed below a folder without fsync of its files before, or of its folder after."""
    wrong = []
    for i, (call, old, new) in enumerate(calls):
        if call != "rename" or new is None or not new.is_relative_to(below):
            continue
        if new.parent.name.startswith(".tmp-"):  # safetensors' own, in a folder that is renamed as a whole
            continue
        before = {path for name, path, _ in calls[:i] if name != "rename"}
        after = [path for name, path, _ in calls[i:] if name != "rename"]
        files = [old / path.name for path in new.iterdir()] if new.is_dir() else [old]
        wrong += [f"{file} before the rename" for file in files if file not in before]
        wrong += [f"{old}, the folder, before the rename"] if new.is_dir() and old not in before else []
        wrong += [f"{new.parent} after the rename of {new.name}"] if new.parent not in after else []
    return wrong


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The calls of two saves, a file of results and a sealed one; and the folder with all of them."""
    if shutil.which("strace") is None:
        pytest.skip("needs strace")
    place = tmp_path_factory.mktemp("synced").resolve()
    out = place.parent / f"{place.name}.strace"
    words = ["strace", "-f", "-y", "-qq", "-s", "4096", "-o", str(out)]
    words += ["-e", "trace=fsync,fdatasync,rename,renameat,renameat2", sys.executable, "-c", TWO_CHECKPOINTS]
    done = subprocess.run(
        [*words, str(place)],
        env=tiny.environment(),
        cwd=place,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    if "PTRACE" in done.stderr:
        pytest.skip("strace may not trace here")
    assert done.returncode == 0, done.stderr
    return out.read_text(), place


def test_every_file_is_synced_before_its_rename_and_the_folder_after(traced: tuple[str, Path]) -> None:
    calls, place = seen(traced[0]), traced[1]
    renamed = {new.name for _, _, new in calls if new is not None}
    assert {"step-00000001", "step-00000002", "results.json", "facts.json"} <= renamed
    kept = place / "checkpoints" / "step-00000002"
    assert len(list(kept.iterdir())) == 5
    assert not unsynced(calls, place)


def test_a_lost_fsync_would_be_noticed(traced: tuple[str, Path]) -> None:
    calls, place = seen(traced[0]), traced[1]
    ours = [i for i, (name, path, _) in enumerate(calls) if name != "rename" and path.is_relative_to(place)]
    last = [i for i in ours if "step-00000002" in str(calls[i][1])]
    assert len(last) >= 6  # 5 files and their folder
    for i in last:
        assert unsynced(calls[:i] + calls[i + 1 :], place), calls[i]
    for i, (name, _, new) in enumerate(calls):
        if name == "rename" and new is not None and new.parent in (place, place / "checkpoints"):
            rest = [call for call in calls[i + 1 :] if call[0] == "rename" or call[1] != new.parent]
            assert unsynced(calls[: i + 1] + rest, place), new
