"""Whole answers in words and tables."""

import pytest
from fake_runs import compared, exact_records, write_run

from posenc.report.reports import full_report, short_report
from posenc.report.texts import whole_percent


def comparison_of(root, columns=(), **rights):
    """Return a table with a row for each encoding, from the answers of its seeds by multiple of T."""
    for encoding, right_by_seed in rights.items():
        for seed, right in enumerate(right_by_seed):
            write_run(root, encoding, seed=seed, records=exact_records(right))
    return compared(root, protocol="exact", columns=columns)


def lines_of(report):
    return [[cell.text for cell in row] for row in report.tables[0].rows]


@pytest.fixture
def comparison(tmp_path):
    learned = [{1: 100, 2: 90, 8: 60}, {1: 100, 2: 70, 8: 20}, {1: 3, 2: 0, 8: 0}]
    return comparison_of(tmp_path, rope=learned, nope=[{1: 50, 2: 0, 8: 0}, {1: 40, 2: 1, 8: 0}])


def test_the_table_has_the_seeds_that_learned_and_a_median_with_its_range(comparison):
    assert lines_of(short_report(comparison)) == [
        ["nope", "0/2", "(45 [40, 50])", "(<1 [0, 1])", "(0)"],
        ["rope", "2/3", "100", "80 [70, 90]", "40 [20, 60]"],
    ]


@pytest.mark.parametrize(
    ("columns", "answer"),
    [
        ([8], "No row that learned the task has whole answers at 8x (medians of its seeds)."),
        ([1], "No length beyond T is shown."),
    ],
)
def test_of_chosen_lengths_the_answer_speaks_of_these_alone(columns, answer, tmp_path):
    comparison = comparison_of(tmp_path, columns=columns, rope=[{1: 100, 2: 50, 8: 0}])
    assert short_report(comparison).answer == answer


def test_the_answer_names_the_most_whole_answers_and_who_did_not_learn(comparison):
    answer = "Most whole answers at 8x: rope (40%, 2 of 3 seeds). Did not learn within T: nope."
    assert short_report(comparison).answer == answer


@pytest.mark.parametrize(
    ("rights", "answer"),
    [
        (
            {"rope": [{1: 100, 2: 45, 8: 0}], "nope": [{1: 100, 2: 10, 8: 0}]},
            "Most whole answers at 2x: rope (45%, 1 of 1 seed). In longer windows every median is 0%.",
        ),
        (
            {"rope": [{1: 100, 2: 50, 8: 0}, {1: 100, 2: 50, 8: 0}, {1: 100, 2: 50, 8: 90}]},
            "Most whole answers at 2x: rope (50%, 3 of 3 seeds). In longer windows every median is 0%.",
        ),
        (
            {"rope": [{1: 100, 2: 50, 4: 0}], "nope": [{1: 10, 8: 0}]},
            "Most whole answers at 2x: rope (50%, 1 of 1 seed). In longer windows every median is 0%. "
            "Did not learn within T: nope.",
        ),
        (
            {"rope": [{1: 100, 8: 100}], "nope": [{1: 100, 8: 100}]},
            "Most whole answers at 8x: nope and rope (100%, 1 of 1 seed).",
        ),
        (
            {"rope": [{1: 100, 8: 100}], "nope": [{1: 100, 8: 100}, {1: 0, 8: 0}]},
            "Most whole answers at 8x: nope and rope (100%).",
        ),
        (
            {"rope": [{1: 100, 8: 0}]},
            "No row that learned the task has whole answers beyond T (medians of its seeds).",
        ),
        ({"rope": [{1: 100}]}, "No row that learned the task was measured beyond T."),
    ],
    ids=[
        "nothing at 8x",
        "one seed at 8x",
        "not measured at 8x",
        "two",
        "two, by other seeds",
        "none",
        "only T",
    ],
)
def test_the_answer_is_of_the_longest_window_with_whole_answers(tmp_path, rights, answer):
    assert short_report(comparison_of(tmp_path, **rights)).answer == answer


def test_nothing_is_best_where_no_row_learned(tmp_path):
    comparison = comparison_of(tmp_path, rope=[{1: 10, 8: 5}])
    assert short_report(comparison).answer.startswith("No row learned the task")


def test_everything_has_the_interval_of_the_chance_to_learn(comparison):
    row = lines_of(full_report(comparison))[1]
    assert row[1] == "2/3 [9, 99]%"


def test_shares_of_tokens_do_not_stand_below_the_title_of_whole_answers(comparison):
    whole, tokens = full_report(comparison).tables[:2]
    assert whole.title == "whole answers, %"
    assert not [head for head in whole.heads if "tokens" in head]
    assert tokens.title == "right tokens, %"
    assert tokens.heads[-1] == "tokens@8x"


@pytest.mark.parametrize(
    ("share", "text"), [(1.0, "100"), (0.999, ">99"), (0.0, "0"), (0.001, "<1"), (0.5, "50")]
)
def test_all_and_nothing_are_said_only_where_they_are_exact(share, text):
    assert whole_percent(share) == text
