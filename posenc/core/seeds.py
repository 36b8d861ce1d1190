"""Draw random numbers by a seed and a name or step, never by what was drawn before.

So an encoding that draws more does not change the batches and initial values of another one, and a resumed
run has no random state to restore.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import torch


def seed_for(seed: int, *names: object) -> int:
    """Return a seed made of the run's seed and of names that say what it is for."""
    text = "/".join([str(seed), *map(str, names)])
    # Python's own hash() of a text is another one in every process.
    first_bytes = hashlib.sha256(text.encode()).digest()[:8]
    return int.from_bytes(first_bytes, "little") >> 1  # 63 bits: torch takes signed seeds


def generator_for(seed: int, *names: object) -> torch.Generator:
    """Return a CPU generator for one purpose. It draws the same numbers on every machine."""
    import torch

    return torch.Generator().manual_seed(seed_for(seed, *names))


def raw_draws(count: int, seed: int, counter: int) -> np.ndarray:
    """Return random integers, (count,) uint64."""
    import numpy as np

    # the raw output of Philox is fixed by its definition; numpy's distributions may change
    key = np.array([seed, counter], dtype=np.uint64)
    draws: np.ndarray = np.random.Philox(key=key).random_raw(count)
    return draws


def more_draws(count: int, seed: int, counter: int, row: int) -> np.ndarray:
    """Return further random integers for a row of `raw_draws`, (count,) uint64.

    They are apart from all of `raw_draws`. Making the generator takes 80 us, so `raw_draws` comes first.
    """
    import numpy as np

    key = np.array([seed, counter], dtype=np.uint64)
    start = np.array([0, row, 1, 0], dtype=np.uint64)  # `raw_draws` counts up from 0 in the first of these
    draws: np.ndarray = np.random.Philox(key=key, counter=start).random_raw(count)
    return draws


def permutations(draws: np.ndarray) -> np.ndarray:
    """Return, for each row of raw draws, a permutation of its columns; int64 of the same shape."""
    import numpy as np

    # Only a stable sort fixes which of two equal draws comes first.
    return np.argsort(draws, axis=-1, kind="stable")
