"""Checkpoints: safetensors and JSON, a manifest with the sha256 of every file, written whole or not at all.

checkpoints/step-NNNNNNNN/  model.safetensors  optimizer.safetensors  state.json  manifest.json
                            tokenizer.json where the tokenizer is more than bytes
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import logging
import os
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from safetensors.torch import save as serialize
from torch import Tensor

from posenc.core.atomic_files import CONTINUES, cannot_write, check_room, sha256_of_file, sync
from posenc.core.errors import RunError
from posenc.model.decoder import Decoder
from posenc.results.settings import flatten
from posenc.training.distributed import current

log = logging.getLogger(__name__)

KEPT = 2  # the newest and the one before it, to fall back on
RECORDS = 2**20  # bytes of a run beside its checkpoints, about
DAMAGED = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP, errno.EIO)


class NonFiniteWeightsError(Exception):
    """The weights are not finite: no checkpoint of them is ever written."""


@dataclass(frozen=True)
class Checkpoint:
    """A verified checkpoint on disk."""

    path: Path
    step: int
    state: dict[str, Any]


def save_checkpoint(
    folder: Path,
    step: int,
    model: Decoder,
    optimizer: torch.optim.Optimizer,
    state: dict[str, Any],
    files: Mapping[str, str],
) -> Path:
    """Write step-NNNNNNNN atomically, then drop all but it and the newest intact one before it.

    `files` are texts that belong to the weights, by name. Raises NonFiniteWeightsError; RunError when it
    cannot be written, which leaves the earlier ones as they are.
    """
    weights = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    broken = [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise NonFiniteWeightsError(f"non-finite weights after step {step} ({broken[0]})")
    moments = {
        f"{key}/{name}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    contents: dict[str, str | dict[str, Tensor]] = {
        "model.safetensors": weights,
        "optimizer.safetensors": moments,
        "state.json": json.dumps({**state, "step": step, "made_by": made_by(model)}, indent=1),
        **files,
    }
    final = folder / f"step-{step:08d}"
    temporary = folder / f".tmp-{final.name}-{os.getpid()}"
    try:
        _clear(folder)
        _write(temporary, contents)
        if final.exists():  # it was damaged, or training would have begun from it
            _drop(final)
        temporary.rename(final)
        sync(folder)
    except OSError as error:
        needed = sum(value.nbytes for part in (weights, moments) for value in part.values())
        raise cannot_write(final, error, needed=needed, hint=CONTINUES) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    _drop_others(folder, final)
    return final


def _write(folder: Path, contents: Mapping[str, str | dict[str, Tensor]]) -> None:
    """Write and sync every file, and a manifest with their sha256. Raises OSError."""
    new = not folder.parent.exists()
    folder.mkdir(parents=True)
    if new:
        sync(folder.parent.parent)
    manifest = {}
    for name, content in sorted(contents.items()):
        data = content.encode() if isinstance(content, str) else serialize(content)
        (folder / name).write_bytes(data)
        manifest[name] = hashlib.sha256(data).hexdigest()
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in folder.iterdir():
        sync(path)
    sync(folder)
    for name, digest in manifest.items():  # before older checkpoints go
        if sha256_of_file(folder / name) != digest:
            raise OSError(f"{name} does not read back as it was written")


def _drop_others(folder: Path, newest: Path) -> None:
    """Remove all checkpoints but the newest and the intact one before it."""
    others = [path for path in checkpoint_paths(folder) if path != newest]
    try:
        before = (path for path in reversed(others) if step_of(path) < step_of(newest))
        fallback = next((path for path in before if problem_of(path) is None), None)
    except RunError:  # unreadable for now: nothing goes
        return
    for path in others:  # newer ones are damaged: training continued from before them
        if path != fallback:
            _drop(path)


def resume(
    folder: Path, model: Decoder, optimizer: torch.optim.Optimizer, steps: int, run: Mapping[str, Any]
) -> tuple[int, dict[str, Any]]:
    """Load the newest intact checkpoint and return its step and state; step 0 for a fresh run.

    Raises RunError where none is intact, where it is not of `run` (`check_run`), or where those of the rest
    up to `steps` would not fit on the disk.
    """
    _clear(folder)
    found = newest_checkpoint(folder)
    if found is None or found.step < steps:
        weights = sum(p.nbytes for p in model.parameters())
        moments = 2 * sum(p.nbytes for p in model.parameters() if p.requires_grad)
        there = sum(file.stat().st_size for path in checkpoint_paths(folder) for file in path.iterdir())
        needed = (KEPT + 1) * (weights + moments) + RECORDS - there
        check_room(folder, needed, f"{KEPT + 1} checkpoints and the results", hint=CONTINUES)
    if found is None:
        return 0, {"seconds": 0.0, "final_loss": None}
    check_run(found, run)
    load_weights(found.path, model)
    load_optimizer(found.path, model, optimizer)
    warn_of_changes(found.state.get("made_by", {}), made_by(model))
    return found.step, found.state


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint, or None if there is none at all.

    Warns of a damaged newer one and what is lost. Raises RunError if there are some and all are damaged.
    """
    damaged: list[str] = []
    paths = checkpoint_paths(folder)
    for path in reversed(paths):
        problem = problem_of(path)
        if problem is None:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            step = int(state["step"])
            if damaged:
                lost = (step_of(paths[-1]) - step) * int(state["tokens"]) // max(1, step)
                names = ", ".join(damaged)
                text = "damaged checkpoint skipped: %s; back to step %d: %s tokens of training are lost"
                log.warning(text, names, step, f"{lost:,}")
            return Checkpoint(path, step, state)
        damaged.append(f"{path.name} ({problem})")
    if not all(path.exists() for path in paths):  # replaced meanwhile, by a training that goes on
        return newest_checkpoint(folder)
    if damaged:
        problem = f"no checkpoint in {folder} is intact: {', '.join(damaged)}"
        raise RunError(problem, hint="remove the run directory to train afresh")
    return None


