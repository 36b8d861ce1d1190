"""Begin with the weights of a finished run (`train.init=RUN`), in a model whose encoding may differ."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from safetensors.torch import load_file

from posenc.core.errors import UserError
from posenc.core.paths import expanded
from posenc.core.run_states import FINISHED
from posenc.model.decoder import Decoder
from posenc.results.identity import trained_name
from posenc.results.runs import load_run
from posenc.running.stored_run import StoredRun, directory_of, stored_run
from posenc.settings.tree import InitialWeights, TokenizerSettings
from posenc.training.checkpoint import (
    Checkpoint,
    DamagedCheckpointError,
    Writer,
    checkpoint_at,
    checkpoint_paths,
    stored_shapes,
)

# Groups of parameters that may be missing in the checkpoint (they begin with initial values) or in the model.
MAY_DIFFER = ("encoding.", "options.")
NAMES_SHOWN = 3  # names of parameters in an error

Value = TypeVar("Value")

NOT_CHOSEN = "RUN"  # what experiments that need a run have in its place


@dataclass(frozen=True)
class InitialCheckpoint:
    """Hold a checkpoint that a run begins with."""

    directory: Path  # of the run, or of the checkpoint if the user named one
    checkpoint: Checkpoint
    about: InitialWeights  # as config.yaml and the hash have it
    options: tuple[str, ...]  # the names of the other run's options, in their order


def initial_checkpoint(run: str, tokenizer: TokenizerSettings, plugins: list[str]) -> InitialCheckpoint:
    """Return the newest checkpoint of the finished run in the folder `run`.

    `run` may also be the folder of an earlier checkpoint, RUN/checkpoints/step-N. Raises UserError, also if
    the run has another tokenizer.
    """
    path = expanded(run)
    names_a_step = path.parent.name == "checkpoints" and path.name.startswith("step-")
    run_folder = str(path.parent.parent) if names_a_step else run
    stored = _finished_run(run, run_folder, plugins)
    # Only the kind is known now. The number of tokens is compared once the text is tokenised.
    if stored.settings.tokenizer.name != tokenizer.name:
        problem = f"has tokenizer={stored.settings.tokenizer.name}, this run {tokenizer.name}"
        raise UserError("train.init", run, problem)
    checkpoint = stored.checkpoint
    if names_a_step and path.name != checkpoint.path.name:
        checkpoint = _checkpoint_at(run, path, stored.writer)
    about = InitialWeights(
        encoding=trained_name(stored.settings),
        context_length=stored.settings.context_length,
        tokens=checkpoint.so_far.tokens,
        # The hash and not the path: the same run in another folder is the same beginning.
        run=checkpoint.provenance.settings_hash,
        step=checkpoint.step,
    )
    directory = path if names_a_step else stored.directory
    return InitialCheckpoint(directory, checkpoint, about, option_names(stored.outline))


def _finished_run(run: str, directory: str, plugins: list[str]) -> StoredRun:
    """Return the finished run in a directory. Raises UserError, which names what the user wrote, `run`."""
    if run == NOT_CHOSEN:
        hint = "add train.init=DIR, or the name of a run below runs/ (posenc runs lists them)"
        raise UserError("train.init", None, "is needed: the finished run to begin with", hint=hint)
    try:
        stored = stored_run(str(directory_of(directory, "train.init")), plugins)
    except UserError as error:
        # The error names `run`, a setting that this command does not have.
        raise UserError("train.init", run, error.problem, allowed=error.allowed, hint=error.hint) from error
    status = load_run(stored.directory).state
    # The weights of a run that still trains would be others at each start.
    if status != FINISHED:
        hint = "the same command continues it"
        raise UserError("train.init", run, f"is not finished ({status})", hint=hint)
    return stored


def _checkpoint_at(run: str, path: Path, writer: Writer) -> Checkpoint:
    """Return the checkpoint in a folder. Raises UserError if there is none, or if it is damaged."""
    paths = checkpoint_paths(path.parent)
    if path not in paths:
        names = [other.name for other in paths]
        raise UserError("train.init", run, "there is no such checkpoint", allowed=names)
    try:
        return checkpoint_at(path, writer)
    except DamagedCheckpointError as error:
        raise UserError("train.init", run, f"is damaged: {error}") from error


def option_names(model: Decoder) -> tuple[str, ...]:
    """Return the names of a model's options, in their order."""
    return tuple(str(getattr(option, "name", "")) for option in model.options)


