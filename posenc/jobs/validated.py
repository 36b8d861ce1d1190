"""Composed settings to validated jobs of either command, each once in a process."""

from __future__ import annotations

import functools
import json
from typing import TYPE_CHECKING, Any, Literal, overload

from posenc.jobs.told import without_sweep

if TYPE_CHECKING:
    from posenc.jobs.eval_job import EvalJob
    from posenc.jobs.validate import TrainJob


@overload
def validated(command: Literal["train"], frozen: str) -> TrainJob: ...


@overload
def validated(command: Literal["eval"], frozen: str) -> EvalJob: ...


@overload
def validated(command: str, frozen: str) -> TrainJob | EvalJob: ...


def validated(command: str, frozen: str) -> TrainJob | EvalJob:
    """The validated job of settings written as JSON; each is validated once in a process."""
    return _validated(command, frozen)


@functools.cache
def _validated(command: str, frozen: str) -> TrainJob | EvalJob:
    settings = json.loads(frozen)
    if command == "train":
        from posenc.jobs.validate import train_job

        return train_job(settings)
    from posenc.jobs.eval_job import eval_job

    return eval_job(settings)


def frozen(settings: dict[str, Any]) -> str:
    """As JSON, without what is the sweep's alone."""
    return json.dumps(without_sweep(settings))
