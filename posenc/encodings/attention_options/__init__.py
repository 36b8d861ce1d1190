"""Options of every attention, `attention.<key>=VALUE`: a window, scales, normalisers, gates, shifted keys.

Each option is a module here with a class that derives from `AttentionOption`. Its key stands in
`conf/attention/*.yaml` with the value that switches it off.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from inspect import Parameter, Signature
from typing import Any, Literal

from posenc.encodings.attention_options.base import AttentionOption
from posenc.encodings.modules import classes_that_set


@functools.cache
def attention_options() -> list[type[AttentionOption]]:
    """Return the classes of all options, in the order in which they act."""
    # An option gives its key a value. Abstract bases such as `Gate` do not.
    classes = classes_that_set("key", __name__, __path__, AttentionOption)
    # Key and choice after the order, so that options of one order do not act by the names of their files.
    return sorted(classes, key=lambda cls: (cls.order, cls.key, str(cls.choice)))


def option_keys() -> dict[str, Any]:
    """Return, for each option's key in the group `attention`, the type of its value."""
    types: dict[str, Any] = {}
    names: dict[str, list[str]] = {}  # key -> allowed names, for options that are chosen by a name
    for cls in attention_options():
        # `choice` is the name that chooses the option, or the type of its value
        if isinstance(cls.choice, str):
            # Several options share a key (`normalizer`), so their names are collected before the type is
            # made.
            names.setdefault(cls.key, [str(cls.off)])
            names[cls.key].append(cls.choice)
        elif cls.off is None:
            types[cls.key] = cls.choice | None
        else:
            types[cls.key] = cls.choice
    for key, choices in names.items():
        types[key] = Literal[tuple(choices)]
    return types


def chosen_options(settings: Mapping[str, Any]) -> list[tuple[type[AttentionOption], Any]]:
    """Return the options that the group `attention` switches on, each with its value, in their order."""
    chosen: list[tuple[type[AttentionOption], Any]] = []
    for cls in attention_options():
        # Settings of runs that are older than an option do not have its key.
        value = settings.get(cls.key, cls.off)
        # a value that is no name switches its option on unless it is the value `off`
        is_named = isinstance(cls.choice, str)
        is_on = value == cls.choice if is_named else value != cls.off
        if is_on:
            chosen.append((cls, value))
    return chosen


@functools.cache
def options_signature() -> Callable[..., None]:
    """Return a function whose keyword-only parameters are the options.

    `check_arguments` reads its signature to check the settings of the group `attention`.
    """

    def options(**values: object) -> None:
        """Do nothing: only the signature is used."""

    types = option_keys()
    parameters = [Parameter(key, Parameter.KEYWORD_ONLY, annotation=kind) for key, kind in types.items()]
    options.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
    options.__annotations__ = types
    return options
