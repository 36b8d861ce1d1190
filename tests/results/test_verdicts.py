"""The word for a change, at the borders between words."""

import pytest

from posenc.results.statistics.intervals import Estimate
from posenc.results.statistics.verdicts import (
    COLLAPSED_MARGIN,
    SAME_MARGIN,
    ChangeVerdict,
    verdict,
)

NEAR = 1e-6


def estimate(value, half):
    """Return an estimate whose 95% interval has this half-width, all of it from documents."""
    t_of_40_degrees = 2.0210753903
    return Estimate(value, 0.0, (half / t_of_40_degrees) ** 2, 40.0)


@pytest.mark.parametrize(
    ("value", "half", "word"),
    [
        (0.0, SAME_MARGIN - NEAR, "same"),
        (0.0, SAME_MARGIN + NEAR, "unclear"),
        (-SAME_MARGIN / 2, SAME_MARGIN / 2 + NEAR, "unclear"),
        (0.05, 0.05 - SAME_MARGIN - NEAR, "worse"),
        (0.05, 0.05 - SAME_MARGIN + NEAR, "unclear"),
        (-0.05, 0.05 - SAME_MARGIN - NEAR, "better"),
        (-0.05, 0.05 - SAME_MARGIN + NEAR, "unclear"),
        (0.6, 0.6 - COLLAPSED_MARGIN - NEAR, "collapsed"),
        (0.6, 0.6 - COLLAPSED_MARGIN + NEAR, "worse"),
        (-0.6, 0.01, "better"),
    ],
)
def test_the_word_follows_the_interval(value, half, word):
    assert verdict(estimate(value, half)).word == word


@pytest.mark.parametrize(
    ("unclear", "needs"),
    [
        # Student's t of 2 degrees of freedom makes the smaller error of the seeds the wider interval.
        pytest.param(Estimate(0.0, 0.01**2, 0.02**2, 39.0, 2), "seeds", id="three seeds"),
        pytest.param(Estimate(0.0, 0.01**2, 0.02**2, 39.0, 8), "documents", id="nine seeds"),
        pytest.param(Estimate(0.0, 0.0, 0.02**2, 39.0), "documents", id="one seed"),
        pytest.param(Estimate(5.0, 0.01**2, None, 7.0, 2), "documents", id="too few documents"),
    ],
)
def test_unclear_says_what_would_narrow_the_interval(unclear, needs):
    assert verdict(unclear) == ChangeVerdict("unclear", needs)


def test_the_text_of_a_verdict_has_its_reason():
    assert str(ChangeVerdict("unclear", "seeds")) == "unclear (needs more seeds)"
    assert str(ChangeVerdict("same")) == "same"
