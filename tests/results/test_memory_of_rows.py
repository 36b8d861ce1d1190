"""Memory of rows: what tables, CSV and the picture show of it, beside the loss and in its own table."""

import json

import pytest
from fake_runs import T, compared, memory_record, record, rows_of, write_run

from posenc.report.charts.base import RowNames
from posenc.report.charts.looks import PAPER, specification
from posenc.report.drawing import make_chart
from posenc.report.lines import cells_table
from posenc.report.page import page
from posenc.report.reports import full_report, rows_table, short_report
from posenc.results.records import check_record


def records(variation=0.1, **of_longest):
    """Records of fixed-target and memory at T and 8T."""
    return [
        record(T, 1.0),
        record(8 * T, 1.5),
        memory_record(T, 1.0, variation=0.05),
        memory_record(8 * T, 1.5, variation=variation, **of_longest),
    ]


@pytest.fixture
def two_rows(tmp_path):
    """A function that compares rope with two seeds and alibi with one by a protocol."""
    write_run(tmp_path, "rope", seed=0, records=records(0.30, gained=0.01, lost=0.20))
    write_run(tmp_path, "rope", seed=1, records=records(0.40, gained=0.03, lost=0.10))
    write_run(tmp_path, "alibi", records=records(0.02, gained=0.004, lost=0.001))
    return lambda protocol: compared(tmp_path, protocol=protocol)


def texts_of(comparison):
    """The texts of the table of one screen by row and head."""
    table = rows_table(comparison)
    by_row = {}
    for cells in table.rows:
        by_row[cells[0].text] = dict(zip(table.heads, [cell.text for cell in cells], strict=True))
    return by_row


@pytest.mark.parametrize("protocol", ["fixed-target", "memory"])
def test_memory_stands_beside_the_loss_and_in_its_own_table(two_rows, protocol):
    memory = rows_of(two_rows(protocol))["alibi"].memory
    assert [cell.multiple for cell in memory.cells] == [1, 8]
    assert memory.longest.farther_back.variation == pytest.approx(0.02)


def test_past_t_it_is_the_comparison_with_t_and_up_to_t_with_the_next_shorter_window(two_rows):
    memory = rows_of(two_rows("memory"))["alibi"].memory
    assert memory.cell_at(1).farther_back.window == T // 2
    assert memory.cell_at(8).farther_back.window == T


def test_several_seeds_have_their_mean_and_spread_and_one_seed_its_interval(two_rows):
    rows = rows_of(two_rows("memory"))
    of_two_seeds = rows["rope"].memory.longest.farther_back
    assert of_two_seeds.variation == pytest.approx(0.35)
    assert of_two_seeds.spread == pytest.approx(0.0707, abs=1e-4)
    assert of_two_seeds.ci95 is None
    assert rows["alibi"].memory.longest.farther_back.ci95 == pytest.approx((0.01, 0.03))


def test_seeds_that_were_compared_with_other_windows_are_left_out(tmp_path):
    write_run(tmp_path, "rope", seed=0, records=records(0.30))
    other = records(0.90)
    for key in ("window", "variation", "variation_ci95", "gained", "lost"):
        other[-1]["memory"][key] = other[-1]["memory"][key][1:]
    write_run(tmp_path, "rope", seed=1, records=other)
    longest = rows_of(compared(tmp_path))["rope"].memory.longest
    assert longest.seeds == 1
    assert longest.farther_back.variation == pytest.approx(0.30)


def test_in_a_table_without_a_length_a_row_has_memory_at_t_alone(tmp_path):
    write_run(tmp_path, "alibi", records=records()[2:])
    write_run(tmp_path, "rope", records=records()[:2], status="diverged")
    figures = full_report(compared(tmp_path)).tables[-1]
    assert "memory@T" in figures.heads
    assert "right token" not in figures.heads


def test_its_table_has_memory_at_t_and_in_the_longest_window_and_the_right_token(two_rows):
    texts = texts_of(two_rows("memory"))
    assert texts["rope"]["memory@T"] == "0.050±0.000"
    assert texts["rope"]["memory@8x"] == "0.350±0.071"
    assert texts["rope"]["right token"] == "+0.020 -0.150"
    assert texts["alibi"]["memory@8x"] == "0.020±0.010"


def test_the_headline_table_has_no_memory(two_rows):
    assert not {"memory@T", "memory@8x", "right token"} & set(texts_of(two_rows("fixed-target"))["rope"])


def test_a_single_run_has_a_line_of_it(tmp_path):
    write_run(tmp_path, "rope", records=records(0.30))
    (table,) = short_report(compared(tmp_path, protocol="memory")).tables
    lines = {cells[0].text: [cell.text for cell in cells[1:3]] for cells in table.rows}
    assert lines["memory"] == ["0.050", "0.300"]
    assert lines["right token"] == ["+0.020 -0.010", "+0.020 -0.010"]


def test_the_csv_has_it_by_window(two_rows):
    lines = [line for line in cells_table([two_rows("memory")]) if line["encoding"] == "alibi"]
    assert [line["memory"] for line in lines] == pytest.approx([0.05, 0.02])
    assert [line["memory_farther_than"] for line in lines] == [T // 2, T]
    assert lines[1]["right_token_gains"] == pytest.approx(0.004)


def test_the_picture_has_a_line_over_the_shorter_windows_of_the_longest(two_rows):
    comparison = two_rows("fixed-target")
    chart = make_chart("memory", [comparison], RowNames([comparison]), PAPER)
    points = specification(chart.layers)["data"]["values"]
    of_rope = {point["x"]: point["y"] for point in points if point["row"] == "rope"}
    assert of_rope == pytest.approx({0.25: 0.35, 0.5: 0.35, 1: 0.35})


@pytest.mark.parametrize("protocol", [pytest.param("fixed-target", marks=pytest.mark.slow), "memory"])
def test_the_page_draws_it(two_rows, protocol):
    assert "memory (total variation)" in page([two_rows(protocol)], [])


def test_without_memory_there_is_no_picture(tmp_path):
    write_run(tmp_path, "rope")
    comparisons = [compared(tmp_path)]
    assert make_chart("memory", comparisons, RowNames(comparisons), PAPER) is None


def test_lists_of_different_lengths_are_refused():
    damaged = memory_record(T, 1.0)
    damaged["memory"]["lost"] = [0.1]
    with pytest.raises(ValueError, match="lists of different lengths"):
        check_record(json.dumps(damaged).encode())
