"""What a law says of an encoding, and the two ways in which it can end early."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Status = Literal["pass", "fail", "n/a"]


@dataclass(frozen=True)
class Verdict:
    """`figure` is what was measured, beside its bound; `reason` why it fails or does not apply."""

    status: Status
    figure: str = ""
    reason: str = ""


class ViolationError(Exception):
    """The law is broken; the message says how."""

    def __init__(self, reason: str, figure: str = "") -> None:
        super().__init__(reason)
        self.verdict = Verdict("fail", figure, reason)


class NotApplicableError(Exception):
    """The law has nothing to say about this encoding; the message says why."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.verdict = Verdict("n/a", "", reason)


def require(holds: bool, reason: str, figure: str = "") -> None:
    """Raises ViolationError unless it holds."""
    if not holds:
        raise ViolationError(reason, figure)


def within(figure: float, bound: float, reason: str) -> str:
    """The figure with its bound as text. Raises ViolationError where it is not below it, or not a number."""
    text = f"{figure:.1e} (bound {bound:.0e})"
    require(figure < bound, reason, text)
    return text
