"""What a command tells its jobs: variables of their processes' environment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

WAIT = "POSENC_WAIT"  # 1: wait for a run that another process holds, instead of refusing
SWEEP = "POSENC_SWEEP"  # the sweep's name
RETRY = "POSENC_RETRY"  # set: a run that diverged is trained again (--retry)
IF_HELD = "POSENC_IF_HELD"  # the exit code of a job that finds another process at its work; 1 without
DEBUG = "HYDRA_FULL_ERROR"  # 1: tracebacks, as for Hydra (--debug)


def debugging() -> bool:
    """Whether tracebacks are asked for."""
    return os.environ.get(DEBUG) == "1"


@contextmanager
def setting(variable: str, value: str) -> Iterator[None]:
    """The variable has this value inside, and its own again afterwards."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before
