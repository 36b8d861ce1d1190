"""From `extend.name` to an extension of a trained model: the modules of this package."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from posenc.core.errors import UserError
from posenc.core.paths import choice_file
from posenc.core.signature import check_arguments
from posenc.evaluation.extend._base import Extension, NotForThisEncodingError, RefusedError
from posenc.evaluation.extend._parts import name_of
from posenc.model.decoder import Decoder

NONE = "none"  # the model as trained


def list_extensions() -> list[str]:
    """All names that `extend.name` may take, without `none`."""
    modules = pkgutil.iter_modules([str(Path(__file__).parent)])
    return sorted(module.name for module in modules if not module.name.startswith("_"))


def extension_class(name: object) -> type[Extension]:
    """The class behind a name. Raises UserError with the nearest name if there is none."""
    if name not in list_extensions():
        raise UserError("extend", name, "there is no such extension", allowed=[NONE, *list_extensions()])
    module = importlib.import_module(f"posenc.evaluation.extend.{name}")
    own = [one for one in vars(module).values() if isinstance(one, type) and issubclass(one, Extension)]
    found: type[Extension] = next(one for one in own if one.__module__ == module.__name__)
    return found


def resolve_extend(settings: Mapping[str, Any]) -> dict[str, Any]:
    """The `extend` group's settings as a record stores them, each knob of its declared type.

    Raises UserError for an unknown name, an unknown or missing knob, and a wrong type.
    """
    name = settings.get("name")
    given = {key: value for key, value in settings.items() if key != "name"}
    if name == NONE:
        return {"name": NONE, **check_arguments(_no_knobs, given, "extend")}
    return {"name": name, **check_arguments(extension_class(name), given, "extend")}


def build_extension(settings: Mapping[str, Any], model: Decoder) -> Extension | None:
    """The extension for this trained model, None for `none`. Knobs that are not given are those of its YAML.

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
    except (RefusedError, UserError) as reason:
        if isinstance(reason, UserError) and knobs != usual:
            raise  # what the user gave is out of range, not what goes without saying
        raise NotForThisEncodingError(
            cls, name_of(model.encoding), _said(reason), _applicable(model)
        ) from reason
    extension.settings = resolved
    return extension


def _said(reason: RefusedError | UserError) -> str:
    return f"{reason.key}: {reason.problem}" if isinstance(reason, UserError) else str(reason)


def _applicable(model: Decoder) -> list[str]:
    """The extensions that take this model with the knobs of their YAML."""
    found = []
    for name in list_extensions():
        try:
            extension_class(name)(model, **default_knobs(name))
        except (RefusedError, UserError):
            continue
        found.append(name)
    return found


def default_knobs(name: str) -> dict[str, Any]:
    """Knobs of an extension as in its YAML, their only home."""
    path = choice_file("extend", name)
    settings = yaml.safe_load(path.read_text(encoding="utf-8")) if path else {}
    return {key: value for key, value in settings.items() if key != "name"}


def _no_knobs() -> None:
    """Its signature says that `none` takes nothing."""
