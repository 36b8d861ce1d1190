"""Find classes by name in the modules of a package: drawn positions, options of the attention."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from types import ModuleType
from typing import Any


def modules_of(package: str, path: Iterable[str]) -> Iterator[ModuleType]:
    """Import the modules of a package, in the order of their names."""
    for module in pkgutil.iter_modules(path):
        yield importlib.import_module(f"{package}.{module.name}")


def classes_with_a_name(package: str, path: Iterable[str], base: type[Any]) -> dict[str, type[Any]]:
    """Return the classes in the modules of a package that derive from `base`, by their `name`.

    A class without a `name` of its own, such as a base class, is left out.
    """
    classes = {cls.name: cls for cls in classes_that_set("name", package, path, base)}
    return dict(sorted(classes.items()))


def classes_that_set(attribute: str, package: str, path: Iterable[str], base: type[Any]) -> list[type[Any]]:
    """Return the classes in the modules of a package that derive from `base` and set the attribute.

    Each is there once. One that only inherits the attribute, or annotates it, is left out.
    """
    classes: list[type[Any]] = []
    for module in modules_of(package, path):
        for value in vars(module).values():
            # `vars` and not `hasattr`: a subclass without a name of its own would take that of its base.
            if inspect.isclass(value) and issubclass(value, base) and attribute in vars(value):
                classes.append(value)
    return list(dict.fromkeys(classes))  # a class is also found in a module that imports it
