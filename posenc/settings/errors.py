"""Turn pydantic's errors into UserErrors, with key, value, what is allowed, and the nearest choice."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from posenc.core.errors import UserError, nearest
from posenc.settings.base import keys_of_users
from posenc.settings.numbers import as_written, hint_at_number

TYPE_WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list [a,b]",
    dict: "a mapping",
    type(None): "null",
}
# kinds of pydantic's errors
TOO_SMALL = ("greater_than", "greater_than_equal")
TOO_LARGE = ("less_than", "less_than_equal")
RAISED_BY_NUMBERS = ("wrong_type", "too_large", "out_of_range")  # posenc.settings.numbers writes their text
# pydantic adds these to the path of an error in a union of posenc.settings.tree; no user types them
UNION_TAGS = ("word", "value")


def user_error(error: ValidationError, model: type[BaseModel], prefix: str = "") -> UserError:
    """Return the first thing that a settings type refused as a UserError; `prefix` goes before its key."""
    # the first of several errors: the user mends it and sees the next
    first = error.errors(include_url=False)[0]
    kind = first["type"]
    value = first["input"]
    path = [part for part in first["loc"] if part not in UNION_TAGS]
    key = dotted(path, prefix)
    field = field_at(model, path)
    if kind == "missing":
        is_in_list = any(isinstance(part, int) for part in path)  # no override names a place in a list
        hint = "" if is_in_list else f"add {key}=..."
        return UserError(key, None, "is needed and has no default", hint=hint)
    if kind == "extra_forbidden":
        return unknown_key(key, value, known_keys(model, path[:-1]))
    if value is None:
        return UserError(key, "null", "must be given", allowed=allowed_values(field))
    if kind == "literal_error":
        return _not_a_choice(key, value, field)
    annotation = None if field is None else field.annotation
    if _takes_whole_numbers(annotation):
        value = as_written(value)  # YAML made a float of 4e6
    problem = problem_of(kind, first["msg"], annotation)
    return UserError(key, value, problem, allowed=allowed_values(field), hint=hint_at_number(value))


def _not_a_choice(key: str, value: object, field: FieldInfo | None) -> UserError:
    """Return the error for a value that is not among the words that a field takes."""
    close = nearest(str(value), choices_of(field))
    hint = f"did you mean: {close}" if close else ""
    return UserError(key, value, "not one of its choices", allowed=allowed_values(field), hint=hint)


def problem_of(kind: str, message: str, annotation: Any) -> str:
    """Return what is wrong with a value, by the kind of pydantic's error and the type that was declared."""
    if kind in TOO_SMALL:
        return "too small" if _takes_whole_numbers(annotation) else "out of range"
    if kind in TOO_LARGE:
        return "too large" if _takes_whole_numbers(annotation) else "out of range"
    if kind in RAISED_BY_NUMBERS:
        return message
    if kind == "too_short":
        return "is empty"
    return "wrong type"


def unknown_key(key: str, value: object, siblings: Sequence[str]) -> UserError:
    """Return the error for a setting that does not exist, with the nearest one that does."""
    parent, _, name = key.rpartition(".")
    close = nearest(name, siblings)
    hint = ""
    if close:
        hint = f"did you mean: {parent}.{close}" if parent else f"did you mean: {close}"
    return UserError(key, value, "there is no such setting", allowed=", ".join(sorted(siblings)), hint=hint)


def dotted(path: Sequence[str | int], prefix: str = "") -> str:
    """Return `eval.lengths[2]` for ("eval", "lengths", 2)."""
    key = prefix
    for part in path:
        if isinstance(part, int):
            key += f"[{part}]"
        elif key:
            key += f".{part}"
        else:
            key = part
    return key


# --- From a path of keys to a field


def field_at(model: type[BaseModel], path: Sequence[str | int]) -> FieldInfo | None:
    """Return the field that a path leads to; of an item of a list, the field of the list.

    None if no settings type declares the key: it is unknown, or lies in a plain mapping.
    """
    group: type[BaseModel] | None = model
    field: FieldInfo | None = None
    for part in path:
        if isinstance(part, int):
            return field
        if group is None:
            return None
        field = group.model_fields.get(part)
        group = _group_in(field)
    return field


def known_keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the keys that users may set in the group that a path leads to; none if it leads to no group."""
    group = _group_in(field_at(model, path)) if path else model
    return [] if group is None else keys_of_users(group)


def _group_in(field: FieldInfo | None) -> type[BaseModel] | None:
    """Return the settings type of a field such as `PlantSettings | None`; None if it holds no group."""
    if field is None:
        return None
    for kind in _types_in(field.annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


# --- Types in words


def allowed_values(field: FieldInfo | None) -> str:
    """Return in words what a field takes: `a whole number from 1 to 64, or null`."""
    return "" if field is None else describe(field.annotation, field.metadata)


def choices_of(field: FieldInfo | None) -> list[str]:
    """Return the words that a field takes, such as adamw and muon; none for a field of numbers or text."""
    choices: list[str] = []
    if field is not None:
        for kind in _types_in(field.annotation):
            if get_origin(kind) is Literal:
                choices += map(str, get_args(kind))
    return choices


def describe(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return a type in words; `metadata` holds its bounds."""
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if origin is Annotated:
        inner, *inner_metadata = arguments
        return describe(inner, [*inner_metadata, *metadata])
    if origin in (Union, types.UnionType):
        options = " or ".join(describe(option) for option in arguments if option is not type(None))
        return f"{options}, or null" if type(None) in arguments else options
    if origin is list:
        return f"a list [a,b], each {describe(arguments[0])}"
    if origin is tuple:
        return f"[{', '.join(describe(item) for item in arguments)}]"
    if origin is Literal:
        return ", ".join(map(str, arguments))
    if annotation in (int, float):
        return TYPE_WORDS[annotation] + _bounds(metadata)
    plain_type = origin or annotation  # dict of dict[str, int]
    if plain_type in TYPE_WORDS:
        return TYPE_WORDS[plain_type]
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return mapping_with(keys_of_users(annotation))
    return getattr(annotation, "__name__", str(annotation))


def mapping_with(keys: Sequence[str]) -> str:
    """Return `a mapping {pairs, windows}` for the keys that a group of settings has."""
    return f"{TYPE_WORDS[dict]} {{{', '.join(keys)}}}"


def _bounds(metadata: Sequence[Any]) -> str:
    """Return ` from 1 to 64`, ` above 0`, or nothing."""
    text = ""
    for bound in metadata:
        if isinstance(bound, annotated_types.Ge):
            text += f" from {bound.ge}"
        elif isinstance(bound, annotated_types.Gt):
            text += f" above {bound.gt}"
        elif isinstance(bound, annotated_types.Le):
            text += f" to {bound.le}"
        elif isinstance(bound, annotated_types.Lt):
            text += f" below {bound.lt}"
    return text


def _takes_whole_numbers(annotation: Any) -> bool:
    """Tell whether a type takes whole numbers."""
    return int in _types_in(annotation)


def _types_in(annotation: Any) -> set[Any]:
    """Return the types that an annotation is made of, without their bounds: {int, None} of `Whole | None`."""
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _types_in(arguments[0])
    if get_origin(annotation) in (Union, types.UnionType):
        kinds: set[Any] = set()
        for option in arguments:
            kinds |= _types_in(option)
        return kinds
    return {annotation}
