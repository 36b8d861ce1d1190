"""Numbers beside the loss: a file for each protocol that measures more, found by walking this folder.

The file of a protocol holds what it adds to a record (`RECORD`, a type with its check) and what becomes of it
in a row of a comparison (a `NumbersBeside` of base.py). Reading, comparing and writing find both here, and
know no protocol by name. The names of the files are keys of records, of rows and of the JSON.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
from types import ModuleType
from typing import Any

# modules of this folder without a protocol
NOT_PROTOCOLS = ("base", "found_values", "recall_cells", "recall_ranks")


# The folder does not change while a process runs, and `measurement_of` asks for these names at every record.
@functools.cache
def keys_beside() -> tuple[str, ...]:
    """Return the keys under which records hold numbers beside the loss: `recall`, `memory`."""
    # The files are listed here and not imported: measurements.py asks for these names, and the files
    # themselves import measurements.py.
    names = [module.name for module in pkgutil.iter_modules(__path__)]
    return tuple(name for name in names if name not in NOT_PROTOCOLS)


def module_beside(key: str) -> ModuleType:
    """Import the file of one protocol."""
    return importlib.import_module(f"{__name__}.{key}")


def record_types() -> dict[str, Any]:
    """Return the type of each key in a record, with its check, as pydantic reads it."""
    return {key: module_beside(key).RECORD for key in keys_beside()}
