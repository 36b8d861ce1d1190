"""Ranks within a column: each row against the best one, or against a baseline."""

import math
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from posenc.results import load_runs
from posenc.results.cells import samples_of
from posenc.results.grouping import group_runs
from posenc.results.rankings import one_ranking
from posenc.results.statistics.documents import Sample
from posenc.results.statistics.ranking import compare_changes, compare_with
from posenc.results.statistics.verdicts import SAME_MARGIN

BIT = math.log(2)
DOCUMENTS = 60
STUDY = Path(__file__).parents[2] / "docs" / "records" / "study"


def sample(bits_per_byte, documents=None):
    """Return a seed's sums of documents with these bits per byte; each has 100 bytes and 50 tokens."""
    size = len(bits_per_byte)
    sums = {
        "document": list(range(size)) if documents is None else documents,
        "nats": list(bits_per_byte * 100 * BIT),
        "bytes": [100.0] * size,
        "targets": [50] * size,
    }
    return Sample.of(sums)


def row(loss, seeds=(0, 1, 2), noise=0.0, wiggle=0.0):
    """Return the samples of a row by seed: `noise` lies between seeds, `wiggle` between documents."""
    signs = (-1.0) ** np.arange(DOCUMENTS)
    middle = (len(seeds) - 1) / 2
    samples = {}
    for number, seed in enumerate(seeds):
        samples[seed] = sample(loss + noise * (number - middle) + wiggle * signs)
    return samples


def versus_best(*rows):
    return compare_with(rows, None, "bpb")


def words_of(comparisons):
    return {index: versus.word for index, versus in comparisons.items()}


# --- The words
@pytest.fixture(scope="module")
def column():
    """Six rows, of which row 2 is the best and row 3 is not ranked."""
    return [row(1.005), row(1.3), row(1.0, noise=1e-4), None, row(1.1, noise=0.2), row(1.021)]


def test_words_against_the_best_row(column):
    words = words_of(versus_best(*column))
    assert words == {0: "tied", 1: "above", 2: "best", 4: "unresolved", 5: "above"}


def test_words_against_a_baseline(column):
    words = words_of(compare_with(column, 1, "bpb"))
    assert words == {0: "below", 2: "below", 4: "unresolved", 5: "below"}


@pytest.mark.parametrize(
    ("noise", "word"),
    [
        pytest.param(0.0001, "tied", id="the whole interval lies within the margin"),
        pytest.param(0.01, "unresolved", id="the interval crosses the margin, its middle does not"),
    ],
)
def test_tied_is_about_the_whole_interval(noise, word):
    versus = versus_best(row(1.0), row(1.005, noise=noise))[1]
    assert versus.word == word


def test_far_apart_with_two_noisy_seeds_is_unresolved_and_never_tied():
    lower = row(2.06, seeds=(0, 1), noise=0.5)
    higher = row(2.96, seeds=(0, 1), noise=0.5)
    assert versus_best(lower, higher)[1].word == "unresolved"


# --- What an unresolved comparison needs
@pytest.mark.parametrize(
    ("higher", "needs"),
    [
        pytest.param(row(1.05, noise=0.1), "seeds", id="seeds differ more than documents"),
        pytest.param(row(1.05, wiggle=0.4), "documents", id="documents differ more than seeds"),
        pytest.param(row(1.05, seeds=(0,), wiggle=0.4), "seeds", id="one seed says nothing about others"),
    ],
)
def test_the_larger_part_of_the_interval_is_what_is_needed(higher, needs):
    versus = versus_best(row(1.0), higher)[1]
    assert versus.word == "unresolved"
    assert versus.needs == needs


def test_what_is_resolved_needs_nothing(column):
    needs = {versus.word: versus.needs for versus in versus_best(*column).values()}
    assert needs["above"] is None
    assert needs["tied"] is None


# --- Changes
def changes(base, far):
    """Return the pairs of a row: far from T, and at T."""
    return {seed: (far[seed], base[seed]) for seed in far}


def test_changes_are_ranked_by_themselves():
    pairs = [changes(row(1.0), row(1.3)), changes(row(2.0), row(2.1))]
    words = words_of(compare_changes(pairs, "bpb"))
    assert words == {0: "above", 1: "best"}


