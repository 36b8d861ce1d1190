"""Largest difference of each encoding to the paper's formula in float64 and to other people's libraries.

From the root of a clone, with the test dependencies installed: python scripts/encoding_differences.py
The comparisons are in scripts/differences/, a file a family.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "tests" / "encodings")]

FAMILIES = sorted(path.stem for path in (HERE / "differences").glob("*.py") if path.stem != "common")

# (encoding, against what): how it is measured, and what the tests allow
COMPARISONS: dict[tuple[str, str], tuple[Callable[[], float], float]] = {}
for family in FAMILIES:
    COMPARISONS.update(importlib.import_module(f"differences.{family}").COMPARISONS)


def main() -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("encoding", "against")
    table.add_column("largest difference", justify="right")
    for (name, against), (measure, _) in COMPARISONS.items():
        table.add_row(name, against, f"{measure():.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
