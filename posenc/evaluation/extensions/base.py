"""What every extension is, how it refuses a model, and a trained encoding taken apart and put together again.

T is the training length, W the window: how many tokens the model is given at once.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding, Shape
from posenc.encodings.options import LogN
from posenc.encodings.sum import Composed
from posenc.evaluation.lengths import resolve_length
from posenc.model.decoder import Decoder

Length = int | str | None  # in tokens, or as a multiple of T such as 0.5x


class RefusedError(Exception):
    """Raised by `__init__` of an extension that makes no sense with the model; the message is the reason."""


class NotForThisEncodingError(UserError):
    """The extension does not apply to the trained encoding; a sweep may leave such a job out."""

    def __init__(self, extension: type[Extension], encoding: str, reason: str) -> None:
        problem = f"does not apply to encoding={encoding}: {reason}"
        super().__init__("extend", extension.name, problem, hint=f"it is for {extension.applies}")


class Extension:
    """One extension, built for one trained model.

    Its knobs are keyword-only arguments of `__init__` with types; their defaults live in
    `conf/extend/<name>.yaml`. `__init__` raises RefusedError for a model that it does not apply to, and
    UserError for a knob out of range; it may be given a model without numbers (on the meta device).
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    formula: ClassVar[str]
    applies: ClassVar[str]  # to which encodings, in words
    revision: ClassVar[int] = 1  # raised when the formula changes: earlier cells keep a row of their own
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}  # knob -> values that `extend.tune=true` chooses from

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self.trained = model.effective_encoding
        self.shape = self.trained.shape
        self.parts = leaves(self.trained)
        # How many positions a training window spanned: T, or the limit of positions drawn with gaps.
        # Contiguous ones from a drawn start count as T: by distance they show no more.
        self.reach = self.shape.distances
        self.settings: dict[str, Any] = {"name": self.name}  # as stored; the knobs are added when it is built

    def effective_encoding(self, window: int) -> Encoding:
        """Return what the attention sees at a window of W tokens: `self.trained` if nothing changes."""
        raise NotImplementedError

    def resolved(self, window: int) -> dict[str, Any]:
        """Return the values that the knobs resolve to at a window of W tokens."""
        return {}

    def span(self, window: int) -> int:
        """Return how many positions a window of W tokens may span."""
        return max(window, self.shape.positions) if has_gaps(self.trained) else window

    def tokens(self, knob: str, value: int | str) -> int:
        """Resolve a length that the user gave to tokens."""
        return resolve_length(f"extend.{knob}", value, self.shape.train_length)

    def together(self, parts: Sequence[Encoding]) -> Encoding:
        """Compose the parts. A scale that counts visible keys counts those that these parts show."""
        masking = tuple(part for part in parts if "visible" in part.hooks)
        counting = []
        for part in parts:
            if isinstance(part, LogN):
                part = copy.copy(part)  # the trained one goes on counting its own
                part.masking = masking
            counting.append(part)
        return Composed(self.shape, counting)

    def check_softmax(self) -> None:
        """Raise RefusedError where a part replaces the softmax."""
        for part in self.parts:
            if "weights" in part.hooks:
                raise RefusedError(f"{part.name} has no softmax")


class Times(Encoding):
    """All logits, biases included, times one number. It goes last, behind everything else on the scores."""

    name = "times"
    acts_on = "scores"
    relative = True
    uses_positions = False

    def __init__(self, shape: Shape, times: float) -> None:
        super().__init__(shape)
        self.times = times

    def scores(
        self, s: Tensor, q: Tensor, k: Tensor, q_pos: Tensor, k_pos: Tensor, state: Any, layer: int
    ) -> Tensor:
        return s * self.times  # (B, H, T, S)


def check_range(knob: str, value: float, least: float, *, above: bool = False) -> None:
    """Raise UserError for a value that is not finite, below `least`, or (`above`) not above it."""
    fits = value > least if above else value >= least
    if not (fits and math.isfinite(value)):
        allowed = f"a finite number {'above' if above else 'from'} {least:g}{'' if above else ' on'}"
        raise UserError(f"extend.{knob}", value, "out of range", allowed=allowed)


def leaves(encoding: Encoding) -> tuple[Encoding, ...]:
    """Return the encodings and options that a composite is made of, in order; of a plain encoding itself."""
    if not isinstance(encoding, Composed):
        return (encoding,)
    return tuple(leaf for part in encoding.parts for leaf in leaves(part))


def has_gaps(encoding: Encoding) -> bool:
    """Whether positions in evaluation are drawn so that neighbours are not always at distance 1."""
    if "positions" not in encoding.hooks:
        return False
    count = encoding.shape.train_length
    pos = encoding.positions(count, False, torch.Generator().manual_seed(0))
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
    """Copy a part to the CPU with random parameters, to try its hooks; it may be on the meta device."""
    made = copy.deepcopy(part).to_empty(device="cpu")
    generator = torch.Generator().manual_seed(0)
    for tensor in (*made.parameters(), *made.buffers()):
        if tensor.is_floating_point():
            nn.init.normal_(tensor, generator=generator)
        else:
            nn.init.zeros_(tensor)
    return made
