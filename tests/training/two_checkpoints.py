"""Two checkpoints of a tiny run, one more, and a bit that flips in one."""

from __future__ import annotations

from pathlib import Path

from tiny_model import OPTIMIZATION, build, run

from posenc.data import TokenStore
from posenc.training.checkpoint import checkpoint_paths, save_checkpoint
from posenc.training.optimizer import build_optimizer

STATE = {"tokens": 0, "seconds": 0.0, "final_loss": None}
FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "manifest.json"]


def write_two(store: TokenStore, folder: Path) -> Path:
    """Checkpoints of steps 6 and 9."""
    run(build("rope", store), store, folder, stop_after=6)
    run(build("rope", store), store, folder, stop_after=3)
    assert [p.name for p in checkpoint_paths(folder)] == ["step-00000006", "step-00000009"]
    return folder


def flip(path: Path, share: float = 0.5) -> None:
    """One bit of the file, other than white space."""
    data = bytearray(path.read_bytes())
    at = int(len(data) * share)
    while chr(data[at]).isspace():
        at += 1
    data[at] ^= 1
    path.write_bytes(data)


def save(store: TokenStore, folder: Path, step: int) -> Path:
    model = build("rope", store)
    state = {**STATE, "tokens": 64 * step}
    return save_checkpoint(folder, step, model, build_optimizer(model, OPTIMIZATION), state, {})
