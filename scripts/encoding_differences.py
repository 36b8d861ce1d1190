"""Print the largest difference of each encoding to its paper's formula in float64 and to other libraries.

The formulas and comparisons are those of tests/encodings. From the root of a clone, with the test
dependencies installed: python scripts/encoding_differences.py
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).resolve().parent.parent / "tests" / "encodings")]

WHERE = {"xpos": "far", "binary": "far"}  # the others: near and far


def main() -> None:
    import torch
    from naive_formulas import CASES, POSITIONS
    from rich.console import Console
    from rich.table import Table
    from test_formulas import ROW_CASES, differences
    from test_libraries import LIBRARIES

    table = Table("encoding", "against")
    table.add_column("largest difference", justify="right")
    for name, params in [*CASES, *ROW_CASES]:
        pos = POSITIONS[WHERE.get(name, "near and far")]
        shown = " ".join([name, *(f"{key}={value}" for key, value in params.items())])
        found = differences(name, params, pos)
        table.add_row(shown, f"formula, positions to {pos[-1]}", f"{found:.1e}")
    with torch.no_grad():
        for (name, library), (measure, _) in LIBRARIES.items():
            table.add_row(name, f"{library}, 512 positions", f"{measure():.1e}")
    Console().print(table)


if __name__ == "__main__":
    main()
