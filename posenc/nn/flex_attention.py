"""The bias of an encoding for PyTorch's FlexAttention."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import torch
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.nn.checks import check_encoding, check_hooks, check_shape, check_whole

# (score, batch, head, query, key) -> score, all but the score indices; FlexAttention vectorises it over pairs
ScoreMod = Callable[[Tensor, Tensor, Tensor, Tensor, Tensor], Tensor]


def score_mod(
    encoding: Encoding, length: int, *, layer: int = 0, device: torch.device | str | None = None
) -> ScoreMod:
    """Return the `score_mod` of an encoding's bias for FlexAttention, at up to `length` tokens.

    A bias by distance becomes a table (H, length), any other bias a table (H, length, length). The table is
    made here: while a learned bias is trained, call `score_mod` again for each forward pass. Without `device`
    it is on the device of the encoding's tensors. FlexAttention's block mask has to be causal. Raises
    UserError for an encoding that changes anything but the bias.
    """
    check_encoding(encoding)
    check_whole("length", length, least=1)
    check_whole("layer", layer, least=0)
    check_shape(encoding, layer=layer)
    check_hooks(encoding, encoding.hooks - {"bias", "distance_bias"}, "it is not a bias alone")
    if not encoding.hooks:
        return lambda score, batch, head, query, key: score
    positions = torch.arange(length, device=_device_of(encoding) if device is None else device)
    if "bias" in encoding.hooks:
        bias = encoding.bias(positions, positions, layer)  # (H, T, S)
        return lambda score, batch, head, query, key: score + bias[head, query, key]
    table = encoding.distance_bias(positions, layer)  # (H, length)

    def add_bias(score: Tensor, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        # The block mask hides keys of the future, whose distance is negative: any bias will do for them.
        distance = torch.clamp(query - key, min=0)
        return score + table[head, distance]

    return add_bias


def _device_of(encoding: Encoding) -> torch.device:
    """Return the device of an encoding's tensors; the CPU if it has none."""
    tensor = next(itertools.chain(encoding.parameters(), encoding.buffers()), None)
    return torch.device("cpu") if tensor is None else tensor.device
