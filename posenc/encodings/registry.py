"""From the settings of the `encoding` group to an encoding: its class by name, its parameters checked, built.

A name is looked up in posenc's own modules, then in entry points, then in the modules of `plugins=`. Nothing
is imported because a file of a run names it: a plug-in must be named on the command line.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import sys
import traceback
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from posenc.core.errors import UserError, first_line
from posenc.core.paths import choice_file
from posenc.core.signature import check_arguments, defaults_of, parameters_of

if TYPE_CHECKING:
    from posenc.encodings.base import Encoding, Shape

ENTRY_POINTS = "posenc.encodings"
NOT_ENCODINGS = {"base", "options", "registry"}
MOST_PARTS = 32  # encodings in a sum


def own_encodings() -> list[str]:
    """Return the names of the encodings in this package: its modules."""
    here = [str(Path(__file__).parent)]
    modules = (m for m in pkgutil.iter_modules(here) if not m.ispkg)
    return sorted(m.name for m in modules if m.name not in NOT_ENCODINGS)


def list_encodings(plugins: Iterable[str] = ()) -> list[str]:
    """Return all names that `encoding.name` may take."""
    return sorted({*own_encodings(), *_entry_points(), *_plugin_classes(plugins)})


def encoding_class(name: str, plugins: Iterable[str] = ()) -> type[Encoding]:
    """Return the class of a name. Raises UserError with the nearest name if there is none."""
    plugins = list(plugins)
    classes = _plugin_classes(plugins)  # even if it is not needed: a misspelt plug-in must not pass
    if name in own_encodings():
        return _classes_in(importlib.import_module(f"posenc.encodings.{name}"))[name]
    points = _entry_points()
    if name in points:
        return _load(points[name])
    if name in classes:
        return classes[name]
    raise UserError(
        "encoding",
        name,
        "there is no such encoding",
        allowed=list_encodings(plugins),
        hint="one of your own: plugins=[MODULE]; after posenc encodings: --plugin MODULE",
    )


def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(point: EntryPoint) -> type[Encoding]:
    from posenc.encodings.base import Encoding

    try:
        cls = point.load()
    except Exception as error:  # an installed package that is broken
        problem = f"cannot be imported from {point.value} ({type(error).__name__}: {error})"
        raise UserError("encoding", point.name, problem) from error
    if not (inspect.isclass(cls) and issubclass(cls, Encoding)):
        raise UserError("encoding", point.name, f"{point.value} is not an Encoding")
    found: type[Encoding] = cls
    return found


def _classes_in(module: Any, named: bool = True) -> dict[str, type[Encoding]]:
    """Return the encodings defined in a module by `name`, or those without one by the class's name."""
    from posenc.encodings.base import Encoding

    defined = [
        cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Encoding) and cls.__module__ == module.__name__
    ]
    return {getattr(cls, "name", cls.__name__): cls for cls in defined if hasattr(cls, "name") == named}


def _plugin_classes(plugins: Iterable[str]) -> dict[str, type[Encoding]]:
    found: dict[str, type[Encoding]] = {}
    here = str(Path.cwd())
    if plugins and here not in sys.path:
        sys.path.append(here)  # last: it must not take the place of an installed module
    for plugin in plugins:
        module = _import_plugin(plugin)
        classes = _classes_in(module)
        if not classes and (nameless := _classes_in(module, named=False)):
            problem = f"its class {next(iter(nameless))} has no `name`, so no YAML can mean it"
            raise UserError("plugins", plugin, problem, hint='name = "..." in the class, as in its YAML')
        for name, cls in classes.items():
            owner = _owner(name, cls, found)
            if owner is not None:
                problem = f"its encoding {name} has the name of one of {owner}"
                raise UserError("plugins", plugin, problem, hint="give it another name")
            found[name] = cls
    return found


def _import_plugin(plugin: str) -> Any:
    try:
        return importlib.import_module(plugin)
    except (Exception, SystemExit) as error:  # the user's code may raise anything
        hint = None
        if plugin.endswith(".py"):
            hint = f"a module, not a file: plugins=[{plugin.removesuffix('.py')}]"
        elif isinstance(error, ModuleNotFoundError) and _top(plugin) == _top(error.name or ""):
            hint = "it must be in this folder or on PYTHONPATH"
        problem = f"cannot be imported ({type(error).__name__}: {error})"
        raise UserError("plugins", plugin, problem, hint=hint) from error


