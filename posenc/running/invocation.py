"""Read once how this process was started: by a user, by a sweep, or by Slurm.

Inside a process an `Invocation` carries these facts from the command down. Between processes environment
variables carry them:

| variable | set by | says |
|---|---|---|
| `POSENC_WAIT` | users | `1`: wait for a run that another process holds, instead of refusing |
| `POSENC_SWEEP` | a sweep, for its jobs | the sweep's name |
| `POSENC_PARENT` | a sweep, for its jobs | the sweep's process number |
| `POSENC_PROGRESS` | users; a sweep, for its jobs | seconds between two lines of progress in a pipe |
| `HYDRA_FULL_ERROR` | users, `--debug` | `1`: tracebacks, of Hydra and of posenc |
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

WAIT = "POSENC_WAIT"
SWEEP = "POSENC_SWEEP"
PARENT = "POSENC_PARENT"
DEBUG = "HYDRA_FULL_ERROR"


@dataclass(frozen=True)
class Invocation:
    """Tell how this process was started. No number depends on it."""

    debug: bool = False  # print tracebacks
    retry: bool = False  # train a run that diverged again
    waits: bool = False  # wait for a run that another process holds
    sweep: str | None = None  # the sweep that this process runs a job of
    config_dir: str | None = None  # the folder of the user's own YAML, as it was typed

    @classmethod
    def read(cls, environment: Mapping[str, str] | None = None) -> Invocation:
        """Return what the environment says: that of this process unless another one is given."""
        variables = os.environ if environment is None else environment
        # `retry` and `config_dir` are words of the command line, which the command fills in.
        return cls(
            debug=variables.get(DEBUG) == "1",
            waits=variables.get(WAIT) == "1",
            sweep=variables.get(SWEEP),
        )

    @property
    def in_sweep(self) -> bool:
        """Tell whether this process runs one job of a sweep, which prints the table itself."""
        # The name of a sweep may be empty, so its truth does not tell.
        return self.sweep is not None
