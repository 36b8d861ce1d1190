"""From `encoding.name` to a class: posenc's own modules, then entry points, then modules the user named.

Nothing is ever imported because a file of a run names it: a module of posenc.encodings must exist in this
package, an entry point must be installed, and a plug-in must be named on the command line.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import pkgutil
import sys
from collections.abc import Iterable, Mapping
from importlib.metadata import EntryPoint, entry_points, packages_distributions, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from posenc.core.errors import UserError
from posenc.core.signature import parameters_of

if TYPE_CHECKING:
    from posenc.encodings.base import Encoding

ENTRY_POINTS = "posenc.encodings"
NOT_ENCODINGS = {"base", "build", "composed", "registry"}


def own_encodings() -> list[str]:
    """Names of the encodings in this package: its modules."""
    here = [str(Path(__file__).parent)]
    modules = (m for m in pkgutil.iter_modules(here) if not m.ispkg)
    return sorted(m.name for m in modules if m.name not in NOT_ENCODINGS)


def _entry_points() -> dict[str, EntryPoint]:
    return {point.name: point for point in entry_points(group=ENTRY_POINTS)}


def _classes_in(module: Any) -> dict[str, type[Encoding]]:
    from posenc.encodings.base import Encoding

    return {
        cls.name: cls
        for _, cls in inspect.getmembers(module, inspect.isclass)
        if issubclass(cls, Encoding) and cls.__module__ == module.__name__ and hasattr(cls, "name")
    }


def _plugin_classes(plugins: Iterable[str]) -> dict[str, type[Encoding]]:
    found: dict[str, type[Encoding]] = {}
    here = str(Path.cwd())
    if plugins and here not in sys.path:
        sys.path.append(here)  # last: it must not take the place of an installed module
    for plugin in plugins:
        try:
            module = importlib.import_module(plugin)
        except (Exception, SystemExit) as error:  # it is the user's code: whatever it raises
            problem = f"cannot be imported ({type(error).__name__}: {error})"
            raise UserError("plugins", plugin, problem, hint=_way_out(plugin, error)) from error
        named = _classes_in(module)
        if not named and (nameless := _nameless_in(module)):
            problem = f"its class {nameless[0]} has no `name`, so no YAML can mean it"
            raise UserError("plugins", plugin, problem, hint='name = "..." in the class, as in its YAML')
        for name, cls in named.items():
            holder = _holder(name, cls, found)
            if holder is not None:
                problem = f"its encoding {name} has the name of one of {holder}"
                raise UserError("plugins", plugin, problem, hint="give it another name")
            found[name] = cls
    return found


def _way_out(plugin: str, error: BaseException) -> str | None:
    """What to do about a plug-in that is not found; None where it is found and does not work."""
    if plugin.endswith(".py"):
        return f"a module, not a file: plugins=[{plugin.removesuffix('.py')}]"
    missing = (
        isinstance(error, ModuleNotFoundError) and plugin.split(".")[0] == (error.name or "").split(".")[0]
    )
    return "it must be in this folder or on PYTHONPATH" if missing else None


def _nameless_in(module: Any) -> list[str]:
    from posenc.encodings.base import Encoding

    made = inspect.getmembers(module, inspect.isclass)
    return [name for name, cls in made if issubclass(cls, Encoding) and cls.__module__ == module.__name__]


def _holder(name: str, cls: type[Encoding], plugins: Mapping[str, type[Encoding]]) -> str | None:
    """Who else has an encoding of this name, in words; None if nobody has."""
    if name in own_encodings():
        return "posenc's"
    point = _entry_points().get(name)
    if point is not None and _loaded(point) is not cls:
        return f"the installed {point.value}"
    other = plugins.get(name, cls)
    return None if other is cls else f"the plug-in {other.__module__}"


def _loaded(point: EntryPoint) -> type[Encoding]:
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


def list_encodings(plugins: Iterable[str] = ()) -> list[str]:
    """All names that `encoding.name` may take."""
    return sorted({*own_encodings(), *_entry_points(), *_plugin_classes(plugins)})


def encoding_class(name: str, plugins: Iterable[str] = ()) -> type[Encoding]:
    """The class behind a name. Raises UserError with the nearest name if there is none."""
    plugins = list(plugins)
    classes = _plugin_classes(plugins)  # whether or not it is needed: a misspelt one must not pass
    if name in own_encodings():
        return _classes_in(importlib.import_module(f"posenc.encodings.{name}"))[name]
    points = _entry_points()
    if name in points:
        return _loaded(points[name])
    if name in classes:
        return classes[name]
    raise UserError(
        "encoding",
        name,
        "there is no such encoding",
        allowed=list_encodings(plugins),
        hint="one of your own: plugins=[MODULE]; after posenc encodings: --plugin MODULE",
    )


def source_of(cls: type[Encoding]) -> dict[str, Any]:
    """What the numbers of an encoding depend on beside its parameters; plain JSON, part of a run's identity.

    posenc's own say it by `revision`. Nobody raises one while trying things out in a file of one's own, so
    there the text of the module counts.
    """
    text = None
    if not cls.__module__.startswith("posenc.encodings."):
        try:
            text = hashlib.sha256(inspect.getsource(inspect.getmodule(cls) or cls).encode()).hexdigest()[:16]
        except (OSError, TypeError):  # typed into an interpreter
            text = None
    return {"revision": cls.revision, "source": text}


def sources_of(settings: Mapping[str, Any], plugins: Iterable[str] = ()) -> dict[str, Any]:
    """`source_of` for resolved settings of the `encoding` group, with those of the parts of a sum."""
    plugins = list(plugins)
    cls = encoding_class(settings["name"], plugins)
    parts = [sources_of(part, plugins) for key in made_of(cls) for part in settings[key]]
    return {**source_of(cls), **({"parts": parts} if parts else {})}


def origins_of(settings: Mapping[str, Any], plugins: Iterable[str] = ()) -> dict[str, str]:
    """Where those encodings of the settings come from that are not posenc's own, so that people find them.

    `{"encoding mine": "my_package 0.1.0"}`, or the module's name where no installed distribution holds it.
    """
    plugins = list(plugins)
    cls = encoding_class(settings["name"], plugins)
    found: dict[str, str] = {}
    for key in made_of(cls):
        for part in settings[key]:
            found.update(origins_of(part, plugins))
    if not cls.__module__.startswith("posenc.encodings."):
        top = cls.__module__.partition(".")[0]
        holders = packages_distributions().get(top, [])
        named = [f"{holder} {version(holder)}" for holder in holders]
        found[f"encoding {settings['name']}"] = ", ".join(named) or f"module {cls.__module__}"
    return found


def made_of(cls: type[Encoding]) -> list[str]:
    """Parameters of a class that are encodings themselves: those declared as list[Encoding]."""
    from posenc.encodings.base import Encoding

    return [key for key, kind in parameters_of(cls).items() if kind == list[Encoding]]