def _top(module: str) -> str:
    return module.partition(".")[0]


def _owner(name: str, cls: type[Encoding], plugins: Mapping[str, type[Encoding]]) -> str | None:
    """Return who else has an encoding of this name, in words; None if nobody has."""
    if name in own_encodings():
        return "posenc's"
    point = _entry_points().get(name)
    if point is not None and _load(point) is not cls:
        return f"the installed {point.value}"
    other = plugins.get(name, cls)
    return None if other is cls else f"the plug-in {other.__module__}"


def default_parameters(name: str) -> dict[str, Any]:
    """Return the parameters in `encoding/<name>.yaml`, of posenc or an installed package; {} without one."""
    path = choice_file("encoding", name)
    if path is None:
        return {}
    values: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return {key: value for key, value in values.items() if key != "name"}


def part_parameters(cls: type[Encoding]) -> list[str]:
    """Return the parameters of a class that are encodings themselves: those declared as list[Encoding]."""
    from posenc.encodings.base import Encoding

    return [key for key, kind in parameters_of(cls).items() if kind == list[Encoding]]


def resolve_encoding(settings: Mapping[str, Any], plugins: Iterable[str] = ()) -> dict[str, Any]:
    """Return the `encoding` group's settings as a run stores them: typed, the parts of a sum in full.

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
    for key in part_parameters(cls):
        if (count := len(checked[key])) > MOST_PARTS:
            allowed = f"at most {MOST_PARTS}"
            raise UserError(f"encoding.{key}", f"{count} encodings", "too many", allowed=allowed)
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
    """Return the values in its YAML for the parameters that the class takes."""
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
    """Build an encoding for a model of this shape; parameters not given are those of its YAML.

    Raises UserError for an unknown name or parameter and for a value of the wrong type or out of range.
    """
    from posenc.encodings.base import Shape

    plugins = list(plugins)
    shape = Shape(d_model, n_heads, head_dim, n_layers, train_length, position_limit, distance_limit)
    given = {"name": name, **_defaults_of(name, plugins), **params}
    return _build(shape, resolve_encoding(given, plugins), plugins)


def _build(shape: Shape, settings: Mapping[str, Any], plugins: list[str]) -> Encoding:
    cls = encoding_class(settings["name"], plugins)
    params = {key: value for key, value in settings.items() if key != "name"}
    for key in part_parameters(cls):
        params[key] = [_build(shape, part, plugins) for part in params[key]]
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


def source_of(cls: type[Encoding]) -> dict[str, Any]:
    """Return what an encoding's numbers depend on beside its parameters; part of a run's identity.

    `revision` for posenc's own; for others the hash of the module's text too, since nobody raises a revision
    while trying things out.
    """
    text = None
    if not cls.__module__.startswith("posenc.encodings."):
        try:
            text = hashlib.sha256(inspect.getsource(inspect.getmodule(cls) or cls).encode()).hexdigest()[:16]
        except (OSError, TypeError):  # typed into an interpreter
            text = None
    return {"revision": cls.revision, "source": text}


def sources_of(settings: Mapping[str, Any], plugins: Iterable[str] = ()) -> dict[str, Any]:
    """Return `source_of` for resolved settings of the `encoding` group, with those of the parts of a sum."""
    plugins = list(plugins)
    cls = encoding_class(settings["name"], plugins)
    parts = [sources_of(part, plugins) for key in part_parameters(cls) for part in settings[key]]
    return {**source_of(cls), **({"parts": parts} if parts else {})}


def origins_of(settings: Mapping[str, Any], plugins: Iterable[str] = ()) -> dict[str, str]:
    """Return where those encodings of the settings come from that are not posenc's own.

    `{"encoding mine": "my_package 0.1.0"}`, or the module's name where no installed distribution has it.
    """
    plugins = list(plugins)
    cls = encoding_class(settings["name"], plugins)
    found: dict[str, str] = {}
    for key in part_parameters(cls):
        for part in settings[key]:
            found.update(origins_of(part, plugins))
    if not cls.__module__.startswith("posenc.encodings."):
        distributions = packages_distributions().get(_top(cls.__module__), [])
        named = [f"{one} {version(one)}" for one in distributions]
        found[f"encoding {settings['name']}"] = ", ".join(named) or f"module {cls.__module__}"
    return found
