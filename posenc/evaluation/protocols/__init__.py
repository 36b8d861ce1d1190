"""Protocols: one file each, found by walking this folder. docs/add-an-extension.md says how to add one.

The names of the protocols are those of the files, so that `--help` lists them and imports none.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from posenc.evaluation.protocols.base import Protocol

NOT_PROTOCOLS = ("base",)  # modules of this folder without a protocol


@functools.cache
def protocol_names() -> tuple[str, ...]:
    """Return the names of all protocols in alphabetical order."""
    # Importing them all would take numpy and pydantic to answer `--help`.
    modules = [module.name for module in pkgutil.iter_modules(__path__)]
    return tuple(sorted(name.replace("_", "-") for name in modules if name not in NOT_PROTOCOLS))


@functools.cache
def find_protocol(name: str) -> type[Protocol[Any]]:
    """Import the file of one protocol and return its class. Raises KeyError for an unknown name."""
    if name not in protocol_names():
        raise KeyError(name)
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    for value in vars(module).values():
        # `vars` and not `getattr`, so that a helper class that inherits the name is not taken for the
        # protocol.
        if isinstance(value, type) and vars(value).get("name") == name:
            return value
    raise TypeError(f"{module.__name__} has no class with name = {name!r}")
