"""Means, intervals and paired differences against closed forms."""

import math

import numpy as np
import pytest
from fake_runs import record
from scipy import stats

from posenc.results.statistics.documents import difference, on_shared_documents, ratio_interval
from posenc.results.statistics.intervals import Estimate, mean_and_spread, p_beyond


def sample(nats, targets=None, sizes=None, start=0):
    n = len(nats)
    columns = {"document": list(range(start, start + n)), "nats": list(nats)}
    return {**columns, "targets": targets or [10] * n, "bytes": sizes or [20] * n}


def bits(values, size=100.0):
    """Documents of these bits per byte, each with as many bytes."""
    return sample([v * size * math.log(2) for v in values], sizes=[size] * len(values))


def test_ratio_interval_of_equal_counts_is_the_t_interval_of_the_mean():
    sums = [1.0, 3.0] * 20  # mean 2, sample variance 40/39; t(39, 0.975) = 2.0226909
    half = 2.0226909 * math.sqrt(40 / 39 / 40)
    assert ratio_interval(sums, [1.0] * 40) == pytest.approx((2 - half, 2 + half), abs=1e-6)


def test_ratio_interval_uses_the_effective_number_of_documents():
    counts = [100.0] * 3 + [1.0] * 40
    sums = list(np.array(counts) * np.random.default_rng(1).normal(2, 0.3, 43))
    low, high = ratio_interval(sums, counts)
    left_out = (sum(sums) - np.array(sums)) / (sum(counts) - np.array(counts))
    error = math.sqrt(42 / 43 * ((left_out - left_out.mean()) ** 2).sum())
    assert low < sum(sums) / sum(counts) < high
    assert (high - low) / 2 > 3 * error  # t with about 2.8 degrees of freedom, not 1.96


def test_an_interval_from_ten_documents_on():
    assert ratio_interval([1.0, 2.0] * 4, [1.0] * 8) is None
    assert ratio_interval([1.0, 2.0] * 5, [1.0] * 10) is not None
    none = difference([(bits([1.0, 2.0] * 4), bits([1.0] * 8))] * 3, "bytes")
    assert (none.value, none.interval(), p_beyond(none, 0.0)) == (pytest.approx(0.5), None, None)


def test_difference_divides_once_and_aligns_documents():
    a, b = (sample(nats, [10, 30], [20, 60]) for nats in ([12.0, 40.0], [10.0, 30.0]))
    b = {key: values[::-1] for key, values in b.items()}
    assert difference([(a, b)], "targets").value == pytest.approx(12 / 40)
    assert difference([(a, b)], "bytes").value == pytest.approx(12 / (80 * math.log(2)))
    with pytest.raises(ValueError, match="no bytes"):
        difference([(sample([1.0]), sample([1.0], sizes=[0]))], "bytes")


def test_pairing_removes_what_both_share():
    noise = np.random.default_rng(0).normal(15, 4, 40)
    other = {key: values[::-1] for key, values in sample(noise).items()}  # the same documents
    estimate = difference([(sample(noise + 2), other)], "targets")
    low, high = estimate.interval()
    assert estimate.value == pytest.approx(0.2) and high - low < 1e-9
    ours, theirs = on_shared_documents([sample(noise), sample(noise[5:], start=5)])
    assert ours["document"] == theirs["document"] == list(range(5, 40))
    assert ours["nats"] == theirs["nats"]
    assert on_shared_documents([sample([1.0]), sample([1.0], start=1)]) == []


def test_two_tokenizers_are_compared_over_the_same_documents():
    rng = np.random.default_rng(2)
    sizes, shared = rng.integers(50, 200, 60).astype(float), rng.normal(2, 0.5, 60)
    ours, theirs = (shared + 0.1) * sizes, shared * (sizes + 5)
    a, b = sample(ours, sizes=list(sizes)), sample(theirs, sizes=list(sizes + 5))
    estimate = difference([(a, b)], "bytes")
    at_once = ours.sum() / sizes.sum() - theirs.sum() / (sizes + 5).sum()
    assert estimate.value == pytest.approx(at_once / math.log(2))
    low, high = estimate.interval()
    assert high - low < 0.02  # the documents' own differences (0.5) cancel


