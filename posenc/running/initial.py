"""`train.init=RUN`: begin with the weights of a finished run, in a model that may differ in its encoding."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from posenc.core.errors import UserError
from posenc.core.paths import expanded
from posenc.model.decoder import Decoder
from posenc.results.load import load_run
from posenc.results.rows import as_trained
from posenc.running.eval_job import stored_run
from posenc.training.checkpoint import (
    Checkpoint,
    checkpoint_paths,
    newest_checkpoint,
    problem_of,
    step_of,
    stored_shapes,
)

OWN = ("encoding.", "options.")  # parameters that may be new (initial values) or left behind
NAMES = 3  # of parameters in an error


@dataclass(frozen=True)
class Initial:
    """Where a run begins: a checkpoint of another run, the newest unless one is named."""

    directory: Path  # of the run, or of the checkpoint that was named
    checkpoint: Checkpoint
    about: dict[str, Any]  # plain JSON, as config.yaml and the hash have it


def initial_run(run: str, tokenizer: dict[str, Any], plugins: list[str]) -> Initial:
    """Return the finished run to begin with; RUN/checkpoints/step-N names one of its checkpoints.

    Raises UserError, also where its tokenizer is another.
    """
    path = expanded(run)
    of_step = path.parent.name == "checkpoints" and path.name.startswith("step-")
    try:
        stored = stored_run(str(path.parent.parent) if of_step else run, plugins)
    except UserError as error:
        raise UserError("train.init", run, error.problem, hint=error.hint) from error
    if (status := load_run(stored.directory).state) != "finished":
        raise UserError(
            "train.init", run, f"is not finished ({status})", hint="the same command continues it"
        )
    if stored.settings["tokenizer"]["name"] != tokenizer["name"]:
        problem = f"has tokenizer={stored.settings['tokenizer']['name']}, this run {tokenizer['name']}"
        raise UserError("train.init", run, problem)
    directory, checkpoint = stored.directory, stored.checkpoint
    if of_step and path.name != checkpoint.path.name:
        if path not in (there := checkpoint_paths(path.parent)):
            raise UserError("train.init", run, "there is no such checkpoint", allowed=[p.name for p in there])
        if damage := problem_of(path):
            raise UserError("train.init", run, f"is damaged: {damage}")
        checkpoint = Checkpoint(path, step_of(path), json.loads((path / "state.json").read_bytes()))
    state = checkpoint.state
    about = {
        "encoding": as_trained(stored.settings),
        "context_length": stored.settings["context_length"],
        "tokens": state["tokens"],
        "run": state["run"]["settings_hash"],
        "step": checkpoint.step,
    }
    return Initial(path if of_step else directory, checkpoint, about)


def check_fit(initial: Initial, outline: Decoder) -> None:
    """Raise UserError, with names and shapes, if its weights do not fit a model on the meta device.

    Parameters of the encoding and of options may be missing or left over; in both their shapes must agree.
    """
    run = str(initial.directory)
    theirs = stored_shapes(initial.checkpoint.path)
    own = {name: tuple(one.shape) for name, one in outline.named_parameters()}
    own["embedding.weight"] = (theirs["embedding.weight"][0], *own["embedding.weight"][1:])  # rows: tokens
    odd = [
        f"{name} {theirs.get(name, 'missing')} there, {own.get(name, 'missing')} here"
        for name in sorted(theirs.keys() | own.keys())
        if theirs.get(name) != own.get(name)
        and not (name.startswith(OWN) and (name not in theirs or name not in own))
    ]
    if odd:
        more = f" and {len(odd) - NAMES} more" if len(odd) > NAMES else ""
        raise UserError("train.init", run, f"its weights do not fit: {'; '.join(odd[:NAMES])}{more}")


def begin_with(initial: Initial, own_checkpoints: Path, model: Decoder) -> None:
    """Copy the weights into the model, unless the run has a checkpoint of its own. Raises UserError."""
    if newest_checkpoint(own_checkpoints) is not None:
        return
    there = load_file(initial.checkpoint.path / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name not in there:
                continue
            if there[name].shape != parameter.shape:
                shapes = f"{tuple(there[name].shape)} there, {tuple(parameter.shape)} here"
                raise UserError("train.init", str(initial.directory), f"its {name} does not fit: {shapes}")
            parameter.copy_(there[name])
