"""Checkpoints: safetensors and JSON, a manifest with the sha256 of every file, written whole or not at all.

checkpoints/step-NNNNNNNN/  model.safetensors  optimizer.safetensors  state.json  manifest.json
                            tokenizer.json where the tokenizer is more than bytes
"""

from __future__ import annotations

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
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from posenc.durable import sha256_of_file, sync
from posenc.errors import RunError
from posenc.model.decoder import Decoder

log = logging.getLogger(__name__)


class NonFiniteWeightsError(Exception):
    """The weights are not finite: no checkpoint of them is ever written."""


KEPT = 2  # the newest and the one before it, to fall back on


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
    """Write step-NNNNNNNN atomically, then drop older ones than the last two.

    `files` are texts that belong to the weights, by name. Raises NonFiniteWeightsError.
    """
    weights = {name: p.detach().cpu().contiguous() for name, p in model.named_parameters()}
    broken = [name for name, value in weights.items() if not bool(torch.isfinite(value).all())]
    if broken:
        raise NonFiniteWeightsError(f"non-finite weights after step {step} ({broken[0]})")
    final = folder / f"step-{step:08d}"
    temporary = folder / f".tmp-step-{step:08d}-{os.getpid()}"
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    save_file(weights, temporary / "model.safetensors")
    save_file(_optimizer_tensors(model, optimizer), temporary / "optimizer.safetensors")
    (temporary / "state.json").write_text(json.dumps({**state, "step": step}, indent=1), encoding="utf-8")
    for name, text in files.items():
        (temporary / name).write_text(text, encoding="utf-8")
    manifest = {path.name: sha256_of_file(path) for path in sorted(temporary.iterdir())}
    (temporary / "manifest.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in temporary.iterdir():
        sync(path)
    sync(temporary)
    if final.exists():  # an earlier one of the same step that did not verify
        shutil.rmtree(final)
    temporary.rename(final)
    sync(folder)
    written = checkpoint_paths(folder)
    newest = written.index(final) + 1  # what is newer did not verify: training continued from before it
    for old in [*written[: max(0, newest - KEPT)], *written[newest:], *folder.glob(".tmp-step-*")]:
        shutil.rmtree(old, ignore_errors=True)
    return final


def checkpoint_paths(folder: Path) -> list[Path]:
    """Checkpoints by number, oldest first."""
    if not folder.is_dir():
        return []
    found = [p for p in folder.iterdir() if re.fullmatch(r"step-\d{8,}", p.name) and not p.is_symlink()]
    return sorted(found, key=lambda p: int(p.name.removeprefix("step-")))


def newest_checkpoint(folder: Path) -> Checkpoint | None:
    """The newest one that verifies, or None if there is none at all.

    A damaged newer one is named in a warning. Raises RunError if there are some and all are damaged.
    """
    damaged: list[str] = []
    for path in reversed(checkpoint_paths(folder)):
        problem = _problem(path)
        if problem is None:
            state = json.loads((path / "state.json").read_text(encoding="utf-8"))
            for line in damaged:
                log.warning("damaged checkpoint skipped: %s; continuing from step %d", line, state["step"])
            return Checkpoint(path, int(state["step"]), state)
        damaged.append(f"{path.name} ({problem})")
    if damaged:
        raise RunError(
            f"no checkpoint in {folder} is intact: {', '.join(damaged)}",
            hint="remove the run directory to train afresh",
        )
    return None


def check_weights(path: Path, model: Decoder) -> None:
    """RunError if the weights are of another shape than the model's (which may be on the meta device)."""
    with safe_open(path / "model.safetensors", framework="pt") as file:
        shapes = {name: tuple(file.get_slice(name).get_shape()) for name in file.keys()}  # noqa: SIM118
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


def _problem(path: Path) -> str | None:
    """Why this checkpoint cannot be trusted, or None."""
    try:
        manifest = json.loads((path / "manifest.json").read_text(encoding="utf-8"))
        missing = {"model.safetensors", "optimizer.safetensors", "state.json"} - manifest.keys()
        if missing:
            return f"{min(missing)} is not in its manifest"
        for name, digest in manifest.items():
            if Path(name).name != name or (path / name).is_symlink():
                return f"{name} does not belong in a checkpoint"
            if sha256_of_file(path / name) != digest:
                return f"{name} differs from its sha256"
        state = json.loads((path / "state.json").read_text(encoding="utf-8"))
        if not all(isinstance(state[key], int | float) for key in ("step", "tokens", "seconds")):
            return "state.json lacks its numbers"
    except (OSError, ValueError, KeyError, TypeError) as error:
        return f"{type(error).__name__}: {error}"
    return None
