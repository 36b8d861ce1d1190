"""Define the base of every settings type, and the marks that say what a field means for a run.

A mark stands on each field once. The hash of a run, the rows of a comparison and what a resumed run may
change all follow from it.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field


class Mark(Enum):
    """Tell what another value of a field makes of a run."""

    DEFINES = "another run, and another row of a comparison"
    SIZE = "another run, which is not ranked beside the first unless asked"
    SEED = "another run of the same row"
    FREE = "the same run"


def defines_run(earlier: Any = ...) -> Any:
    """Mark a field that defines the run: another value is another run and another row.

    `earlier` is the value of runs that were stored before the field was there. With it a run is what it was
    without the field: neither its hash nor its row names it.
    """
    return Field(earlier, json_schema_extra={"mark": Mark.DEFINES.name})


def defines_size(earlier: Any = ...) -> Any:
    """Mark a field that defines the run and its size: runs of different sizes are not ranked together.

    `earlier` is as in `defines_run`.
    """
    return Field(earlier, json_schema_extra={"mark": Mark.SIZE.name})


def differs_by_seed() -> Any:
    """Mark a field that defines the run but may differ between the seeds of one row."""
    return Field(json_schema_extra={"mark": Mark.SEED.name})


def free(default: Any = ...) -> Any:
    """Mark a field that changes no number of a run, such as its name or its tracker."""
    return Field(default, json_schema_extra={"mark": Mark.FREE.name})


def filled_in(default: Any = None) -> Any:
    """Mark a field that posenc fills in and no user may set. Fields inside it have marks of their own."""
    return Field(default, json_schema_extra={"filled_in": True})


class Settings(BaseModel):
    """Hold typed settings, which never change. Every field has a mark, or is a group of marked fields."""

    # pydantic keeps names that begin with `model_` for itself unless it is told not to. A class is built when
    # it is first used: most commands use a few of them, and all took 50 ms to build.
    model_config = ConfigDict(defer_build=True, frozen=True, extra="forbid", protected_namespaces=())

    def with_changes(self, **changes: Any) -> Self:
        """Return a copy with other values. Their types are not checked again."""
        return self.model_copy(update=changes)

    def plain(self) -> dict[str, Any]:
        """Return the settings as plain data, as config.yaml holds them."""
        return self.model_dump()

    def marked(self, *marks: Mark) -> dict[str, Any]:
        """Return the fields with one of these marks as nested plain data, without empty groups."""
        values: dict[str, Any] = {}
        for field in _fields_to_read(type(self), marks):
            value = getattr(self, field.name)
            if field.is_marked and value != field.earlier:
                values[field.name] = value.plain() if isinstance(value, Settings) else value
            elif not field.is_marked and isinstance(value, Settings):
                marked_in_group = value.marked(*marks)
                if marked_in_group:
                    values[field.name] = marked_in_group
        return values


@dataclass(frozen=True)
class _FieldToRead:
    """A field with one of the marks that are asked for, or a group that may have such fields."""

    name: str
    is_marked: bool
    earlier: Any  # its value in runs without the field, see `defines_run`; `...` where all runs have it


@functools.cache  # a comparison of 2,000 runs asks 24,000 times
def _fields_to_read(model: type[Settings], marks: tuple[Mark, ...]) -> list[_FieldToRead]:
    """Return the fields of a type with one of these marks, and its groups."""
    earlier = earlier_values(model)
    return [
        _FieldToRead(name, is_marked=mark is not None, earlier=earlier.get(name, ...))
        for name, mark in marks_of_fields(model).items()
        if mark is None or mark in marks
    ]


def mark_of(extra: Any) -> Mark | None:
    """Return the mark in a field's extra data; None for a group of fields, each of which has a mark."""
    return Mark[extra["mark"]] if isinstance(extra, dict) and "mark" in extra else None


@functools.cache
def marks_of_fields(model: type[Settings]) -> dict[str, Mark | None]:
    """Return the mark of each field of a settings type; None for a group of fields."""
    return {name: mark_of(field.json_schema_extra) for name, field in model.model_fields.items()}


@functools.cache
def earlier_values(model: type[Settings]) -> dict[str, Any]:
    """Return, by field, what a run had before there was the field, see `defines_run`."""
    fields = model.model_fields.items()
    return {name: field.default for name, field in fields if not field.is_required()}


class Choice(Settings):
    """Hold the choice of a config group: a name, and the parameters of the class that has this name.

    The code that builds the class checks the parameters (`posenc.settings.signature`). Until then they are
    plain data, so that a stored run can be read without the code of its encoding.
    """

    model_config = ConfigDict(extra="allow")  # the rest is as in `Settings`

    name: str

    @property
    def parameters(self) -> dict[str, Any]:
        """Return the parameters, without `name` and the other fields that the type declares."""
        return dict(self.model_extra or {})

    def marked(self, *marks: Mark) -> dict[str, Any]:
        """Return the marked fields; the parameters have the mark of the name."""
        values = super().marked(*marks)
        if marks_of_fields(type(self))["name"] in marks:
            values |= self.parameters
        return values


def without_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a choice in plain data: all of its settings but the name."""
    return {str(key): value for key, value in settings.items() if key != "name"}


def keys_of_users(model: type[BaseModel]) -> list[str]:
    """Return the keys of a settings type that users may set."""
    return [name for name, field in model.model_fields.items() if not is_filled_in(field.json_schema_extra)]


def is_filled_in(extra: Any) -> bool:
    """Tell by a field's extra data whether posenc fills the field in."""
    return isinstance(extra, dict) and bool(extra.get("filled_in"))


def flattened(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return nested dictionaries as one with dotted keys: {"train": {"lr": 1}} is {"train.lr": 1}."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        if isinstance(value, dict):
            flat |= flattened(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat
