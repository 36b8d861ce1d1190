"""From the settings of the `encoding` group to an encoding: its class by name, its parameters checked, built.

A name is looked up in posenc's own modules, then in entry points, then in the modules and files of
`plugins=`. Nothing is imported because a file of a run names it: a plug-in must be named on the command line.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint, entry_points
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import yaml

from posenc.core.errors import UserError
from posenc.core.paths import choice_file, expanded
from posenc.core.signature import check_arguments, defaults_of, parameters, parameters_of

if TYPE_CHECKING:
    from posenc.encodings.base import Encoding, Shape

ENTRY_POINTS = "posenc.encodings"
NOT_ENCODINGS = {"base", "families", "options", "registry"}


def own_encodings() -> list[str]:
    """Return the names of the encodings in this package: its modules."""
    here = [str(Path(__file__).parent)]
    return sorted(m.name for m in pkgutil.iter_modules(here) if m.name not in NOT_ENCODINGS)


def list_encodings(plugins: Sequence[str] = ()) -> list[str]:
    """Return all names that `encoding.name` may take."""
    return sorted({*own_encodings(), *_entry_points(), *_plugin_classes(plugins)})


def encoding_class(name: str, plugins: Sequence[str] = ()) -> type[Encoding]:
    """Return the class of a name. Raises UserError with the nearest name if there is none."""
    classes = _plugin_classes(plugins)  # even if it is not needed: a misspelt plug-in must not pass
    if name in own_encodings():
        return _classes_in(importlib.import_module(f"posenc.encodings.{name}"))[name]
    points = _entry_points()
    if name in points:
        return _load(points[name])
    if name in classes:
        return classes[name]
    hint = "one of your own: plugins=[MODULE] (posenc encodings: --plugin)"
    allowed = list_encodings(plugins)
    raise UserError("encoding", name, "there is no such encoding", allowed=allowed, hint=hint)


def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _load(point: EntryPoint) -> type[Encoding]:
    from posenc.encodings.base import Encoding

    try:
        cls: type[Encoding] = point.load()
        if not issubclass(cls, Encoding):
            raise TypeError("not an Encoding")
    except Exception as error:  # an installed package that is broken
        problem = f"cannot be imported from {point.value} ({type(error).__name__}: {error})"
        raise UserError("encoding", point.name, problem) from error
    return cls


def _classes_in(module: Any) -> dict[str, type[Encoding]]:
    """Return the encodings that a module defines (and does not import) by `name`."""
    from posenc.encodings.base import Encoding

    own = (cls for cls in vars(module).values() if inspect.isclass(cls) and cls.__module__ == module.__name__)
    return {cls.name: cls for cls in own if issubclass(cls, Encoding) and hasattr(cls, "name")}


def file_encoding(file: str, cls: str | None) -> dict[str, Any]:
    """Return name and default parameters of the encoding in a Python file: its only one, or its class `cls`.

    Defaults are those of the class, and of a YAML file of the same name beside it. Raises UserError.
    """
    path = expanded(file)
    if not path.is_file():
        raise UserError("encoding", file, "there is no such file")
    names = {one.__name__: name for name, one in _plugin_classes([file]).items()}
    allowed = [f"{file}:{one}" for one in names]
    if len(names) > 1 and cls is None:
        raise UserError("encoding", file, "has several encodings", allowed=allowed)
    if cls is not None and cls not in names:
        raise UserError("encoding", f"{file}:{cls}", "has no such encoding", allowed=allowed)
    beside = path.with_suffix(".yaml")
    usual = yaml.safe_load(beside.read_text(encoding="utf-8")) if beside.is_file() else {}
    return {**usual, "name": names[cls] if cls else next(iter(names.values()))}


def file_module(file: str) -> ModuleType:
    """Import a Python file, anew once its text has changed; its folder need not be on the path."""
    path = expanded(file).resolve()
    name = f"{path.stem}_{hashlib.sha256(path.read_bytes()).hexdigest()[:8]}"
    if name not in sys.modules:
        spec = spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]


def _plugin_classes(plugins: Sequence[str]) -> dict[str, type[Encoding]]:
    found: dict[str, type[Encoding]] = {}
    here = str(Path.cwd())
    if plugins and here not in sys.path:
        sys.path.append(here)  # last: it must not take the place of an installed module
    for plugin in plugins:
        try:
            module = file_module(plugin) if plugin.endswith(".py") else importlib.import_module(plugin)
        except (Exception, SystemExit) as error:  # the user's code may raise anything
            problem = f"cannot be imported ({type(error).__name__}: {error})"
            hint = f"plugins=[{plugin.removesuffix('.py')}]: a module in this folder or on PYTHONPATH"
            raise UserError("plugins", plugin, problem, hint=hint) from error
        if not (classes := _classes_in(module)):
            problem = "defines no encoding: a class derived from Encoding, with a `name`"
            raise UserError("plugins", plugin, problem)
        for name, cls in classes.items():
            point = _entry_points().get(name)
            others = [found.get(name, cls), cls if point is None else _load(point)]
            if name in own_encodings() or any(other is not cls for other in others):
                problem = f"its encoding {name} has the name of another one"
                raise UserError("plugins", plugin, problem, hint="give it another name")
            found[name] = cls
    return found


def default_parameters(name: str) -> dict[str, Any]:
    """Return the parameters in `encoding/<name>.yaml`, of posenc or an installed package; {} without one."""
    path = choice_file("encoding", name)
    return {} if path is None else parameters(yaml.safe_load(path.read_text(encoding="utf-8")))


def part_parameters(cls: type[Encoding]) -> list[str]:
    """Return the parameters of a class that are encodings themselves: those declared as list[Encoding]."""
    from posenc.encodings.base import Encoding

    return [key for key, kind in parameters_of(cls).items() if kind == list[Encoding]]


def resolve_encoding(settings: Mapping[str, Any], plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return the `encoding` settings as a run stores them: typed (base=10000 is 10000.0), parts in full."""
    name = settings.get("name")
    if not isinstance(name, str):
        problem = "is missing" if name is None else "must be a name"
        raise UserError("encoding.name", name, problem, allowed=list_encodings(plugins))
    cls = encoding_class(name, plugins)
    checked = check_arguments(cls, {**defaults_of(cls), **parameters(settings)}, "encoding")
    for key in part_parameters(cls):
        for i, part in enumerate(checked[key]):
            own, where = {"name": part} if isinstance(part, str) else part, f"encoding.{key}[{i}]"
            if not (isinstance(own, Mapping) and isinstance(own.get("name"), str)):
                allowed = "a name, or a mapping such as {name: rope, base: 500000.0}"
                raise UserError(where, part, "not an encoding", allowed=allowed)
            try:
                checked[key][i] = resolve_encoding(_with_defaults(own, plugins), plugins)
            except UserError as error:
                raise error.within(f"in {where}") from None
    return {"name": name, **checked}


