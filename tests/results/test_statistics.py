"""Means, intervals and paired differences against closed forms."""

import math

import numpy as np
import pytest
from fake_runs import record
from scipy import stats

from posenc.results.statistics.documents import (
    Sample,
    change_of,
    difference,
    on_shared_documents,
    ratio_interval,
    ratio_of,
)
from posenc.results.statistics.intervals import Estimate, mean_and_spread, p_beyond
from posenc.results.statistics.proportions import FactCount, SeedFacts, wilson
from posenc.results.statistics.shared_variance import predicted_variances


def sample(nats, targets=None, sizes=None, start=0, is_reversed=False):
    """Return sums of documents numbered from `start`, by default with ten targets and twenty bytes each."""
    count = len(nats)
    sums = {
        "document": list(range(start, start + count)),
        "nats": list(nats),
        "targets": targets or [10] * count,
        "bytes": sizes or [20] * count,
    }
    if is_reversed:
        sums = {column: values[::-1] for column, values in sums.items()}
    return Sample.of(sums)


def bits(values, size=100.0):
    """Return the sums of documents of these bits per byte, each with as many bytes."""
    return sample([value * size * math.log(2) for value in values], sizes=[size] * len(values))


def half_width(interval):
    low, high = interval
    return (high - low) / 2


# --- The interval of a ratio over documents
def test_the_interval_of_equal_counts_is_the_t_interval_of_the_mean():
    sums = [1.0, 3.0] * 20  # mean 2, sample variance 40/39; t(39, 0.975) = 2.0226909
    half = 2.0226909 * math.sqrt(40 / 39 / 40)
    assert ratio_interval(sums, [1.0] * 40) == pytest.approx((2 - half, 2 + half), abs=1e-6)


@pytest.fixture(scope="module")
def three_large_documents():
    """Sums and counts of 43 documents, of which three have nearly all targets."""
    counts = np.array([100.0] * 3 + [1.0] * 40)
    return counts * np.random.default_rng(1).normal(2, 0.3, 43), counts


def test_an_interval_contains_the_ratio(three_large_documents):
    sums, counts = three_large_documents
    low, high = ratio_interval(list(sums), list(counts))
    assert low < sums.sum() / counts.sum() < high


def test_an_interval_uses_the_effective_number_of_documents(three_large_documents):
    sums, counts = three_large_documents
    left_out = (sums.sum() - sums) / (counts.sum() - counts)
    error = math.sqrt(42 / 43 * ((left_out - left_out.mean()) ** 2).sum())
    half = half_width(ratio_interval(list(sums), list(counts)))
    assert half > 3 * error  # Student's t of about 2.8 degrees of freedom, not 1.96


def test_ten_documents_have_an_interval():
    assert ratio_interval([1.0, 2.0] * 5, [1.0] * 10) is not None


def test_eight_documents_have_none():
    assert ratio_interval([1.0, 2.0] * 4, [1.0] * 8) is None


def test_a_difference_over_eight_documents_has_a_value_without_an_interval():
    estimate = difference([(bits([1.0, 2.0] * 4), bits([1.0] * 8))] * 3, "bytes")
    assert estimate.value == pytest.approx(0.5)
    assert estimate.interval() is None
    assert p_beyond(estimate, 0.0) is None


# --- Differences
@pytest.mark.parametrize(("per", "expected"), [("targets", 12 / 40), ("bytes", 12 / (80 * math.log(2)))])
def test_a_difference_divides_once_and_aligns_documents(per, expected):
    larger = sample([12.0, 40.0], targets=[10, 30], sizes=[20, 60])
    smaller = sample([10.0, 30.0], targets=[10, 30], sizes=[20, 60], is_reversed=True)
    estimate = difference([(larger, smaller)], per)
    assert estimate.value == pytest.approx(expected)


def test_a_difference_per_byte_needs_bytes():
    with pytest.raises(ValueError, match="no bytes"):
        difference([(sample([1.0]), sample([1.0], sizes=[0]))], "bytes")


def test_where_one_document_has_all_the_bytes_there_is_no_interval():
    sizes = [800] + [0] * 39
    estimate = difference([(sample([2.0] * 40, sizes=sizes), sample([1.0] * 40, sizes=sizes))], "bytes")
    assert estimate.value == pytest.approx(40 / 800 / math.log(2))
    assert estimate.interval() is None


def test_a_ratio_has_at_least_one_degree_of_freedom():
    assert ratio_of(sample([1.0] * 40, targets=[10**9] + [1] * 39), "targets").freedom == 1


def test_a_change_has_the_smaller_degrees_of_freedom():
    even = ratio_of(sample([1.0] * 40), "targets")
    uneven = ratio_of(sample([1.0] * 40, targets=[100] + [1] * 39), "targets")
    assert change_of(even, uneven).freedom == change_of(uneven, even).freedom == uneven.freedom < even.freedom


