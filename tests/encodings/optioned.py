"""Models with options, and the settings of positions."""

from typing import Any

import torch
from decoding import T, encoding, model_of

from posenc.encodings.base import Encoding
from posenc.encodings.options import build_options, position_limit
from posenc.model.decoder import Decoder

CONTIGUOUS = {"name": "contiguous"}
RANDOMIZED = {"name": "randomized", "max": None, "dense": False}
DENSE = {**RANDOMIZED, "dense": True}
OFFSET = {"name": "offset", "max": None}


def options(
    own: Encoding, positions: dict[str, Any] = CONTIGUOUS, window: int | None = None, scale: Any = "none"
) -> list[Encoding]:
    return build_options(own.shape, own, positions=positions, window=window, scale=scale)


def with_options(name: str, params: dict[str, Any] | None = None, **chosen: Any) -> Decoder:
    """`ssmax` gets other factors than it starts with, each head its own."""
    limit = position_limit(chosen.get("positions", CONTIGUOUS), T)
    own = encoding(name, limit=limit, **(params or {}))
    model = model_of(own, *options(own, **chosen))
    for parameter in model.options.parameters():
        torch.nn.init.uniform_(parameter, 0.1, 2, generator=torch.Generator().manual_seed(2))
    return model
