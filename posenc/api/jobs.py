"""Run the jobs of `posenc train` and `posenc eval` as functions, whose errors are exceptions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from posenc.api.loaded_run import LoadedRun, load
from posenc.config.compose import ComposedJob, compose_jobs
from posenc.config.keys import group_of
from posenc.config.keys_of_commands import KEYS_OF_GIVEN_MODEL
from posenc.config.overrides import CommandLine, value_text
from posenc.core.errors import RunError, UserError, safe_name
from posenc.core.paths import choice_files
from posenc.evaluation.models.callables import CallableModel
from posenc.evaluation.resolve import resolve_evaluation, suited_to
from posenc.results.runs import Run
from posenc.running.evaluate import Outcome, run_eval
from posenc.running.given_model import GivenModel, folder_of_records, kept_tokenizer, plan_given_model
from posenc.running.invocation import Invocation
from posenc.running.jobs import plan_job
from posenc.running.plan_training import plan_training
from posenc.running.train import run_train
from posenc.settings.base import without_name
from posenc.training.device import resolve_device

# A mapping is the whole value of these keys: they are null by default, so there are no keys inside to set.
TAKEN_WHOLE = ("data.plant",)


def train(**overrides: Any) -> LoadedRun:
    """Train and evaluate a run, continue it, or find it finished; return the run.

    Overrides are those of the command: `encoding="rope"`, `train={"tokens": 1e6}`,
    `**{"eval.lengths": ["1x", "8x"]}`. Raises UserError before anything is written, RunError if
    something fails while running, KeyboardInterrupt once a stopped run is saved.
    """
    texts = list(_override_texts(overrides))
    job = plan_training(_compose("train", texts).run_settings)
    # The texts are kept in status.json, so that `posenc runs` can name the command that continues the run.
    _raise_if_stopped(run_train(job, texts, Invocation.read()))
    return load(job.directory, plugins=job.run_settings.plugins)


def evaluate(subject: Any, /, **overrides: Any) -> LoadedRun:
    """Measure a run, given by its directory, name or object; return it with all its records.

    Overrides are those of `posenc eval`: `extend="yarn"`, `eval={"lengths": ["1x", "16x"]}`. For any other
    model, a module or a function from tokens (B, W) to logits (B, W, V), see `measure_given`. For one of
    transformers: `evaluate("hf", subject={"path": DIR_OR_NAME})`. Raises what `train` raises.
    """
    # A LoadedRun and a Run are not callable, so they pass by.
    if callable(subject):
        directory, outcome = measure_given(subject, **overrides)
        _raise_if_stopped(outcome)
        return load(directory)
    if isinstance(subject, LoadedRun):
        # Whoever loaded the run trusts this code already.
        overrides = {"plugins": subject.plugins, **overrides}
    if isinstance(subject, LoadedRun | Run):
        subject = subject.path
    if isinstance(overrides.get("plugins"), str):  # as `load` takes it
        overrides["plugins"] = [overrides["plugins"]]
    # A run in a folder `hf` is named by ./hf.
    group = "subject" if str(subject) in choice_files("subject") else "run"
    texts = [*_override_texts({group: str(subject)}), *_override_texts(overrides)]
    job = plan_job(_compose("eval", texts).settings)
    _raise_if_stopped(run_eval(job, Invocation.read()))
    return load(job.directory, plugins=overrides.get("plugins", ()))


def measure_given(
    subject: Callable[[torch.Tensor], Any], *, tokenizer: Any = "bytes", **overrides: Any
) -> tuple[Path, Outcome]:
    """Measure a module or function, tokens (B, W) -> logits (B, W, V); return its run directory.

    `context_length` is T, of which other lengths are multiples. `tokenizer` is "bytes", a tokenizer.json, or
    an object of `tokenizers` or `transformers`. `data`, `eval` and so on are as in `posenc train`. Every cell
    is measured again. No BOS token stands before the text. Raises UserError, RunError.
    """
    for key in overrides:
        if group_of(key) not in KEYS_OF_GIVEN_MODEL:
            problem = "does not apply to a model that is given as it is"
            raise UserError(key, None, problem, allowed=", ".join(KEYS_OF_GIVEN_MODEL))
    # The default of 64 would be a number without meaning for a model that somebody else has trained.
    if "context_length" not in overrides:
        raise UserError("context_length", None, "is needed: T, the length that others are compared with")
    # A function has a name, a module only its class.
    name = overrides.pop("name", None) or getattr(subject, "__name__", type(subject).__name__)
    texts = [*_override_texts(overrides), *_override_texts(_tokenizer_overrides(tokenizer))]
    # A given model reads some settings of a training, such as its text and its lengths.
    settings = _compose("train", texts).run_settings
    # The size of the vocabulary is that of the tokenizer, which is built while the job is planned.
    model = CallableModel(subject, vocab_size=0, train_length=settings.context_length)
    # The planning is inside of it, since it passes texts through the model to identify the weights.
    with restored_modes(model):
        job = plan_given_model(
            GivenModel(
                model=model,
                name=safe_name(str(name)),
                data=settings.data,
                tokenizer=settings.tokenizer,
                evaluation=resolve_evaluation(
                    suited_to(settings.eval, settings.data), settings.context_length
                ),
                device=resolve_device(settings.device),
                folder=folder_of_records("runs_dir", settings.runs_dir, settings.experiment_name),
                experiment_name=settings.experiment_name,
                seed=settings.seed,
            )
        )
        return job.directory, run_eval(job, Invocation.read())


@contextmanager
def restored_modes(model: torch.nn.Module) -> Iterator[None]:
    """Put every module back into training or evaluation mode at the end of the block."""
    # the user may be training the model, and would otherwise go on without dropout
    modes = {module: module.training for module in model.modules()}
    try:
        yield
    finally:
        for module, mode in modes.items():
            module.training = mode


def _tokenizer_overrides(tokenizer: Any) -> dict[str, Any]:
    """Return the overrides that choose a tokenizer."""
    if isinstance(tokenizer, str) and tokenizer == "bytes":
        return {"tokenizer": "bytes"}
    if isinstance(tokenizer, str | os.PathLike):
        return {"tokenizer": "hf", "tokenizer.path": str(tokenizer)}
    # An object is written into the cache first: settings hold texts,
    # and the same object is found again by them.
    settings = tokenizer if isinstance(tokenizer, Mapping) else kept_tokenizer(tokenizer).plain()
    if "name" not in settings:
        raise UserError("tokenizer.name", None, "is needed", allowed=choice_files("tokenizer"))
    parameters = {f"tokenizer.{key}": value for key, value in without_name(settings).items()}
    return {"tokenizer": settings["name"], **parameters}


def _raise_if_stopped(outcome: Outcome) -> None:
    """Raise KeyboardInterrupt or RunError for a job that a signal stopped."""
    # That is Ctrl-C. A notebook shows KeyboardInterrupt as a stop and not as an error.
    if outcome.exit_code == 130:
        raise KeyboardInterrupt
    if outcome.exit_code:
        raise RunError("stopped by a signal; what is finished is saved: the same call continues")


def _compose(command: str, overrides: list[str]) -> ComposedJob:
    """Compose the only job of the overrides. Raises UserError."""
    composed = compose_jobs(command, CommandLine(overrides))
    if composed.is_sweep:
        raise UserError("overrides", None, "make a sweep", hint="a loop over calls does the same")
    return composed.jobs[0]


def _override_texts(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield KEY=VALUE for each override; a mapping below a key sets the keys inside it."""
    for key, value in overrides.items():
        if f"{prefix}{key}" in TAKEN_WHOLE:
            yield f"{prefix}{key}={value_text(value)}"
        elif isinstance(value, Mapping) and str(value.get("name")) in choice_files(f"{prefix}{key}"):
            # the choice of a group, which brings the parameters of its YAML along
            yield f"{prefix}{key}={value['name']}"
            yield from _override_texts(without_name(value), f"{prefix}{key}.")
        elif isinstance(value, Mapping):
            yield from _override_texts(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value_text(value)}"
