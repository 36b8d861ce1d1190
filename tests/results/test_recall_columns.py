"""Recall beside the losses: shares, gate, horizon, intervals and ranks, of counts that are known."""

import json
import math
import re

import numpy as np
import pytest
from fake_runs import T, compared, recall_records, record, rows_of, write_run
from scipy.stats import binom

from posenc.core.errors import UserError
from posenc.report.cell_texts import horizon_text
from posenc.report.formats import render
from posenc.report.lines import cells_table
from posenc.results import load_runs
from posenc.results.beside.base import LEARNED
from posenc.results.comparison import compare_runs
from posenc.results.statistics.proportions import clopper_pearson, wilson

LOSSES = [record(multiple * T, 1.3) for multiple in (1, 2, 4, 8)]
YARN = {"name": "yarn", "factor": 8.0}

# Values found of 100, by distance in tokens: three distances within T, then 1.75, 3.5 and 7 T.
SURE = {8: 100, 32: 98, 56: 96, 112: 97, 224: 96, 448: 95}
FADES = {8: 100, 32: 100, 56: 91, 112: 62, 224: 49, 448: 5}
BLIND = {8: 95, 32: 90, 56: 84, 112: 88, 224: 87, 448: 86}  # 89.7% within T
FALLS = {8: 100, 32: 100, 56: 100, 112: 40, 224: 30, 448: 50}  # not monotone
NINETY = dict.fromkeys(SURE, 90)
ALL = dict.fromkeys(SURE, 100)
NEAREST = dict.fromkeys(SURE, 0) | {8: 100}


def write_recall(root, encoding, correct, *, past_t=None, has_fixed_draw=False, **details):
    """Write a run that finds so many of 100 values at each distance; `past_t`: others in windows past T."""
    records = []
    draw = {"has_fixed_draw": has_fixed_draw}
    pairs = zip(recall_records(correct, **draw), recall_records(past_t or correct, **draw), strict=True)
    for of_short_windows, of_long_windows in pairs:
        is_short = of_short_windows["window"] <= T
        records.append(of_short_windows if is_short else of_long_windows)
    write_run(root, encoding, records=[*LOSSES, *records], **details)


# --- One row
@pytest.fixture
def recall_of(tmp_path):
    """Return a function: the recall of a row that finds so many values."""

    def recall(correct, past_t=None, protocol="fixed-target", **options):
        write_recall(tmp_path, "rope", correct, past_t=past_t)
        return compared(tmp_path, protocol=protocol, **options).rows[0].recall

    return recall


@pytest.mark.parametrize(
    ("correct", "accuracy"),
    [(SURE, 0.98), (FADES, 0.97), (BLIND, 269 / 300), (FALLS, 1.0), (NINETY, 0.9)],
)
def test_recall_within_t_is_the_mean_over_its_distances(recall_of, correct, accuracy):
    assert recall_of(correct).within.accuracy == pytest.approx(accuracy)


def test_recall_within_t_is_of_windows_of_t(recall_of):
    assert recall_of(ALL, past_t=NEAREST).within.accuracy == 1.0


@pytest.mark.parametrize(
    ("correct", "accuracies"),
    [
        (SURE, [0.97, 0.96, 0.95]),
        (FADES, [0.62, 0.49, 0.05]),
        (BLIND, [0.88, 0.87, 0.86]),
        (FALLS, [0.40, 0.30, 0.50]),
        (NEAREST, [0, 0, 0]),
    ],
)
def test_recall_beyond_t_is_that_of_the_farthest_distance(recall_of, correct, accuracies):
    beyond = recall_of(ALL, past_t=correct).beyond
    assert [cell.place.distance for cell in beyond] == [112, 224, 448]
    assert [cell.accuracy for cell in beyond] == pytest.approx(accuracies)


def test_the_columns_of_recall_are_the_windows_past_t(tmp_path):
    write_recall(tmp_path, "rope", SURE)
    assert compared(tmp_path).recall.multiples == (2, 4, 8)


@pytest.mark.parametrize("correct", [SURE, FADES, FALLS, NINETY, ALL])
def test_a_row_that_finds_ninety_per_cent_within_t_learned(recall_of, correct):
    assert LEARNED == 90
    assert recall_of(correct).learned is True


def test_a_row_that_finds_less_did_not_learn(recall_of):
    assert recall_of(BLIND).learned is False


