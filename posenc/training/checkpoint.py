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

from posenc.core.atomic_files import CONTINUES, cannot_write, check_room, sha256_of_file, sync
from posenc.core.errors import RunError, first_line
from posenc.model.decoder import Decoder
from posenc.results.settings import flatten
from posenc.training.distributed import current
from posenc.training.optimizer import AdamW

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
    optimizer: AdamW,
    state: dict[str, Any],
    files: Mapping[str, str],
) -> Path:
    """Write step-NNNNNNNN atomically with `files`, texts by name, then drop all but it and the one before."""
    weights = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    for name, value in weights.items():
        if not torch.isfinite(value).all():
            raise NonFiniteWeightsError(f"non-finite weights after step {step} ({name})")
    moments = {
        f"{key}/{name}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }
    contents = {
        "model.safetensors": serialize(weights),
        "optimizer.safetensors": serialize(moments),
        "state.json": json.dumps({**state, "step": step, "made_by": made_by(model)}, indent=1).encode(),
        **{name: text.encode() for name, text in files.items()},
    }
    manifest = {name: hashlib.sha256(data).hexdigest() for name, data in sorted(contents.items())}
    contents["manifest.json"] = json.dumps(manifest, indent=1).encode()
    final = folder / f"step-{step:08d}"
    temporary = folder / f".tmp-{final.name}"
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        sync(folder.parent)
        for name, data in contents.items():
            (temporary / name).write_bytes(data)
            sync(temporary / name)
        sync(temporary)
        temporary.rename(final)
        sync(folder)
    except OSError as error:
        needed = sum(value.nbytes for part in (weights, moments) for value in part.values())
        raise cannot_write(final, error, needed=needed, hint=CONTINUES) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    for path in checkpoint_paths(folder)[:-KEPT]:
        _drop(path)
    return final


def resume(
    folder: Path, model: Decoder, optimizer: AdamW, steps: int, run: Mapping[str, Any]
) -> tuple[int, dict[str, Any]]:
    """Load the newest intact checkpoint of `run` and return its step and state; step 0 for a fresh run."""
    for left in folder.glob(".tmp-step-*"):  # of a killed save
        shutil.rmtree(left, ignore_errors=True)
    found = newest_checkpoint(folder)
    if found is None or found.step < steps:
        state = 3 * sum(p.nbytes for p in model.parameters())  # weights and two moments
        there = sum(file.stat().st_size for path in checkpoint_paths(folder) for file in path.iterdir())
        needed = (KEPT + 1) * state + RECORDS - there
        check_room(folder, needed, f"{KEPT + 1} checkpoints and the results", hint=CONTINUES)
    if found is None:
        return 0, {"seconds": 0.0, "final_loss": None}
    check_run(found, run)
    load_weights(found.path, model)
    parameters = dict(model.named_parameters())
    for place, tensor in load_file(found.path / "optimizer.safetensors").items():
        key, name = place.split("/", 1)
        optimizer.state[parameters[name]][key] = tensor.to(parameters[name].device)
    for path in checkpoint_paths(folder):
        if step_of(path) > found.step:
            _drop(path)
    now = made_by(model)
    before = {**now, **found.state.get("made_by", {})}
    if changed := ", ".join(f"{key} {before[key]} -> {now[key]}" for key in now if before[key] != now[key]):
        effect = "the weights will not be, bit for bit, those of a run without a stop"
        log.warning("continued with another setting than before: %s; %s", changed, effect)
    return found.step, found.state


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """Return the newest intact checkpoint, None without any; warns of damaged ones, RunError if all are."""
    damaged: list[str] = []
    paths = checkpoint_paths(folder)
    for path in reversed(paths):
        if problem := problem_of(path):
            damaged.append(f"{path.name} ({problem})")
            continue
        try:
            state = json.loads((path / "state.json").read_bytes())
            step = int(state["step"])
        except (ValueError, KeyError, TypeError) as error:  # with a manifest that fits: made so
            damaged.append(f"{path.name} (state.json: {first_line(error)})")
            continue
        if damaged:
            lost = (step_of(paths[-1]) - step) * int(state["tokens"]) // max(1, step)
            text = "damaged checkpoint skipped: %s; back to step %d: %s tokens of training are lost"
            log.warning(text, ", ".join(damaged), step, f"{lost:,}")
        return Checkpoint(path, step, state)
    if not all(path.exists() for path in paths):  # replaced meanwhile, by a training that goes on
        return newest_checkpoint(folder)
    if damaged:
        problem = f"no checkpoint in {folder} is intact: {', '.join(damaged)}"
        raise RunError(problem, hint="remove the run directory to train afresh")
    return None


def check_run(checkpoint: Checkpoint, run: Mapping[str, Any]) -> None:
    """Raise RunError for a checkpoint of another run (encoding, hash); earlier ones do not say whose."""
    theirs, own = flatten(checkpoint.state.get("run", run)), flatten(run)
    if odd := [key for key in own if theirs.get(key) != own[key]]:
        words = [", ".join(f"{key}={one.get(key)}" for key in odd) for one in (theirs, own)]
        problem = f"{checkpoint.path} was written by another run: {words[0]}; this run has {words[1]}"
        raise RunError(problem, hint="put this run's own checkpoints back, or remove them to train afresh")


def checkpoint_paths(folder: Path) -> list[Path]:
    """List checkpoints by step, oldest first."""
    found = (p for p in folder.glob("step-*") if re.fullmatch(r"step-\d{8,}", p.name) and not p.is_symlink())
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
        for name in sorted({*manifest, "model.safetensors", "optimizer.safetensors", "state.json"}):
            if sha256_of_file(path / name) != manifest[name]:
                return f"{name} differs from its sha256"
    except OSError as error:
        if error.errno not in DAMAGED:
            problem = f"cannot read {error.filename or path}: {error.strerror}"
            raise RunError(problem, hint="nothing was changed; the same command tries again") from error
        return f"{type(error).__name__}: {error}"
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def stored_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Read the shapes of a checkpoint's weights by name, and nothing else. Raises RunError."""
    try:
        with safe_open(path / "model.safetensors", framework="pt") as file:
            return {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
    except SafetensorError as error:
        raise RunError(f"{path}/model.safetensors: {error}") from error


def check_weights(path: Path, model: Decoder) -> None:
    """Raise RunError if its weights are not of the model's shapes; that may be on the meta device."""
    shapes = stored_shapes(path)
    own = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    if odd := [name for name in sorted(shapes.keys() | own.keys()) if shapes.get(name) != own.get(name)]:
        raise RunError(f"{path} does not fit this model: {', '.join(odd[:3])}")


def load_weights(path: Path, model: Decoder) -> None:
    """Copy a verified checkpoint's weights into the model. Raises RunError if they have another shape."""
    check_weights(path, model)
    model.load_state_dict(load_file(path / "model.safetensors"), strict=False)  # buffers are not stored


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


def _drop(path: Path) -> None:
    """Rename a checkpoint, then remove it: a kill half-way leaves no half of a checkpoint."""
    away = path.with_name(f".tmp-{path.name}-dropped")
    shutil.rmtree(away, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(away)
        shutil.rmtree(away)
