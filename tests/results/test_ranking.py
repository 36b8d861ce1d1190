"""Words for differences: verdicts at their borders, rows against the best one and against a baseline."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from posenc.results import load_runs
from posenc.results.cells import samples_of
from posenc.results.grouping import group_runs, one_ranking
from posenc.results.statistics.intervals import Estimate
from posenc.results.statistics.ranking import compare_with
from posenc.results.statistics.shared_variance import shared_variances
from posenc.results.statistics.verdicts import COLLAPSED, MORE_DOCUMENTS, MORE_SEEDS, SAME, verdict

BIT = math.log(2)
NEAR = 1e-6
DOCUMENTS = 60
STUDY = Path(__file__).parents[2] / "docs" / "records" / "study"


def estimate(value, half):
    """One whose 95% interval has this half-width, all of it from documents (t with 40 degrees: 2.0210754)."""
    return Estimate(value, 0.0, (half / 2.0210753903) ** 2, 40.0)


def test_words_at_their_borders():
    borders = {
        (0.0, SAME - NEAR): "same",
        (0.0, SAME + NEAR): MORE_DOCUMENTS,
        (-SAME / 2, SAME / 2 + NEAR): MORE_DOCUMENTS,
        (0.05, 0.05 - SAME - NEAR): "worse",
        (0.05, 0.05 - SAME + NEAR): MORE_DOCUMENTS,
        (-0.05, 0.05 - SAME - NEAR): "better",
        (-0.05, 0.05 - SAME + NEAR): MORE_DOCUMENTS,
        (0.6, 0.6 - COLLAPSED - NEAR): "collapsed",
        (0.6, 0.6 - COLLAPSED + NEAR): "worse",
        (-0.6, 0.01): "better",
    }
    assert {given: verdict(estimate(*given)) for given in borders} == borders


def test_unclear_says_what_would_narrow_the_interval():
    assert verdict(Estimate(0.0, 0.01**2, 0.02**2, 39.0, 2)) == MORE_SEEDS  # t(2) makes it the wider
    assert verdict(Estimate(0.0, 0.01**2, 0.02**2, 39.0, 8)) == MORE_DOCUMENTS
    assert verdict(Estimate(0.0, 0.0, 0.02**2, 39.0)) == MORE_DOCUMENTS
    assert verdict(Estimate(5.0, 0.01**2, None, 7.0, 2)) == MORE_DOCUMENTS  # too few for an interval


def sample(loss, seeds=(0, 1, 2), noise=0.0, wiggle=0.0):
    """A row's samples of a loss in bits per byte; `wiggle` differs from document to document."""
    found = {}
    for at, seed in enumerate(seeds):
        bits = loss + noise * (at - (len(seeds) - 1) / 2) + wiggle * (-1.0) ** np.arange(DOCUMENTS)
        columns = {"document": list(range(DOCUMENTS)), "nats": list(bits * 100 * BIT)}
        found[seed] = {**columns, "bytes": [100.0] * DOCUMENTS, "targets": [50] * DOCUMENTS}
    return found


def words(*rows, reference=None):
    return {i: one.word for i, one in compare_with(rows, reference, "bpb").items()}


def test_words_against_the_best_and_a_baseline():
    rows = [sample(1.005), sample(1.3), sample(1.0, noise=1e-4), None, sample(1.1, noise=0.2), sample(1.021)]
    assert words(*rows) == {0: "tied", 1: "above", 2: "best", 4: "tied", 5: "above"}
    assert words(*rows, reference=1) == {0: "below", 2: "below", 4: "tied", 5: "below"}
    assert words(*rows, reference=3) == {} == words(None, sample(1.0)) == words()


def test_the_interval_is_welchs_of_unpaired_seeds():
    ours, theirs = [1.3, 1.5, 1.37], [1.01, 0.99]
    rows = [
        {seed: sample(value)[0] for seed, value in zip(seeds, values, strict=True)}
        for seeds, values in (((0, 1, 2), ours), ((7, 0), theirs))
    ]
    expected = stats.ttest_ind(ours, theirs, equal_var=False)
    by_bytes, by_token = (compare_with(rows, None, metric)[0] for metric in ("bpb", "nats"))
    assert by_bytes.difference == pytest.approx(np.mean(ours) - 1.0)
    assert by_bytes.ci95 == pytest.approx(list(expected.confidence_interval(0.95)))
    shifted = stats.ttest_ind(ours, np.array(theirs) + SAME, equal_var=False, alternative="greater")
    assert (by_bytes.method, by_bytes.p) == ("welch", pytest.approx(2 * shifted.pvalue, rel=1e-5))
    assert compare_with(rows, 1, "bpb")[0].p == pytest.approx(shifted.pvalue, rel=1e-5)  # chosen beforehand
    nats = 2 * BIT  # per token, of two bytes
    assert [by_token.difference, *by_token.ci95] == pytest.approx(
        [nats * x for x in (by_bytes.difference, *by_bytes.ci95)]
    )
    assert by_token.p == by_bytes.p


