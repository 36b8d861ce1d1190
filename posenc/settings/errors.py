"""Turn pydantic's errors into UserErrors, with key, value, what is allowed, and the nearest choice."""

from __future__ import annotations

import types
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from posenc.core.errors import UserError, nearest
from posenc.settings.base import keys_of_users
from posenc.settings.numbers import LARGEST_WHOLE, as_written, hint_at_number

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


@dataclass(frozen=True)
class Words:
    """Say what the errors call a key, and how it gets a value.

    Only in this do the errors of settings differ from those of parameters.
    """

    noun: str
    missing: str  # the problem of a key without a value
    how_to_give: str  # `{key}` stands for the key


# The YAML in conf/ has nearly all values: only `~key` takes one away, and a `???` asks the user for one.
SETTING = Words("setting", "is needed and has no default", "add {key}=...")
# The function or class may be an author's, who can give the value in three places.
PARAMETER = Words(
    "parameter",
    "has no default and no value",
    "say it here: {key}=VALUE, in its YAML, or as a default in its class",
)


def user_error(error: ValidationError, model: type[BaseModel], prefix: str = "") -> UserError:
    """Return the first thing that a settings type refused as a UserError; `prefix` goes before its key."""
    first = first_refusal(error)
    path = [part for part in first["loc"] if part not in UNION_TAGS]
    key = dotted(path, prefix)
    if first["type"] == "extra_forbidden":
        return unknown_key(key, first["input"], known_keys(model, path[:-1]))
    is_in_list = any(isinstance(part, int) for part in path)
    if first["type"] == "missing" and is_in_list:  # no override names a place in a list
        return UserError(key, None, SETTING.missing)
    return refused_value(first, key, field_at(model, path), SETTING)


# --- The errors of settings and of parameters


def first_refusal(error: ValidationError) -> ErrorDetails:
    """Return the first of several errors: the user mends it and sees the next."""
    return error.errors(include_url=False)[0]


def refused_value(refusal: ErrorDetails, key: str, field: FieldInfo | None, words: Words) -> UserError:
    """Return the error for a value that is missing, or that its field does not take.

    `field` is None if no type declares the key.
    """
    kind = refusal["type"]
    value = refusal["input"]
    if kind == "missing":
        return missing_value(key, words)
    if value is None:
        return UserError(key, "null", "must be given", allowed=allowed_values(field))
    if kind == "literal_error":
        refused = UserError(key, value, "not one of its choices", allowed=allowed_values(field))
        refused.nearest = nearest(str(value), choices_of(field))
        return refused
    takes_whole_numbers = field is not None and int in _types_in(field.annotation)
    written = as_written(value) if takes_whole_numbers else value  # YAML made a float of 4e6
    problem = _problem_of(refusal, takes_whole_numbers)
    allowed = allowed_values(field)
    if kind == "too_large" and not _has_upper_bound(field):
        allowed = f"up to {LARGEST_WHOLE}"
    return UserError(key, written, problem, allowed=allowed, hint=hint_at_number(value))


def missing_value(key: str, words: Words = SETTING) -> UserError:
    """Return the error for a key that has no value."""
    return UserError(key, None, words.missing, hint=words.how_to_give.format(key=key))


def unknown_key(key: str, value: object, siblings: Sequence[str], words: Words = SETTING) -> UserError:
    """Return the error for a key that does not exist, with the nearest one that does."""
    parent, _, name = key.rpartition(".")
    allowed = ", ".join(sorted(siblings)) or f"none: it has no {words.noun}s"
    refused = UserError(key, value, f"there is no such {words.noun}", allowed=allowed)
    close = nearest(name, siblings)
    if close:
        refused.nearest = f"{parent}.{close}" if parent else close
    return refused


def _problem_of(refusal: ErrorDetails, takes_whole_numbers: bool) -> str:
    """Return what is wrong with a value, by the kind of pydantic's error."""
    kind = refusal["type"]
    problem = "wrong type"
    if kind in TOO_SMALL:
        problem = "too small" if takes_whole_numbers else "out of range"
    elif kind in TOO_LARGE:
        problem = "too large" if takes_whole_numbers else "out of range"
    elif kind in RAISED_BY_NUMBERS:
        problem = refusal["msg"]
    elif kind == "too_short":
        problem = "is empty"
    # The value alone does not say it: the text "4e6" is printed as the number is.
    return f"{problem} ({type(refusal['input']).__name__})" if problem == "wrong type" else problem


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
        options = " or ".join(describe(option, metadata) for option in arguments if option is not type(None))
        return f"{options}, or null" if type(None) in arguments else options
    is_of_one_type = origin is list or (origin is tuple and arguments[1:] == (...,))
    if is_of_one_type and arguments:
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


def _has_upper_bound(field: FieldInfo | None) -> bool:
    """Tell whether the numbers that a field takes have a largest one."""
    return field is not None and _is_bounded(field.annotation, field.metadata)


def _is_bounded(annotation: Any, metadata: Sequence[Any]) -> bool:
    """Tell whether a type, or a part of it such as that of `Whole | None`, has an upper bound."""
    if any(isinstance(bound, annotated_types.Le | annotated_types.Lt) for bound in metadata):
        return True
    arguments = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _is_bounded(arguments[0], arguments[1:])
    return any(_is_bounded(argument, ()) for argument in arguments)


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
