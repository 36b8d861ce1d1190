"""What a law returns, and how it says that it is broken or does not apply."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Verdict:
    """`figure` is what was measured, with its bound; `reason` why the law fails or does not apply."""

    status: Literal["pass", "fail", "n/a"]
    figure: str = ""
    reason: str = ""


class ViolationError(Exception):
    """The law is broken: the reason, and what was measured."""


class NotApplicableError(Exception):
    """The law does not apply to this encoding; the message says why."""


def require(holds: bool, reason: str, figure: str = "") -> None:
    """Raise ViolationError unless it holds."""
    if not holds:
        raise ViolationError(reason, figure)


def within(figure: float, bound: float, reason: str) -> float:
    """Return the figure. Raises ViolationError unless it is below the bound (nan is not)."""
    require(figure < bound, reason, bounded(figure, bound))
    return figure


def identical(a: Tensor, b: Tensor, reason: str) -> None:
    """Raise ViolationError unless both are the same bit for bit."""
    require(torch.equal(a, b), reason, f"{largest(a, b):.1e}")


def bounded(figure: float, bound: float) -> str:
    """Return a figure with its bound, as text."""
    return f"{figure:.1e} (bound {bound:.0e})"


def largest(a: Tensor, b: Tensor) -> float:
    """Return the largest difference; nan if one of them is not a number."""
    return (a - b).abs().max().item()