def test_documents_are_paired_and_one_seed_says_so():
    hard, easy = sample(1.5, (0,), wiggle=0.4), sample(1.0, (1,), wiggle=0.4)
    found = compare_with([hard, easy], None, "bpb")
    assert {one.method for one in found.values()} == {"documents"}
    assert found[0].ci95 == pytest.approx([0.5, 0.5], abs=1e-9)  # what both share cancels
    mixed = compare_with([hard, sample(1.0, wiggle=-0.4, noise=0.01)], None, "bpb")
    assert mixed[0].method == "documents" and mixed[0].ci95[1] - mixed[0].ci95[0] > 0.2
    first = ({key: values[:8] for key, values in one.items()} for one in (easy[1], hard[0]))
    few, other = ({0: columns} for columns in first)
    assert compare_with([few, other], None, "bpb")[1].ci95 is None
    assert words(few, other) == {0: "best", 1: "tied"}
    far = {0: {**easy[1], "document": list(range(100, 100 + DOCUMENTS))}}
    assert words(hard, far) == {}  # no document in common


def test_correction_is_holms_over_the_other_rows():
    near, other = sample(1.0), sample(1.0525, wiggle=0.115)  # p = 0.03 beyond the margin
    alone = compare_with([near, other], None, "bpb")[1]
    assert alone.word == "above" and 0.02 < alone.p < 0.05
    equal = [sample(1.0 + 1e-9 * i) for i in range(4)]
    among = compare_with([near, other, *equal], None, "bpb")[1]
    assert among.word == "tied" and among.p == pytest.approx(5 * alone.p)
    assert among.ci95[0] < alone.ci95[0] and among.ci95[1] > alone.ci95[1]
    far = [sample(2.0 + i) for i in range(4)]  # what is certain costs the others nothing
    certain = compare_with([near, other, *far], None, "bpb")[1]
    assert [certain.p, *certain.ci95] == pytest.approx([alone.p, *alone.ci95])


def column(rng, rows, seeds, spread, means=None):
    means = np.zeros(rows) if means is None else means
    return tuple(map(tuple, means[:, None] + rng.normal(size=(rows, seeds)) * np.reshape(spread, (-1, 1))))


def test_shared_variances_widen_what_agrees_by_luck_and_follow_the_trend():
    rng = np.random.default_rng(0)
    rows = [*column(rng, 19, 3, 0.01), (0.0, 1e-5, -1e-5)]
    shared = shared_variances(tuple(rows))
    own = [np.var(row, ddof=1) for row in rows]
    assert shared[19][0] > 1000 * own[19] and all(2 < freedom <= 3.5 for _, freedom in shared)
    largest = int(np.argmax(own))
    assert 0.3 * own[largest] < shared[largest][0] < own[largest]
    means = np.linspace(0, 3, 20)
    grown = shared_variances(column(rng, 20, 3, 0.01 + 0.1 * means, means))
    assert grown[19][0] > 20 * grown[0][0]


def test_variances_are_not_shared():
    """Of few rows, two seeds, equal seeds, or without a common variance."""
    apart = np.where(np.arange(20) % 7, 0.01, 0.1)
    for rows, seeds, spread in ((7, 3, 0.01), (20, 2, 0.01), (20, 3, 0.0), (20, 3, apart)):
        assert shared_variances(column(np.random.default_rng(1), rows, seeds, spread)) is None


def test_rows_that_are_added_change_no_word():
    rng = np.random.default_rng(2)
    losses = [1.0, 1.01, 1.05, 1.1, 1.2, 1.4, 1.8, 2.5, 3.0, 1.02] * 2
    rows = [sample(loss, noise=0.01 * loss * rng.uniform(0.5, 2)) for loss in losses]
    every, some = compare_with(rows, None, "bpb"), compare_with(rows[:10], None, "bpb")
    assert {one.method for one in every.values()} == {"moderated"} == {one.method for one in some.values()}
    assert [every[i].word for i in range(1, 10)] == [some[i].word for i in range(1, 10)]


@pytest.mark.parametrize("rows", [6, 12])
def test_equal_rows_are_rarely_ranked(rows):
    rng, size = np.random.default_rng(3), 40
    columns = {"document": list(range(size)), "bytes": [100.0] * size}

    def drawn():
        bits = rng.normal(0, 0.1, size) + rng.normal(0, 0.05, (3, 1))
        return {s: {**columns, "nats": list(row * 100 * BIT)} for s, row in enumerate(bits)}

    wrong = sum("above" in words(*(drawn() for _ in range(rows))).values() for _ in range(200))
    assert wrong <= 12  # 5% of 200, and chance


def test_the_study_has_no_row_far_above_the_best_and_tied():
    runs = [run for run in load_runs([STUDY]) if run.seed in (0, 1, 2)]
    groups = group_runs(one_ranking(runs, "fixed-target"))
    assert len(groups) == 29
    for multiple, least in ((1.0, 10), (2.0, 12), (4.0, 15), (8.0, 20)):
        found = compare_with([samples_of(group.members, multiple) for group in groups], None, "nats").values()
        assert {one.method for one in found} == {"moderated"}
        assert not [one for one in found if one.difference > 0.3 and one.word == "tied"]
        assert sum(one.word == "above" for one in found) >= least
