"""What every extension is, what it knows of the trained model, and how it refuses one.

T is the training length, W the window: how many tokens the model is given at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar

from posenc.core.errors import UserError
from posenc.encodings.base import Encoding
from posenc.evaluation.extend._parts import has_gaps, leaves
from posenc.evaluation.lengths import resolve_length
from posenc.model.decoder import Decoder

Length = int | str | None  # in tokens, or as a multiple of T such as 0.5x


class RefusedError(Exception):
    """Raised by `__init__` of an extension that makes no sense with the model; the message is the reason."""


class NotForThisEncodingError(UserError):
    """The extension does not apply to the trained encoding; a sweep may leave such a job out."""

    def __init__(
        self, extension: type[Extension], encoding: str, reason: str, allowed: Sequence[str]
    ) -> None:
        problem = f"does not apply to encoding={encoding}: {reason}"
        hint = f"it is for {extension.applies}"
        super().__init__("extend", extension.name, problem, allowed=allowed, hint=hint)
        self.nearest = None  # it was spelt as it should be
        self.args = (self.text(),)


class Extension:
    """One extension, ready for one trained model.

    Its knobs are keyword-only arguments of `__init__` with types; their defaults live in
    `conf/extend/<name>.yaml`. `__init__` raises RefusedError for a model that it does not apply to, and
    UserError for a knob out of range; it may be given a model without numbers (on the meta device).
    """

    name: ClassVar[str]
    paper: ClassVar[str]
    formula: ClassVar[str]
    applies: ClassVar[str]  # to which encodings, in words
    revision: ClassVar[int] = 1  # raised when the formula changes: stored cells of before stay apart
    grid: ClassVar[Mapping[str, Sequence[Any]]] = {}  # knob -> values to choose from on validation documents

    def __init__(self, model: Decoder) -> None:
        self.model = model
        self.parts = leaves(model.acting)
        self.settings: dict[str, Any] = {"name": self.name}  # as stored; the knobs are added when it is built

    def warnings(self) -> list[str]:
        """Facts about this extension of this model that a reader of its numbers must know."""
        return []

    def acting(self, window: int) -> Encoding:
        """What the attention sees at a window of W tokens: `model.acting` itself where nothing changes."""
        raise NotImplementedError

    def resolved(self, window: int) -> dict[str, Any]:
        """What the knobs come to at a window of W tokens."""
        return {}

    @cached_property
    def reach(self) -> int:
        """How many positions a training window spanned: T, or the limit of positions drawn with gaps.

        Contiguous positions from a drawn start count as T: by distance they show no more.
        """
        return self.model.acting.shape.distances

    def span(self, window: int) -> int:
        """How many positions a window of W tokens may span."""
        if has_gaps(self.model.acting):
            return max(window, self.model.acting.shape.positions)
        return window

    def tokens(self, knob: str, value: int | str) -> int:
        """A length that the user gave, in tokens."""
        return resolve_length(f"extend.{knob}", value, self.model.acting.shape.train_length)


def check_range(knob: str, value: float, least: float, *, above: bool = False) -> None:
    """Raises UserError for a value that is not finite, below `least`, or (`above`) not above it."""
    fits = value > least if above else value >= least
    if not (fits and math.isfinite(value)):
        allowed = f"a finite number {'above' if above else 'from'} {least:g}{'' if above else ' on'}"
        raise UserError(f"extend.{knob}", value, "out of range", allowed=allowed)
