"""Read the key of an override, and the group that the key belongs to."""

from __future__ import annotations

import re


def key_of(override: str) -> str:
    """Return the key: `seed` of `seed=0,1`, `+seed=0`, `++seed=0` and `~seed`."""
    return override.lstrip("+~").partition("=")[0]


def group_of(key: str) -> str:
    """Return the group: `encoding` of `encoding.base` and of `encoding@_global_`."""
    return re.split(r"[./@]", key)[0]


def is_hydras(override: str) -> bool:
    """Tell whether an override sets Hydra's own part: `hydra.verbose=true`, `hydra/launcher=slurm`."""
    return key_of(override).startswith(("hydra.", "hydra/"))