@pytest.mark.parametrize(
    ("correct", "past_t", "distance"),
    [
        pytest.param(FADES, FADES, 224, id="0.49 is more than half of 0.97"),
        pytest.param(NINETY, FADES, 224, id="0.49 is more than half of 0.9"),
        pytest.param(ALL, NEAREST, 8, id="the nearest alone"),
    ],
)
def test_the_horizon_is_the_farthest_distance_with_half_of_the_recall_within_t(
    recall_of, correct, past_t, distance
):
    horizon = recall_of(correct, past_t).horizon
    assert horizon.distance == distance
    assert horizon.multiple == distance / T
    assert not horizon.longest


@pytest.mark.parametrize("correct", [SURE, FALLS], ids=["far above half", "half, after less"])
def test_a_horizon_at_the_farthest_distance_says_that_it_may_lie_beyond(recall_of, correct):
    horizon = recall_of(correct).horizon
    assert horizon.distance == 448
    assert horizon.multiple == 7.0
    assert horizon.longest


def test_a_row_that_did_not_learn_has_no_horizon(recall_of):
    assert recall_of(BLIND).horizon is None


def test_a_row_that_finds_nothing_has_no_horizon_at_any_level(recall_of):
    recall = recall_of(dict.fromkeys(SURE, 0), recall_level=0)
    assert recall.horizon is None
    assert horizon_text(recall) == "none"


# --- The grid: every window, distance and number of pairs
LINES_OF_WINDOWS = 2 + 5 + 6 + 7 + 8  # T/2, T, 2T, 4T, 8T


def test_the_grid_has_all_lines_of_all_windows(recall_of):
    assert len(recall_of(SURE).grid) == LINES_OF_WINDOWS


def test_the_grid_has_every_number_of_pairs(recall_of):
    places = [cell.place for cell in recall_of(SURE).grid]
    pairs = [place.pairs for place in places if place.multiple == 8 and place.distance == 32]
    assert pairs == [1, 4, 16]


def test_json_has_recall_with_its_grid(tmp_path):
    write_recall(tmp_path, "rope", SURE)
    comparison = compared(tmp_path)
    recall = json.loads(json.dumps(comparison.to_dict()))["rows"][0]["recall"]
    assert recall["within"]["accuracy"] == comparison.rows[0].recall.within.accuracy
    assert len(recall["grid"]) == LINES_OF_WINDOWS


def test_the_table_of_recall_itself_has_a_line_for_each_line_of_the_grid(tmp_path):
    write_recall(tmp_path, "rope", SURE)
    lines = cells_table([compared(tmp_path, protocol="recall")])
    assert sum(line["recall"] is not None for line in lines) == LINES_OF_WINDOWS


@pytest.mark.parametrize("correct", [SURE, BLIND])
def test_recall_beside_losses_is_that_of_its_own_table(recall_of, tmp_path, correct):
    beside_losses = recall_of(correct)
    assert compared(tmp_path, protocol="recall").rows[0].recall == beside_losses


# --- Intervals
@pytest.mark.parametrize(
    ("correct", "count", "limits"),
    [
        (81, 263, (0.2553, 0.3662)),
        (15, 148, (0.0624, 0.1605)),
        (1, 29, (0.0061, 0.1718)),
        (0, 20, (0, 0.1611)),
        pytest.param(20, 20, (1 - 0.1611, 1), id="by symmetry"),
    ],
)
def test_wilsons_interval_is_that_of_newcombes_table(correct, count, limits):
    """Newcombe 1998, table I, method 3."""
    assert wilson(correct / count, count) == pytest.approx(limits, abs=5e-5)


def test_the_interval_of_one_seed_is_over_windows(recall_of):
    """Three distances within T do not make 300 windows of 100."""
    within = recall_of(FADES).within
    assert within.windows == 100
    assert within.spread is None
    assert within.ci95 == pytest.approx(wilson(0.97, 100))


@pytest.fixture
def farthest_of_seeds(tmp_path):
    """Return a function: the recall at the farthest distance of seeds that find so many values there."""

    def farthest(counts, **details):
        for seed, count in enumerate(counts):
            write_recall(tmp_path, "rope", FADES | {448: count}, seed=seed, **details)
        return compared(tmp_path).rows[0].recall.beyond[-1]

    return farthest


def test_an_accuracy_is_the_mean_over_seeds(farthest_of_seeds):
    cell = farthest_of_seeds([40, 60])
    assert cell.accuracy == 0.5
    assert cell.seeds == 2
    assert cell.spread == pytest.approx(math.sqrt(0.02))


