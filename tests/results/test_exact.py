"""Whole answers of tasks: seeds that learned come first, and of those median and range."""

from fake_runs import compared, exact_records, write_run

from posenc.results.beside.exact import Spread


def answers(root, right_by_seed, **details):
    """Return the answers of a row whose seeds get so many of 100 instances right, by multiple of T."""
    for seed, right_by_multiple in enumerate(right_by_seed):
        write_run(root, "rope", seed=seed, records=exact_records(right_by_multiple), **details)
    (row,) = compared(root, protocol="exact").rows
    return row.exact


def test_a_seed_learns_with_nine_of_ten_answers_within_the_training_length(tmp_path):
    row = answers(tmp_path, [{1: 90, 8: 50}, {1: 89, 8: 40}, {1: 100, 8: 0}])
    assert (row.learned, row.seeds) == (2, 3)


def test_numbers_are_of_the_seeds_that_learned(tmp_path):
    row = answers(tmp_path, [{1: 100, 8: 60}, {1: 100, 8: 20}, {1: 10, 8: 0}])
    farthest = row.cells[-1]
    assert (farthest.whole.median, farthest.whole.low, farthest.whole.high) == (0.4, 0.2, 0.6)
    assert farthest.seeds == 2


def test_a_row_that_did_not_learn_shows_all_of_its_seeds(tmp_path):
    row = answers(tmp_path, [{1: 50, 8: 1}, {1: 70, 8: 3}])
    assert row.learned == 0
    assert row.cells[0].whole.median == 0.6


def test_quartiles_come_with_five_seeds(tmp_path):
    row = answers(tmp_path, [{1: 100, 8: right} for right in (0, 10, 20, 30, 100)])
    assert row.cells[-1].whole.quartiles == (0.1, 0.3)


def test_four_seeds_have_no_quartiles():
    assert Spread.of([0.1, 0.2, 0.3, 0.4]).quartiles is None


def test_a_seed_that_diverged_did_not_learn(tmp_path):
    write_run(tmp_path, "rope", seed=0, records=exact_records({1: 100, 8: 50}))
    write_run(tmp_path, "rope", seed=1, records=[], results=False, status="diverged")
    (row,) = compared(tmp_path, protocol="exact").rows
    assert (row.exact.learned, row.exact.seeds) == (1, 2)


def test_a_window_that_a_seed_lacks_has_no_number(tmp_path):
    row = answers(tmp_path, [{1: 100, 8: 60}, {1: 100}])
    assert row.cells[-1] is None


def test_tokens_are_counted_beside_whole_answers(tmp_path):
    row = answers(tmp_path, [{1: 100, 8: 60}])
    assert row.cells[-1].tokens.median == 0.8


def test_runs_of_tasks_are_compared_without_a_protocol(tmp_path):
    write_run(tmp_path, "rope", records=exact_records({1: 100, 8: 60}))
    assert compared(tmp_path).header.protocol == "exact"
