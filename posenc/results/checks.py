"""Checks of records beyond the types of their fields."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import PydanticCustomError


def wrong_record(problem: str) -> PydanticCustomError:
    """Return the error of a record, for a validator to raise. Pydantic names the field in front of it."""
    return PydanticCustomError("wrong_record", "{problem}", {"problem": problem})


def check_at_most(parts: Sequence[int], wholes: Sequence[int]) -> None:
    """Raise the error of a record that counts more in a part than in its whole."""
    if any(part > whole for part, whole in zip(parts, wholes, strict=True)):
        raise wrong_record("more are right than were asked")


def check_aligned(*columns: Sequence[object]) -> None:
    """Raise the error of a record whose lists belong together and differ in length."""
    if len({len(column) for column in columns}) > 1:
        raise wrong_record("lists of different lengths")
