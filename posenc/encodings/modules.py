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
    classes: dict[str, Any] = {}
    for module in modules_of(package, path):
        for value in vars(module).values():
            # `vars` and not `hasattr`: a subclass without a name of its own would take that of its base.
            if inspect.isclass(value) and issubclass(value, base) and "name" in vars(value):
                classes[vars(value)["name"]] = value
    return dict(sorted(classes.items()))
