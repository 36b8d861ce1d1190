"""Check a config group against the typed signature of the function that takes it, and numbers.

The YAML holds the values, the signature names and types, so each is written once. By hand and not by
pydantic: importing that takes 0.1 s, and its words are not the user's.
"""

from __future__ import annotations

import inspect
import math
import types
import typing
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, Literal, Union

from posenc.core.errors import UserError, nearest

LARGEST = 2**63 - 1  # what files, seeds and tensors can hold
WORDS = {int: "a whole number", float: "a number", str: "text", bool: "true or false", list: "a list [a,b]"}
WORDS[type(None)] = "null"


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters that settings may name, and their resolved types.

    Those are keyword-only; of an encoding, which takes its `shape` first, all behind it.
    """
    hints = typing.get_type_hints(function.__init__ if inspect.isclass(function) else function)
    return {one.name: hints.get(one.name, Any) for one in _declared(function)}


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of those parameters: posenc's own have none, a user's class may."""
    return {one.name: one.default for one in _declared(function) if one.default is not one.empty}


def _declared(function: Callable[..., Any]) -> list[inspect.Parameter]:
    every = list(inspect.signature(function).parameters.values())
    if every and every[0].name == "shape":  # its author may have left out the `*`
        return [one for one in every[1:] if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY)]
    return [one for one in every if one.kind is one.KEYWORD_ONLY]


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return `given` as keyword arguments of `function`, each of its type; UserError names `prefix.key`."""
    declared = parameters_of(function)
    signature = inspect.signature(function).parameters
    for key, value in given.items():
        if key not in declared:
            close = nearest(str(key), declared)
            allowed = ", ".join(sorted(declared)) or "none: it has no parameters"
            hint = f"did you mean: {prefix}.{close}" if close else ""
            raise UserError(
                f"{prefix}.{key}", value, "there is no such parameter", allowed=allowed, hint=hint
            )
        if isinstance(value, int) and abs(value) > LARGEST:
            raise UserError(f"{prefix}.{key}", value, "too large", allowed=f"up to {LARGEST}")
    for key in declared:
        if key not in given and signature[key].default is inspect.Parameter.empty:
            problem = "missing; every default lives in the YAML of its group, or say it here"
            raise UserError(f"{prefix}.{key}", None, problem)
    return {key: typed(value, declared[key], f"{prefix}.{key}") for key, value in given.items()}


def parameters(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a config group's settings hold beside the `name` of their choice."""
    return {str(key): value for key, value in settings.items() if key != "name"}


def check_choice(
    group: str, settings: Mapping[str, Any], choices: Mapping[str, Callable[..., Any]], unknown: str
) -> dict[str, Any]:
    """Return settings as `{name, **arguments}` of the choice that they name. Raises UserError."""
    name = settings.get("name")
    if not isinstance(name, str) or name not in choices:
        raise UserError(group, name, unknown, allowed=list(choices))
    return {"name": name, **check_arguments(choices[name], parameters(settings), group)}


def typed(value: Any, kind: Any, key: str) -> Any:
    """Return a value as one of a type (3 as 3.0), the items of a list too. Raises UserError."""
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is Literal:
        if not any(type(value) is type(option) and value == option for option in options):
            raise UserError(key, value, "not one of its choices", allowed=options)
    elif origin in (Union, types.UnionType):
        for option in options:
            with suppress(UserError):
                return typed(value, option, key)
        raise UserError(key, value, "wrong type", allowed=_words(kind))
    elif origin is list or kind is list:
        if not isinstance(value, list):
            raise UserError(key, value, "wrong type", allowed=_words(kind))
        return [typed(item, options[0] if options else Any, f"{key}[{i}]") for i, item in enumerate(value)]
    elif origin is dict or kind is dict:
        if not isinstance(value, dict):
            raise UserError(key, value, "wrong type", allowed="a mapping")
    elif kind is float and type(value) is int:
        return float(value)
    elif kind in WORDS and type(value) is not kind:
        raise UserError(key, value, f"wrong type ({type(value).__name__})", allowed=_words(kind))
    return value


def whole(key: str, value: Any, *, least: int, most: int = LARGEST, low: str = "too small") -> int:
    """Return a whole number from `least` to `most`; 6e6 is one. Raises UserError, with `low` below it."""
    allowed = f"a whole number from {least}" + (f" to {most}" if most < LARGEST else "")
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(key, value, "wrong type", allowed=allowed)
    if isinstance(value, float) and not value.is_integer():  # nor are nan and infinity
        raise UserError(key, value, "not a whole number", allowed=allowed)
    if not least <= value <= most:
        written = f"{value:.0f}" if abs(value) < 1e16 else repr(value).replace("e+", "e")  # 1e30 as typed
        raise UserError(key, written, low if value < least else "too large", allowed=allowed)
    return int(value)


def between(key: str, value: float, low: float, high: float = math.inf, *, open_low: bool = False) -> float:
    """Return a number in [low, high] or (low, high]. Raises UserError."""
    inside = (low < value if open_low else low <= value) and value <= high
    if not inside or not math.isfinite(value):
        words = f"{'above' if open_low else 'from'} {low:g}" + (f" to {high:g}" if high < math.inf else "")
        raise UserError(key, value, "out of range", allowed=f"a number {words}")
    return float(value)


def _words(kind: Any) -> str:
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        return " or ".join(_words(option) for option in options)
    if origin is list:
        return f"a list, each {_words(options[0])}"
    if origin is Literal:
        return ", ".join(map(str, options))
    return WORDS.get(kind, getattr(kind, "__name__", str(kind)))
