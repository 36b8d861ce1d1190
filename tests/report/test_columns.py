"""Columns as data: one entry is in every format."""

import csv
import io

import pytest
from fake_runs import T, compared, record, write_run

from posenc.report import explain, parts
from posenc.report.formats import render
from posenc.report.parts.base import CellColumn, ReportPart, RowColumn

PER_CELL = CellColumn(
    head=lambda comparison: "seeds of it",
    text=lambda comparison, row, cell: f"{cell.seeds} seeds of it",
    csv=lambda comparison, row, cell: {"seeds_of_it": cell.seeds},
    terms=(("seeds of it", "how many seeds a number is of"),),
)
PER_ROW = RowColumn(
    head=lambda comparison: "size",
    text=lambda row: f"{row.parameters} in full",
    short=lambda row: f"{row.parameters} in short",
    csv=lambda comparison, row: {"size": row.parameters},
    terms=(("size", "parameters of the model"),),
)


@pytest.fixture
def new_columns(monkeypatch):
    new_part = ReportPart(cell_columns=(PER_CELL,), row_columns=(PER_ROW,))
    known_parts = parts.all_parts()
    monkeypatch.setattr(parts, "all_parts", lambda: (*known_parts, new_part))


def test_a_column_by_window_is_in_the_table_of_everything(new_columns, sweep):
    text = render([compared(sweep)], "table", 200, full=True)
    assert "seeds of it" in text
    assert "3 seeds of it" in text


def test_a_column_by_row_is_in_the_table_of_everything(new_columns, sweep):
    assert "in full" in render([compared(sweep)], "table", 200, full=True)


@pytest.mark.parametrize("format", ["table", "markdown", "latex"])
def test_a_column_with_a_short_text_is_in_the_short_tables(new_columns, sweep, format):
    assert "in short" in render([compared(sweep)], format, 200)


@pytest.mark.parametrize("head", ["seeds_of_it", "size"])
def test_a_column_is_in_csv(new_columns, sweep, head):
    rows = list(csv.DictReader(io.StringIO(render([compared(sweep)], "csv"))))
    assert all(row[head] for row in rows)


def test_one_seed_is_printed_with_half_its_interval(tmp_path):
    write_run(tmp_path, records=[record(T, 1.0, wiggle=0.1), record(8 * T, 1.2, wiggle=0.4)])
    comparison = compared(tmp_path)
    low, high = comparison.rows[0].cells[-1].change_ci95
    assert high > low + 0.1
    assert f"±{(high - low) / 2:.3f}" in render([comparison], "table", 200, full=True)


@pytest.mark.parametrize("line", ["seeds of it   how many seeds", "size      parameters of the model"])
def test_a_column_is_explained(new_columns, line):
    assert line in explain.rules_of_tables()


def test_the_rules_have_the_margins_in_force_and_every_protocol():
    rules = explain.rules_of_tables()
    assert "same within 0.02" in rules
    assert "collapsed above 0.5" in rules
    assert "fixed-target" in rules
    assert "key-tokens" in rules


def test_the_rules_fit_into_a_terminal():
    assert all(len(line) <= 80 for line in explain.rules_of_tables().splitlines())
