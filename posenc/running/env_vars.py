"""The environment variables by which a command speaks to its jobs."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

WAIT = "POSENC_WAIT"  # 1: wait for a run that another process holds, instead of refusing
SWEEP = "POSENC_SWEEP"  # the sweep's name
RETRY = "POSENC_RETRY"  # set: a run that diverged is trained again (--retry)
IF_HELD = "POSENC_IF_HELD"  # the exit code of a job whose run another process holds; 1 without
DEBUG = "HYDRA_FULL_ERROR"  # 1: tracebacks, as for Hydra (--debug)


def debugging() -> bool:
    """Tell whether tracebacks are asked for."""
    return os.environ.get(DEBUG) == "1"


@contextmanager
def setting(variable: str, value: str) -> Iterator[None]:
    """Set a variable inside, and restore it afterwards."""
    before = os.environ.get(variable)
    os.environ[variable] = value
    try:
        yield
    finally:
        del os.environ[variable]
        if before is not None:
            os.environ[variable] = before
