"""Build encodings from the settings of the group `encoding`: find the class, check the parameters, construct.

A name is looked up in posenc's own modules, then in entry points, then in the modules and files of
`plugins=`. A plug-in must be named on the command line: the files of a run never decide what is imported.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Mapping, Sequence
from importlib.metadata import EntryPoint
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import yaml

from posenc.core.entry_points import entry_points
from posenc.core.errors import UserError
from posenc.core.paths import choice_file, expanded, is_file, why_missing
from posenc.core.plugins import named_classes_in, plugin_module, source_hash
from posenc.encodings.other_names import named_elsewhere
from posenc.settings.signature import check_arguments, defaults_of, parameters_of

if TYPE_CHECKING:
    from posenc.encodings.base import Encoding, Shape

ENTRY_POINTS = "posenc.encodings"
FILE = re.compile(r"(.+\.py)(?::(\w+))?")  # FILE.py or FILE.py:CLASS
NOT_ENCODINGS = {  # the other modules of this package
    "base",
    "catalogue",
    "initial_values",
    "modules",
    "options",
    "other_names",
    "registry",
}


# --- classes by name


def own_encodings() -> list[str]:
    """Return the names of the encodings in this package: its modules."""
    return list(_own_encodings())


@functools.cache
def _own_encodings() -> tuple[str, ...]:
    names: list[str] = []
    for module in pkgutil.iter_modules([str(Path(__file__).parent)]):
        if not module.ispkg and module.name not in NOT_ENCODINGS:
            names.append(module.name)
    return tuple(sorted(names))


def list_encodings(plugins: Sequence[str] = ()) -> list[str]:
    """Return all names that `encoding.name` may take."""
    return sorted({*own_encodings(), *_entry_points(), *_plugin_classes(plugins)})


def encoding_class(name: str, plugins: Sequence[str] = ()) -> type[Encoding]:
    """Return the class of a name. Raises UserError with the nearest name if there is none."""
    # Plug-ins are imported even if this name needs none, since a misspelt one must not pass.
    from_plugins = _plugin_classes(plugins)
    if name in own_encodings():
        module = importlib.import_module(f"posenc.encodings.{name}")  # it has the encoding's name
        return _classes_in(module)[name]
    points = _entry_points()
    if name in points:
        return _load(points[name])
    if name in from_plugins:
        return from_plugins[name]
    hint = "an encoding of your own: encoding=./FILE.py, or plugins=[MODULE]"
    meant = named_elsewhere(name)
    if meant is not None:
        hint = f"did you mean: {meant}"
    allowed = list_encodings(plugins)
    raise UserError("encoding", name, "there is no such encoding", allowed=allowed, hint=hint)


def _classes_in(module: ModuleType) -> dict[str, type[Encoding]]:
    """Return the encodings that a module defines (and does not import) by `name`."""
    from posenc.encodings.base import Encoding

    return named_classes_in(module, Encoding)


# --- encodings of other packages and files


def _entry_points() -> dict[str, EntryPoint]:
    """Return the encodings that installed packages declare, by name."""
    return {point.name: point for point in entry_points(ENTRY_POINTS)}


def _load(point: EntryPoint) -> type[Encoding]:
    from posenc.encodings.base import Encoding

    try:
        cls: type[Encoding] = point.load()
        if not issubclass(cls, Encoding):
            raise TypeError("not an Encoding")
    except Exception as error:  # an installed package that is broken may raise anything
        problem = f"cannot be imported from {point.value} ({type(error).__name__}: {error})"
        raise UserError("encoding", point.name, problem) from error
    return cls


def file_encoding(file: str, class_name: str | None) -> dict[str, Any]:
    """Return the name of the encoding in a Python file, and the parameters that a YAML file beside it sets.

    `class_name` chooses one of several encodings in the file. The YAML file has the name of the Python file;
    without it the defaults of the class hold. Raises UserError.
    """
    path = expanded(file)
    if not is_file(path):
        hint = "how to write one: docs/add-an-encoding.md"
        raise UserError("encoding", file, why_missing(path, "file"), hint=hint)
    name_of_class = {cls.__name__: name for name, cls in _plugin_classes([file]).items()}
    allowed = [f"{file}:{cls}" for cls in name_of_class]
    if class_name is None:
        if len(name_of_class) > 1:
            raise UserError("encoding", file, "has several encodings", allowed=allowed)
        (name,) = name_of_class.values()
    elif class_name in name_of_class:
        name = name_of_class[class_name]
    else:
        raise UserError("encoding", f"{file}:{class_name}", "has no such encoding", allowed=allowed)
    yaml_beside = path.with_suffix(".yaml")
    if not is_file(yaml_beside):
        return {"name": name}
    parameters = yaml.safe_load(yaml_beside.read_text(encoding="utf-8")) or {}
    return {**parameters, "name": name}


def _plugin_classes(plugins: Sequence[str]) -> dict[str, type[Encoding]]:
    """Return the encodings of all plug-ins by name.

    Raises UserError for a plug-in without an encoding or task, and for a name that another encoding has.
    """
    if not plugins:
        return {}
    from posenc.data.tasks import tasks_in  # imports numpy, which a name alone does not need

    classes: dict[str, type[Encoding]] = {}
    for plugin in plugins:
        module = plugin_module(plugin)
        in_plugin = _classes_in(module)
        if not in_plugin and not tasks_in(module):
            problem = "defines no encoding and no task: a class derived from Encoding or Task, with a `name`"
            raise UserError("plugins", plugin, problem)
        for name, cls in in_plugin.items():
            if _is_taken(cls, classes):
                problem = f"its encoding {name} has the name of another one"
                raise UserError("plugins", plugin, problem, hint="give it another name")
            classes[name] = cls
    return classes


def _is_taken(cls: type[Encoding], classes: Mapping[str, type[Encoding]]) -> bool:
    """Tell whether a plug-in's class has the name of another class.

    The same class under the same name is no conflict: an installed package may declare it as an entry point
    too.
    """
    if cls.name in own_encodings():
        return True
    if cls.name in classes and classes[cls.name] is not cls:
        return True
    point = _entry_points().get(cls.name)
    return point is not None and _load(point) is not cls


# --- parameters


def default_parameters(name: str) -> dict[str, Any]:
    """Return the parameters in `encoding/<name>.yaml`, of posenc or an installed package.

    They are {} without such a file.
    """
    path = choice_file("encoding", name)
    if path is None:
        return {}
    return without_name(yaml.safe_load(path.read_text(encoding="utf-8")))


def without_name(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a choice: all of its settings but the name."""
    return {str(key): value for key, value in settings.items() if key != "name"}


