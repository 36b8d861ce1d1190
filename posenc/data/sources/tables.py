"""Tables with a text in each row, in the column `data.text_field`: JSON lines, CSV and Parquet."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from posenc.core.errors import UserError, first_line
from posenc.data.sources.formats import plain_suffix

Rows = Iterator[tuple[int, str]]  # the number of a row, from 1, and its text

DELIMITERS = {".csv": ",", ".tsv": "\t"}


def rows_of(file: Path, content: bytes, text_field: str) -> Rows:
    """Yield the text of each row of a table. Raises UserError that names the file and the row without text.

    A null is an empty text in each format. `content` is UTF-8, unless the file is Parquet.
    """
    suffix = plain_suffix(file)
    if suffix == ".parquet":
        return _parquet_rows(file, content, text_field)
    if suffix in DELIMITERS:
        return _csv_rows(file, content, text_field)
    return _json_rows(file, content, text_field)


def _json_rows(file: Path, content: bytes, text_field: str) -> Rows:
    """Yield the text of each line of JSON that is not empty, with the number of the line."""
    for number, line in enumerate(content.split(b"\n"), start=1):
        if line.strip():
            yield number, _json_text(line, text_field, f"{file}:{number}")


def _json_text(line: bytes, text_field: str, location: str) -> str:
    """Return the text in a line of JSON. Raises UserError."""
    try:
        row = json.loads(line)
    # A line of thousands of brackets ends Python's recursion before it is found to be no JSON.
    except (ValueError, RecursionError) as error:
        raise UserError("data.paths", location, f"this line is not JSON ({error})") from error
    if not isinstance(row, dict):
        raise UserError("data.paths", location, "this line is not a JSON object")
    # The field is there and holds nothing, as an empty field of a CSV. A field that is missing is refused,
    # since its name may be mistyped.
    if text_field in row and row[text_field] is None:
        return ""
    text = row.get(text_field)
    if not isinstance(text, str):
        raise UserError("data.text_field", text_field, f"there is no such text at {location}", allowed=row)
    return text


def _csv_rows(file: Path, content: bytes, text_field: str) -> Rows:
    """Yield the text of each row below the header. A row that ends before its column has an empty text."""
    # The limit, 131,072 characters by default, holds for the whole process. A document may be longer.
    csv.field_size_limit(max(csv.field_size_limit(), len(content)))
    # `newline=""`, so that the reader sees the line ends inside of quoted fields as they are.
    lines = io.StringIO(content.decode(), newline="")
    # Strict, because otherwise a quote that is never closed would swallow the rest of the file in silence.
    rows = csv.DictReader(lines, delimiter=DELIMITERS[plain_suffix(file)], strict=True)
    number = 0
    try:
        _check_column(file, text_field, rows.fieldnames or [])
        for number, row in enumerate(rows, start=1):
            yield number, row[text_field] or ""
    except csv.Error as error:
        raise UserError("data.paths", file, f"row {number + 1} is not CSV ({error})") from error


def _parquet_rows(file: Path, content: bytes, text_field: str) -> Rows:
    """Yield the text of each row."""
    import pyarrow
    from pyarrow import parquet

    try:
        table = parquet.ParquetFile(io.BytesIO(content))
        _check_column(file, text_field, table.schema_arrow.names)
        number = 0
        # Other columns are not decoded, and may be far larger than the text.
        for batch in table.iter_batches(columns=[text_field]):
            for value in batch.column(0).to_pylist():
                number += 1
                if value is not None and not isinstance(value, str):
                    problem = f"does not hold text in {file.name}"
                    raise UserError("data.text_field", text_field, problem)
                yield number, value or ""
    except (pyarrow.ArrowException, OSError) as error:  # OSError: a damaged page
        raise UserError("data.paths", file, f"is not a whole Parquet file ({first_line(error)})") from error


def _check_column(file: Path, text_field: str, columns: Sequence[str]) -> None:
    """Raise UserError if a table does not have the column."""
    if text_field not in columns:
        problem = f"{file.name} has no such column"
        raise UserError("data.text_field", text_field, problem, allowed=columns)
