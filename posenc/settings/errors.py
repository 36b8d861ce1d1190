"""Say in the user's words what a settings type refused: the key, the value, what is allowed, the nearest."""

from __future__ import annotations

import types
from collections.abc import Sequence
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from posenc.core.errors import UserError, nearest
from posenc.settings.base import keys_of_users
from posenc.settings.numbers import LARGEST_WHOLE, as_typed

WORDS = {
    int: "a whole number",
    float: "a number",
    str: "text",
    bool: "true or false",
    list: "a list [a,b]",
    dict: "a mapping",
    type(None): "null",
}
BELOW = ("greater_than", "greater_than_equal")
ABOVE = ("less_than", "less_than_equal")
CUSTOM = ("wrong_type", "too_large", "out_of_range")  # made by posenc.settings.numbers
UNION_TAGS = ("word", "value")  # of unions in posenc.settings.tree; no part of a key


def user_error(error: ValidationError, model: type[BaseModel], prefix: str = "") -> UserError:
    """Return the first thing that a settings type refused as a UserError; `prefix` goes before its key."""
    first = error.errors(include_url=False)[0]
    # of several errors the first one: the user mends it and sees the next
    path = [part for part in first["loc"] if part not in UNION_TAGS]
    key = dotted(path, prefix)
    value, kind = first["input"], first["type"]
    field = field_at(model, path)
    if kind == "missing":
        return UserError(key, None, "is needed and has no default", hint=f"add {key}=...")
    if kind == "extra_forbidden":
        return unknown_key(key, value, known_keys(model, path[:-1]))
    if value is None:
        return UserError(key, "null", "must be given", allowed=allowed_values(field))
    if kind == "literal_error":
        return _not_a_choice(key, value, field)
    written = as_typed(value) if _is_whole(field) else value
    problem = problem_of(kind, first["msg"], field)
    return UserError(key, written, problem, allowed=allowed_values(field))


def _not_a_choice(key: str, value: object, field: FieldInfo | None) -> UserError:
    """Return the error for a word that is none of a field's few, which may take numbers beside them."""
    close = nearest(str(value), [str(choice) for choice in choices_of(field)])
    hint = f"did you mean: {close}" if close else ""
    return UserError(key, value, "not one of its choices", allowed=allowed_values(field), hint=hint)


def problem_of(kind: str, message: str, field: FieldInfo | None) -> str:
    """Return what is wrong with a value, by the kind of pydantic's error."""
    if kind in BELOW:
        return "too small" if _is_whole(field) else "out of range"
    if kind in ABOVE:
        return "too large" if _is_whole(field) else "out of range"
    if kind in CUSTOM:
        return message
    if kind == "too_short":
        return "is empty"
    return "wrong type"


def unknown_key(key: str, value: object, siblings: Sequence[str]) -> UserError:
    """Return the error for a setting that does not exist, with the nearest one that does."""
    close = nearest(key.rpartition(".")[2], siblings)
    parent = key.rpartition(".")[0]
    hint = f"did you mean: {parent}.{close}".replace(": .", ": ") if close else ""
    return UserError(key, value, "there is no such setting", allowed=", ".join(sorted(siblings)), hint=hint)


def dotted(path: Sequence[str | int], prefix: str = "") -> str:
    """Return `eval.lengths[2]` for ("eval", "lengths", 2)."""
    key = prefix
    for part in path:
        if isinstance(part, int):
            key += f"[{part}]"
        else:
            key += f".{part}" if key else part
    return key


def field_at(model: type[BaseModel], path: Sequence[str | int]) -> FieldInfo | None:
    """Return the field that a path of keys leads to; None where a list or a plain mapping lies between."""
    field: FieldInfo | None = None
    current: type[BaseModel] | None = model
    for part in path:
        if current is None or not isinstance(part, str):
            return field if isinstance(part, int) else None
        field = current.model_fields.get(part)
        current = None if field is None else _model_in(field.annotation)
    return field


def known_keys(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Return the keys of the group that a path leads to."""
    current: type[BaseModel] | None = model
    for part in path:
        field = current.model_fields.get(str(part)) if current is not None else None
        current = None if field is None else _model_in(field.annotation)
    return [] if current is None else keys_of_users(current)


def allowed_values(field: FieldInfo | None) -> str:
    """Return in words what a field takes: `a whole number from 1 to 64, or null`."""
    return "" if field is None else describe(field.annotation, field.metadata)


def choices_of(field: FieldInfo | None) -> list[object]:
    """Return the values that a field of few values takes."""
    return (
        []
        if field is None
        else [choice for kind in _literals_in(field.annotation) for choice in get_args(kind)]
    )


def describe(annotation: Any, metadata: Sequence[Any] = ()) -> str:
    """Return a type in words, with its bounds."""
    origin, options = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return describe(options[0], [*options[1:], *metadata])
    if origin in (Union, types.UnionType):
        words = " or ".join(describe(option) for option in options if option is not type(None))
        return f"{words}, or null" if type(None) in options else words
    if origin is list:
        return f"a list [a,b], each {describe(options[0])}"
    if origin is tuple:
        return f"[{', '.join(describe(option) for option in options)}]"
    if origin is Literal:
        return ", ".join(map(str, options))
    if annotation in (int, float):
        return WORDS[annotation] + _bounds(annotation, metadata)
    return WORDS.get(origin or annotation, getattr(annotation, "__name__", str(annotation)))


def _bounds(kind: type, metadata: Sequence[Any]) -> str:
    """Return ` from 1 to 64`, ` above 0`, or nothing."""
    text = ""
    for bound in metadata:
        if isinstance(bound, annotated_types.Ge):
            text += f" from {bound.ge}"
        elif isinstance(bound, annotated_types.Gt):
            text += f" above {bound.gt}"
        elif isinstance(bound, annotated_types.Le):
            text += f" to {bound.le}"
    return text


def _is_whole(field: FieldInfo | None) -> bool:
    """Tell whether a field takes whole numbers."""
    return field is not None and int in _types_in(field.annotation)


def _types_in(annotation: Any) -> set[Any]:
    """Return the plain types that an annotation is made of."""
    options = get_args(annotation)
    if get_origin(annotation) is Annotated:
        return _types_in(options[0])
    if get_origin(annotation) in (Union, types.UnionType):
        return {kind for option in options for kind in _types_in(option)}
    return {annotation}


def _literals_in(annotation: Any) -> list[Any]:
    return [kind for kind in _types_in(annotation) if get_origin(kind) is Literal]


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Return the settings type in an annotation such as `PlantSettings | None`."""
    for kind in _types_in(annotation):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def type_words(value: object) -> str:
    """Return `wrong type (int)`."""
    return f"wrong type ({type(value).__name__})"


def largest_allowed() -> str:
    """Return the bound of every whole number in words."""
    return f"up to {LARGEST_WHOLE}"
