"""Check the parameters of a choice by the typed signature of the function or class that takes them.

The YAML of a group holds the values, the signature holds names and types, so each is written once.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic_core import PydanticCustomError

from posenc.core.errors import UserError, nearest
from posenc.settings.base import Choice
from posenc.settings.errors import describe, dotted, largest_allowed, type_words
from posenc.settings.numbers import Flag, Number, Whole

CHECKED: dict[Any, Any] = {int: Whole, float: Number, bool: Flag}  # plain types, and what checks them here
NO_DEFAULT = inspect.Parameter.empty


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters that settings may name, with their types.

    Those are the keyword-only ones. Of an encoding, which takes its `shape` first, all that follow it.
    """
    constructor = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(constructor)
    return {parameter.name: hints.get(parameter.name, Any) for parameter in _declared(function)}


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of those parameters. posenc's own have none, a user's class may."""
    return {
        parameter.name: parameter.default
        for parameter in _declared(function)
        if parameter.default is not NO_DEFAULT
    }


def _declared(function: Callable[..., Any]) -> list[inspect.Parameter]:
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "shape":  # the author of an encoding may have left out the `*`
        by_keyword = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return [parameter for parameter in parameters[1:] if parameter.kind in by_keyword]
    return [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


# Making one takes a millisecond, and a law may build the same encoding dozens of times.
@functools.lru_cache(maxsize=512)
def parameters_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the settings type of a function's parameters."""
    defaults = defaults_of(function)
    fields: dict[str, Any] = {}
    for name, kind in parameters_of(function).items():
        fields[name] = (checked_type(kind), defaults.get(name, ...))
    config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    return create_model(f"{function.__name__} parameters", __config__=config, **fields)


def checked_type(kind: Any) -> Any:
    """Return the type that checks a plain one: a whole number takes 4.0, a number takes 3, neither `true`."""
    origin, options = get_origin(kind), get_args(kind)
    if kind in CHECKED:
        return CHECKED[kind]
    if origin is list:
        return list[checked_type(options[0])]  # type: ignore[misc]
    if origin in (Union, types.UnionType):
        return _checked_union(options)
    return kind


def _checked_union(options: tuple[Any, ...]) -> Any:
    """Return a type that takes what the first fitting option takes, with one error where none fits."""
    # pydantic would report an error for every option; a user wants one, with all that is allowed
    adapters = [TypeAdapter(checked_type(option)) for option in options]

    def first_that_fits(value: Any) -> Any:
        for adapter in adapters:
            try:
                return adapter.validate_python(value)
            except ValidationError:
                continue
        raise PydanticCustomError("wrong_type", "wrong type")

    return Annotated[Any, BeforeValidator(first_that_fits)]


def check_arguments(function: Callable[..., Any], given: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """Return `given` as keyword arguments of `function`, each of its type.

    Raises UserError, which names `prefix.key`.
    """
    declared = parameters_of(function)
    for key, value in given.items():
        if key not in declared:
            raise _no_such_parameter(f"{prefix}.{key}", value, prefix, list(declared))
    model = parameters_model(function)
    try:
        checked = model.model_validate(dict(given))
    except ValidationError as error:
        raise _refused(error, declared, prefix) from None
    return {key: getattr(checked, key) for key in given}


def _no_such_parameter(key: str, value: object, prefix: str, declared: list[str]) -> UserError:
    close = nearest(key.removeprefix(f"{prefix}."), declared)
    allowed = ", ".join(sorted(declared)) or "none: it has no parameters"
    hint = f"did you mean: {prefix}.{close}" if close else ""
    return UserError(key, value, "there is no such parameter", allowed=allowed, hint=hint)


def _refused(error: ValidationError, declared: Mapping[str, Any], prefix: str) -> UserError:
    """Return what a signature refused, in the user's words."""
    first = error.errors(include_url=False)[0]
    path, value, kind = first["loc"], first["input"], first["type"]
    key = dotted(path, prefix)
    annotation = declared[str(path[0])]
    if kind == "missing":
        return UserError(key, None, "missing; every default lives in the YAML of its group, or say it here")
    if kind == "literal_error":
        return UserError(key, value, "not one of its choices", allowed=get_args(annotation))
    if kind == "too_large":
        return UserError(key, value, "too large", allowed=largest_allowed())
    problem = "out of range" if kind == "out_of_range" else type_words(value)
    return UserError(key, value, problem, allowed=describe(annotation))


def check_choice(
    group: str, choice: Choice, choices: Mapping[str, Callable[..., Any]], unknown: str
) -> dict[str, Any]:
    """Return the parameters of a choice, checked by the signature of what it names. Raises UserError.

    `unknown` says what is wrong with a name that is not among the choices.
    """
    if choice.name not in choices:
        raise UserError(group, choice.name, unknown, allowed=list(choices))
    return check_arguments(choices[choice.name], choice.parameters, group)
