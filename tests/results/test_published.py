"""Papers' numbers beside a comparison."""

import math

import pytest
from fake_runs import T, recall_records, record, write_run

from posenc.core.errors import UserError
from posenc.results import load_runs
from posenc.results.published import ACCURACY, against, published, tables

MULTIPLES = (1, 2, 4, 8)
DISTANCES = (8, 32, 56, 112, 224, 448)  # three within T, then the farthest of 2T, 4T and 8T
CORRECT = {  # of 100 values
    "rope": dict(zip(DISTANCES, (100, 98, 96, 62, 14, 5), strict=True)),
    "alibi": dict(zip(DISTANCES, (2, 2, 2, 2, 1, 0), strict=True)),  # did not learn
}


@pytest.fixture(scope="module")
def losses(tmp_path_factory):
    """Two encodings, scored in windows as papers do, with recall."""
    root = tmp_path_factory.mktemp("losses")
    for name in ("rope", "alibi"):
        records = [record(m * T, 1.2 + 0.1 * m, protocol="nonoverlapping") for m in MULTIPLES]
        write_run(root, name, records=[*records, *recall_records(CORRECT[name])])
    return load_runs([root])


@pytest.fixture(scope="module")
def recalling(tmp_path_factory):
    """Two encodings with recall; alibi did not learn."""
    root = tmp_path_factory.mktemp("recall")
    for name, correct in CORRECT.items():
        write_run(root, name, records=[record(T, 1.2), *recall_records(correct)])
    return load_runs([root])


def line_of(beside, encoding, multiple):
    return next(line for line in beside.rows if (line.encoding, line.multiple) == (encoding, multiple))


# --- the file


def test_losses_are_positive():
    assert all(number.in_our_unit > 0 for number in published() if number.metric != ACCURACY)


def test_accuracies_are_shares():
    shares = [number for number in published() if number.metric == ACCURACY]
    assert shares
    assert all(0 <= number.in_our_unit == number.value <= 1 for number in shares)


def test_no_number_is_there_twice():
    keys = [(n.table, n.encoding, n.train_length, n.eval_length) for n in published()]
    assert len(set(keys)) == len(keys)


@pytest.mark.parametrize("table", tables())
def test_a_table_has_one_metric(table):
    assert len({number.metric for number in published() if number.table == table}) == 1


@pytest.mark.parametrize("table", tables())
def test_every_number_of_a_table_has_its_line(losses, table):
    numbers = [number for number in published() if number.table == table]
    assert len(against(losses, table).rows) == len(numbers)


def test_an_unknown_table_names_the_nearest(losses):
    with pytest.raises(UserError, match="did you mean: alibi-table2"):
        against(losses, "alibi-tabel2")


# --- losses


def test_at_t_the_numbers_stand_beside_each_other_without_a_change(losses):
    line = line_of(against(losses, "alibi-table2"), "rope", 1)
    assert line.published == 20.07
    assert line.measured == pytest.approx(1.3)
    assert line.published_change is None
    assert line.measured_change is None


def test_a_published_length_stands_beside_the_nearest_window(losses):
    assert line_of(against(losses, "alibi-table2"), "rope", 2).published_length == 1012  # twice 512 is 1024


def test_changes_are_in_nats_and_are_subtracted(losses):
    beside = against(losses, "alibi-table2")
    far = line_of(beside, "rope", 2)
    published_change = math.log(far.published / 20.07)
    assert far.published_change == pytest.approx(published_change)
    assert far.measured_change == pytest.approx(0.1)
    assert far.difference == pytest.approx(0.1 - published_change)


def test_encodings_that_nobody_measured_are_named(losses):
    assert "published and not measured: sinusoidal, t5" in against(losses, "alibi-table2").notes


def test_of_several_tables_that_of_most_runs_is_taken(tmp_path):
    lengths = {"rope": T, "alibi": 2 * T, "sinusoidal": 2 * T}
    for name, length in lengths.items():
        losses = [record(m * length, 1.2, protocol="nonoverlapping", train_length=length) for m in MULTIPLES]
        write_run(tmp_path, name, records=losses, facts={"context_length": length})
    # A table whose rows are held against long-trained runs comes first, however few these are.
    own_length = record(2 * T, 1.0, protocol="nonoverlapping", train_length=2 * T)
    write_run(tmp_path, "rope", name="long", records=[own_length], facts={"context_length": 2 * T})
    assert "published and not measured: t5" in against(load_runs([tmp_path]), "alibi-table2").notes


# --- accuracies


def test_accuracies_stand_beside_recall(recalling):
    beside = against(recalling, "scale-invariant-needle")
    at_t = line_of(beside, "rope", 1)
    far = line_of(beside, "rope", 4)
    assert at_t.published == 0.962
    assert at_t.measured == pytest.approx(0.98)
    assert far.published == 0
    assert far.measured == 0.14
    assert far.published_change == pytest.approx(-0.962)
    assert far.measured_change == pytest.approx(0.14 - 0.98)
    assert far.difference == pytest.approx(0.962 - 0.84)


def test_windows_that_were_not_measured_have_no_multiple(recalling):
    beside = against(recalling, "scale-invariant-needle")
    assert {line.multiple for line in beside.rows} == {None, 1, 4}  # not 16


def test_a_row_that_did_not_learn_has_no_change(recalling):
    beside = against(recalling, "scale-invariant-needle")
    weak = line_of(beside, "alibi", 4)
    assert weak.measured == 0.01
    assert weak.measured_change is None
    assert "did not learn to recall within T, so without a change: alibi" in beside.notes


def test_the_notes_say_that_protocols_differ(recalling):
    notes = " ".join(against(recalling, "scale-invariant-needle").notes)
    assert "fine-tuned for 300 steps there, recall here" in notes


def test_accuracies_without_recall_are_refused(tmp_path):
    write_run(tmp_path, "rope", records=[record(T, 1.2)])
    with pytest.raises(UserError, match="no run was asked to recall"):
        against(load_runs([tmp_path]), "scale-invariant-needle")
