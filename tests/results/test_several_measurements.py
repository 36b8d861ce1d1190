"""Everything that a run was measured on is in a table, or counted."""

import pytest
from fake_runs import T, positions, recall_records, record, rows_of, write_run

from posenc.report.cell_texts import verdict_interval
from posenc.report.sentences.notes import left_out_notes
from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest
from posenc.results.runs import load_run
from posenc.results.summary import headline_losses

YARN = {"name": "yarn", "factor": 2.0, "ramp": "index", "mscale_all_dim": 0.0}
OTHER = "e" * 64
BIG = {"facts": {"context_length": 128}, "config": {"context_length": 128}}


def test_what_chose_a_rate_or_knobs_is_counted_and_not_shown(tmp_path):
    tuned_on = [record(w, 9.0, split="validation", targets_hash="v", extend=YARN) for w in (128, 256)]
    at_t = record(64, 9.0, split="validation", targets_hash="v")
    write_run(tmp_path, records=[record(64, 1.0), record(512, 1.1), at_t, *tuned_on])
    (table,) = compare_runs(load_runs([tmp_path]))
    assert table.header.split == "test"
    assert table.header.left_out_by_reason == {"measured to choose a learning rate or knobs": 3}


def tables_of(root, **request):
    return compare_runs(load_runs([root]), CompareRequest(**request))


AS_TRAINED = [record(multiple * T, 1.0 + multiple / 10) for multiple in (1, 2, 8)]
SECOND = {
    "text": [record(multiple * T, 3.0, fingerprint=OTHER, corpus="mine") for multiple in (1, 8)],
    "validation documents": [record(multiple * T, 3.0, split="validation") for multiple in (1, 8)],
    "precision": [record(multiple * T, 3.0, precision="fp32") for multiple in (1, 8)],
    "longer window": [record(multiple * T, 3.0, targets_hash="b") for multiple in (1, 16)],
    "extension of fewer targets": [
        record(T, 3.0, targets_hash="b", count=10),
        record(8 * T, 3.0, targets_hash="b", count=10, extend=YARN),
    ],
}


@pytest.mark.parametrize("records", SECOND.values(), ids=SECOND)
def test_what_a_run_was_measured_on_as_well_is_a_table_of_its_own(tmp_path, records):
    write_run(tmp_path, records=[*AS_TRAINED, *records])
    tables = tables_of(tmp_path)
    assert [table.rows[0].cells[0].mean for table in tables] == pytest.approx([1.1, 3.0])
    groups = [table.header.group for table in tables]
    assert groups[0].keys() == groups[1].keys() != set()
    assert groups[0] != groups[1]


@pytest.mark.parametrize("records", SECOND.values(), ids=SECOND)
def test_a_table_of_everything_has_what_a_run_was_measured_on_as_well(tmp_path, records):
    write_run(tmp_path, records=[*AS_TRAINED, *records])
    (table,) = tables_of(tmp_path, allow_mixed=True)
    losses = [row.cells[0].mean for row in table.rows if row.cells[0].mean is not None]
    assert sorted(losses) == pytest.approx([1.1, 3.0])
    assert all(row.mixed for row in table.rows)


def test_a_text_that_has_two_names_is_one_text(tmp_path):
    as_trained = [record(T, 1.0), record(8 * T, 2.5)]
    extended = record(8 * T, 1.25, extend=YARN, corpus="mine")
    write_run(tmp_path, records=[*as_trained, extended])
    (table,) = tables_of(tmp_path)
    assert [row.cells[-1].mean for row in table.rows] == pytest.approx([2.5, 1.25])


def test_a_second_text_is_shown_by_every_protocol(tmp_path):
    own = [record(T, 1.0), record(T, 1.0, protocol="sliding", stride=16)]
    second = [{**one, "fingerprint": OTHER, "corpus": "mine"} for one in own]
    write_run(tmp_path, records=[*own, *second])
    tables = tables_of(tmp_path, protocol="all")
    assert [(table.header.protocol, table.header.corpus) for table in tables] == [
        ("fixed-target", "sympy"),
        ("fixed-target", "mine"),
        ("sliding", "sympy"),
        ("sliding", "mine"),
    ]


def test_a_second_text_says_what_the_run_was_trained_on(tmp_path):
    write_run(tmp_path, records=[*AS_TRAINED, *SECOND["text"]])
    assert [table.header.trained_on for table in tables_of(tmp_path)] == [None, "sympy"]


