"""From the `encoding` group's settings to an encoding: typed, completed from its YAML, built for a shape."""

from __future__ import annotations

import traceback
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from posenc.core.errors import UserError, first_line
from posenc.core.paths import choice_file
from posenc.core.signature import check_arguments, defaults_of, parameters_of
from posenc.encodings.registry import encoding_class, list_encodings, made_of

if TYPE_CHECKING:
    from posenc.encodings.base import Encoding, Shape

MOST_PARTS = 32  # encodings in a sum


def default_parameters(name: str) -> dict[str, Any]:
    """Parameters of an encoding as in its YAML `encoding/<name>.yaml`, their only home; {} without one.

    posenc's own tree is looked at first, then those of installed packages.
    """
    path = choice_file("encoding", name)
    if path is None:
        return {}
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {key: value for key, value in values.items() if key != "name"}


def resolve_encoding(settings: Mapping[str, Any], plugins: Iterable[str] = ()) -> dict[str, Any]:
    """The `encoding` group's settings as a run stores them: typed, the parts of a sum written out in full.

    So base=10000 and base=10000.0 are one run. Raises UserError for what does not exist or has a wrong type.
    """
    plugins = list(plugins)
    name = settings.get("name")
    if name is None:
        hint = "the YAML of an encoding says what it is: `name: rope`"
        raise UserError("encoding.name", None, "is missing", allowed=list_encodings(plugins), hint=hint)
    if not isinstance(name, str):
        raise UserError("encoding.name", name, "must be a name", allowed=list_encodings(plugins))
    cls = encoding_class(name, plugins)
    given = {key: value for key, value in settings.items() if key != "name"}
    checked = check_arguments(cls, {**defaults_of(cls), **given}, "encoding")
    for key in made_of(cls):
        if (count := len(checked[key])) > MOST_PARTS:
            raise UserError(
                f"encoding.{key}", f"{count} encodings", "too many", allowed=f"at most {MOST_PARTS}"
            )
        checked[key] = [
            _resolve_part(part, f"encoding.{key}[{i}]", plugins) for i, part in enumerate(checked[key])
        ]
    return {"name": name, **checked}


def _resolve_part(part: Any, key: str, plugins: list[str]) -> dict[str, Any]:
    settings = {"name": part} if isinstance(part, str) else part
    if not (isinstance(settings, Mapping) and isinstance(settings.get("name"), str)):
        allowed = "a name, or a mapping such as {name: rope, base: 500000.0}"
        raise UserError(key, part, "not an encoding", allowed=allowed)
    try:
        return resolve_encoding({**_defaults_of(settings["name"], plugins), **settings}, plugins)
    except UserError as error:
        raise error.within(f"in {key}") from None


def _defaults_of(name: str, plugins: list[str]) -> dict[str, Any]:
    """Values of its YAML for the parameters that the class takes."""
    taken = parameters_of(encoding_class(name, plugins))
    return {key: value for key, value in default_parameters(name).items() if key in taken}


def build_encoding(
    name: str,
    *,
    d_model: int,
    n_heads: int,
    head_dim: int,
    n_layers: int,
    train_length: int,
    position_limit: int | None = None,
    distance_limit: int | None = None,
    plugins: Iterable[str] = (),
    **params: Any,
) -> Encoding:
    """An encoding for a model of this shape.

    Parameters that are not given are those of its YAML. Raises UserError for a name or parameter that does
    not exist, or a value of the wrong type or out of range.
    """
    from posenc.encodings.base import Shape

    plugins = list(plugins)
    shape = Shape(d_model, n_heads, head_dim, n_layers, train_length, position_limit, distance_limit)
    given = {"name": name, **_defaults_of(name, plugins), **params}
    return _built(shape, resolve_encoding(given, plugins), plugins)


def _built(shape: Shape, settings: Mapping[str, Any], plugins: list[str]) -> Encoding:
    cls = encoding_class(settings["name"], plugins)
    params = {key: value for key, value in settings.items() if key != "name"}
    for key in made_of(cls):
        params[key] = [_built(shape, part, plugins) for part in params[key]]
    try:
        return cls(shape, **params)
    except ValueError as error:
        raise UserError("encoding", settings["name"], str(error)) from error
    except Exception as error:
        if cls.__module__.startswith("posenc."):
            raise
        last = traceback.extract_tb(error.__traceback__)[-1]
        place = f"{Path(last.filename).name}:{last.lineno}"
        problem = f"its class raises {type(error).__name__}: {first_line(error)} ({place})"
        raise UserError("encoding", settings["name"], problem, hint="--debug shows all of it") from error
