"""The curve over positions of losses that are known."""

import numpy as np
import pytest
from tiny_model import T

from posenc.evaluation.positions import curve_of

LONG = 8 * T
AT = np.arange(1, LONG + 1)  # positions
DOCUMENTS = 40


def curve(nats):
    """Of one span a document, which differ by up to 1 nat."""
    return curve_of(nats + np.linspace(-0.5, 0.5, DOCUMENTS)[:, None], np.arange(DOCUMENTS), T)


def test_a_planted_slope_and_rise_are_found():
    """Level 2, then 0.003 nats more for every token past T."""
    found = curve(2 + 0.003 * np.maximum(0, AT - T))
    assert found["level"] == pytest.approx(2) and found["slope"] == pytest.approx(0.003)
    assert found["slope_ci95"] == pytest.approx([0.003, 0.003])  # documents differ by a constant alone
    edges = found["edges"]
    for a, b, rise, interval in zip(edges, edges[1:], found["rise"], found["rise_ci95"], strict=False):
        want = 0.003 * np.mean([max(0, p - T) for p in range(a, b)])
        assert rise == pytest.approx(want, abs=1e-12)
        assert interval == pytest.approx([want, want], abs=1e-9)
    index = edges.index(found["breaks_at"] or 0)
    assert found["rise"][index] > 0.1 >= found["rise"][index - 1] and edges[index] > T


@pytest.mark.parametrize("step", [1, T // 2 + 1, 2 * T + 1, 4 * T + 1])
def test_a_step_breaks_where_it_is(step):
    """Before T it lifts the level too, or comes too early."""
    assert curve(np.where(step <= AT, 3.0, 2.0))["breaks_at"] == (step if step > T else None)


def test_a_break_is_more_than_a_tenth_of_a_nat_with_the_whole_interval():
    """A rise of 3 nats in a tenth of the documents, 0.3 on average: the interval reaches below 0.1."""
    assert curve(np.where(AT > 2 * T, 2.099, 2.0))["breaks_at"] is None
    assert curve(np.where(AT > 2 * T, 2.101, 2.0))["breaks_at"] is not None
    nats = np.full((DOCUMENTS, LONG), 2.0)
    nats[: DOCUMENTS // 10, T:] += 3
    found = curve(nats)
    assert found["rise"][-1] > 0.29 and found["breaks_at"] is None
    assert found["rise_ci95"][-1][0] < 0.1
