"""Recall of a run that was asked for the plants of its training, and for plants of another kind."""

import pytest
from fake_runs import T, compared, recall_records, record, write_run

from posenc.report.formats import render
from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest

LOSSES = [record(multiple * T, 1.3) for multiple in (1, 2, 4, 8)]
DISTANCES = (8, 32, 56, 112, 224, 448)
ALL_FOUND = dict.fromkeys(DISTANCES, 100)
FEW_FOUND = dict.fromkeys(DISTANCES, 7)
PLANT = {"share": 0.75, "pairs": 4, "cue": 1, "alphabet": 16, "weight": 2.0}


def records_of_kind(correct, kind):
    """Return records of recall that ask for plants of a kind, with a hash of their own."""
    records = recall_records(correct)
    for measured in records:
        measured["recall"] |= {"kind": kind, "choices": 16}
        measured["targets_hash"] = f"{kind:a<16}"
    return records


def write_trained(root, plant, records, **details):
    """Write a run that was trained with a plant."""
    corpus = {"name": "sympy", "fingerprint": "f" * 64, "plant": plant}
    write_run(root, records=[*LOSSES, *records], facts={"corpus": corpus}, **details)


@pytest.fixture
def asked_for_both(tmp_path):
    """A run that finds all values of its own plants and few of the other ones."""
    records = records_of_kind(FEW_FOUND, "tokens") + records_of_kind(ALL_FOUND, "assignments")
    write_trained(tmp_path, {"kind": "assignments", **PLANT}, records)
    return tmp_path


def test_beside_the_losses_stands_recall_of_the_plants_of_the_training(asked_for_both):
    assert compared(asked_for_both).rows[0].recall.within.accuracy == 1.0


def test_recall_of_another_kind_is_a_table_of_its_own(asked_for_both):
    tables = compare_runs(load_runs([asked_for_both]), CompareRequest("recall"))
    assert [table.rows[0].recall.within.accuracy for table in tables] == [1.0, 0.07]
    assert [table.recall.kind for table in tables] == ["assignments", "tokens"]
    assert tables[1].header.group["evaluated on"].endswith("with planted tokens")


@pytest.fixture
def asked_for_other(tmp_path):
    """A run that was asked only for other plants than those of its training."""
    write_trained(tmp_path, {"kind": "tokens", **PLANT}, records_of_kind(FEW_FOUND, "assignments"))
    return tmp_path


@pytest.mark.parametrize("metric", ["nats", "bpb"])
def test_recall_of_another_kind_alone_is_shown_in_every_metric(asked_for_other, metric):
    """With --metric bpb the table had its numbers, and the sentence above it said that there were none."""
    text = render([compared(asked_for_other, protocol="recall", metric=metric)], "table")
    assert "Did not learn to recall: rope." in text


def test_a_table_of_losses_names_recall_that_it_does_not_show(asked_for_other):
    text = render([compared(asked_for_other)], "table")
    assert "also measured: recall (posenc compare --protocol all)" in text


def test_a_table_of_losses_does_not_name_recall_that_it_shows(asked_for_both):
    assert "also measured" not in render([compared(asked_for_both)], "table")


def test_a_run_whose_plant_has_no_kind_was_trained_with_tokens(tmp_path):
    records = records_of_kind(ALL_FOUND, "tokens") + records_of_kind(FEW_FOUND, "assignments")
    write_trained(tmp_path, PLANT, records)
    assert compared(tmp_path).rows[0].recall.within.accuracy == 1.0


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("tokens", "% of planted values found within T, then the farthest (a guess: 6%)"),
        ("assignments", "% of values of planted names found within T, then the farthest (a guess: 6%)"),
    ],
)
def test_a_table_says_what_is_found_and_what_a_guess_finds(tmp_path, kind, words):
    write_trained(tmp_path, {"kind": kind, **PLANT}, records_of_kind(FEW_FOUND, kind))
    text = " ".join(render([compared(tmp_path, protocol="recall")], "table").split())
    assert words in text


def test_older_records_say_nothing_of_a_guess(tmp_path):
    write_trained(tmp_path, PLANT, recall_records(FEW_FOUND))
    comparison = compared(tmp_path)
    assert comparison.recall.guess is None
    assert "guess" not in render([comparison], "table")
