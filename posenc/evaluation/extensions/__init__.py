"""Test-time extensions, `extend=NAME`: what is done to a trained model at windows beyond its training length.

An extension is a class of a module here that has a `name`, and `conf/extend/<name>.yaml`. Nothing is trained,
and the trained model is never changed: an extension gives the encoding that the attention sees in its place.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from collections.abc import Mapping
from typing import Any

import yaml

from posenc.core.errors import UserError
from posenc.core.paths import choice_file
from posenc.core.signature import check_arguments
from posenc.evaluation.extensions.base import Extension, NotForThisEncodingError, RefusedError
from posenc.model.decoder import Decoder

__all__ = [
    "Extension",
    "NotForThisEncodingError",
    "build_extension",
    "default_knobs",
    "extension_class",
    "list_extensions",
    "resolve_extend",
]

NONE = "none"  # the model as trained


@functools.cache
def _classes() -> dict[str, type[Extension]]:
    modules = [importlib.import_module(f"{__name__}.{one.name}") for one in pkgutil.iter_modules(__path__)]
    found = [one for module in modules for one in vars(module).values() if isinstance(one, type)]
    return {cls.name: cls for cls in found if issubclass(cls, Extension) and "name" in vars(cls)}


def list_extensions() -> list[str]:
    """List the names that `extend` may take, without `none`."""
    return sorted(_classes())


def extension_class(name: object) -> type[Extension]:
    """Return the class of a name. Raises UserError with the nearest name if there is none."""
    if not isinstance(name, str) or name not in _classes():
        raise UserError("extend", name, "there is no such extension", allowed=[NONE, *list_extensions()])
    return _classes()[name]


def resolve_extend(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Check the `extend` group and return it as a record stores it, each knob of its declared type.

    Raises UserError for an unknown name, an unknown or missing knob, and a wrong type.
    """
    name = settings.get("name")
    knobs = {key: value for key, value in settings.items() if key != "name"}
    if name == NONE:
        return {"name": NONE, **check_arguments(_no_knobs, knobs, "extend")}
    return {"name": name, **check_arguments(extension_class(name), knobs, "extend")}


def build_extension(settings: Mapping[str, Any], model: Decoder) -> Extension | None:
    """Build the extension for this trained model, None for `none`; missing knobs come from its YAML.

    Raises UserError for settings that are wrong, NotForThisEncodingError for a model it does not apply to.
    """
    if settings.get("name") == NONE:
        resolve_extend(settings)
        return None
    cls = extension_class(settings.get("name"))
    usual = default_knobs(cls.name)
    resolved = resolve_extend({**usual, **settings})
    knobs = {key: value for key, value in resolved.items() if key != "name"}
    try:
        extension = cls(model, **knobs)
    except (RefusedError, UserError) as error:
        if isinstance(error, UserError) and knobs != usual:
            raise  # the user's value is out of range, not a default
        reason = f"{error.key}: {error.problem}" if isinstance(error, UserError) else str(error)
        raise NotForThisEncodingError(cls, model.encoding.name, reason) from error
    extension.settings = resolved
    return extension


def default_knobs(name: str) -> dict[str, Any]:
    """Read the knobs of an extension from its YAML, the only place that has them."""
    path = choice_file("extend", name)
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) if path else {}
    return {key: value for key, value in settings.items() if key != "name"}


def _no_knobs() -> None:
    """Declare the knobs of `none`: there are none."""