def check_run(checkpoint: Checkpoint, run: Mapping[str, Any]) -> None:
    """Raise RunError for a checkpoint of another run; earlier ones do not say whose they are.

    `run` has the settings of its `encoding`, and its `settings_hash` where that is known.
    """
    wrote = checkpoint.state.get("run", run)
    theirs, own = flatten(wrote if isinstance(wrote, dict) else {}), flatten(run)
    odd = [key for key in own if theirs.get(key) != own[key]]
    if odd:
        shown = ["encoding.name"] if "encoding.name" in odd else ["encoding.name", *odd]
        words = [", ".join(f"{key}={one.get(key)}" for key in shown) for one in (theirs, own)]
        problem = f"{checkpoint.path} was written by another run: {words[0]}; this run has {words[1]}"
        raise RunError(problem, hint="put this run's own checkpoints back, or remove them to train afresh")


def checkpoint_paths(folder: Path) -> list[Path]:
    """List checkpoints by step, oldest first."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if re.fullmatch(r"step-\d{8,}", p.name) and not p.is_symlink()]
    return sorted(found, key=step_of)


def step_of(path: Path) -> int:
    """Read the step from a checkpoint's name."""
    return int(path.name.removeprefix("step-"))


def problem_of(path: Path) -> str | None:
    """Say why a checkpoint is not what was written, every bit of every file; None if it is.

    Raises RunError where it cannot be read now (too many open files, a network disk away): that is no damage.
    """
    try:
        manifest = json.loads((path / "manifest.json").read_bytes())
        files = {"model.safetensors", "optimizer.safetensors"} | {file.name for file in path.glob("*.json")}
        if missing := files - manifest.keys() - {"manifest.json"}:
            return f"{min(missing)} is not in its manifest"
        for name, digest in manifest.items():
            if sha256_of_file(path / name) != digest:
                return f"{name} differs from its sha256"
        state = json.loads((path / "state.json").read_bytes())
        if state["step"] != step_of(path):
            return f"it is of step {state['step']}"
    except OSError as error:
        if error.errno not in DAMAGED:
            problem = f"cannot read {error.filename or path}: {error.strerror}"
            raise RunError(problem, hint="nothing was changed; the same command tries again") from error
        return f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def check_weights(path: Path, model: Decoder) -> None:
    """Raise RunError if the weights do not have the model's shapes; it may be on the meta device."""
    try:
        with safe_open(path / "model.safetensors", framework="pt") as file:
            shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise RunError(f"{path}/model.safetensors: {error}") from error
    own = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    odd = [name for name in sorted(shapes.keys() | own.keys()) if shapes.get(name) != own.get(name)]
    if odd:
        raise RunError(f"{path} does not fit this model: {', '.join(odd[:3])}")


def load_weights(path: Path, model: Decoder) -> None:
    """Copy a verified checkpoint's weights into the model. Raises RunError if they have another shape."""
    check_weights(path, model)
    tensors = load_file(path / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])


def load_optimizer(path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
    """Load the moments and step counts of a verified checkpoint."""
    parameters = dict(model.named_parameters())
    for place, tensor in load_file(path / "optimizer.safetensors").items():
        key, name = place.split("/", 1)
        optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device)


def made_by(model: Decoder) -> dict[str, Any]:
    """Return what the bits of a training depend on beside the run's settings, as plain JSON."""
    device = model.embedding.weight.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type
    compiled = any(getattr(module, "_compiled_call_impl", None) is not None for module in model.modules())
    return {
        "torch": torch.__version__,
        "device": name,
        "threads": torch.get_num_threads() if device.type == "cpu" else None,
        "processes": current().size,
        "compiled": compiled,
    }


def warn_of_changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    """Warn of what differs from the checkpoint's `made_by`; silent where it has none."""
    changed = [f"{key} {before[key]} -> {now[key]}" for key in now if before.get(key, now[key]) != now[key]]
    if changed:
        log.warning(
            "continued with another setting than before: %s; "
            "the weights will not be, bit for bit, those of a run without a stop",
            ", ".join(changed),
        )


def _clear(folder: Path) -> None:
    """Remove what a killed save left."""
    for left in folder.glob(".tmp-step-*"):
        shutil.rmtree(left, ignore_errors=True)


def _drop(path: Path) -> None:
    """Rename a checkpoint, then remove it: a kill half-way leaves no half of a checkpoint."""
    away = path.with_name(f".tmp-{path.name}-dropped")
    shutil.rmtree(away, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(away)
        shutil.rmtree(away)
