"""positions: the curve over positions of losses that are known."""

import itertools

import numpy as np
import pytest
from measuring import protocol_of
from tiny_model import T
from token_stores import request_for, store_in_folders

from posenc.evaluation.protocols.positions import bin_edges, curve_of
from posenc.results.statistics.documents import MIN_GROUPS

LONG = 8 * T
AT = np.arange(1, LONG + 1)  # positions
DOCUMENTS = 40


def curve(nats):
    """Of one span a document, which differ by up to 1 nat."""
    spans = nats + np.linspace(-0.5, 0.5, DOCUMENTS)[:, None]  # (DOCUMENTS, LONG)
    return curve_of(spans, spans[:, T // 2 : T], np.arange(DOCUMENTS), T)


@pytest.fixture
def rising():
    """Level 2, then 0.003 nats more for every token past T."""
    return curve(2 + 0.003 * np.maximum(0, AT - T))


def test_the_level_is_the_mean_over_the_second_half_of_t(rising):
    assert rising["level"] == pytest.approx(2)


def test_the_level_of_a_pass_leaves_out_the_first_half_of_t(subject_of, asked_of):
    subject = subject_of("rope")
    protocol = protocol_of("positions")
    plan = protocol.plan(asked_of([LONG]))
    measured = protocol.measure(subject, plan, LONG)
    nats = subject.text_losses(plan.stops(subject), LONG, LONG)
    assert measured.extra["curve"]["level"] == pytest.approx(nats[:, T // 2 : T].mean())


def test_a_planted_slope_is_found(rising):
    assert rising["slope"] == pytest.approx(0.003)


def test_documents_that_differ_by_a_constant_leave_no_doubt_of_the_slope(rising):
    assert rising["slope_ci95"] == pytest.approx([0.003, 0.003])


def test_the_rise_of_each_bin_is_its_mean_over_the_level(rising):
    bins = itertools.pairwise(rising["edges"])
    rise = [0.003 * np.mean([max(0, p - T) for p in range(start, stop)]) for start, stop in bins]
    assert rising["rise"] == pytest.approx(rise, abs=1e-12)
    assert np.array(rising["rise_ci95"]) == pytest.approx(np.array([rise, rise]).T, abs=1e-9)


def test_a_rising_curve_breaks_at_the_first_bin_above_a_tenth_of_a_nat(rising):
    index = rising["edges"].index(rising["breaks_at"])
    assert rising["edges"][index] > T
    assert rising["rise"][index] > 0.1 >= rising["rise"][index - 1]


@pytest.mark.parametrize("step", [2 * T + 1, 4 * T + 1])
def test_a_step_past_t_breaks_where_it_is(step):
    assert curve(np.where(step <= AT, 3.0, 2.0))["breaks_at"] == step


@pytest.mark.parametrize("step", [1, T // 2 + 1])
def test_a_step_before_t_lifts_the_level_and_breaks_nowhere(step):
    assert curve(np.where(step <= AT, 3.0, 2.0))["breaks_at"] is None


@pytest.mark.parametrize(("rise", "breaks"), [(0.099, False), (0.101, True)])
def test_a_break_is_more_than_a_tenth_of_a_nat(rise, breaks):
    broken = curve(np.where(AT > 2 * T, 2.0 + rise, 2.0))
    assert (broken["breaks_at"] is not None) == breaks


def test_a_break_needs_its_whole_interval_above_a_tenth_of_a_nat():
    """A rise of 3 nats in a tenth of the documents, 0.3 on average: the interval reaches below 0.1."""
    nats = np.full((DOCUMENTS, LONG), 2.0)
    nats[: DOCUMENTS // 10, T:] += 3
    found = curve(nats)
    assert found["rise"][-1] > 0.29
    assert found["rise_ci95"][-1][0] < 0.1
    assert found["breaks_at"] is None


def curve_in_folders(subject_of, n_folders):
    """Return the measured curve of documents in so many folders, and a function from units to the curve."""
    store = store_in_folders(n_folders, DOCUMENTS, LONG + 1)
    subject = subject_of("rope", tokens=store)
    protocol = protocol_of("positions")
    plan = protocol.plan(request_for(store, [LONG], max_targets=DOCUMENTS * LONG))
    assert plan.documents.tolist() == list(range(DOCUMENTS))  # a span each
    measured = protocol.measure(subject, plan, LONG)
    nats = subject.text_losses(plan.stops(subject), LONG, LONG)
    return measured.extra["curve"], lambda units: curve_of(nats, nats[:, T // 2 : T], units, T)


def test_intervals_are_over_folders_if_there_are_enough(subject_of):
    curve, curve_over = curve_in_folders(subject_of, MIN_GROUPS)
    assert curve["rise_ci95"] == curve_over(np.arange(DOCUMENTS) % MIN_GROUPS)["rise_ci95"]


def test_intervals_are_over_documents_if_there_are_too_few_folders(subject_of):
    curve, curve_over = curve_in_folders(subject_of, MIN_GROUPS - 1)
    assert curve["rise_ci95"] == curve_over(np.arange(DOCUMENTS))["rise_ci95"]


@pytest.mark.parametrize("window", [T, 2 * T, 5 * T])
def test_half_of_t_and_its_multiples_end_bins(window):
    edges = bin_edges(T, window)
    assert edges[0] == 1
    assert edges[-1] == window + 1
    ends = [multiple for multiple in (T // 2, T, 2 * T) if multiple <= window]
    assert {end + 1 for end in ends} <= set(edges)


def test_a_window_of_t_has_no_slope():
    assert curve_of(np.ones((3, T)), np.ones((3, T // 2)), np.arange(3), T)["slope"] is None
