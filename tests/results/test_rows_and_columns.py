"""The rows, columns, order and baseline that a user chooses."""

import pytest
from fake_runs import T, compared, positions, record, rows_of, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest


@pytest.fixture(scope="module")
def sweep(tmp_path_factory):
    """Three encodings with three seeds at 1x and 8x; a fourth, `long`, has one seed, at 1x and 16x."""
    root = tmp_path_factory.mktemp("sweep")
    for name, loss, growth in (("nope", 2.0, 1.0), ("rope", 1.2, 2.5), ("alibi", 1.3, 0.0)):
        for seed in range(3):
            at_t = loss + seed / 100
            write_run(root, name, seed=seed, losses={1: at_t, 8: at_t + growth})
    write_run(root, "long", losses={1: 0.5, 16: 0.5})
    return root


@pytest.mark.parametrize(
    ("sort", "labels"),
    [
        (None, ["alibi", "long", "nope", "rope"]),
        ("-name", ["rope", "nope", "long", "alibi"]),
        ("1x", ["long", "rope", "alibi", "nope"]),
        ("-change@8x", ["rope", "nope", "alibi", "long"]),
    ],
)
def test_rows_come_in_the_order_of_the_sort(sweep, sort, labels):
    assert list(rows_of(compared(sweep, sort=sort))) == labels


# Without `long` the last column is 8x.
CHOICES = [
    pytest.param({"rows": ["rope", "al*"]}, ["rope", "alibi"], id="in the order of the choice"),
    pytest.param(
        {"rows": ["rope", "nope", "alibi"], "sort": "change"}, ["alibi", "nope", "rope"], id="sorted"
    ),
]


@pytest.mark.parametrize(("choice", "labels"), CHOICES)
def test_chosen_rows_are_shown(sweep, choice, labels):
    assert list(rows_of(compared(sweep, **choice))) == labels


@pytest.mark.parametrize(("choice", "labels"), CHOICES)
def test_columns_are_those_of_the_chosen_rows(sweep, choice, labels):
    assert [column.multiple for column in compared(sweep, **choice).columns] == [1, 8]


@pytest.mark.parametrize(("choice", "labels"), CHOICES)
def test_the_best_row_is_that_of_the_chosen_rows(sweep, choice, labels):
    comparison = compared(sweep, **choice)
    best = [row.label for row in comparison.rows if row.cells[1].versus_best.word == "best"]
    assert best == ["alibi"]


def test_a_chosen_column_is_shown_alone(sweep):
    comparison = compared(sweep, columns=[8])
    row = rows_of(comparison)["alibi"]
    assert [column.multiple for column in comparison.columns] == [8]
    assert len(row.cells) == 1


def test_changes_do_not_need_the_column_of_the_training_length(sweep):
    row = rows_of(compared(sweep, columns=[8]))["alibi"]
    assert row.cells[0].change == pytest.approx(0)


@pytest.fixture(scope="module")
def three_lengths(tmp_path_factory):
    """One encoding, trained at three lengths."""
    root = tmp_path_factory.mktemp("lengths")
    for length in (64, 512, 128):
        changes = {"context_length": length}
        write_run(root, name=f"T{length}", config=changes, facts=changes)
    return root


def test_a_baseline_is_named_by_its_whole_label(three_lengths):
    comparison = compared(three_lengths, allow_mixed=True, baseline="rope [context length 64]")
    assert comparison.header.baseline == "rope [context length 64]"


def test_losses_by_position_have_no_baseline(tmp_path):
    for name in ("rope", "alibi"):
        write_run(tmp_path, name, records=[record(T, 1.0), record(8 * T, 1.5), positions()])
    with pytest.raises(UserError, match="positions measures curves"):
        compared(tmp_path, protocol="positions", baseline="rope")
    tables = compare_runs(load_runs([tmp_path]), CompareRequest("all", baseline="rope"))
    assert [table.header.baseline for table in tables] == ["rope", None]


def test_a_baseline_of_several_rows_is_refused_with_their_labels(three_lengths):
    with pytest.raises(UserError, match=r"several rows(.|\n)*rope \[context length 128\]"):
        compared(three_lengths, allow_mixed=True, baseline="rope")


def test_no_runs_are_the_users_mistake():
    with pytest.raises(UserError, match="no runs"):
        compare_runs([])