def test_the_difference_of_two_changes_has_what_losses_at_t_do_not_explain():
    pairs = [changes(row(1.0), row(1.3)), changes(row(2.0), row(2.1))]
    versus = compare_changes(pairs, "bpb")[0]
    assert versus.difference == pytest.approx(0.2)


def test_what_a_document_adds_at_both_lengths_is_no_part_of_a_change():
    steady = changes(row(1.0, wiggle=0.4), row(1.1, wiggle=0.4))
    flat = changes(row(1.0), row(1.0))
    assert compare_changes([steady, flat], "bpb")[0].ci95 == pytest.approx([0.1, 0.1], abs=1e-9)


def test_a_row_without_a_change_is_not_ranked():
    pairs = [changes(row(1.0), row(1.3)), None, changes(row(2.0), row(2.1))]
    assert set(compare_changes(pairs, "bpb")) == {0, 2}


def test_against_a_baseline_that_is_not_ranked_there_are_no_words(column):
    assert compare_with(column, 3, "bpb") == {}


@pytest.mark.parametrize("rows", [[], [None, row(1.0)]], ids=["no row", "one row"])
def test_fewer_than_two_rows_have_no_words(rows):
    assert versus_best(*rows) == {}


def test_rows_without_a_document_in_common_have_no_words():
    losses = np.ones(DOCUMENTS)
    elsewhere = {0: sample(losses, documents=list(range(100, 100 + DOCUMENTS)))}
    assert versus_best({0: sample(losses)}, elsewhere) == {}


# --- Seeds are not paired
HIGH = [1.3, 1.5, 1.37]
LOW = [1.01, 0.99]


def row_of_seeds(losses, seeds):
    return {seed: row(loss)[0] for seed, loss in zip(seeds, losses, strict=True)}


@pytest.fixture(scope="module")
def unpaired():
    """Rows of three and of two seeds, whose documents agree."""
    return [row_of_seeds(HIGH, (0, 1, 2)), row_of_seeds(LOW, (7, 0))]


def test_the_interval_is_welchs_of_unpaired_seeds(unpaired):
    versus = compare_with(unpaired, None, "bpb")[0]
    expected = stats.ttest_ind(HIGH, LOW, equal_var=False)
    assert versus.method == "welch"
    assert versus.difference == pytest.approx(np.mean(HIGH) - 1.0)
    assert versus.ci95 == pytest.approx(list(expected.confidence_interval(0.95)))


REFERENCES = pytest.mark.parametrize("reference", [None, 1], ids=["the best row", "a baseline"])


@REFERENCES
def test_p_is_welchs_beyond_the_margin_on_both_sides(unpaired, reference):
    versus = compare_with(unpaired, reference, "bpb")[0]
    expected = stats.ttest_ind(HIGH, np.array(LOW) + SAME_MARGIN, equal_var=False, alternative="greater")
    assert versus.p == pytest.approx(2 * expected.pvalue, rel=1e-5)


@REFERENCES
@pytest.mark.parametrize("loss", np.linspace(1.03, 1.09, 13).round(3))
def test_above_is_said_if_and_only_if_the_interval_lies_beyond_the_margin(reference, loss):
    best = row(1.0, noise=0.01)
    versus = compare_with([row(loss, noise=0.02), best], reference, "bpb")[0]
    low, _ = versus.ci95
    assert (versus.word == "above") == (low > SAME_MARGIN)


def test_in_nats_per_token_only_the_unit_is_another(unpaired):
    by_byte = compare_with(unpaired, None, "bpb")[0]
    by_token = compare_with(unpaired, None, "nats")[0]
    low, high = by_byte.ci95
    nats = 2 * BIT  # in a token of two bytes, each of one bit
    assert by_token.difference == pytest.approx(nats * by_byte.difference)
    assert by_token.ci95 == pytest.approx((nats * low, nats * high))
    assert by_token.p == by_byte.p


# --- Documents are paired
HARD = row(1.5, seeds=(0,), wiggle=0.4)
EASY = row(1.0, seeds=(1,), wiggle=0.4)


def test_what_the_documents_of_two_rows_share_cancels():
    versus = versus_best(HARD, EASY)[0]
    assert versus.ci95 == pytest.approx([0.5, 0.5], abs=1e-9)