def name_by_option(parameter: str, options: Sequence[str]) -> str:
    """Return the name of a parameter with the name of its option for the number: `options.ssmax.s`.

    In two models an option may have different numbers, since each counts the options before it. The models
    themselves keep the numbers, since initial values are drawn by those names.
    """
    group, _, rest = parameter.partition(".")
    if group != "options":
        return parameter
    number, _, name = rest.partition(".")
    return f"options.{options[int(number)]}.{name}"


def _by_option(values: Mapping[str, Value], options: Sequence[str]) -> dict[str, Value]:
    """Return values of parameters by their names with the options' names in them."""
    return {name_by_option(name, options): value for name, value in values.items()}


def check_fit(initial: InitialCheckpoint, outline: Decoder) -> None:
    """Raise UserError, with names and shapes, if the weights do not fit a model on the meta device.

    Parameters of the encoding and of options may be missing or left over. If both have one, its shapes must
    agree.
    """
    shapes_of_weights = _by_option(stored_shapes(initial.checkpoint), initial.options)
    shapes_of_outline = {name: tuple(parameter.shape) for name, parameter in outline.named_parameters()}
    shapes_of_model = _by_option(shapes_of_outline, option_names(outline))
    # An outline is built before the tokenizer, so that the number of its tokens means nothing. Weights
    # without an embedding are refused below, by its name.
    if "embedding.weight" in shapes_of_weights:
        n_tokens = shapes_of_weights["embedding.weight"][0]
        shapes_of_model["embedding.weight"] = (n_tokens, *shapes_of_model["embedding.weight"][1:])
    misfits = []
    for name in sorted(shapes_of_weights.keys() | shapes_of_model.keys()):
        is_in_both = name in shapes_of_weights and name in shapes_of_model
        may_be_missing = name.startswith(MAY_DIFFER) and not is_in_both
        stored_shape = shapes_of_weights.get(name, "missing")
        model_shape = shapes_of_model.get(name, "missing")
        if stored_shape != model_shape and not may_be_missing:
            misfits.append(f"{name} {stored_shape} there, {model_shape} here")
    if misfits:
        n_hidden = len(misfits) - NAMES_SHOWN
        hidden_text = f" and {n_hidden} more" if n_hidden > 0 else ""
        problem = f"its weights do not fit: {'; '.join(misfits[:NAMES_SHOWN])}{hidden_text}"
        raise UserError("train.init", str(initial.directory), problem)


def begin_with(initial: InitialCheckpoint, checkpoints: Path, model: Decoder) -> None:
    """Copy the weights into the model, unless the run has checkpoints of its own. Raises UserError.

    `checkpoints` is the folder of the run's own ones.
    """
    # A run that continues loads its own checkpoint later.
    if checkpoint_paths(checkpoints):
        return
    weights = _by_option(load_file(initial.checkpoint.path / "model.safetensors"), initial.options)
    parameters = _by_option(dict(model.named_parameters()), option_names(model))
    with torch.no_grad():
        for name, parameter in parameters.items():
            weight = weights.get(name)
            if weight is None:
                continue
            if weight.shape != parameter.shape:  # of the embedding: only now the number of tokens is known
                shapes = f"{tuple(weight.shape)} there, {tuple(parameter.shape)} here"
                raise UserError("train.init", str(initial.directory), f"its {name} does not fit: {shapes}")
            parameter.copy_(weight)
