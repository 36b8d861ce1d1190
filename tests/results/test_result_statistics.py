import math

import numpy as np
import pytest

from posenc.results.statistics import mean_and_spread, paired_difference, ratio_interval


def per_document(nats, targets=None, sizes=None, start=0):
    n = len(nats)
    documents = list(range(start, start + n))
    return {"document": documents, "nats": nats, "targets": targets or [10] * n, "bytes": sizes or [20] * n}


def test_ratio_interval_of_equal_counts_is_the_t_interval_of_the_mean() -> None:
    sums = [1.0, 3.0] * 20  # mean 2, sample variance 40/39; t(39, 0.975) = 2.0226909
    half = 2.0226909 * math.sqrt(40 / 39 / 40)
    assert ratio_interval(sums, [1.0] * 40) == pytest.approx((2 - half, 2 + half), abs=1e-6)


def test_ratio_interval_uses_the_effective_number_of_documents() -> None:
    counts = [100.0] * 3 + [1.0] * 40
    rng = np.random.default_rng(1)
    sums = list(np.array(counts) * rng.normal(2, 0.3, 43))
    low, high = ratio_interval(sums, counts)
    center = sum(sums) / sum(counts)
    assert low < center < high
    left_out = (sum(sums) - np.array(sums)) / (sum(counts) - np.array(counts))
    error = math.sqrt(42 / 43 * ((left_out - left_out.mean()) ** 2).sum())
    assert (high - low) / 2 > 3 * error  # t with about 2.8 degrees of freedom, not 1.96


def test_no_interval_below_thirty_documents() -> None:
    assert ratio_interval([1.0] * 29, [1.0] * 29) is None
    assert ratio_interval([1.0, 2.0] * 15, [1.0] * 30) is not None


@pytest.mark.parametrize("counts", [[1.0] * 39, [0.0] + [1.0] * 39])
def test_wrong_counts_are_refused(counts) -> None:
    with pytest.raises(ValueError, match=r"counts|target"):
        ratio_interval([1.0] * 40, counts)


def test_coverage_of_the_interval_over_unequal_documents() -> None:
    rng = np.random.default_rng(7)
    hits = 0
    for _ in range(300):
        counts = np.ceil(rng.lognormal(3, 0.8, 40))
        sums = counts * rng.normal(1.5, 0.4, 40)  # the ratio's true value is 1.5
        low, high = ratio_interval(list(sums), list(counts))
        hits += low <= 1.5 <= high
    assert 0.90 <= hits / 300 <= 0.99


def test_paired_difference_divides_once_and_aligns_documents() -> None:
    a = per_document([12.0, 40.0], targets=[10, 30], sizes=[20, 60])
    b = {key: values[::-1] for key, values in per_document([10.0, 30.0], [10, 30], [20, 60]).items()}
    assert paired_difference(a, b) == (pytest.approx(12 / 40), None)
    difference, _ = paired_difference(a, b, per="bytes")
    assert difference == pytest.approx(12 / (80 * math.log(2)))


def test_pairing_removes_what_both_share() -> None:
    noise = np.random.default_rng(0).normal(15, 4, 40)
    a, b = per_document(list(noise + 2)), per_document(list(noise))
    difference, (low, high) = paired_difference(a, b)
    assert difference == pytest.approx(0.2)
    assert high - low < 1e-9


def test_other_targets_are_not_paired() -> None:
    with pytest.raises(ValueError, match="same targets"):
        paired_difference(per_document([1.0, 2.0]), per_document([1.0, 2.0], start=1))
    with pytest.raises(ValueError, match="same targets"):
        paired_difference(per_document([1.0, 2.0]), per_document([1.0, 2.0], targets=[10, 11]))


def test_mean_and_spread() -> None:
    assert mean_and_spread([1.0, 2.0, 3.0]) == (2.0, 1.0)
    assert mean_and_spread([1.5]) == (1.5, None)
    assert mean_and_spread([1.0, math.inf]) == (math.inf, None)
    with pytest.raises(ValueError):
        mean_and_spread([])