def test_cells_in_another_precision_are_not_under_the_header_of_the_training(tmp_path):
    mixed = [record(T, 1.0), record(8 * T, 2.0, precision="fp32")]
    write_run(tmp_path, records=mixed, facts={"precision": "bf16"})
    tables = tables_of(tmp_path)
    assert [table.header.evaluated_in for table in tables] == [None, "fp32"]
    assert [len(table.columns) for table in tables] == [1, 1]


def test_the_same_cells_of_other_targets_are_counted(tmp_path):
    fewer = [record(multiple * T, 3.0, targets_hash="b", count=10) for multiple in (1, 8)]
    write_run(tmp_path, records=[*AS_TRAINED, *fewer])
    (table,) = tables_of(tmp_path)
    assert table.header.left_out_by_reason == {"of other targets": 2}


def test_a_seed_of_fewer_targets_is_named_by_their_number(tmp_path):
    write_run(tmp_path, seed=0, records=AS_TRAINED)
    fewer = [{**one, "targets_hash": "b" * 16, "targets": 100} for one in AS_TRAINED]
    write_run(tmp_path, seed=1, records=fewer)
    groups = [table.header.group for table in tables_of(tmp_path)]
    assert {"target set": "400 targets to 8x"} in groups
    assert {"target set": "100 targets to 8x"} in groups


def test_targets_that_are_as_many_are_told_apart_by_their_hash(tmp_path):
    write_run(tmp_path, "rope", records=AS_TRAINED)
    write_run(tmp_path, "alibi", records=[{**one, "targets_hash": "b" * 16} for one in AS_TRAINED])
    groups = [table.header.group for table in tables_of(tmp_path)]
    assert {"target set": "400 targets to 8x (bbbbbbbb)"} in groups


def test_a_longer_pass_that_ran_out_of_memory_makes_no_further_table(tmp_path):
    too_long = record(16 * T, 0, protocol="positions", targets_hash="b", note="oom at 1024 tokens")
    write_run(tmp_path, records=[positions(), too_long])
    (table,) = tables_of(tmp_path, protocol="positions")
    assert table.rows[0].curve is not None
    assert left_out_notes(table.header) == ["not shown: 1 record of other targets, without a number"]


def test_a_run_without_numbers_is_not_in_a_table_of_another_training_length(tmp_path):
    write_run(tmp_path, "rope", **BIG)
    write_run(tmp_path, "alibi", results=False, status="failed")
    long, short = tables_of(tmp_path)
    assert [list(rows_of(table)) for table in (long, short)] == [["rope"], ["alibi"]]
    assert [table.header.context_length for table in (long, short)] == [128, T]


def test_a_mixed_table_with_a_run_of_another_length_has_no_length_in_its_head(tmp_path):
    write_run(tmp_path, "rope", **BIG)
    write_run(tmp_path, "alibi", results=False, status="failed")
    (table,) = tables_of(tmp_path, allow_mixed=True)
    assert table.header.context_length is None


def test_recall_stands_beside_the_losses_of_its_own_text_alone(tmp_path):
    records = [*AS_TRAINED, *SECOND["text"], *recall_records({8: 100, 32: 100, 112: 60})]
    write_run(tmp_path, records=records)
    own, second = tables_of(tmp_path)
    assert own.recall is not None
    assert second.recall is None


def test_the_losses_of_a_summary_are_those_of_the_first_table(tmp_path):
    run = write_run(tmp_path, records=[*AS_TRAINED, *SECOND["text"]])
    assert headline_losses(load_run(run))[1.0] == pytest.approx(1.1)


def test_an_interval_in_nats_holds_its_change_whatever_another_protocol_scored(tmp_path):
    """Tokens of the other protocol have one byte, and those of the table four: its bits are others."""
    for seed in range(3):
        slope = 0.001 + 0.0001 * seed
        losses = [record(window, 1.2 + slope * window, bytes=[40] * 40) for window in (T, 2 * T)]
        other = {"protocol": "sliding", "stride": 8, "targets_hash": "s"}
        others = [record(window, 1.2, **other) for window in (T, 2 * T, 4 * T, 8 * T)]
        write_run(tmp_path, seed=seed, records=[*losses, *others])
    table = compare_runs(load_runs([tmp_path]))[0]
    cell = table.rows[0].cells[-1]
    low, high = verdict_interval(table.header, cell)
    assert low <= cell.change <= high
