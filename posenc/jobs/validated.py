"""Composed settings to validated jobs of either command, each once in a process."""

from __future__ import annotations

import functools
import json
from typing import Any

from posenc.jobs.told import without_sweep


@functools.cache
def validated(command: str, frozen: str) -> Any:
    """The validated job of settings written as JSON; each is validated once in a process."""
    settings = json.loads(frozen)
    if command == "train":
        from posenc.jobs.validate import train_job

        return train_job(settings)
    from posenc.jobs.eval_job import eval_job

    return eval_job(settings)


def frozen(settings: dict[str, Any]) -> str:
    """As JSON, without what is the sweep's alone."""
    return json.dumps(without_sweep(settings))