def test_the_interval_of_two_different_seeds_is_nearly_everything(farthest_of_seeds):
    assert farthest_of_seeds([40, 60]).ci95 == pytest.approx([0.035, 0.965], abs=0.001)  # a t of 12.7


def test_the_interval_of_seeds_is_where_their_mean_is_a_t_of_standard_errors_away(farthest_of_seeds):
    """A standard error from the seeds' spread, which scales with share (1 - share)."""
    cell = farthest_of_seeds([70, 80, 90])
    of_windows = 0.8 * 0.2 / (0.1**2 / 3)
    for end in cell.ci95:
        error = math.sqrt(end * (1 - end) / of_windows)
        assert abs(end - 0.8) == pytest.approx(4.302653 * error, rel=1e-6)


def test_equal_seeds_have_at_least_the_interval_of_all_their_windows(farthest_of_seeds):
    assert farthest_of_seeds([50, 50, 50]).ci95 == pytest.approx(wilson(0.5, 300))


def test_the_interval_of_a_fixed_draw_joins_seeds_and_windows(farthest_of_seeds):
    """Since all seeds share the windows, their noise does not average out."""
    of_seeds = 4.302653 * 0.1 / math.sqrt(3)
    of_windows = 0.5 - wilson(0.5, 100)[0]
    half = math.hypot(of_seeds, of_windows)
    cell = farthest_of_seeds([40, 60, 50], has_fixed_draw=True)
    assert cell.ci95 == pytest.approx([0.5 - half, 0.5 + half])


# --- How many seeds learned
@pytest.mark.parametrize(
    ("count", "total", "limits"),
    [
        pytest.param(3, 3, (0.05 ** (1 / 3), 1), id="all: one-sided"),
        pytest.param(5, 5, (0.05**0.2, 1), id="all of five"),
        pytest.param(0, 3, (0, 1 - 0.05 ** (1 / 3)), id="none"),
        pytest.param(7, 10, (0.347547, 0.933260), id="Clopper and Pearson's both ends"),
    ],
)
def test_the_interval_of_k_of_n_is_exact(count, total, limits):
    assert clopper_pearson(count, total) == pytest.approx(limits, abs=1e-6)


@pytest.mark.parametrize("total", range(2, 11))
def test_the_interval_of_k_of_n_covers_every_probability(total):
    probabilities = np.linspace(0.001, 0.999, 999)
    coverage = np.zeros_like(probabilities)
    for count in range(total + 1):
        low, high = clopper_pearson(count, total)
        is_covered = (low <= probabilities) & (probabilities <= high)
        coverage += is_covered * binom.pmf(count, total, probabilities)
    assert coverage.min() > 0.926


@pytest.fixture
def four_of_five(tmp_path):
    """A row of which four seeds find 80, 90, 100 and 90 of 100 far away, and one does not learn."""
    for seed, count in enumerate([80, 90, 100, 90]):
        write_recall(tmp_path, "cable", SURE | {448: count}, seed=seed)
    write_recall(tmp_path, "cable", dict.fromkeys(SURE, 5), seed=4)
    write_recall(tmp_path, "rope", SURE | {448: 20})
    write_recall(tmp_path, "nope", BLIND)
    return tmp_path


def recall_of_row(root, label):
    return rows_of(compared(root))[label].recall


def test_a_row_says_how_many_of_its_seeds_learned(four_of_five):
    learning = recall_of_row(four_of_five, "cable").learning
    assert learning.learned == 4
    assert learning.seeds == 5
    assert learning.ci95 == clopper_pearson(4, 5)


def test_the_numbers_of_a_row_are_those_of_the_seeds_that_learned(four_of_five):
    recall = recall_of_row(four_of_five, "cable")
    assert recall.within.accuracy == pytest.approx(0.98)
    assert recall.beyond[-1].accuracy == pytest.approx(0.9)
    assert recall.beyond[-1].seeds == 4


def test_a_row_in_which_no_seed_learned_has_the_mean_of_all(four_of_five):
    recall = recall_of_row(four_of_five, "nope")
    assert recall.learned is False
    assert recall.within.accuracy == pytest.approx(0.8967, abs=1e-4)


def test_a_table_has_a_column_of_seeds_that_learned(four_of_five):
    assert re.search(r"\ncable .* 4 of 5 +98", render([compared(four_of_five)], "table", width=120))


def test_the_answer_names_the_rows_that_learned_with_some_seeds_only(four_of_five):
    answer = " ".join(render([compared(four_of_five)], "table").split())
    assert "Learned to recall with some seeds only: cable (4 of 5)." in answer


