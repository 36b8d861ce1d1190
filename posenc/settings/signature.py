"""Check the parameters of a choice by the typed signature of the function or class that takes them.

The YAML of a group holds the values, the signature holds names and types, so each is written once.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from types import NoneType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, ConfigDict, TypeAdapter, ValidationError, create_model
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from posenc.core.errors import UserError
from posenc.settings.base import Choice
from posenc.settings.errors import PARAMETER, dotted, first_refusal, refused_value, unknown_key
from posenc.settings.numbers import Flag, Number, Whole

# the types of an author's signature, and the types of settings that check their values
SETTINGS_TYPES: dict[Any, Any] = {int: Whole, float: Number, bool: Flag}
UNIONS = (Union, types.UnionType)  # `Union[a, b]` and `a | b`
NO_DEFAULT = inspect.Parameter.empty
BY_KEYWORD = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def check_choice(
    group: str, choice: Choice, choices: Mapping[str, Callable[..., Any]], unknown: str
) -> dict[str, Any]:
    """Return the parameters of a choice, checked by the signature of the function or class that it names.

    Raises UserError. `unknown` is the problem to report for a name that is not among the choices.
    """
    if choice.name not in choices:
        raise UserError(group, choice.name, unknown, allowed=list(choices))
    return check_arguments(choices[choice.name], choice.parameters, group)


def check_arguments(
    function: Callable[..., Any], arguments: Mapping[str, Any], prefix: str
) -> dict[str, Any]:
    """Return the arguments for a function, each as the type that its signature declares.

    Raises UserError, which names `prefix.key`.
    """
    declared = parameters_of(function)
    for name, value in arguments.items():
        if name not in declared:
            raise unknown_key(f"{prefix}.{name}", value, list(declared), PARAMETER)
    try:
        checked = parameters_model(function).model_validate(dict(arguments))
    except ValidationError as error:
        first = first_refusal(error)
        path = first["loc"]
        # as the author declared it: the settings type of a union does not say what it takes
        field = FieldInfo.from_annotation(declared[str(path[0])])
        raise refused_value(first, dotted(path, prefix), field, PARAMETER) from None
    return {name: getattr(checked, name) for name in arguments}


def parameters_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the parameters that settings may name, with their types.

    These are the keyword-only parameters. An encoding takes its `shape` first, and all others count.
    """
    constructor = function.__init__ if inspect.isclass(function) else function
    hints = typing.get_type_hints(constructor, include_extras=True)
    return {parameter.name: hints.get(parameter.name, Any) for parameter in _declared(function)}


def defaults_of(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the defaults of those parameters. posenc's own have none, a user's class may."""
    return {
        parameter.name: parameter.default
        for parameter in _declared(function)
        if parameter.default is not NO_DEFAULT
    }


def _declared(function: Callable[..., Any]) -> list[inspect.Parameter]:
    """Return the parameters that settings may name, as Python inspects them."""
    parameters = list(inspect.signature(function).parameters.values())
    if parameters and parameters[0].name == "shape":
        # the author of an encoding may have left out the `*`
        return [parameter for parameter in parameters[1:] if parameter.kind in BY_KEYWORD]
    return [parameter for parameter in parameters if parameter.kind is inspect.Parameter.KEYWORD_ONLY]


# --- The settings type of a signature


# Making one takes a millisecond, and a law may build the same encoding dozens of times.
@functools.lru_cache(maxsize=512)
def parameters_model(function: Callable[..., Any]) -> type[BaseModel]:
    """Return the settings type of a function's parameters."""
    defaults = defaults_of(function)
    fields: dict[str, Any] = {}
    for name, annotation in parameters_of(function).items():
        required = ...  # pydantic's sign for a field without a default
        fields[name] = (settings_type(annotation), defaults.get(name, required))
    config = ConfigDict(frozen=True, extra="forbid", arbitrary_types_allowed=True, protected_namespaces=())
    return create_model(f"{function.__name__} parameters", __config__=config, **fields)


def settings_type(annotation: Any) -> Any:
    """Return the type that checks values for a type of a signature.

    Whole numbers may be written as 4.0 and numbers as 3, but `true` is neither.
    """
    origin = get_origin(annotation)
    arguments = get_args(annotation)
    if annotation in SETTINGS_TYPES:
        return SETTINGS_TYPES[annotation]
    if origin is Annotated:
        inner, *metadata = arguments
        return _with_metadata(inner, metadata)
    if origin in (list, tuple) and arguments:
        return origin[tuple(map(settings_type, arguments))]
    if origin in UNIONS:
        return _union_type(arguments)
    return annotation


def _with_metadata(annotation: Any, metadata: Sequence[Any]) -> Any:
    """Return the type that checks values for `Annotated[annotation, *metadata]`."""
    if get_origin(annotation) in UNIONS:
        # The options get it, as pydantic does it itself: None has no size to compare with a bound.
        options = get_args(annotation)
        return _union_type(
            tuple(option if option is NoneType else Annotated[option, *metadata] for option in options)
        )
    return Annotated[settings_type(annotation), *metadata]


def _union_type(options: tuple[Any, ...]) -> Any:
    """Return the type that checks a union: the first option that accepts a value decides what it becomes."""
    without_none = [option for option in options if option is not NoneType]
    # What refuses a value here is the one type beside None, and pydantic's error says more than "wrong type".
    if len(without_none) == 1 and len(options) == 2:
        return settings_type(without_none[0]) | None
    # pydantic would report an error for every option; a user wants one, with all that is allowed
    adapters = [TypeAdapter(settings_type(option)) for option in options]

    def by_first_accepting_option(value: Any) -> Any:
        for adapter in adapters:
            try:
                return adapter.validate_python(value)
            except ValidationError:
                continue
        raise PydanticCustomError("wrong_type", "wrong type")

    return Annotated[Any, BeforeValidator(by_first_accepting_option)]