NOISE = np.random.default_rng(0).normal(15, 4, 40)


def test_pairing_removes_what_both_share():
    estimate = difference([(sample(NOISE + 2), sample(NOISE, is_reversed=True))], "targets")
    low, high = estimate.interval()
    assert estimate.value == pytest.approx(0.2)
    assert high - low < 1e-9


def test_shared_documents_are_cut_out_of_both():
    first, second = on_shared_documents([sample(NOISE), sample(NOISE[5:], start=5)])
    assert first.document.tolist() == list(range(5, 40))
    assert first.nats.tolist() == second.nats.tolist()


def test_without_shared_documents_nothing_is_left():
    assert on_shared_documents([sample([1.0]), sample([1.0], start=1)]) == []


@pytest.fixture(scope="module")
def two_tokenizers():
    """Nats and sizes of the same documents: the second tokenizer's have five bytes more and 0.1 nats less."""
    generator = np.random.default_rng(2)
    sizes = generator.integers(50, 200, 60).astype(float)
    shared = generator.normal(2, 0.5, 60)
    return (shared + 0.1) * sizes, sizes, shared * (sizes + 5), sizes + 5


def test_two_tokenizers_are_compared_over_the_same_documents(two_tokenizers):
    nats, sizes, other_nats, other_sizes = two_tokenizers
    pair = sample(nats, sizes=list(sizes)), sample(other_nats, sizes=list(other_sizes))
    at_once = nats.sum() / sizes.sum() - other_nats.sum() / other_sizes.sum()
    assert difference([pair], "bytes").value == pytest.approx(at_once / math.log(2))


def test_what_documents_of_two_tokenizers_share_cancels(two_tokenizers):
    nats, sizes, other_nats, other_sizes = two_tokenizers
    pair = sample(nats, sizes=list(sizes)), sample(other_nats, sizes=list(other_sizes))
    low, high = difference([pair], "bytes").interval()
    assert high - low < 0.02  # the documents differ by 0.5


# --- Groups of documents, such as the files of one folder
FOLDERS = np.random.default_rng(1).normal(0.3, 1.0, 25)  # the difference in each of 25 folders
GROUPS = {"group": list(np.repeat(range(25), 3))}
ALIKE = {  # three documents of each folder, which are the same
    "document": list(range(75)),
    "nats": list(np.repeat(FOLDERS, 3)),
    "targets": [10.0] * 75,
    "bytes": [20.0] * 75,
}
ZERO = ALIKE | {"nats": [0.0] * 75}
HALF_BY_GROUP = stats.t.ppf(0.975, 24) * FOLDERS.std(ddof=1) / 50  # ten targets; the root of 25 folders


def half_of_difference(first, second):
    return half_width(difference([(Sample.of(first), Sample.of(second))], "targets").interval())


def test_groups_are_the_units_of_a_difference():
    assert half_of_difference(ALIKE | GROUPS, ZERO | GROUPS) == pytest.approx(HALF_BY_GROUP)


def test_where_one_side_has_no_groups_documents_are_the_units():
    by_document = half_of_difference(ALIKE, ZERO)
    assert half_of_difference(ALIKE, ZERO | GROUPS) == by_document
    assert by_document < 0.6 * HALF_BY_GROUP


def test_below_twenty_groups_documents_are_the_units():
    nineteen = {"group": [min(group, 18) for group in GROUPS["group"]]}
    assert half_of_difference(ALIKE | nineteen, ZERO | nineteen) == half_of_difference(ALIKE, ZERO)


def test_groups_are_the_units_of_an_interval():
    interval = ratio_interval(ALIKE["nats"], ALIKE["targets"], GROUPS["group"])
    assert half_width(interval) == pytest.approx(HALF_BY_GROUP)


def test_an_interval_takes_arrays_as_well():
    columns = ALIKE["nats"], ALIKE["targets"], GROUPS["group"]
    assert ratio_interval(*map(np.array, columns)) == ratio_interval(*columns)


def test_groups_are_the_units_of_a_records_interval():
    measurement = record(
        64,
        0,
        documents=ALIKE["document"],
        nats=ALIKE["nats"],
        targets=ALIKE["targets"],
        bytes=ALIKE["document"],
        groups=GROUPS["group"],
    )
    assert half_width(measurement["ci95"]) == pytest.approx(HALF_BY_GROUP)


# --- Seeds and documents together
OF_SEEDS = [0.31, 0.27, 0.36]
OF_DOCUMENTS = list(np.random.default_rng(3).normal(0.3, 1.0, 50))
ONE_SEED = [(bits(OF_DOCUMENTS), bits([0.0] * 50))]
THREE_SEEDS = [(bits([value + 1] * 40), bits([1.0] * 40)) for value in OF_SEEDS]
ONE_KIND_OF_VARIANCE = [
    pytest.param(OF_SEEDS, THREE_SEEDS, id="seeds"),
    pytest.param(OF_DOCUMENTS, ONE_SEED, id="documents"),
    pytest.param(OF_DOCUMENTS, ONE_SEED * 3, id="documents of equal seeds"),
]


