"""What a law returns, and how it says that it is broken or does not apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

Status = Literal["pass", "fail", "n/a"]


@dataclass(frozen=True)
class Verdict:
    """`figure` is what was measured, with its bound; `reason` says why the law fails or does not apply.

    `hint` says what usually mends a failure; few laws have one.
    """

    status: Status
    figure: str = ""
    reason: str = ""
    hint: str = ""


class ViolationError(Exception):
    """The law is broken: the reason, what was measured, and what usually mends it, if anything does."""

    def __init__(self, reason: str, figure: str, hint: str = "") -> None:
        super().__init__(reason, figure, hint)
        self.reason = reason
        self.figure = figure
        self.hint = hint


class LawNotApplicableError(Exception):
    """The law does not apply to this encoding; the message says why."""


def require(holds: bool, reason: str, figure: str = "", hint: str = "") -> None:
    """Raise ViolationError unless the condition holds."""
    if not holds:
        raise ViolationError(reason, figure, hint)


def require_below(figure: float, bound: float, reason: str, hint: str = "") -> None:
    """Raise ViolationError unless the figure is below the bound, which nan is not."""
    # Written as "below" and not as "not above", which nan would pass.
    require(figure < bound, reason, with_bound(figure, bound), hint)


def require_identical(a: Tensor, b: Tensor, reason: str) -> None:
    """Raise ViolationError unless both are the same bit for bit."""
    # `equal` takes nan for different from itself, so that nan never counts as the same.
    require(torch.equal(a, b), reason, f"{largest_difference(a, b):.1e}")


def with_bound(figure: float, bound: float) -> str:
    """Return a figure with its bound, as text."""
    return f"{figure:.1e} (bound {bound:.0e})"


def largest_difference(a: Tensor, b: Tensor) -> float:
    """Return the largest difference of two tensors; nan if either holds a nan."""
    return (a - b).abs().max().item()
