"""A trained encoding taken apart and put together again, its parameters shared and nothing copied."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options import LogN
from posenc.encodings.sum import Composed
from posenc.model.decoder import Decoder


def name_of(part: Encoding) -> str:
    """For messages."""
    return str(getattr(part, "name", type(part).__name__))


def leaves(encoding: Encoding) -> tuple[Encoding, ...]:
    """The encodings and options that a composite is made of, in order; a plain encoding is its only leaf."""
    if not isinstance(encoding, Composed):
        return (encoding,)
    return tuple(leaf for part in encoding.parts for leaf in leaves(part))


def together(shape: Shape, parts: Sequence[Encoding]) -> Encoding:
    """The parts acting as one. A scale that counts visible keys counts those that these parts show."""
    masking = tuple(part for part in parts if "visible" in part.hooks)
    counting = []
    for part in parts:
        if isinstance(part, LogN):
            part = copy.copy(part)  # the trained one goes on counting its own
            part.masking = masking
        counting.append(part)
    return Composed(shape, counting)


def is_decoupled(model: Decoder) -> bool:
    """Whether positions act on a part of each head alone, turned before any other hook sees it."""
    return any(getattr(module, "decoupled", False) for module in model.modules())


def has_gaps(acting: Encoding) -> bool:
    """Whether positions in evaluation are drawn so that neighbours are not always at distance 1."""
    if "positions" not in acting.hooks:
        return False
    count = acting.shape.train_length
    pos = acting.positions(count, False, torch.Generator().manual_seed(0))
    return int(pos[-1] - pos[0]) != count - 1


@torch.no_grad()
def moves(part: Encoding, pos: Tensor) -> bool:
    """Whether `rotate` changes queries and keys at the positions pos (T,), in any layer."""
    shape, generator = part.shape, torch.Generator().manual_seed(0)
    q, k = torch.randn(2, 1, shape.n_heads, len(pos), shape.head_dim, generator=generator)
    for layer in range(shape.n_layers):
        turned = part.rotate(q, k, pos, pos, layer)
        if not all(a.shape == b.shape and torch.equal(a, b) for a, b in zip(turned, (q, k), strict=True)):
            return True
    return False


def with_random_numbers(part: Encoding) -> Encoding:
    """A copy on the CPU to try hooks on: also of a part without numbers, as in a model's outline."""
    made = copy.deepcopy(part).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for tensor in (*made.parameters(), *made.buffers()):
        if tensor.is_floating_point():
            nn.init.normal_(tensor, generator=generator)
        else:
            nn.init.zeros_(tensor)
    return made
