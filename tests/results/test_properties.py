"""Properties over random inputs: intervals against scipy, and what is written is read again."""

import json

import pytest
from fake_runs import record
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import brentq

from posenc.results.measurements import parse_multiple
from posenc.results.numbers import as_text, flat_texts
from posenc.results.records import check_record
from posenc.results.statistics.intervals import Estimate, p_beyond
from posenc.results.statistics.proportions import interval_on_shared_windows, wilson

small = settings(derandomize=True, max_examples=40, deadline=None)
shares = st.integers(1, 500).flatmap(lambda count: st.tuples(st.integers(0, count), st.just(count)))
losses = st.floats(0.01, 20, allow_nan=False)
plain_values = st.one_of(st.integers(-1000, 1000), st.booleans(), st.none(), st.text(max_size=5))


@small
@given(shares)
def test_wilson_is_scipys(share):
    correct, count = share
    expected = stats.binomtest(correct, count).proportion_ci(0.95, method="wilson")
    assert wilson(correct / count, count) == pytest.approx((expected.low, expected.high), abs=1e-12)


@small
@given(shares, st.floats(0, 0.5), st.integers(2, 9))
def test_seeds_only_widen_the_interval_of_a_share(share, spread, seeds):
    correct, count = share
    low, high = wilson(correct / count, count)
    low_over_seeds, high_over_seeds = interval_on_shared_windows(correct / count, count, seeds, spread)
    assert low_over_seeds <= low + 1e-12
    assert high_over_seeds >= high - 1e-12


@small
@given(st.floats(0.03, 0.5), st.floats(1e-4, 0.02), st.floats(1e-3, 0.02), st.integers(1, 9))
def test_p_is_the_level_whose_interval_touches_the_margin(value, seed_error, document_error, freedom):
    estimate = Estimate(value, seed_error**2, document_error**2, 40.0, freedom)
    p = p_beyond(estimate, 0.02)

    def distance(level):
        low, _ = estimate.interval(1 - 2 * level)
        return low - 0.02

    if 1e-12 < p < 0.49:
        assert p == pytest.approx(brentq(distance, 1e-14, 0.4999), rel=1e-6)


@small
@given(losses, st.integers(1, 60), st.floats(0, 1))
def test_a_record_is_read_as_it_was_made(loss, count, wiggle):
    made = record(64, loss, count=count, wiggle=wiggle)
    assert check_record(json.dumps(made).encode()) == made


@small
@given(st.floats(0.01, 1e4))
def test_a_multiple_is_read_as_it_is_written(multiple):
    assert parse_multiple(f"{multiple!r}x", "--columns") == multiple


@small
@given(st.dictionaries(st.text("abc", min_size=1), plain_values))
def test_flattening_keeps_every_value(tree):
    assert flat_texts(tree) == {key: as_text(value) for key, value in tree.items()}


@small
@given(st.dictionaries(st.text("xyz"), plain_values, min_size=1))
def test_flattening_puts_the_name_of_a_group_before_its_keys(group):
    expected = {f"group.{key}": as_text(value) for key, value in group.items()}
    assert flat_texts({"group": group}) == expected