def test_groups_of_documents_are_the_units_where_there_are_twenty():
    values = np.random.default_rng(1).normal(0.3, 1.0, 25)
    zero = {"document": list(range(75)), "nats": [0.0] * 75, "targets": [10.0] * 75}
    alike = {**zero, "nats": list(np.repeat(values, 3))}  # three documents of each folder are the same
    group = {"group": list(np.repeat(range(25), 3))}

    def half(ours, theirs):
        low, high = difference([(ours, theirs)], "targets").interval()
        return (high - low) / 2

    by_group = half({**alike, **group}, {**zero, **group})
    assert by_group == pytest.approx(stats.t.ppf(0.975, 24) * values.std(ddof=1) / 50)
    assert half(alike, {**zero, **group}) == half(alike, zero) < 0.6 * by_group  # one of them has no groups
    few = {"group": [min(one, 18) for one in group["group"]]}
    assert half({**alike, **few}, {**zero, **few}) == half(alike, zero)
    low, high = ratio_interval(alike["nats"], zero["targets"], group["group"])
    assert (high - low) / 2 == pytest.approx(by_group)
    sums = {"documents": zero["document"], "nats": alike["nats"], "targets": zero["targets"]}
    made = record(64, 0, **sums, bytes=zero["document"], groups=group["group"])
    assert made["ci95"] == pytest.approx([low, high])


def test_it_is_the_t_interval_where_only_seeds_or_only_documents_vary():
    seeds, documents = [0.31, 0.27, 0.36], list(np.random.default_rng(3).normal(0.3, 1.0, 50))
    of_seeds = [(bits([value + 1] * 40), bits([1.0] * 40)) for value in seeds]
    of_documents = [(bits(documents), bits([0.0] * 50))]
    for values, pairs in (seeds, of_seeds), (documents, of_documents), (documents, of_documents * 3):
        expected, estimate = stats.ttest_1samp(values, 0.02), difference(pairs, "bytes")
        assert estimate.interval() == pytest.approx(tuple(expected.confidence_interval(0.95)))
        assert p_beyond(estimate, 0.02) == pytest.approx(expected.pvalue / 2, rel=1e-6)


def test_documents_are_judged_after_averaging_over_seeds():
    """What one seed gains in a document and another loses is no difference between documents."""
    values = np.random.default_rng(5).normal(0.0, 1.0, 50)
    zero, one, opposite = bits([0.0] * 50), bits(values - values.mean()), bits(values.mean() - values)
    estimate = difference([(one, zero), (opposite, zero)], "bytes")
    assert estimate.document_variance == pytest.approx(0.0, abs=1e-20)
    assert difference([(one, zero), (one, zero)], "bytes").document_variance > 0.01


@pytest.mark.parametrize("margin", [0.0, 0.02, 0.05])
def test_both_parts_add_up_as_squares_and_p_agrees_with_the_interval_of_its_level(margin):
    for value in (0.03, -0.06, 0.09, -0.2):
        estimate = Estimate(value, 0.005**2, 0.004**2, 60.0, 2)
        for level in (0.2, 0.05, 0.05 / 15, 0.05 / 300):
            low, high = estimate.interval(1 - 2 * level)
            assert (p_beyond(estimate, margin) < level) == (low > margin or high < -margin)
    seeds, documents = stats.t.ppf(0.975, 2) * 0.005, stats.t.ppf(0.975, 60) * 0.004
    assert estimate.halves(0.05) == pytest.approx((seeds, documents))
    assert estimate.interval()[1] == pytest.approx(estimate.value + math.hypot(seeds, documents))
    assert p_beyond(Estimate(0.01, 0.0, 1e-6, 39.0), 0.02) == 1.0
    assert 0 < p_beyond(Estimate(0.5, 0.0, 0.0, 39.0), 0.02) < 1e-10


def test_mean_and_spread():
    assert mean_and_spread([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_spread([1.5]) == (1.5, None)
    assert mean_and_spread([1.0, math.inf]) == (math.inf, None)
