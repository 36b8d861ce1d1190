"""Measure a module or a function as the protocols measure a run."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch

from posenc.api.settings import settings_of, words_of
from posenc.config.checks import check_evaluation, check_length, whole
from posenc.config.overrides import group_of
from posenc.core.errors import UserError, safe_name
from posenc.evaluation.foreign import Foreign
from posenc.running.measure import Outcome, run_eval
from posenc.running.subjects import given_job, kept_tokenizer
from posenc.training.device import resolve_device

MODEL = ("context_length", "tokenizer", "device", "seed", "name")
ASKED = (*MODEL, "data", "eval", "experiment_name", "runs_dir")


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
    settings = settings_of("train", [*words_of(overrides), *words_of(_tokenizer(tokenizer))])
    length = check_length(settings["context_length"])
    job = given_job(
        Foreign(subject, 0, length),
        safe_name(name),
        {**settings, "seed": whole("seed", settings["seed"], least=0)},
        check_evaluation(settings["eval"], length),
        device=resolve_device(settings["device"]),
        tokenizer=settings["tokenizer"],
        own={},
    )
    return job.directory, run_eval(job)


def _tokenizer(given: Any) -> dict[str, Any]:
    """Return the overrides that choose a tokenizer."""
    if isinstance(given, str | os.PathLike):
        return {"tokenizer": given} if given == "bytes" else {"tokenizer": "hf", "tokenizer.path": str(given)}
    settings = given if isinstance(given, Mapping) else kept_tokenizer(given)
    inside = {f"tokenizer.{key}": value for key, value in settings.items() if key != "name"}
    return {"tokenizer": settings["name"], **inside}