@pytest.mark.parametrize(("values", "pairs"), ONE_KIND_OF_VARIANCE)
def test_where_one_kind_varies_the_interval_is_students(values, pairs):
    expected = stats.ttest_1samp(values, 0.0).confidence_interval(0.95)
    assert difference(pairs, "bytes").interval() == pytest.approx(tuple(expected))


@pytest.mark.parametrize(("values", "pairs"), ONE_KIND_OF_VARIANCE)
def test_where_one_kind_varies_p_is_students_on_one_side(values, pairs):
    expected = stats.ttest_1samp(values, 0.02).pvalue / 2
    assert p_beyond(difference(pairs, "bytes"), 0.02) == pytest.approx(expected, rel=1e-6)


def test_what_one_seed_gains_in_a_document_and_another_loses_is_no_difference_of_documents():
    values = np.random.default_rng(5).normal(0.0, 1.0, 50)
    centred = values - values.mean()
    zero = bits([0.0] * 50)
    estimate = difference([(bits(centred), zero), (bits(-centred), zero)], "bytes")
    assert estimate.document_variance == pytest.approx(0.0, abs=1e-20)


def test_what_both_seeds_gain_in_a_document_is_a_difference_of_documents():
    values = np.random.default_rng(5).normal(0.0, 1.0, 50)
    pair = bits(values - values.mean()), bits([0.0] * 50)
    assert difference([pair, pair], "bytes").document_variance > 0.01


BOTH_PARTS = Estimate(0.03, 0.005**2, 0.004**2, 60.0, 2)


def test_the_halves_of_an_interval_are_of_seeds_and_documents():
    of_seeds = stats.t.ppf(0.975, 2) * 0.005
    of_documents = stats.t.ppf(0.975, 60) * 0.004
    assert BOTH_PARTS.half_widths(0.05) == pytest.approx((of_seeds, of_documents))


def test_the_halves_add_up_as_squares():
    assert half_width(BOTH_PARTS.interval()) == pytest.approx(math.hypot(*BOTH_PARTS.half_widths(0.05)))


@pytest.mark.parametrize("level", [0.2, 0.05, 0.05 / 15, 0.05 / 300])
@pytest.mark.parametrize("value", [0.03, -0.06, 0.09, -0.2])
@pytest.mark.parametrize("margin", [0.0, 0.02, 0.05])
def test_p_is_below_a_level_where_its_interval_lies_beyond_the_margin(margin, value, level):
    estimate = Estimate(value, 0.005**2, 0.004**2, 60.0, 2)
    low, high = estimate.interval(1 - 2 * level)
    is_beyond = low > margin or high < -margin
    assert (p_beyond(estimate, margin) < level) == is_beyond


def test_within_the_margin_p_is_one():
    assert p_beyond(Estimate(0.01, 0.0, 1e-6, 39.0), 0.02) == 1.0


def test_without_any_variance_p_is_tiny_and_not_zero():
    assert 0 < p_beyond(Estimate(0.5, 0.0, 0.0, 39.0), 0.02) < 1e-10


# --- Means over seeds
@pytest.mark.parametrize(
    ("values", "mean", "spread"),
    [
        pytest.param([1.0, 2.0, 3.0], 2.0, 1.0, id="three"),
        pytest.param([1.5], 1.5, None, id="one has no spread"),
        pytest.param([1.0, math.inf], math.inf, None, id="infinite"),
    ],
)
def test_mean_and_spread(values, mean, spread):
    assert mean_and_spread(values) == (mean, spread)


def test_seeds_that_were_asked_of_the_same_texts_are_not_independent():
    """Three seeds that find 100, 0 and 0 of 100 say little of a fourth."""
    found = FactCount([SeedFacts(correct, answers=100, samples=100) for correct in (100, 0, 0)])
    low, high = found.ci95
    assert found.share == pytest.approx(1 / 3)
    assert (low, high) == (0.0, 1.0)


def test_of_one_seed_the_interval_is_that_of_its_samples():
    found = FactCount([SeedFacts(6, answers=9, samples=9)])
    assert found.ci95 == wilson(6 / 9, 9)


def test_a_row_of_two_seeds_leaves_the_trend_to_the_others():
    rows = tuple((1.0 + 0.1 * row, 1.01 + 0.12 * row, 1.02 + 0.1 * row) for row in range(12))
    means = (1.05, 2.3)
    by_trend = predicted_variances(rows, means)
    assert by_trend[0].variance < by_trend[1].variance
    assert predicted_variances((*rows, (1.5, 1.9)), means) == by_trend
