"""What posenc prints for the stored records: as text, and as the document of `posenc compare --format json`.

The tables of the pages are made from that document, so that whoever doubts a number can print it.
docs/schema.md describes its fields.
"""

from __future__ import annotations

import contextlib
import gzip
import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from typer.testing import CliRunner

from posenc.cli import app

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "docs" / "records"
PLAIN_TERMINAL = {"COLUMNS": "80", "NO_COLOR": "1"}
Json = dict[str, Any]  # a JSON object that posenc wrote


def run_posenc(command: str) -> str:
    """Return what a command line that begins with `posenc` prints on stdout, in the root of the clone.

    It runs in this process: a new one takes two seconds, and pages have dozens of commands. Raises SystemExit
    where the command fails.
    """
    arguments = shlex.split(command)[1:]
    with contextlib.chdir(ROOT):
        result = CliRunner().invoke(app, arguments, env=PLAIN_TERMINAL)
    if result.exit_code:
        raise SystemExit(f"{command}\n{result.stderr}{result.exception}")
    return result.stdout


def compare_document(folders: Sequence[str], *options: str) -> Json:
    """Return the JSON of `posenc compare` over folders of docs/records/."""
    paths = [str(RECORDS / folder) for folder in folders]
    command = shlex.join(["posenc", "compare", *paths, *options, "--format", "json"])
    document: Json = json.loads(run_posenc(command))
    return document


def compare(folders: Sequence[str], *options: str, where: Sequence[str] = ()) -> Json:
    """Return the first table of `posenc compare` over folders of docs/records/: header, columns and rows.

    `where` holds conditions such as `seed=0,1,2`.
    """
    conditions = [part for condition in where for part in ("--where", condition)]
    return comparisons_of(compare_document(folders, *options, *conditions))[0]


def comparisons_of(document: Json) -> list[Json]:
    """Return the tables of a document of `posenc compare`. A document of one table is that table."""
    comparisons: list[Json] = document.get("comparisons", [document])
    return comparisons


def stored_runs(folder: str) -> list[Json]:
    """Return the runs of a folder's bundles as they are stored: name, status, config, results."""
    runs = []
    for bundle in sorted((RECORDS / folder).glob("*.runs.jsonl.gz")):
        lines = gzip.decompress(bundle.read_bytes()).splitlines()
        runs += [json.loads(line) for line in lines[1:]]  # the first line describes the bundle
    return runs


def cell_at(row: Json, multiple: float) -> Json | None:
    """Return the cell of a row at a multiple of T, None where the row has none."""
    cells = [cell for cell in row["cells"] if cell is not None]
    return next((cell for cell in cells if cell["multiple"] == multiple), None)


def last_cell(row: Json) -> Json:
    """Return the cell of a row at the longest window."""
    cell: Json = row["cells"][-1]
    return cell


def verdict_word(cell: Json) -> str:
    """Return the verdict of a cell without its reason: `unclear` for `unclear (needs more seeds)`."""
    return str(cell["verdict"]).partition(" ")[0]


def multiple_of(text: str) -> float:
    """Return 8.0 for `8x`."""
    return float(text.removesuffix("x"))
