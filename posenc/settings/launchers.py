"""Declare what `hydra/launcher=ray` takes. Slurm's launcher is a plug-in, which checks its own settings."""

from __future__ import annotations

from typing import Annotated, Literal

from annotated_types import Ge, Le

from posenc.settings.base import Settings, free
from posenc.settings.numbers import CountingNumber, NonNegative, Text, Whole

LAUNCHER = "hydra/launcher"  # the key that chooses where the jobs of a sweep run
AUTO = "auto"
SHARED = "shared"
OWN = "own"


class RayLauncherSettings(Settings):
    """Hold where a sweep's jobs run, and what each of them gets there."""

    address: Text = free()
    cpus_per_task: CountingNumber | None = free()
    gpus_per_task: NonNegative | None = free()
    restarts: Annotated[Whole, Ge(0), Le(10_000)] = free()
    folders: Literal["auto", "shared", "own"] = free()
