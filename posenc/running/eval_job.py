"""Read a run on disk as plain data, and validate what is done with it: `posenc eval`, or `train.init`.

Nothing that the run's config.yaml names is imported: its encoding must be one of posenc's, an installed one,
or in a plug-in named on this command line.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from posenc.config.checks import (
    check_evaluation,
    check_key_tokens,
    check_model,
    check_name,
    check_positions_reach,
    default_evaluation,
)
from posenc.core.errors import UserError
from posenc.core.paths import expanded
from posenc.data import absolute_data, check_plant, check_tokenizer, inspect, stored_tokenizer
from posenc.evaluation.extensions import NONE, build_extension
from posenc.model.decoder import Decoder, ModelShape
from posenc.results.load import load_run
from posenc.results.rows import as_trained
from posenc.results.settings import as_text
from posenc.running import run_directory as folder
from posenc.running.build import Job, build_decoder, build_model, code_of, resolve_parts
from posenc.tracking import check_tracking
from posenc.training.checkpoint import (
    Checkpoint,
    check_run,
    check_weights,
    checkpoint_paths,
    load_weights,
    newest_checkpoint,
    problem_of,
    step_of,
    stored_shapes,
)
from posenc.training.device import resolve_device

OWN = ("encoding.", "options.")  # parameters that may be new (initial values) or left behind
NAMES = 3  # of parameters in an error


@dataclass(frozen=True)
class StoredRun:
    """A run read from disk, its settings checked; `outline` is its model on the meta device."""

    directory: Path
    settings: dict[str, Any]
    shape: ModelShape
    outline: Decoder
    checkpoint: Checkpoint


def stored_run(run: str, plugins: list[str]) -> StoredRun:
    """Return the run in the directory `run`. Raises UserError; RunError for damaged files."""
    directory = directory_of(run)
    folder.refuse_links(directory)
    loaded = load_run(directory)
    if loaded.config is None:
        raise UserError("run", run, loaded.problem or "config.yaml cannot be read")
    if "subject" in loaded.config or "model" not in loaded.config:
        hint = "posenc eval subject=hf subject.path=..., or posenc.evaluate"
        raise UserError("run", run, "is a model that was measured, not a run that was trained", hint=hint)
    settings = {**loaded.config, "plugins": plugins}
    with _plain(run):
        shape = check_model(settings["model"])
        try:
            settings.update(resolve_parts(settings))
        except UserError as error:  # plug-ins that it names are shown, never imported
            if error.key == "encoding" and not plugins and (own := loaded.config.get("plugins")):
                named = as_text(own).replace('"', "").replace(" ", "")
                error.hint = f"it was trained with plugins={named}: if you trust that code, say so here too"
            raise
        with torch.device("meta"):
            outline = build_decoder(settings, shape, vocab_size=2)
        source = code_of(settings, outline)
    checkpoint = newest_checkpoint(directory / "checkpoints")
    if checkpoint is None:
        raise UserError("run", run, "has no checkpoint yet; train it first")
    check_run(checkpoint, {"encoding": loaded.config["encoding"]})
    if checkpoint.state.get("encoding") != source:
        problem = f"was trained by other code of its encoding {settings['encoding']['name']}"
        hint = "its weights mean nothing to the changed one; train it again"
        raise UserError("run", run, problem, hint=hint)
    return StoredRun(directory, settings, shape, outline, checkpoint)


@contextmanager
def _plain(run: str) -> Iterator[None]:
    """Turn the errors that a malformed config.yaml causes in posenc's own code into a UserError."""
    try:
        yield
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UserError("run", run, f"its config.yaml is not one of posenc's ({error!r})") from error


def load_model(run: StoredRun | Job, checkpoint: Checkpoint, vocab_size: int | None = None) -> Decoder:
    """Return the model with the verified weights of the checkpoint. Raises RunError for damaged files."""
    size = vocab_size or stored_shapes(checkpoint.path).get("embedding.weight", (1,))[0]
    with torch.device("meta"):  # before anything of a stranger's size is allocated
        check_weights(checkpoint.path, build_decoder(run.settings, run.shape, size))
    model = build_model(run.settings, run.shape, size)
    load_weights(checkpoint.path, model)
    return model


