"""Begin with the weights of a finished run (`train.init=RUN`), in a model whose encoding may differ."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from posenc.core.errors import UserError
from posenc.core.paths import expanded
from posenc.model.decoder import Decoder
from posenc.results.identity import trained_name
from posenc.results.runs import load_run
from posenc.running.stored_run import StoredRun, stored_run
from posenc.settings.tree import InitialWeights, TokenizerSettings
from posenc.training.checkpoint import (
    Checkpoint,
    DamagedCheckpointError,
    checkpoint_at,
    checkpoint_paths,
    stored_shapes,
)

MAY_DIFFER = ("encoding.", "options.")  # parameters that may be new (initial values) or left behind
NAMES_SHOWN = 3  # names of parameters in an error


@dataclass(frozen=True)
class InitialCheckpoint:
    """Hold a checkpoint that a run begins with."""

    directory: Path  # of the run, or of the checkpoint if the user named one
    checkpoint: Checkpoint
    about: InitialWeights  # as config.yaml and the hash have it
    options: tuple[str, ...]  # the names of the run's options, in their order


def initial_checkpoint(run: str, tokenizer: TokenizerSettings, plugins: list[str]) -> InitialCheckpoint:
    """Return the newest checkpoint of a finished run; RUN/checkpoints/step-N names another one.

    Raises UserError, also where the run has another tokenizer.
    """
    path = expanded(run)
    names_a_step = path.parent.name == "checkpoints" and path.name.startswith("step-")
    stored = _finished_run(run, str(path.parent.parent) if names_a_step else run, plugins)
    if stored.settings.tokenizer.name != tokenizer.name:
        problem = f"has tokenizer={stored.settings.tokenizer.name}, this run {tokenizer.name}"
        raise UserError("train.init", run, problem)
    checkpoint = stored.checkpoint
    if names_a_step and path.name != checkpoint.path.name:
        checkpoint = _checkpoint_at(run, path, stored.identity)
    state = checkpoint.state
    about = InitialWeights(
        encoding=trained_name(stored.settings),
        context_length=stored.settings.context_length,
        tokens=state["tokens"],
        run=state["run"]["settings_hash"],
        step=checkpoint.step,
    )
    directory = path if names_a_step else stored.directory
    return InitialCheckpoint(directory, checkpoint, about, options_of(stored.outline))


def _finished_run(run: str, directory: str, plugins: list[str]) -> StoredRun:
    """Return a run that is finished. Raises UserError."""
    try:
        stored = stored_run(directory, plugins)
    except UserError as error:
        raise UserError("train.init", run, error.problem, hint=error.hint) from error
    status = load_run(stored.directory).state
    if status != "finished":
        hint = "the same command continues it"
        raise UserError("train.init", run, f"is not finished ({status})", hint=hint)
    return stored


def _checkpoint_at(run: str, path: Path, identity: dict[str, Any]) -> Checkpoint:
    """Return the checkpoint of a step. Raises UserError where there is none or it is damaged."""
    paths = checkpoint_paths(path.parent)
    if path not in paths:
        names = [other.name for other in paths]
        raise UserError("train.init", run, "there is no such checkpoint", allowed=names)
    try:
        return checkpoint_at(path, identity)
    except DamagedCheckpointError as error:
        raise UserError("train.init", run, f"is damaged: {error}") from error


def options_of(model: Decoder) -> tuple[str, ...]:
    """Return the names of a model's options, in their order."""
    return tuple(str(getattr(option, "name", "")) for option in model.options)


def name_by_option(parameter: str, options: Sequence[str]) -> str:
    """Return the name of a parameter with the name of its option in place of the option's number.

    An option has another number where others stand before it, and another option may have its number. The
    numbers stay in the models themselves, since initial values are drawn by those names.
    """
    group, _, rest = parameter.partition(".")
    if group != "options":
        return parameter
    number, _, name = rest.partition(".")
    return f"options.{options[int(number)]}.{name}"


def check_fit(initial: InitialCheckpoint, outline: Decoder) -> None:
    """Raise UserError, with names and shapes, if the weights do not fit a model on the meta device.

    Parameters of the encoding and of options may be missing or left over. Where both have one, its shapes
    must agree.
    """
    shapes_there = stored_shapes(initial.checkpoint)
    stored = {name_by_option(name, initial.options): shape for name, shape in shapes_there.items()}
    options = options_of(outline)
    ours = {
        name_by_option(name, options): tuple(parameter.shape)
        for name, parameter in outline.named_parameters()
    }
    rows = stored["embedding.weight"][0]  # one a token; the outline has none to speak of
    ours["embedding.weight"] = (rows, *ours["embedding.weight"][1:])
    misfits = []
    for name in sorted(stored.keys() | ours.keys()):
        is_in_both = name in stored and name in ours
        may_be_missing = name.startswith(MAY_DIFFER) and not is_in_both
        if stored.get(name) != ours.get(name) and not may_be_missing:
            misfits.append(f"{name} {stored.get(name, 'missing')} there, {ours.get(name, 'missing')} here")
    if misfits:
        hidden = len(misfits) - NAMES_SHOWN
        more = f" and {hidden} more" if hidden > 0 else ""
        problem = f"its weights do not fit: {'; '.join(misfits[:NAMES_SHOWN])}{more}"
        raise UserError("train.init", str(initial.directory), problem)


def begin_with(initial: InitialCheckpoint, checkpoints: Path, model: Decoder) -> None:
    """Copy the weights into the model, unless the run has a checkpoint of its own. Raises UserError."""
    if checkpoint_paths(checkpoints):
        return
    weights = load_file(initial.checkpoint.path / "model.safetensors")
    stored = {name_by_option(name, initial.options): weight for name, weight in weights.items()}
    options = options_of(model)
    with torch.no_grad():
        for name_here, parameter in model.named_parameters():
            name = name_by_option(name_here, options)
            if name not in stored:
                continue
            if stored[name].shape != parameter.shape:
                shapes = f"{tuple(stored[name].shape)} there, {tuple(parameter.shape)} here"
                raise UserError("train.init", str(initial.directory), f"its {name} does not fit: {shapes}")
            parameter.copy_(stored[name])