def _with_defaults(settings: Mapping[str, Any], plugins: Sequence[str]) -> dict[str, Any]:
    """Return the settings with the values of the YAML for the others."""
    encoding_class(settings["name"], plugins)  # first: what is no encoding must not become a path
    return {**default_parameters(settings["name"]), **settings}


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
    plugins: Sequence[str] = (),
    **params: Any,
) -> Encoding:
    """Build an encoding for a model of this shape; parameters not given are those of its YAML. UserError."""
    from posenc.encodings.base import Shape

    shape = Shape(d_model, n_heads, head_dim, n_layers, train_length, position_limit, distance_limit)
    given = _with_defaults({"name": name, **params}, plugins)
    return _build(shape, resolve_encoding(given, plugins), plugins)


def _build(shape: Shape, settings: Mapping[str, Any], plugins: Sequence[str]) -> Encoding:
    cls = encoding_class(settings["name"], plugins)
    params = parameters(settings)
    for key in part_parameters(cls):
        params[key] = [_build(shape, part, plugins) for part in params[key]]
    try:
        return cls(shape, **params)
    except ValueError as error:
        raise UserError("encoding", settings["name"], str(error)) from error


def sources_of(settings: Mapping[str, Any], plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return what the numbers of an encoding and of its parts depend on beside parameters, for a run's hash.

    Of other than posenc's own the module's text too: nobody raises a revision while trying things out.
    """
    cls = encoding_class(settings["name"], plugins)
    source = None
    if not cls.__module__.startswith("posenc.encodings."):
        source = hashlib.sha256(inspect.getsource(sys.modules[cls.__module__]).encode()).hexdigest()[:16]
    parts = [sources_of(part, plugins) for key in part_parameters(cls) for part in settings[key]]
    return {"revision": cls.revision, "source": source, **({"parts": parts} if parts else {})}
