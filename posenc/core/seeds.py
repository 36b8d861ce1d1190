"""Counter-based randomness: a draw depends on a seed and a name or step, never on what was drawn before.

So no encoding shifts another one's batches or initial values, and a resumed run has no stream to restore.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def seed_for(seed: int, *names: object) -> int:
    """Return a 63-bit seed from the run's seed and what it is for."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator_for(seed: int, *names: object) -> torch.Generator:
    """Return a CPU generator for one purpose; the same on every machine."""
    import torch

    return torch.Generator().manual_seed(seed_for(seed, *names))


def raw_draws(count: int, seed: int, counter: int) -> np.ndarray:
    """Return (count,) uint64. Raw Philox output is fixed by definition; numpy's distributions may change."""
    import numpy as np

    draws: np.ndarray = np.random.Philox(key=np.array([seed, counter], dtype=np.uint64)).random_raw(count)
    return draws


def permutations(draws: np.ndarray) -> np.ndarray:
    """Return a permutation of the columns for each row of raw draws, int64 of the same shape."""
    import numpy as np

    return np.argsort(draws, axis=-1, kind="stable")