def directory_of(run: str) -> Path:
    """Return the run directory that a user names by its path, or by name or hash for one below runs/."""
    directory = expanded(run)
    if re.fullmatch(r"[A-Za-z0-9_+-][A-Za-z0-9._+-]*", run) and not directory.exists():
        named = f"*-{run}" if re.fullmatch(r"[0-9a-f]{8}", run) else run
        found = [path.parent for path in Path("runs").glob(f"*/{named}/config.yaml")]
        if len(found) > 1:
            raise UserError("run", run, "names several runs", allowed=sorted(map(str, found)))
        directory = found[0] if found else directory
    if not directory.name or directory.name == "..":  # the folder's name ends in the hash of its settings
        directory = Path(os.path.abspath(directory))  # noqa: PTH100 (resolve() follows links)
    if not os.path.isfile(directory / "config.yaml"):  # noqa: PTH113 (is_file raises for names too long)
        hint = "a run directory, or for one below runs/ its name or hash (posenc runs lists them)\n"
        hint += "every run below a folder, or of a glob: posenc eval -m run=..."
        problem = "there is no such folder"
        if os.path.exists(directory):  # noqa: PTH110 (exists() raises for names too long)
            problem = "not a run directory: there is no config.yaml"
        raise UserError("run", run, problem, hint=hint)
    return directory


def filled(given: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `eval` settings, with the usual value of each that is null."""
    kept = {key: value for key, value in given.items() if value is not None and key != "recall"}
    recall = {key: value for key, value in given["recall"].items() if value is not None}
    return {**usual, **kept, "recall": {**usual["recall"], **recall}}


def eval_job(settings: dict[str, Any]) -> Job:
    """Return the validated job of composed `eval` settings. Raises UserError; RunError for damaged files."""
    if settings["run"] is None:
        raise UserError("run", None, "is needed and has no default", hint="add run=..., or subject=hf")
    if settings["context_length"] is not None:
        hint = "a run is measured as it was trained; what eval takes: posenc eval --help"
        raise UserError("context_length", settings["context_length"], "is the run's own", hint=hint)
    stored = stored_run(str(settings["run"]), settings["plugins"])
    trained, checkpoint = stored.settings, stored.checkpoint
    length = trained["context_length"]
    with _plain(settings["run"]):
        check_name("experiment_name", trained["experiment_name"])
        usual = {**default_evaluation(), **trained["eval"]}  # where the run is too old to say it
        evaluation = check_evaluation(filled(settings["eval"], usual), length, settings["extend"])
        check_plant(trained["data"].get("plant"), length)
        data = absolute_data(settings["data"] or trained["data"])
        check_tokenizer(trained["tokenizer"])
        precision = trained["train"]["precision"]
    if precision not in ("fp32", "bf16"):
        raise UserError("run", settings["run"], f"its precision {precision!r} is not one of posenc's")
    longest = max(evaluation.windows)
    check_positions_reach(stored.outline, longest)
    if evaluation.extend["name"] != NONE and "extend" in trained:
        raise UserError(
            "extend", evaluation.extend["name"], f"it was trained with {trained['extend']['name']}"
        )
    # refused now, if it does not apply
    build_extension(evaluation.extend, stored.outline, tune=bool(evaluation.tune))
    if evaluation.tune and longest <= length:
        raise UserError("extend.tune", True, "there is no length beyond context_length to choose by")
    check_tracking(settings["tracking"])
    definition = checkpoint.path / "tokenizer.json"
    tokenizer = stored_tokenizer(definition) if definition.is_file() else trained["tokenizer"]
    splits = evaluation.splits
    facts = inspect(data, tokenizer, splits=splits, needed_tokens=longest + 1, context_length=None)
    check_key_tokens(evaluation, facts.fingerprint, tokenizer["name"])
    own_text = facts.fingerprint == checkpoint.state.get("fingerprint")
    if settings["data"] is None and not own_text:
        problem = "its text is not what this run was trained on any more (another fingerprint)"
        hint = f"to measure on it all the same say data={facts.name}"
        raise UserError("data", facts.name, problem, hint=hint)
    return Job(
        directory=stored.directory,
        settings=trained,
        hash=stored.directory.name.rpartition("-")[2],
        data=data,
        tokenizer=tokenizer,
        tracking=settings["tracking"],
        facts=facts,
        shape=stored.shape,
        device=resolve_device(settings["device"]),
        evaluation=evaluation,
        own_text=own_text,
    )


# --- `train.init=RUN`: begin with the weights of a finished run, in a model that may differ in its encoding


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
