"""Break posenc in every way that docs/faults.md promises it survives, and print what was seen.

    python scripts/fault_battery.py                    all families, about an hour on two cores
    python scripts/fault_battery.py --quick            fewer attempts of each, some minutes
    python scripts/fault_battery.py kills damage       some of them
    python scripts/fault_battery.py --json seen.json   the same as a document too

Exit code 1 if anything promised did not hold. Every family runs in a folder of its own, removed at the end.
"""

from __future__ import annotations

import argparse
import importlib
import json
import pkgutil
import shutil
import sys
import tempfile
import time
import traceback
from dataclasses import asdict
from pathlib import Path

import faults
from faults.case import Family, Seen
from rich.console import Console
from rich.markup import escape
from rich.table import Table


def families() -> dict[str, Family]:
    """Every module of `faults` that has a FAMILY, by its name."""
    modules = (importlib.import_module(f"faults.{m.name}") for m in pkgutil.iter_modules(faults.__path__))
    return {m.FAMILY.name: m.FAMILY for m in modules if hasattr(m, "FAMILY")}


def run(family: Family, place: Path, quick: bool) -> list[dict[str, object]]:
    """The family's cases as plain rows; an error of the battery itself counts as a failed case."""
    rows: list[dict[str, object]] = []
    for case in family.cases(place, quick):
        began = time.monotonic()
        try:
            seen = case.run()
        except Exception as error:
            where = traceback.extract_tb(error.__traceback__)[-1]
            text = f"{type(error).__name__}: {error} ({Path(where.filename).name}:{where.lineno})"
            seen = Seen("the battery failed", failed=1, details=(text,))
        row = {"family": family.name, "case": case.name, "expected": case.expected, **asdict(seen)}
        rows.append({**row, "seconds": round(time.monotonic() - began, 1)})
        print(
            f"{family.name}: {case.name}: {seen.failed} of {seen.tried} failed", file=sys.stderr, flush=True
        )
        for detail in seen.details:
            print(f"  {detail}", file=sys.stderr)
    return rows


def show(rows: list[dict[str, object]], console: Console) -> None:
    """A line for each case, the failed ones marked."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    for name in ("family", "case", "expected", "seen"):
        table.add_column(name, overflow="fold")
    for name in ("tried", "failed", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        texts = [escape(str(row[key])) for key in ("family", "case", "expected", "text")]
        numbers = [str(row["tried"]), str(row["failed"]), str(row["seconds"])]
        table.add_row(*texts, *numbers, style="red" if row["failed"] else None)
    console.print(table)


def main() -> int:
    """Run what was asked for; 1 if anything failed."""
    known = families()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("family", nargs="*", choices=[*known, []], help=f"of {', '.join(known)}; all if none")
    parser.add_argument("--quick", action="store_true", help="fewer attempts of each")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the rows there too")
    asked = parser.parse_args()
    rows: list[dict[str, object]] = []
    for name in asked.family or known:
        missing = [program for program in known[name].needs if shutil.which(program) is None]
        if missing:
            print(f"{name}: skipped, needs {', '.join(missing)}", file=sys.stderr)
            continue
        with tempfile.TemporaryDirectory(prefix=f"posenc-faults-{name}-") as place:
            rows += run(known[name], Path(place), asked.quick)
    show(rows, Console(width=None if sys.stdout.isatty() else 160))
    tried, failed = (sum(int(str(row[key])) for row in rows) for key in ("tried", "failed"))
    print(f"\n{len(rows)} cases, {tried} attempts, {failed} failed")
    if asked.json:
        asked.json.write_text(json.dumps(rows, indent=1) + "\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
