"""Checks of records beyond the types of their fields."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic_core import PydanticCustomError


def wrong_record(problem: str) -> PydanticCustomError:
    """Return the error of a record, for a validator to raise. Pydantic names the field in front of it."""
    return PydanticCustomError("wrong_record", "{problem}", {"problem": problem})


def check_aligned(*columns: Sequence[object]) -> None:
    """Raise the error of a record whose lists belong together and differ in length."""
    if len({len(column) for column in columns}) > 1:
        raise wrong_record("lists of different lengths")
