"""From records to curves: names, rows, what is left out."""

import math

import pytest

from posenc.tracking.curves import WINDOW, curve_points, rows_by_axis, summary_of

CONFIG = {"data": {"name": "sympy"}, "context_length": 64, "eval": {"split": "test"}}


def record(protocol, window, nats, **changes):
    ppl = None
    if nats is not None:
        ppl = math.exp(nats) if nats < 700 else math.inf
    return {
        "protocol": protocol,
        "window": window,
        "multiple": window / 64,
        "corpus": "sympy",
        "split": "test",
        "extend": None,
        "stride": None,
        "targets_hash": "a",
        "nats": nats,
        "bpb": None,
        "ppl": ppl,
        **changes,
    }


# --- What could not be measured


@pytest.fixture
def unmeasured():
    """Points of one curve: a loss, a huge one, one that ran out of memory, one that is no number."""
    losses = {64: 1.0, 128: 800.0, 256: None, 512: math.nan}
    return curve_points([record("fixed-target", *item) for item in losses.items()], CONFIG)


def test_what_could_not_be_measured_is_no_row(unmeasured):
    assert list(rows_by_axis(unmeasured)[WINDOW]) == [64, 128]


def test_a_figure_that_is_not_finite_is_left_out_of_its_row(unmeasured):
    assert "eval/fixed-target/ppl" not in rows_by_axis(unmeasured)[WINDOW][128]


def test_what_could_not_be_measured_is_not_in_the_summary(unmeasured):
    assert summary_of(unmeasured) == {"eval/fixed-target/nats@1x": 1.0, "eval/fixed-target/nats@2x": 800.0}


# --- Names


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({}, "sliding"),
        ({"corpus": "stdlib"}, "sliding on stdlib"),
        ({"split": "validation"}, "sliding validation"),
        ({"extend": {"name": "pi", "factor": "auto"}}, "sliding+pi"),
        ({"extend": {"name": "pi", "factor": 4, "resolved": {"factor": 4}}}, "sliding+pi factor=4"),
    ],
)
def test_other_text_and_extensions_are_curves_of_their_own(changes, name):
    (point,) = curve_points([record("sliding", 64, 1.0, **changes)], CONFIG)
    assert point.curve == name
    assert f"eval/{name}/nats" in rows_by_axis([point])[WINDOW][64]


# --- What does not belong to a curve


def test_points_with_another_stride_are_left_out():
    """Sliding has other targets at each window, which is no reason."""
    curve = [record("sliding", w, 1.0, stride=16, targets_hash=f"{w}") for w in (64, 512)]
    finer = record("sliding", 64, 2.0, stride=8, targets_hash="b")
    summary = summary_of(curve_points([finer, *curve], CONFIG))
    assert summary == {"eval/sliding/nats@1x": 1.0, "eval/sliding/nats@8x": 1.0}


def test_points_on_other_targets_are_left_out():
    curve = [record("fixed-target", w, 1.0) for w in (64, 512)]
    farther = record("fixed-target", 1024, 3.0, targets_hash="b")
    summary = summary_of(curve_points([farther, *curve], CONFIG))
    assert summary == {"eval/fixed-target/nats@1x": 1.0, "eval/fixed-target/nats@8x": 1.0}


def test_points_in_another_precision_are_a_curve_of_their_own():
    records = [record("fixed-target", 64, 1.0), record("fixed-target", 64, 1.1, precision="fp32")]
    curves = [point.curve for point in curve_points(records, CONFIG)]
    assert curves == ["fixed-target", "fixed-target in fp32"]
