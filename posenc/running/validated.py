"""Composed settings to validated jobs of either command, each once in a process."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Literal, overload

from posenc.config.compose import frozen

if TYPE_CHECKING:
    from posenc.running.eval_job import EvalJob
    from posenc.running.train_job import TrainJob


@overload
def validated(command: Literal["train"], settings: dict[str, Any]) -> TrainJob: ...


@overload
def validated(command: Literal["eval"], settings: dict[str, Any]) -> EvalJob: ...


@overload
def validated(command: str, settings: dict[str, Any]) -> TrainJob | EvalJob: ...


def validated(command: str, settings: dict[str, Any]) -> TrainJob | EvalJob:
    """The validated job of these settings, validated once in a process. Raises UserError."""
    return _validated(command, frozen(settings))


@functools.cache
def _validated(command: str, as_json: str) -> TrainJob | EvalJob:
    settings = json.loads(as_json)
    if command == "train":
        from posenc.running.train_job import train_job

        return train_job(settings)
    from posenc.running.eval_job import eval_job

    return eval_job(settings)