def test_a_table_of_single_seeds_has_no_such_column(tmp_path):
    for encoding in ("rope", "alibi"):
        write_recall(tmp_path, encoding, SURE)
    assert "1 of 1" not in render([compared(tmp_path)], "table", width=120)


def test_the_csv_has_how_many_seeds_learned(four_of_five):
    lines = [line for line in cells_table([compared(four_of_five)]) if line["label"] == "cable"]
    assert {(line["recall_seeds_learned"], line["recall_seeds"]) for line in lines if line["recall"]} == {
        (4, 5)
    }


def test_an_interval_that_is_not_symmetric_is_printed_with_its_ends(tmp_path):
    for seed, count in enumerate([41, 79, 93]):
        write_recall(tmp_path, "kerple_log", SURE | {448: count}, seed=seed)
        write_recall(tmp_path, "rope", SURE | {448: 50}, seed=seed)
    paper = render([compared(tmp_path)], "markdown")
    assert "71 \\[16, 97\\]" in paper
    assert " 50±6 |" in paper


@pytest.mark.parametrize("has_fixed_draw", [True, False])
def test_a_table_of_records_of_before_says_that_they_are_of_a_fixed_draw(tmp_path, has_fixed_draw):
    for encoding in ("rope", "alibi"):
        write_recall(tmp_path, encoding, SURE, has_fixed_draw=has_fixed_draw)
    text = " ".join(render([compared(tmp_path)], "table").split())
    assert ("before 0.2 share one fixed draw of windows" in text) is has_fixed_draw


# --- Ranks
@pytest.fixture
def four_encodings(tmp_path):
    """Three encodings that learned, and t5, which did not."""
    write_recall(tmp_path, "alibi", SURE)
    write_recall(tmp_path, "rope", SURE | {448: 88})
    write_recall(tmp_path, "nope", SURE | {448: 70})
    write_recall(tmp_path, "t5", BLIND)
    return tmp_path


def ranks(root, **options):
    """Return the ranks at the farthest distance by label."""
    rows = compared(root, **options).rows
    return {row.label: row.recall.beyond[-1].rank for row in rows if row.recall}


def test_rows_that_learned_are_ranked(four_encodings):
    assert ranks(four_encodings) == {"alibi": "best", "nope": "below", "rope": "unresolved", "t5": None}


def test_at_a_lower_level_more_rows_learned(four_encodings):
    assert ranks(four_encodings, recall_level=85.0)["t5"] is not None


def far_recalls(root, *counts, seeds=1):
    """Write a row for each count of values found at the farthest distance; return the cells there."""
    for number, count in enumerate(counts):
        for seed in range(seeds):
            write_recall(root, f"row{number}", SURE | {448: count}, seed=seed)
    return [row.recall.beyond[-1] for row in compared(root).rows]


def test_recall_is_tied_where_the_whole_interval_is_within_ten_points(tmp_path):
    _, other = far_recalls(tmp_path, 100, 98)
    assert other.rank == "tied"


def test_recall_is_unresolved_where_the_interval_is_wide(tmp_path):
    _, other = far_recalls(tmp_path, 60, 55)
    assert other.rank == "unresolved"


def test_one_seed_that_does_not_resolve_recall_needs_seeds(tmp_path):
    _, other = far_recalls(tmp_path, 60, 55)
    assert other.needs == "seeds"


def test_equal_seeds_that_do_not_resolve_recall_need_windows(tmp_path):
    _, other = far_recalls(tmp_path, 60, 55, seeds=3)
    assert other.needs == "windows"


def test_a_resolved_recall_needs_nothing(tmp_path):
    _, other = far_recalls(tmp_path, 100, 20)
    assert other.rank == "below"
    assert other.needs is None


def test_a_row_of_one_seed_has_no_rank_beside_rows_of_several(tmp_path):
    for seed in range(2):
        for encoding in ("rope", "alibi"):
            write_recall(tmp_path, encoding, SURE | {448: 80}, seed=seed)
    write_recall(tmp_path, "nope", ALL)
    assert ranks(tmp_path)["nope"] is None
    assert "best" in ranks(tmp_path).values()


def test_at_a_level_that_no_row_reaches_nothing_is_ranked(four_encodings):
    assert set(ranks(four_encodings, recall_level=99.0).values()) == {None}


@pytest.mark.parametrize(
    ("sort", "labels"),
    [("-recall", ["alibi", "rope", "nope", "t5"]), ("recall", ["nope", "rope", "alibi", "t5"])],
)
def test_rows_are_sorted_by_the_farthest_recall_and_rows_that_did_not_learn_are_last(
    four_encodings, sort, labels
):
    assert [row.label for row in compared(four_encodings, sort=sort).rows] == labels