def test_rows_of_one_seed_say_that_documents_alone_were_judged():
    assert {versus.method for versus in versus_best(HARD, EASY).values()} == {"documents"}


def test_a_row_of_one_seed_takes_the_seed_variance_of_its_neighbours():
    """Three seeds 0.01 apart predict a standard deviation of 0.01, with their two degrees of freedom."""
    versus = versus_best(row(1.0, noise=0.01), row(1.1, seeds=(0,)))[1]
    assert versus.method == "predicted"
    low, high = versus.ci95
    freedom = (1 / 3 + 1) ** 2 / ((1 / 3) ** 2 / 2 + 1 / 2)
    half = stats.t.ppf(0.975, freedom) * 0.01 * math.sqrt(1 / 3 + 1)
    assert (high - low) / 2 == pytest.approx(half, rel=1e-6)


def test_the_method_that_knows_less_is_named():
    one_seed = row(1.0, seeds=(0,))
    versus = compare_with([one_seed, row(1.1, noise=0.01)], 0, "bpb")[1]
    assert versus.method == "predicted"


def test_a_row_of_one_seed_is_not_the_best_beside_rows_of_several():
    words = words_of(versus_best(row(1.0, seeds=(0,)), row(1.05, noise=0.001), row(1.2, noise=0.001)))
    assert words[1] == "best"
    assert words[0] == "unresolved"


def test_a_row_of_one_seed_below_the_best_needs_seeds():
    versus = versus_best(row(1.0, seeds=(0,)), row(1.05, noise=0.001))
    assert versus[0].difference == pytest.approx(-0.05)
    assert versus[0].needs == "seeds"


def test_of_rows_of_one_seed_the_lowest_is_the_best():
    assert words_of(versus_best(row(1.0, seeds=(0,)), row(1.2, seeds=(0,))))[0] == "best"


def test_the_predicted_variance_follows_the_trend_of_eight_rows():
    """Rows that lose more vary more: at the loss of the last one ten times as much as at the first."""
    rows = [row(1 + 0.1 * number, noise=0.001 * 10 ** (number / 7)) for number in range(8)]
    near, far = (row(loss, seeds=(0,)) for loss in (1.05, 1.7))
    versus = versus_best(*rows, near, far)
    low_near, high_near = versus[8].ci95
    low_far, high_far = versus[9].ci95
    assert versus[8].method == "predicted"
    assert high_far - low_far > 2 * (high_near - low_near)


def test_of_eight_documents_there_is_no_interval_and_nothing_is_resolved():
    few = [{0: sample_of_all.at(np.arange(8))} for sample_of_all in (EASY[1], HARD[0])]
    comparisons = versus_best(*few)
    assert comparisons[1].ci95 is None
    assert words_of(comparisons) == {0: "best", 1: "unresolved"}
    assert comparisons[1].needs == "documents"


def test_of_eight_documents_a_copy_is_tied():
    few = {0: EASY[1].at(np.arange(8))}
    assert words_of(versus_best(few, dict(few))) == {0: "best", 1: "tied"}


def test_of_eight_documents_a_loss_that_is_equal_by_chance_is_no_copy():
    few = EASY[1].at(np.arange(8))
    turned = sample(few.nats[::-1] / few.bytes / BIT)
    assert words_of(versus_best({0: few}, {0: turned}))[1] == "unresolved"


# --- Holm's correction over the other rows
BEST = row(1.0)
ABOVE = row(1.0525, wiggle=0.115)  # its p beyond the margin is 0.03 where there is no other row


@pytest.fixture(scope="module")
def alone():
    return versus_best(BEST, ABOVE)[1]


def test_two_rows_need_no_correction(alone):
    assert alone.word == "above"
    assert 0.02 < alone.p < 0.05


def test_among_equal_rows_p_and_interval_are_corrected(alone):
    equal = [row(1.0 + 1e-9 * i) for i in range(4)]
    among = versus_best(BEST, ABOVE, *equal)[1]
    assert among.word == "unresolved"
    assert among.p == pytest.approx(5 * alone.p)
    assert among.ci95[0] < alone.ci95[0]
    assert among.ci95[1] > alone.ci95[1]


