"""The jobs of `posenc train` and `posenc eval` as functions: the same validation, errors as exceptions."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from posenc.api.loaded import LoadedRun, load
from posenc.config.checks import check_evaluation, check_length, whole
from posenc.config.compose import compose_jobs
from posenc.config.overrides import CommandLine, group_of, value_text
from posenc.core.errors import RunError, UserError, safe_name
from posenc.core.paths import choice_files
from posenc.evaluation.foreign import Foreign
from posenc.running.jobs import new_job
from posenc.running.measure import Outcome, run_eval
from posenc.running.subjects import given_job, kept_tokenizer
from posenc.running.train_job import run_train, train_job
from posenc.training.device import resolve_device

MODEL = ("context_length", "tokenizer", "device", "seed", "name")
ASKED = (*MODEL, "data", "eval", "experiment_name", "runs_dir")  # what may be said of a given function


def train(**overrides: Any) -> LoadedRun:
    """Train and evaluate a run, or continue it, or find it finished; return it.

    Overrides are those of the command: `encoding="rope"`, `train={"tokens": 1e6}`,
    `**{"eval.lengths": ["1x", "8x"]}`. Raises UserError before anything is written, RunError for what
    fails while running, KeyboardInterrupt once a stopped run is saved.
    """
    words = list(_words(overrides))
    job = train_job(_settings("train", words))
    _check_end(run_train(job, words))
    return load(job.directory, plugins=job.settings["plugins"])


def evaluate(subject: Any, /, **overrides: Any) -> LoadedRun:
    """Measure a run again, given by its directory, name or object; return it with all its records.

    Overrides are those of `posenc eval`: `extend="yarn"`, `eval={"lengths": ["1x", "16x"]}`. Any other model,
    a module or a function from tokens (B, W) to logits (B, W, V): see `measure_given`. One of transformers:
    `evaluate("hf", subject={"path": DIR_OR_NAME})`. Raises what `train` raises.
    """
    if callable(subject):
        directory, outcome = measure_given(subject, **overrides)
        _check_end(outcome)
        return load(directory)
    if isinstance(subject, LoadedRun):
        overrides, subject = {"plugins": subject.plugins, **overrides}, subject.path
    group = "subject" if str(subject) in choice_files("subject") else "run"
    words = [*_words({group: str(subject)}), *_words(overrides)]
    job = new_job("eval", _settings("eval", words))
    _check_end(run_eval(job))
    return load(job.directory, plugins=overrides.get("plugins", ()))


def measure_given(
    subject: Callable[[torch.Tensor], Any], *, tokenizer: Any = "bytes", **overrides: Any
) -> tuple[Path, Outcome]:
    """Measure a module or function, tokens (B, W) -> logits (B, W, V); return its run directory.

    `context_length` is T, the length that the others are multiples of; `tokenizer` "bytes", a tokenizer.json,
    or an object of `tokenizers` or `transformers`; `data`, `eval` and so on as in `posenc train`. Every
    cell is measured anew. The text has no token in front (no BOS). Raises UserError, RunError.
    """
    for key in overrides:
        if group_of(key) not in ASKED:
            problem = "does not apply to a model that is given as it is"
            raise UserError(key, None, problem, allowed=", ".join(ASKED))
    if "context_length" not in overrides:
        raise UserError("context_length", None, "is needed: T, the length that others are compared with")
    name = str(overrides.pop("name", None) or getattr(subject, "__name__", type(subject).__name__))
    settings = _settings("train", [*_words(overrides), *_words(_tokenizer(tokenizer))])
    length = check_length(settings["context_length"])
    model = Foreign(subject, 0, length)
    training = {one: one.training for one in model.modules()}
    try:
        job = given_job(
            model,
            safe_name(name),
            {**settings, "seed": whole("seed", settings["seed"], least=0)},
            check_evaluation(settings["eval"], length),
            device=resolve_device(settings["device"]),
            tokenizer=settings["tokenizer"],
            own={},
        )
        return job.directory, run_eval(job)
    finally:  # it may be in the middle of a training of its own: no dropout would be left
        for one, mode in training.items():
            one.training = mode


def _tokenizer(given: Any) -> dict[str, Any]:
    """Return the overrides that choose a tokenizer."""
    if isinstance(given, str | os.PathLike):
        return {"tokenizer": given} if given == "bytes" else {"tokenizer": "hf", "tokenizer.path": str(given)}
    settings = given if isinstance(given, Mapping) else kept_tokenizer(given)
    inside = {f"tokenizer.{key}": value for key, value in settings.items() if key != "name"}
    return {"tokenizer": settings["name"], **inside}


def _check_end(outcome: Outcome) -> None:
    if outcome.exit_code == 130:
        raise KeyboardInterrupt
    if outcome.exit_code:
        raise RunError("stopped by a signal; what is finished is saved: the same call continues")


def _settings(command: str, words: list[str]) -> dict[str, Any]:
    """Return the composed settings of one job. Raises UserError."""
    composed = compose_jobs(command, CommandLine(words))
    if composed.sweep:
        raise UserError("overrides", None, "make a sweep", hint="a loop over calls does the same")
    return composed.jobs[0].settings


def _words(overrides: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield KEY=VALUE for each; a mapping below a key sets the keys inside it."""
    for key, value in overrides.items():
        if isinstance(value, Mapping):
            yield from _words(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}={value_text(value)}"