def test_a_row_with_a_diverged_seed_is_not_ranked(four_encodings):
    write_recall(four_encodings, "alibi", SURE, seed=1, status="diverged")
    assert ranks(four_encodings)["alibi"] is None


def test_rows_that_were_asked_in_different_windows_are_not_ranked(four_encodings):
    other_windows = [measurement | {"targets_hash": "b"} for measurement in recall_records(SURE)]
    write_run(four_encodings, "fire", records=[*LOSSES, *other_windows])
    assert set(ranks(four_encodings).values()) == {None}


@pytest.mark.parametrize("level", [-1.0, 101.0, math.nan])
def test_a_level_that_is_no_percentage_is_refused(four_encodings, level):
    with pytest.raises(UserError, match="not a percentage"):
        compared(four_encodings, recall_level=level)


# --- Rows and seeds without recall
@pytest.fixture(scope="module")
def incomplete(tmp_path_factory):
    """A seed of rope has no recall, one of nope did not learn, alibi's losses are of a later checkpoint."""
    root = tmp_path_factory.mktemp("incomplete")
    write_recall(root, "rope", FADES)
    write_run(root, "rope", seed=1, records=LOSSES)
    write_recall(root, "nope", SURE)
    write_recall(root, "nope", BLIND, seed=1)
    later_losses = [measurement | {"checkpoint_step": 900} for measurement in LOSSES]
    write_run(root, "alibi", records=[*later_losses, *recall_records(SURE)])
    return root


def test_recall_of_another_checkpoint_does_not_stand_beside_the_losses(incomplete):
    assert rows_of(compared(incomplete))["alibi"].recall is None


def test_a_seed_without_recall_is_noted(incomplete):
    recall = rows_of(compared(incomplete))["rope"].recall
    assert recall.note == "1 of 2 without"
    assert recall.beyond[0].seeds == 1


def test_a_seed_that_did_not_learn_is_noted(incomplete):
    recall = rows_of(compared(incomplete))["nope"].recall
    assert recall.note == "1 of 2 did not learn"
    assert recall.learned is True


def test_columns_that_are_not_chosen_are_not_those_of_recall_either(incomplete):
    assert compared(incomplete, columns=[1, 8]).recall.multiples == (8,)


def test_rows_without_recall_have_no_lines_of_it(incomplete):
    lines = cells_table([compared(incomplete)])
    assert {line["label"] for line in lines if line["protocol"] == "recall"} == {"rope", "nope"}


@pytest.fixture(scope="module")
def without_recall(incomplete):
    """The comparison of the only run that was not asked to recall."""
    runs = []
    for run in load_runs([incomplete]):
        if "recall" not in {measurement["protocol"] for measurement in run.records}:
            runs.append(run)
    (comparison,) = compare_runs(runs)
    return comparison


def test_without_any_recall_there_are_no_columns_for_it(without_recall):
    assert without_recall.recall is None


def test_without_any_recall_the_tidy_table_does_not_mention_it(without_recall):
    (columns,) = {tuple(line) for line in cells_table([without_recall])}
    assert "recall" not in " ".join(columns)


# --- An extension whose model learned, and which itself finds little within T
@pytest.fixture(scope="module")
def extension(tmp_path_factory):
    """The recall of a row that was extended."""
    root = tmp_path_factory.mktemp("extension")
    records = [*LOSSES, *recall_records(FADES | {8: 0, 32: 0, 56: 30})]
    extended = [measurement | {"extend": YARN} for measurement in records]
    write_run(root, records=[*LOSSES, *recall_records(SURE), *extended])
    return rows_of(compared(root))["rope+yarn factor=8"].recall


def test_an_extension_learned_what_its_model_did(extension):
    assert extension.within.accuracy == pytest.approx(0.1)
    assert extension.learned


def test_an_extension_whose_model_learned_is_ranked(extension):
    assert extension.beyond[0].rank == "below"


def test_the_horizon_of_an_extension_is_of_its_own_recall_within_t(extension):
    assert extension.horizon.distance == 448  # half of the little that it finds
    assert extension.horizon.longest


def test_a_seed_that_diverged_did_not_learn(four_encodings):
    write_recall(four_encodings, "alibi", SURE, seed=1, status="diverged")
    learning = recall_of_row(four_encodings, "alibi").learning
    assert (learning.learned, learning.seeds) == (1, 2)
