"""Counter-based randomness: every draw depends on a seed and a name or step, never on what was drawn before.

So one encoding cannot shift another's batches or initial values, and there is no stream to lose on a resume.
"""

from __future__ import annotations

import hashlib

import torch


def seed_for(seed: int, *names: object) -> int:
    """A 63-bit seed from the run's seed and what it is for."""
    text = "/".join([str(seed), *map(str, names)])
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def generator_for(seed: int, *names: object) -> torch.Generator:
    """A CPU generator for one purpose; the same on every machine."""
    return torch.Generator().manual_seed(seed_for(seed, *names))