def test_where_the_first_test_fails_all_rows_are_held_against_its_level():
    others = [row(1.001 + 1e-9 * i, wiggle=0.115) for i in range(4)]
    compared_rows = versus_best(BEST, *others)
    intervals = [compared_rows[index].ci95 for index in range(1, 5)]
    widths = [high - low for low, high in intervals]
    assert widths == pytest.approx([widths[0]] * 4)


def test_rows_that_are_certain_cost_the_others_nothing(alone):
    far = [row(2.0 + i) for i in range(4)]
    among = versus_best(BEST, ABOVE, *far)[1]
    assert among.p == pytest.approx(alone.p)
    assert among.ci95 == pytest.approx(alone.ci95)


# --- Many rows
@pytest.fixture(scope="module")
def long_and_short_column():
    """The comparisons of a column of twenty rows, and of its first ten."""
    generator = np.random.default_rng(2)
    losses = [1.0, 1.01, 1.05, 1.1, 1.2, 1.4, 1.8, 2.5, 3.0, 1.02] * 2
    rows = [row(loss, noise=0.01 * loss * generator.uniform(0.5, 2)) for loss in losses]
    return versus_best(*rows), versus_best(*rows[:10])


def test_from_ten_rows_on_the_variance_is_shared(long_and_short_column):
    for comparisons in long_and_short_column:
        assert {versus.method for versus in comparisons.values()} == {"moderated"}


@pytest.mark.parametrize("index", range(1, 10))
def test_rows_that_are_added_change_no_word(long_and_short_column, index):
    long, short = long_and_short_column
    assert long[index].word == short[index].word


@pytest.mark.parametrize("rows", [6, 12])
def test_equal_rows_are_rarely_ranked(rows):
    generator = np.random.default_rng(3)

    def drawn_row():
        bits = generator.normal(0, 0.1, 40) + generator.normal(0, 0.05, (3, 1))
        return {seed: sample(losses) for seed, losses in enumerate(bits)}

    wrong = 0
    for _ in range(200):
        words = words_of(versus_best(*(drawn_row() for _ in range(rows))))
        wrong += "above" in words.values()
    assert wrong <= 12  # 5% of 200, and chance


# --- The reference study
@pytest.fixture(scope="module")
def study():
    """The rows of three seeds."""
    runs = [run for run in load_runs([STUDY]) if run.seed in (0, 1, 2)]
    return group_runs(one_ranking(runs, "fixed-target"))


@pytest.fixture(scope="module")
def ranks_in_study(study):
    """Return a function: the comparisons of a column of the study."""

    def ranks(multiple):
        samples = [samples_of(group.members, multiple) for group in study]
        return compare_with(samples, None, "nats").values()

    return ranks


def test_the_study_has_rows(study):
    assert len(study) == 29


@pytest.mark.parametrize("multiple", [1.0, 2.0, 4.0, 8.0])
def test_the_study_shares_its_variance(ranks_in_study, multiple):
    assert {versus.method for versus in ranks_in_study(multiple)} == {"moderated"}


@pytest.mark.parametrize("multiple", [1.0, 2.0, 4.0, 8.0])
def test_no_row_of_the_study_is_far_above_the_best_and_tied(ranks_in_study, multiple):
    far = [versus for versus in ranks_in_study(multiple) if versus.difference > 0.3]
    assert "tied" not in {versus.word for versus in far}


@pytest.mark.parametrize("multiple", [1.0, 2.0, 4.0, 8.0])
def test_in_the_study_the_whole_interval_of_a_tied_row_is_within_the_margin(ranks_in_study, multiple):
    margin = SAME_MARGIN * BIT  # of tokens that are bytes
    tied = [versus for versus in ranks_in_study(multiple) if versus.word == "tied"]
    assert all(-margin <= low and high <= margin for low, high in (versus.ci95 for versus in tied))


@pytest.mark.parametrize(("multiple", "least"), [(1.0, 10), (2.0, 12), (4.0, 15), (8.0, 20)])
def test_many_rows_of_the_study_are_resolved(ranks_in_study, multiple, least):
    words = [versus.word for versus in ranks_in_study(multiple)]
    assert words.count("above") >= least
