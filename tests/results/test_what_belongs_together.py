"""Which runs are seeds of one row, and which records are of one text."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from fake_runs import T, positions, record, write_run

from posenc.report import render
from posenc.results import load_runs
from posenc.results.against import against
from posenc.results.comparison import Comparison, View, compare
from posenc.results.run_summary import run_summary

SMALL = {"model": {"name": "small", "d_model": 512}, "context_length": 256}
SCALE = {"name": "scale", "factor": 2.0}


def compared(root: Path, metric: str = "nats", allow_mixed: bool = False, protocol: str = "fixed-target"):
    return compare(load_runs([root]), protocol, metric, allow_mixed, View())


def rows(comparison: Comparison) -> dict[str, Any]:
    return {row.label: row for row in comparison.rows}


@pytest.mark.parametrize("seed", [1, 3])
def test_a_run_of_another_size_that_diverged_is_no_seed_of_the_row(tmp_path: Path, seed: int) -> None:
    for encoding in ("rope", "alibi"):
        for one in range(3):
            write_run(tmp_path, encoding, seed=one)
    before = rows(compared(tmp_path))
    write_run(tmp_path, "rope", seed=seed, status="diverged", results=False, config=SMALL)
    after = rows(compared(tmp_path))
    assert {label: after[label] for label in before} == before
    (other,) = after.keys() - before
    assert other.startswith("rope [rope-nano-T64") and after[other].cells[0].mean is None
    write_run(tmp_path, "rope", seed=4, status="diverged", results=False)  # of the row's own size
    cell = rows(compared(tmp_path))["rope"].cells[-1]
    assert (cell.rankable, cell.note) == (False, "1 of 4 diverged")


def test_a_seed_of_another_model_is_not_called_not_extended(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "rope", seed=seed)
    write_run(tmp_path, "rope", seed=2, facts={"model": {"name": "small", "n_layers": 6}}, config=SMALL)
    nano, small = (row.notes for row in compared(tmp_path, allow_mixed=True).rows)
    assert nano == ["no run of seed 2"] and small == ["no run of seed 0, 1"]


def test_sets_of_one_window_are_not_put_together(tmp_path: Path) -> None:
    """The extension lost nothing on its own targets; beside those of the other set it would seem to."""
    mine = {"targets_hash": "b" * 16}
    other = [record(T, 1.9, count=30, **mine), record(T, 1.5, count=30, extend=SCALE, **mine)]
    write_run(tmp_path, "rope", records=[record(T, 1.2), *other])
    comparison = compared(tmp_path)
    assert {cell.targets_hash for row in comparison.rows for cell in row.cells if cell.seeds} == {"a" * 16}
    assert comparison.header["left_out"] == 2


def test_validation_documents_do_not_take_the_place_of_test_documents(tmp_path: Path) -> None:
    """What was tuned was measured on them too, more alike from run to run than on the test documents."""
    for encoding, own in (("rope", "1"), ("alibi", "1"), ("nope", "2")):
        shared = [record(w, 9.0, split="validation", targets_hash="v" * 16) for w in (T, 8 * T)]
        write_run(
            tmp_path, encoding, records=[*shared, *(record(w, 1.2, targets_hash=own) for w in (T, 8 * T))]
        )
    comparison = compared(tmp_path, allow_mixed=True)
    assert all(cell.mean == pytest.approx(1.2) for row in comparison.rows for cell in row.cells)
    assert comparison.header["split"] == "test"


def test_a_third_row_of_another_tokenizer_ranks_nothing_that_differs(tmp_path: Path) -> None:
    write_run(tmp_path, "rope")
    other = [record(w, 2.0, targets_hash="b" * 16) for w in (T, 8 * T)]
    write_run(tmp_path, "alibi", records=other)
    assert not any(column.pairs for column in compared(tmp_path, "bpb", allow_mixed=True).columns)
    bpe = {"tokenizer": {"name": "bpe", "vocab_size": 512}}
    records = [record(w, 1.5, targets_hash="c" * 16) for w in (T, 8 * T)]
    write_run(tmp_path, "nope", facts=bpe, records=records)
    assert not any(column.pairs for column in compared(tmp_path, "bpb", allow_mixed=True).columns)
    for run in tmp_path.glob("alibi*"):
        shutil.rmtree(run)
    assert any(column.pairs for column in compared(tmp_path, "bpb", allow_mixed=True).columns)


def test_published_orders_are_not_checked_on_different_targets(tmp_path: Path) -> None:
    for encoding, targets in (("rope", "a" * 16), ("sinusoidal", "b" * 16)):
        losses = {1: 1.2, 2: 1.3} if encoding == "rope" else {1: 1.7, 2: 1.8}
        records = [
            record(int(m * T), loss, protocol="nonoverlapping", targets_hash=targets)
            for m, loss in losses.items()
        ]
        write_run(tmp_path, encoding, records=records)
    found = against(load_runs([tmp_path]), "alibi-table2", allow_mixed=True)
    orders = [check for check in found.checks if check.kind == "order"]
    assert orders and {check.outcome for check in orders} == {"cannot tell"}
    assert "measured on different targets" in {check.reason for check in orders}


def test_an_infinite_perplexity_has_its_crop_line_all_the_same(tmp_path: Path) -> None:
    for seed, loss in enumerate((5.0, 6.0, 75.0)):
        write_run(tmp_path, "rope", seed=seed, losses={1: 1.2, 8: loss})
    cell = compared(tmp_path, "ppl").rows[0].cells[-1]
    assert (cell.mean, cell.change, cell.note) == (float("inf"), None, None)


def test_without_a_configuration_the_facts_say_what_differs(tmp_path: Path) -> None:
    for seed, window in ((0, None), (1, 16)):
        facts = {"attention": {"name": "mha", "window": window}, "precision": "fp32"}
        run = write_run(tmp_path, "rope", seed=seed, facts=facts)
        (run / "config.yaml").unlink()
    assert sorted(rows(compared(tmp_path))) == ["rope", "rope window=16"]


def test_an_extended_curve_says_what_its_rise_is_over(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", records=[positions()])
    shown = " ".join(render(compared(tmp_path, protocol="positions"), "table", 200, False).split())
    assert "in the same passes" in shown and "extended: over" not in shown
    extended = {**positions(), "extend": SCALE}
    write_run(tmp_path, "rope", seed=1, records=[positions(), extended])
    shown = " ".join(render(compared(tmp_path, protocol="positions"), "table", 200, False).split())
    assert "in the same passes (extended: over that of the model as trained, given T tokens)" in shown


def test_a_glance_takes_the_same_targets_as_the_table(tmp_path: Path) -> None:
    other = [record(w, 2.2, targets_hash="b" * 16) for w in (T // 4, T // 2, T)]
    refused = record(8 * T, 0.0, note="refused: beyond=refuse")
    run = write_run(tmp_path, "rope", records=[record(T // 2, 1.3), record(T, 1.2), refused, *other])
    (row,) = compared(tmp_path).rows
    shown = {cell.multiple: cell.mean for cell in row.cells if cell.mean is not None}
    assert run_summary(run).losses == pytest.approx(shown) and shown[1.0] == pytest.approx(1.2)