def part_parameters(cls: type[Encoding]) -> list[str]:
    """Return the names of the parameters that take encodings: those declared as list[Encoding]."""
    from posenc.encodings.base import Encoding

    return [key for key, kind in parameters_of(cls).items() if kind == list[Encoding]]


def resolve_encoding(settings: Mapping[str, Any], plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return the `encoding` settings as a run stores them: typed (base=10000 is 10000.0), parts in full."""
    name = settings.get("name")
    if not isinstance(name, str):
        problem = "is missing" if name is None else "must be a name"
        raise UserError("encoding.name", name, problem, allowed=list_encodings(plugins))
    cls = encoding_class(name, plugins)
    parameters = {**defaults_of(cls), **without_name(settings)}
    parts = {key: parameters[key] for key in part_parameters(cls) if key in parameters}
    # The signature asks for built encodings, but the settings have names or mappings. So the signature is
    # checked with empty lists in their place, and the parts are checked one by one below.
    without_parts = parameters | {key: [] for key in parts}
    checked = check_arguments(cls, without_parts, "encoding")
    for key, value in parts.items():
        checked[key] = _resolve_parts(value, f"encoding.{key}", plugins)
    return {"name": name, **checked}


def _resolve_parts(parts: object, key: str, plugins: Sequence[str]) -> list[dict[str, Any]]:
    """Return the settings of encodings that are parts of another one, each in full. Raises UserError."""
    if not isinstance(parts, list):
        raise UserError(key, parts, "wrong type", allowed="a list, each a name or a mapping")
    resolved: list[dict[str, Any]] = []
    for i, part in enumerate(parts):
        key_of_part = f"{key}[{i}]"
        settings = {"name": part} if isinstance(part, str) else part
        if not (isinstance(settings, Mapping) and isinstance(settings.get("name"), str)):
            allowed = "a name, or a mapping such as {name: rope, base: 500000.0}"
            raise UserError(key_of_part, part, "not an encoding", allowed=allowed)
        try:
            resolved.append(resolve_encoding(_with_defaults(settings, plugins), plugins))
        except UserError as error:
            raise error.within(f"in {key_of_part}") from None
    return resolved


def _with_defaults(settings: Mapping[str, Any], plugins: Sequence[str]) -> dict[str, Any]:
    """Return the settings; those that are missing have the values of the YAML."""
    encoding_class(settings["name"], plugins)  # refuses an unknown name before it becomes part of a path
    return {**default_parameters(settings["name"]), **settings}


# --- building


def build_encoding(
    name: str,
    *,
    d_model: int,
    n_heads: int,
    head_dim: int,
    n_layers: int,
    train_length: int,
    **parameters: Any,
) -> Encoding:
    """Build an encoding for a model of this shape. Parameters left out have the values of its YAML.

    `plugins`, a list, may be among the parameters. Raises UserError.
    """
    from posenc.encodings.base import Shape

    plugins = parameters.pop("plugins", ())
    shape = Shape(d_model, n_heads, head_dim, n_layers, train_length)
    return build_of_shape(shape, {"name": name, **parameters}, plugins)


def build_of_shape(shape: Shape, settings: Mapping[str, Any], plugins: Sequence[str] = ()) -> Encoding:
    """Build an encoding from its settings. Those left out have the values of its YAML. Raises UserError."""
    complete_settings = resolve_encoding(_with_defaults(settings, plugins), plugins)
    return _build(shape, complete_settings, plugins)


def _build(shape: Shape, settings: Mapping[str, Any], plugins: Sequence[str]) -> Encoding:
    """Build an encoding, and before it the encodings that are its parts, from complete settings."""
    cls = encoding_class(settings["name"], plugins)
    parameters = without_name(settings)
    for key in part_parameters(cls):
        parameters[key] = [_build(shape, part, plugins) for part in parameters[key]]
    try:
        return cls(shape, **parameters)
    except ValueError as error:
        raise UserError("encoding", settings["name"], str(error)) from error


def sources_of(settings: Mapping[str, Any], plugins: Sequence[str] = ()) -> dict[str, Any]:
    """Return what identifies the code of an encoding and of its parts, for a run's hash.

    For posenc's own classes it is the revision. For all others it is also a hash of the text of their module
    and its helpers, since nobody raises a revision while trying things out.
    """
    cls = encoding_class(settings["name"], plugins)
    is_own = cls.__module__.startswith("posenc.encodings.")
    source = None if is_own else source_hash(cls)
    sources: dict[str, Any] = {"revision": cls.revision, "source": source}
    parts = [part for key in part_parameters(cls) for part in settings[key]]
    if parts:
        sources["parts"] = [sources_of(part, plugins) for part in parts]
    return sources
