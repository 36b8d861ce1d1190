"""Checkpoints: safetensors and JSON, a manifest with the sha256 of every file, written whole or not at all.

checkpoints/step-NNNNNNNN/  model.safetensors  optimizer.safetensors  state.json  manifest.json
                            tokenizer.json where the tokenizer is more than bytes
"""

from __future__ import annotations

import contextlib
import itertools
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
from safetensors.torch import load_file, save_file
from torch import Tensor

from posenc.core.atomic_files import CONTINUES, cannot_write, check_room, sha256_of_file, sync
from posenc.core.errors import RunError
from posenc.model.decoder import Decoder
from posenc.training.intact import checkpoint_paths, number_of, problem_of
from posenc.training.machine import made_by, warn_of_changes

log = logging.getLogger(__name__)


class NonFiniteWeightsError(Exception):
    """The weights are not finite: no checkpoint of them is ever written."""


KEPT = 2  # the newest and the one before it, to fall back on
RECORDS = 2**20  # bytes of a run beside its checkpoints, about


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
    """Write step-NNNNNNNN atomically and read it back, then drop all but it and the good one before it.

    `files` are texts that belong to the weights, by name. Raises NonFiniteWeightsError; RunError when it
    cannot be written, which leaves the earlier ones as they are.
    """
    weights = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    broken = [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise NonFiniteWeightsError(f"non-finite weights after step {step} ({broken[0]})")
    tensors = {"model.safetensors": weights, "optimizer.safetensors": _optimizer_tensors(model, optimizer)}
    texts = {"state.json": json.dumps({**state, "step": step, "made_by": made_by(model)}, indent=1), **files}
    final = folder / f"step-{step:08d}"
    temporary = folder / f".tmp-{final.name}-{os.getpid()}"
    try:
        _clear(folder)
        _write(temporary, tensors, texts)
        if final.exists():  # it did not verify
            _drop(final)
        temporary.rename(final)
        sync(folder)
    except (OSError, SafetensorError) as error:
        needed = sum(_size(part) for part in tensors.values())
        raise cannot_write(final, _os_error(error), needed=needed, hint=CONTINUES) from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    others = [path for path in checkpoint_paths(folder) if path != final]
    before = [path for path in others if number_of(path) < step]
    intact = (path for path in reversed(before) if problem_of(path) is None)
    try:
        good = list(itertools.islice(intact, KEPT - 1))
    except RunError:  # cannot be told now: nothing goes
        return final
    for path in others:  # newer ones did not verify: training continued from before them
        if path not in good:
            _drop(path)
    return final


def resume(
    folder: Path, model: Decoder, optimizer: torch.optim.Optimizer, steps: int
) -> tuple[int, dict[str, Any]]:
    """Step and state of the newest intact checkpoint, weights and moments loaded; step 0 for a fresh run.

    Raises RunError where none is intact, or where those of the rest up to `steps` would not fit on the disk.
    """
    _clear(folder)
    found = newest_checkpoint(folder)
    if found is None or found.step < steps:
        weights = sum(p.numel() * p.element_size() for p in model.parameters())
        moments = 2 * sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
        there = sum(file.stat().st_size for path in checkpoint_paths(folder) for file in path.iterdir())
        needed = (KEPT + 1) * (weights + moments) + RECORDS - there
        check_room(folder, needed, f"{KEPT + 1} checkpoints and the results", hint=CONTINUES)
    if found is None:
        return 0, {"seconds": 0.0, "final_loss": None}
    load_weights(found.path, model)
    load_optimizer(found.path, model, optimizer)
    warn_of_changes(found.state.get("made_by"), made_by(model))
    return found.step, found.state


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest one that verifies, or None if there is none at all.

    A damaged newer one is named in a warning, with what is lost. Raises RunError if there are some and all
    are damaged.
    """
    damaged: list[str] = []
    paths = checkpoint_paths(folder)
    for path in reversed(paths):
        problem = problem_of(path)
        if problem is None:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            step = int(state["step"])
            if damaged:
                lost = (number_of(paths[-1]) - step) * int(state["tokens"]) // max(1, step)
                log.warning(
                    "damaged checkpoint skipped: %s; back to step %d: %s tokens of training are lost",
                    ", ".join(damaged),
                    step,
                    f"{lost:,}",
                )
            return Checkpoint(path, step, state)
        damaged.append(f"{path.name} ({problem})")
    if not all(path.exists() for path in paths):  # replaced meanwhile, by a training that goes on
        return newest_checkpoint(folder)
    if damaged:
        raise RunError(
            f"no checkpoint in {folder} is intact: {', '.join(damaged)}",
            hint="remove the run directory to train afresh",
        )
    return None


def check_weights(path: Path, model: Decoder) -> None:
    """RunError if the weights are of another shape than the model's (which may be on the meta device)."""
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
    """Weights of a verified checkpoint into the model. RunError if they are of another shape."""
    check_weights(path, model)
    tensors = load_file(path / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(tensors[name])


def load_optimizer(path: Path, model: Decoder, optimizer: torch.optim.Optimizer) -> None:
    """AdamW's moments and step counts of a verified checkpoint."""
    tensors = load_file(path / "optimizer.safetensors")
    for name, parameter in model.named_parameters():
        optimizer.state[parameter] = {
            key: tensors[f"{key}/{name}"].to(parameter.device)
            for key in ("step", "exp_avg", "exp_avg_sq")
            if f"{key}/{name}" in tensors
        }


def _optimizer_tensors(model: Decoder, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    return {
        f"{key}/{name}": value.detach().cpu().contiguous()
        for name, parameter in model.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _write(folder: Path, tensors: Mapping[str, dict[str, Tensor]], texts: Mapping[str, str]) -> None:
    """Every file, read back, named in the manifest with its sha256 and taken by the disk. Raises OSError."""
    new = not folder.parent.exists()
    folder.mkdir(parents=True)
    if new:
        sync(folder.parent.parent)
    for name, text in texts.items():
        (folder / name).write_text(text, encoding="utf-8")
    mode = (folder / "state.json").stat().st_mode
    for name, part in tensors.items():
        save_file(part, folder / name)
        (folder / name).chmod(mode)  # safetensors leaves it to its owner alone
        if not _same(load_file(folder / name), part):
            raise OSError(f"{name} does not read back the same")
    manifest = {path.name: sha256_of_file(path) for path in sorted(folder.iterdir())}
    (folder / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in folder.iterdir():
        sync(path)
    sync(folder)


def _same(found: Mapping[str, Tensor], meant: Mapping[str, Tensor]) -> bool:
    """Bit for bit: NaN is NaN."""
    return found.keys() == meant.keys() and all(
        torch.equal(found[name].reshape(-1).view(torch.uint8), value.reshape(-1).view(torch.uint8))
        for name, value in meant.items()
    )


def _size(tensors: Mapping[str, Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors.values())


def _clear(folder: Path) -> None:
    """Remove what a save that was killed left."""
    for left in folder.glob(".tmp-step-*"):
        shutil.rmtree(left, ignore_errors=True)


def _drop(path: Path) -> None:
    """Gone under its name at once: a kill half-way leaves no half of a checkpoint to be found."""
    away = path.with_name(f".tmp-{path.name}-dropped")
    shutil.rmtree(away, ignore_errors=True)
    with contextlib.suppress(OSError):
        path.rename(away)
        shutil.rmtree(away)


def _os_error(error: OSError | SafetensorError) -> OSError:
    """What the system said to safetensors, which passes it on as text."""
    if isinstance(error, OSError):
        return error
    found = re.search(r"os error (\d+)", str(error))
    return OSError(int(found[1]), os.strerror(int(found[1]))) if found else OSError(str(error))
