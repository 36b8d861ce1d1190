"""Numbers beside the loss: a file of results and a file of report are all that a new protocol needs."""

import csv
import io
import json
import sys

import pytest
from fake_runs import T, compared, record, write_run

from posenc.report import explain, parts
from posenc.report.charts import names
from posenc.report.formats import render
from posenc.results import beside, records
from posenc.results.beside import base
from posenc.results.records import check_record

RESULTS_FILE = """
from statistics import fmean
from typing import Annotated

from annotated_types import Ge, Le
from typing_extensions import TypedDict

from posenc.results.beside.base import NumbersBeside, TableBeside


class Coverage(TypedDict):
    share: Annotated[float, Ge(0), Le(1)]


RECORD = Coverage


def _rows_of(table: TableBeside) -> list[float | None]:
    rows = []
    for members in table.rows:
        measured = [COVERAGE.measured(member.measurements[-1]) for member in members if member.measurements]
        rows.append(fmean(coverage["share"] for coverage in measured) if measured else None)
    return rows


COVERAGE = NumbersBeside(protocol="coverage", rows_of=_rows_of, sort_number=lambda share: share)
"""
REPORT_FILE = """
from posenc.report.parts.base import ReportPart, RowColumn
from posenc.results.beside.coverage import COVERAGE


def _text(row):
    share = COVERAGE.of(row)
    return "" if share is None else f"{share:.0%} covered"


PART = ReportPart(
    row_columns=(
        RowColumn(
            head=lambda comparison: "coverage",
            text=_text,
            short=_text,
            csv=lambda comparison, row: {"coverage": COVERAGE.of(row)},
            terms=(("coverage", "the share that is covered"),),
        ),
    ),
)
"""


def forget_protocols():
    """Forget which files there are."""
    for cached in (
        beside.keys_beside,
        base.all_numbers_beside,
        records._results_adapter,
        records._record_adapter,
        records._complete_record_type,
        parts.all_parts,
        parts.chart_kinds,
    ):
        cached.cache_clear()


@pytest.fixture
def coverage(tmp_path, monkeypatch):
    """The two files of a protocol `coverage`, in folders that are walked as if they were the package's."""
    for package, text in ((beside, RESULTS_FILE), (parts, REPORT_FILE)):
        folder = tmp_path / package.__name__
        folder.mkdir()
        (folder / "coverage.py").write_text(text)
        monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder)])
    forget_protocols()
    yield
    forget_protocols()
    for package in (beside, parts):
        sys.modules.pop(f"{package.__name__}.coverage", None)
        if hasattr(package, "coverage"):
            delattr(package, "coverage")


def coverage_record(share):
    return record(8 * T, 1.2, protocol="coverage", targets_hash="e" * 16, coverage={"share": share})


@pytest.fixture
def two_rows(coverage, tmp_path):
    runs = tmp_path / "runs"
    for encoding, share in (("rope", 0.25), ("alibi", 0.75)):
        write_run(runs, encoding, records=[record(T, 1.0), record(8 * T, 1.2), coverage_record(share)])
    return runs


def test_a_new_protocol_stands_beside_the_losses(two_rows):
    assert "25% covered" in render([compared(two_rows)], "table", 200)


def test_a_new_protocol_has_a_table_of_its_own(two_rows):
    assert [row.coverage for row in compared(two_rows, protocol="coverage").rows] == [0.75, 0.25]


def test_a_new_protocol_is_in_json(two_rows):
    document = json.loads(render([compared(two_rows)], "json"))
    assert [row["coverage"] for row in document["rows"]] == [0.75, 0.25]


def test_a_new_protocol_is_in_csv(two_rows):
    lines = list(csv.DictReader(io.StringIO(render([compared(two_rows)], "csv"))))
    assert {line["coverage"] for line in lines} == {"0.75", "0.25"}


def test_a_new_protocol_is_explained(coverage):
    assert "coverage  the share that is covered" in explain.rules_of_tables()


def test_rows_are_sorted_by_the_numbers_of_a_new_protocol(two_rows):
    assert [row.label for row in compared(two_rows, sort="coverage").rows] == ["rope", "alibi"]


def test_a_record_of_a_new_protocol_is_checked(coverage):
    damaged = coverage_record(1.5)
    with pytest.raises(ValueError, match=r"coverage\.share: .* less than or equal to 1"):
        check_record(json.dumps(damaged).encode())


def test_a_row_without_a_protocols_numbers_says_so(tmp_path):
    write_run(tmp_path, losses={1: 1.0})
    row = compared(tmp_path).rows[0]
    assert row.memory is None
    with pytest.raises(AttributeError, match="no 'memori'"):
        row.memori  # noqa: B018


@pytest.mark.parametrize("key", beside.keys_beside())
def test_a_file_of_results_is_named_as_its_protocol(key):
    assert [numbers.protocol for numbers in base.all_numbers_beside() if numbers.key == key] == [key]


def test_help_names_the_charts_that_there_are():
    assert set(names.plots()) == set(parts.chart_kinds())
