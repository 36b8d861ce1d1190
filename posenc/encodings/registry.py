"""Find the class of an encoding by its name.

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

from posenc.core.entry_points import entry_points
from posenc.core.errors import UserError, suggestion
from posenc.core.paths import expanded, is_file, mapping_in, missing_path
from posenc.core.plugins import named_classes_in, plugin_module
from posenc.encodings.other_names import hint_at_family, named_elsewhere

# torch takes 1.5 s or more to import, and a list of names must not wait for it. So the functions below import
# `Encoding` where they use it.
if TYPE_CHECKING:
    from posenc.encodings.base import Encoding

ENTRY_POINTS = "posenc.encodings"
FILE = re.compile(r"(.+\.py)(?::(\w+))?")  # FILE.py or FILE.py:CLASS
NOT_ENCODINGS = {  # the other modules of this package
    "base",
    "building",
    "catalogue",
    "hook_arguments",
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
        # Its module alone, since the others are not needed.
        module = importlib.import_module(f"posenc.encodings.{name}")  # it has the encoding's name
        return _classes_in(module)[name]
    points = _entry_points()
    if name in points:
        return _load(points[name])
    if name in from_plugins:
        return from_plugins[name]
    problem = "there is no such encoding"
    names = list_encodings(plugins)
    hint = hint_at_family(name)
    meant = named_elsewhere(name)
    if meant is not None:
        hint = suggestion(meant)
    if hint is not None:
        # As a text, since of a list the error would name the nearest name by its letters, too: `binary`
        # for `rotary`.
        raise UserError("encoding", name, problem, allowed=", ".join(names), hint=hint)
    own = "an encoding of your own: encoding=./FILE.py, or plugins=[MODULE]"
    raise UserError("encoding", name, problem, allowed=names, hint=own)


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
        raise missing_path("encoding", file, "file", hint=hint)
    name_of_class = {cls.__name__: name for name, cls in _plugin_classes([file]).items()}
    allowed = [f"{file}:{cls}" for cls in name_of_class]
    if class_name is None:
        if not name_of_class:
            problem = "defines no encoding: a class derived from Encoding, with a `name`"
            raise UserError("encoding", file, problem)
        if len(name_of_class) > 1:
            raise UserError("encoding", file, "has several encodings", allowed=allowed)
        (name,) = name_of_class.values()
    elif class_name in name_of_class:
        name = name_of_class[class_name]
    else:
        raise UserError("encoding", f"{file}:{class_name}", "has no such encoding", allowed=allowed)
    # The name of the class wins, since the YAML file is one of parameters.
    return {**_parameters_beside(file), "name": name}


def plugin_parameters(name: str, plugins: Sequence[str]) -> dict[str, Any]:
    """Return the parameters that a YAML file beside a plug-in sets for the only encoding of the plug-in.

    They are {} without such a file, and for an encoding of a module or of a file with several encodings.
    """
    for plugin in plugins:
        if FILE.fullmatch(plugin) and list(_plugin_classes([plugin])) == [name]:
            return _parameters_beside(plugin)
    return {}


def _parameters_beside(file: str) -> dict[str, Any]:
    """Return the parameters in the YAML file that has the name of a Python file; {} without one."""
    yaml_beside = expanded(file).with_suffix(".yaml")
    if not is_file(yaml_beside):
        return {}
    return mapping_in(yaml_beside, "encoding", file)


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
            # Two encodings of one name would be two rows of one name, and a run would not say which it had.
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
