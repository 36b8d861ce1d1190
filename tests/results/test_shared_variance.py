"""The variance over seeds that the rows of a column share."""

import numpy as np
import pytest

from posenc.results.statistics.shared_variance import shared_variances


def draw_column(generator, rows, seeds, spread, means=0.0):
    """Draw the losses of a column: a row for each of `rows`, with this spread over its seeds."""
    noise = generator.normal(size=(rows, seeds)) * np.reshape(spread, (-1, 1))
    losses = np.broadcast_to(means, rows)[:, None] + noise
    return tuple(tuple(row) for row in losses)


@pytest.fixture
def column():
    """Twenty rows of the same spread, of which the last one agrees by luck."""
    rows = draw_column(np.random.default_rng(0), 19, 3, 0.01)
    return (*rows, (0.0, 1e-5, -1e-5))


def test_seeds_that_agree_by_luck_get_a_larger_variance(column):
    variance, _ = shared_variances(column)[19]
    assert variance > 1000 * np.var(column[19], ddof=1)


def test_the_largest_variance_becomes_smaller_and_not_by_much(column):
    variances = [np.var(row, ddof=1) for row in column]
    largest = int(np.argmax(variances))
    variance, _ = shared_variances(column)[largest]
    assert 0.3 * variances[largest] < variance < variances[largest]


def test_sharing_adds_degrees_of_freedom(column):
    for _, freedom in shared_variances(column):
        assert 2 < freedom <= 3.5


def test_the_variance_follows_a_trend_with_the_loss():
    means = np.linspace(0, 3, 20)
    column = draw_column(np.random.default_rng(0), 20, 3, 0.01 + 0.1 * means, means)
    variances = [variance for variance, _ in shared_variances(column)]
    assert variances[19] > 20 * variances[0]


@pytest.mark.parametrize(
    ("rows", "seeds", "spread"),
    [
        pytest.param(7, 3, 0.01, id="few rows"),
        pytest.param(20, 2, 0.01, id="two seeds"),
        pytest.param(20, 3, 0.0, id="equal seeds"),
        pytest.param(20, 3, np.where(np.arange(20) % 7, 0.01, 0.1), id="no common variance"),
    ],
)
def test_variances_are_not_shared(rows, seeds, spread):
    assert shared_variances(draw_column(np.random.default_rng(1), rows, seeds, spread)) is None
