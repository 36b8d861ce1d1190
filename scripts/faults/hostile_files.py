"""Links out of a run directory, sizes that are only declared, pipes and devices in place of its files."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

from faults.hostile_attacks import DEEP, JSONS, Attack, change_config, checkpoint_of, seal


def attacks_by_files() -> Iterator[Attack]:
    """All of them."""
    yield from _links()
    yield from _sizes()


def _links() -> Iterator[Attack]:
    def point(run: Path, name: str, target: Path) -> None:
        place = run / name
        with contextlib.suppress(FileNotFoundError):
            shutil.rmtree(place) if place.is_dir() else place.unlink()
        place.parent.mkdir(parents=True, exist_ok=True)
        place.symlink_to(target)

    step = "checkpoints/step-00000040"
    for name in ("config.yaml", *JSONS, "records/z.json", f"{step}/state.json", f"{step}/manifest.json"):
        yield Attack(f"{name} -> a secret", lambda run, o, n=name: point(run, n, o.secret))
    for name in (f"{step}/model.safetensors", f"{step}/tokenizer.json", "checkpoints/step-00000099"):
        yield Attack(f"{name} -> a secret", lambda run, o, n=name: point(run, n, o.secret))
    for name in ("log.txt", "metrics.jsonl", ".run.lock", ".run.holder", ".results.lock", ".evaluation.lock"):
        yield Attack(f"{name} -> a file", lambda run, o, n=name: point(run, n, o.victim))
        yield Attack(f"{name} -> nothing", lambda run, o, n=name: point(run, n, o.folder / "new"))
    for name in ("records", "checkpoints", step, "tracking", "tensorboard", "wandb"):
        yield Attack(f"{name} -> a folder", lambda run, o, n=name: point(run, n, o.folder))
    yield Attack("status.json -> itself", lambda run, _: point(run, "status.json", Path("status.json")))
    yield Attack("records -> its parent", lambda run, _: point(run, "records", Path("..")))


def _sizes() -> Iterator[Attack]:
    def weights(run: Path, content: bytes) -> None:
        (checkpoint_of(run) / "model.safetensors").write_bytes(content)
        seal(checkpoint_of(run))

    huge = {"embedding.weight": {"dtype": "F32", "shape": [10**9, 10**6], "data_offsets": [0, 4 * 10**15]}}
    head = json.dumps(huge).encode()
    for name, content in (
        ("a header of 10^15 bytes", (10**15).to_bytes(8, "little") + b"{}"),
        ("a header of 2^64-1 bytes", b"\xff" * 8 + b"{}"),
        ("tensors of 10^15 bytes", len(head).to_bytes(8, "little") + head),
        ("a header nested deep", DEEP.to_bytes(8, "little") + b"[" * DEEP),
        ("nothing", b""),
    ):
        yield Attack(f"weights: {name}", lambda run, _, c=content: weights(run, c))
    deep = "[" * DEEP + "]" * DEEP
    state = "checkpoints/step-00000040/state.json"
    manifest = "checkpoints/step-00000040/manifest.json"
    places = ("config.yaml", "status.json", "results.json", "metrics.jsonl", "records/z.json")
    places += (state, manifest, ".run.holder", "log.txt", "tracking/wandb.json")
    for name in places:
        yield Attack(f"{name}: nested {DEEP} deep", lambda run, _, n=name: _write(run / n, deep))
        yield Attack(f"{name}: 20 GB of nothing", lambda run, _, n=name: _grow(run / n))
        yield Attack(f"{name}: a pipe", lambda run, _, n=name: _special(run / n, device=False))
        if hasattr(os, "geteuid") and os.geteuid() == 0:
            yield Attack(f"{name}: /dev/zero", lambda run, _, n=name: _special(run / n, device=True))
        yield Attack(f"{name}: a folder", lambda run, _, n=name: _folder(run / n))
    for change in (
        {"model.n_layers": 10**9},
        {"model.d_model": 2 * 10**9},
        {"context_length": 10**12},
        {"encoding": {"name": "learned", "beyond": "untrained"}, "context_length": 10**9},
        {"encoding": {"name": "sum", "parts": ["rope"] * 50_000}},
        {"seed": 10**40},
        {"eval.lengths": list(range(1, 50_000))},
        {"eval.max_targets": 10**15},
    ):
        name = f"config.yaml asks for {str(change)[:60]}"
        yield Attack(name, lambda run, _, change=change: change_config(run, change))


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def _cleared(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.unlink(missing_ok=True)
    return path


def _grow(path: Path) -> None:
    with _cleared(path).open("wb") as file:
        file.truncate(20 * 10**9)


def _folder(path: Path) -> None:
    _cleared(path).mkdir()


def _special(path: Path, device: bool) -> None:
    if device:
        os.mknod(_cleared(path), 0o666 | stat.S_IFCHR, os.makedev(1, 5))
    else:
        os.mkfifo(_cleared(path))
