"""Why a row fails: the criteria on made-up numbers, and the rows of a comparison that have them."""

import json
import math

import pytest
from fake_runs import T, compared, dispersion_record, record, rows_of, write_run

from posenc.report.charts.base import RowNames
from posenc.report.charts.looks import PAPER
from posenc.report.drawing import make_chart
from posenc.report.reports import rows_table
from posenc.report.sentences.why import why_notes
from posenc.results.beside.dispersion import (
    DispersionCell,
    is_sink_broken,
    is_spread,
    reasons_of,
    variance_ratio,
)
from posenc.results.records import check_record

LAYERS = 2
BROKEN = {"entropy": 2.0 + math.log(8), "first": 0.01, "variance": 0.2, "far_nats": 3.0}


def cell(multiple=1, *, nats=1.0, entropy=2.0, first=0.3, variance=1.0, far_nats=None):
    return DispersionCell(
        multiple=multiple,
        window=multiple * T,
        nats=nats,
        entropy=(entropy,) * LAYERS,
        first=(first, first / 2),
        variance=(variance,) * LAYERS,
        far_nats=far_nats,
        seeds=1,
    )


@pytest.mark.parametrize(("far_share", "reasons"), [(0.3, ("positions",)), (0.29, ()), (None, ())])
def test_far_positions_are_a_reason_if_they_lose_three_tenths_as_much(far_share, reasons):
    assert reasons_of(cell(), cell(8), far_share) == reasons


@pytest.mark.parametrize(
    ("share_of_log", "variance", "expected"),
    [
        (0.51, 0.49, True),
        (0.49, 0.49, False),
        (0.51, 0.51, False),
    ],
)
def test_spread_needs_half_of_the_logarithm_and_less_than_half_of_the_variance(
    share_of_log, variance, expected
):
    spread = cell(8, entropy=2.0 + share_of_log * math.log(8), variance=variance)
    assert is_spread(cell(), spread) is expected


@pytest.mark.parametrize(
    ("at_t", "longest", "expected"),
    [
        (0.3, 0.14, True),
        (0.3, 0.16, False),
        (0.09, 0.0, False),  # no sink at T
    ],
)
def test_a_sink_is_broken_if_its_layer_loses_half(at_t, longest, expected):
    assert is_sink_broken(cell(first=at_t), cell(8, first=longest)) is expected


def test_a_row_may_have_every_reason_and_none():
    assert reasons_of(cell(), cell(8, **BROKEN), 1.0) == ("positions", "spread", "sink")
    assert reasons_of(cell(), cell(8), 0.0) == ()


def test_the_variance_is_compared_layer_by_layer():
    at_t = cell(variance=4.0)
    longest = DispersionCell(8, 8 * T, 1.0, (2.0, 2.0), (0.3, 0.1), (1.0, 4.0), None, 1)
    assert variance_ratio(at_t, longest) == pytest.approx(0.5)


def test_without_variance_there_is_no_ratio():
    assert variance_ratio(cell(variance=0.0), cell(8)) is None


# --- rows of a comparison


def dispersion_records(change, **of_longest):
    """Records of fixed-target and dispersion at T and 8T, whose loss changes by `change`."""
    return [
        record(T, 1.0),
        record(8 * T, 1.0 + change),
        dispersion_record(T, 1.0),
        dispersion_record(8 * T, 1.0 + change, **of_longest),
    ]


@pytest.fixture
def comparison_of(tmp_path):
    """A comparison of two runs: rope collapses with the given numbers at 8T, alibi keeps its loss."""

    def make(protocol, columns=(), **of_longest):
        write_run(tmp_path, "rope", records=dispersion_records(2.0, **of_longest))
        write_run(tmp_path, "alibi", records=dispersion_records(0.0))
        return compared(tmp_path, protocol=protocol, columns=columns)

    return make


@pytest.mark.parametrize("protocol", ["fixed-target", "dispersion"])
def test_a_collapsed_row_has_its_reasons_and_no_other_row_has(comparison_of, protocol):
    rows = rows_of(comparison_of(protocol, **BROKEN))
    assert rows["rope"].dispersion.reasons == ("positions", "spread", "sink")
    assert rows["alibi"].dispersion.reasons is None


@pytest.mark.parametrize("protocol", ["fixed-target", "dispersion"])
def test_the_reasons_of_a_row_do_not_depend_on_the_columns_that_are_shown(comparison_of, protocol):
    rows = rows_of(comparison_of(protocol, columns=[1], **BROKEN))
    assert rows["rope"].dispersion.reasons == ("positions", "spread", "sink")
    assert rows["alibi"].dispersion.reasons is None


def test_the_headline_does_not_say_why_rows_collapse_at_a_length_that_it_does_not_show(comparison_of):
    assert why_notes(comparison_of("fixed-target", columns=[1], **BROKEN)) == []


def test_the_sentence_of_a_collapsed_row_has_the_numbers_of_each_reason(comparison_of):
    (note,) = why_notes(comparison_of("dispersion", **BROKEN))
    assert note.startswith("why rope collapses at 8x: positions never seen (T tokens alone")
    assert "lose 100% as much" in note
    assert "like 7.39 equal keys at T and 59.1 at 8x, outputs vary 0.2 times as much" in note
    assert "layer 1 puts 30% at T and 1% at 8x on the first token" in note


def test_a_collapse_without_a_reason_says_none_of_these(comparison_of):
    (note,) = why_notes(comparison_of("dispersion", far_nats=1.1))
    expected = "none of these: positions never seen, attention spread, sink broken"
    assert note == f"why rope collapses at 8x: {expected}"


def test_the_headline_has_one_line_of_reasons(comparison_of):
    (note,) = why_notes(comparison_of("fixed-target", far_nats=2.5))
    assert note == "why they collapse (--protocol dispersion): positions never seen: rope"


def test_the_table_of_the_protocol_has_its_columns(comparison_of):
    heads = [column.head for column in rows_table(comparison_of("dispersion", **BROKEN)).columns]
    assert {"entropy", "first token", "variance", "far", "why"} <= set(heads)


def test_the_headline_table_has_none_of_them(comparison_of):
    heads = [column.head for column in rows_table(comparison_of("fixed-target", **BROKEN)).columns]
    assert not {"entropy", "first token", "variance", "far", "why"} & set(heads)


def test_the_picture_has_a_panel_for_each_quantity(comparison_of):
    comparison = comparison_of("fixed-target", **BROKEN)
    chart = make_chart("why", [comparison], RowNames([comparison]), PAPER)
    assert len(chart.panels) == 4
    assert chart.rows == ["alibi", "rope"]


def test_without_dispersion_there_is_no_picture(tmp_path):
    write_run(tmp_path, "rope")
    comparisons = [compared(tmp_path)]
    assert make_chart("why", comparisons, RowNames(comparisons), PAPER) is None


def test_lists_of_different_lengths_are_refused():
    wrong = {"entropy": [1.0, 2.0], "first": [0.1], "variance": [1.0, 1.0], "far_nats": None}
    damaged = record(T, 1.0, protocol="dispersion", dispersion=wrong)
    with pytest.raises(ValueError, match="lists of different lengths"):
        check_record(json.dumps(damaged).encode())
