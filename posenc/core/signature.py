"""Check the keys of a config group against the typed signature of the function that will take them.

The YAML holds the values, the signature holds names and types: so a parameter is written once in each, and a
misspelt or ill-typed one is refused before any data is read.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, Union

from posenc.core.errors import UserError, nearest

KEYWORD = "in the class put * before it: def __init__(self, shape, *, ...)"


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Keyword-only parameters of `function` (or of a class's `__init__`) and their resolved types."""
    target = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(target)
    kinds = inspect.signature(target).parameters
    return {
        name: hints.get(name, Any)
        for name, parameter in kinds.items()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Defaults of keyword-only parameters: posenc's own have none, a class of the user's may."""
    parameters = inspect.signature(function).parameters
    there = {key: parameters[key].default for key in parameters_of(function)}
    return {key: value for key, value in there.items() if value is not inspect.Parameter.empty}


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """`given` as keyword arguments of `function`, each of its declared type.

    Only keyword-only parameters count, so positional ones stay for what the caller knows. An int is taken
    where a float is declared. Raises UserError for an unknown, missing or ill-typed key, printed as
    `prefix.key`.
    """
    declared = parameters_of(function)
    required = inspect.signature(function).parameters
    for key, value in given.items():
        if key not in declared:
            if key in required:
                raise UserError(f"{prefix}.{key}", value, "its parameter is not keyword-only", hint=KEYWORD)
            close = nearest(str(key), declared)
            raise UserError(
                f"{prefix}.{key}",
                value,
                "there is no such parameter",
                allowed=", ".join(sorted(declared)) or "none: it has no parameters",
                hint=f"did you mean: {prefix}.{close}" if close else None,
            )
    for key in declared:
        if key not in given and required[key].default is inspect.Parameter.empty:
            raise UserError(
                f"{prefix}.{key}",
                None,
                "missing; every default lives in the YAML of its group, or say it here",
            )
    return {key: _typed(value, declared[key], f"{prefix}.{key}") for key, value in given.items()}


def _typed(value: Any, kind: Any, key: str) -> Any:
    if kind is Any:
        return value
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if not any(type(value) is type(option) and value == option for option in options):
            raise UserError(key, value, "not one of its choices", allowed=options)
        return value
    if origin in (Union, types.UnionType):
        if value is None and type(None) in options:
            return None
        for option in options:
            try:
                return _typed(value, option, key)
            except UserError:
                continue
        raise UserError(key, value, "wrong type", allowed=_words(kind))
    if origin is list or kind is list:
        if not isinstance(value, list):
            raise UserError(key, value, "wrong type", allowed=_words(kind))
        element = options[0] if options else Any
        return [_typed(item, element, f"{key}[{i}]") for i, item in enumerate(value)]
    if origin is dict or kind is dict:
        if not isinstance(value, dict):
            raise UserError(key, value, "wrong type", allowed="a mapping")
        return value
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind in (int, float, str, bool, type(None)) and type(value) is not kind:
        raise UserError(key, value, f"wrong type ({type(value).__name__})", allowed=_words(kind))
    return value


def _words(kind: Any) -> str:
    names = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(option) for option in options)
    if origin is list:
        return f"a list, each {_words(options[0])}"
    if origin is Literal:
        return ", ".join(map(str, options))
    return names.get(kind, getattr(kind, "__name__", str(kind)))
