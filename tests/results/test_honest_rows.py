"""What no table may hide: seeds that were lost, rows that were not asked for, texts that were not shared."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from fake_runs import T, positions, record, write_run

from posenc.core.errors import UserError
from posenc.report import render
from posenc.report.plots.series import Names, measured, training_series
from posenc.results import load_runs
from posenc.results.comparison import Comparison, View, compare
from posenc.results.schema import Record

YARN = {"name": "yarn", "factor": 2.0}
BPE = {"name": "bpe", "vocab_size": 512}


def compared(
    root: Path, metric: str = "nats", allow_mixed: bool = False, view: View | None = None
) -> Comparison:
    return compare(load_runs([root]), "fixed-target", metric, allow_mixed, view or View())


def extended(loss: float) -> list:
    plain = [record(T, 1.0), record(8 * T, loss + 1)]
    return [*plain, *(record(W, loss, extend=YARN) for W in (T, 8 * T))]


def test_a_seed_that_diverged_counts_against_the_extended_row_too(tmp_path: Path) -> None:
    for seed in (0, 1):
        write_run(tmp_path, "rope", seed=seed, records=extended(1.1))
    write_run(tmp_path, "rope", seed=2, records=[], status="diverged", reason="loss is nan")
    for seed in range(3):
        write_run(tmp_path, "alibi", seed=seed, losses={1: 1.2, 8: 1.3})
    rows = {row.label: row for row in compared(tmp_path).rows}
    for label in ("rope", "rope+yarn factor=2"):
        cell = rows[label].cells[-1]
        assert (cell.rankable, cell.verdict, cell.note) == (False, None, "1 of 3 diverged"), label
    assert "seed 2 diverged: loss is nan" in rows["rope+yarn factor=2"].notes


def test_a_seed_that_nobody_extended_is_not_called_missing(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", seed=0, records=extended(1.1))
    write_run(tmp_path, "rope", seed=1, losses={1: 1.0, 8: 2.0})
    write_run(tmp_path, "alibi", seed=2)
    rows = {row.label: row for row in compared(tmp_path).rows}
    assert rows["rope+yarn factor=2"].notes == ["no run of seed 2", "not extended: seed 1"]
    assert rows["rope"].notes == ["no run of seed 2"]


def test_a_probe_stands_at_the_longest_window_of_the_rows_that_are_shown(tmp_path: Path) -> None:
    for name, windows in (("rope", (8, 16)), ("alibi", (8,)), ("nope", (8,)), ("t5", ())):
        probed = [record(m * T, 2.0, protocol="induction") for m in (1, *windows)] if windows else []
        write_run(tmp_path, name, records=[record(T, 1.0), record(8 * T, 1.1), *probed])
    found = compared(tmp_path)
    assert [probe.multiple for probe in found.probes] == [8.0]
    cells = {row.label: row.probes[0].cell.mean for row in found.rows}
    assert cells == {"rope": 2.0, "alibi": 2.0, "nope": 2.0, "t5": None}
    assert compared(tmp_path, view=View(rows=("rope",))).probes[0].multiple == 16.0


def test_rows_are_chosen_before_they_are_held_to_be_alike(tmp_path: Path) -> None:
    for name in ("alibi", "rope"):
        write_run(tmp_path, name)
    write_run(tmp_path, "nope", facts={"tokenizer": BPE})
    with pytest.raises(UserError, match="do not belong in one ranking"):
        compared(tmp_path)
    for allow in (False, True):
        found = compared(tmp_path, allow_mixed=allow, view=View(rows=("alibi", "rope")))
        assert [row.mixed for row in found.rows] == [{}, {}] and found.header["mixed"] == {}
        assert {row.cells[-1].mark for row in found.rows} >= {"lowest"}


def test_two_tokenizers_are_ranked_on_documents_that_both_scored(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", records=[record(T, 1.0), record(8 * T, 1.0)])
    shifted = [record(T, 1.2), record(8 * T, 1.2)]
    for one in shifted:
        one["per_document"]["document"] = [d + 1000 for d in one["per_document"]["document"]]
    write_run(tmp_path, "alibi", records=shifted, facts={"tokenizer": BPE})
    (pair,) = compared(tmp_path, "bpb", allow_mixed=True).columns[-1].pairs
    assert (pair.word, pair.difference, pair.p) == ("unclear", None, None)
    near = [record(T, 1.2), record(8 * T, 1.2)]
    for one in near:
        one["per_document"]["document"] = [d + 5 for d in one["per_document"]["document"]]
    write_run(tmp_path / "near", "alibi", records=near, facts={"tokenizer": BPE})
    write_run(tmp_path / "near", "rope", records=[record(T, 1.0), record(8 * T, 1.0)])
    (pair,) = compared(tmp_path / "near", "bpb", allow_mixed=True).columns[-1].pairs
    assert pair.word == "higher" and pair.difference is not None


def test_the_table_says_which_targets_in_a_column_of_its_own(tmp_path: Path) -> None:
    for name, digest in (("alibi", "a" * 16), ("rope", "b" * 16)):
        write_run(tmp_path, name, records=[record(T, 1.0, targets_hash=digest)])
    (line, _) = csv.DictReader(io.StringIO(render(compared(tmp_path, allow_mixed=True), "csv", 80, False)))
    assert line["mixed_targets"] == "a" * 16 and int(line["targets"]) > 0


def test_names_that_are_cut_alike_are_numbered_and_told(tmp_path: Path) -> None:
    for length in (64, 128, 256):
        config = {"context_length": length, "train": {"tokens": 4096000}}
        facts = {"context_length": length, "tokens": 3999744 if length == 128 else 4096000}
        write_run(tmp_path, name=f"run{length}", config=config, facts=facts)
    found = compared(tmp_path, allow_mixed=True)
    names = Names([found])
    numbered = {names.of(row)[-4:]: row.mixed["context length"] for row in found.rows}
    assert numbered == {"744]": "128", " (1)": "256", " (2)": "64"}
    assert any(
        words.startswith("rope [context length …") and "length 256" in words for words in names.policies
    )


def test_plots_show_what_the_table_shows(tmp_path: Path) -> None:
    for name in ("alibi", "rope", "nope"):
        write_run(tmp_path, name, records=[record(T, 1.0), record(8 * T, 1.1), positions()])
    write_run(tmp_path, "rope", seed=1, records=[*extended(1.1), positions()])
    runs = load_runs([tmp_path])
    chosen = View(rows=("rope", "alibi"))
    one = compare(runs, "fixed-target", "nats", False, chosen)
    (other,) = measured("positions", "positions", runs, [one])
    assert [row.label for row in other.rows] == ["rope", "alibi"]
    every = compare(runs, "fixed-target", "nats", False)
    lines, _ = training_series(every, runs, Names([every]))
    assert [line.name for line in lines] == ["alibi", "nope", "rope"]


def test_runs_of_other_code_are_another_row(tmp_path: Path) -> None:
    """Seeds of two formulas under one name would be averaged to a third."""
    for seed, code in ((0, "aa"), (1, "aa"), (1, "bb"), (2, None)):
        facts = {} if code is None else {"code": code}
        write_run(tmp_path, "mine", seed=seed, name=f"s{seed}-{code}", facts=facts)
    write_run(tmp_path, "rope", facts={"code": "cc"})
    found = compared(tmp_path)
    seeds = {row.label: row.seeds for row in found.rows}
    assert seeds == {"mine code=aa": [0, 1], "mine code=bb": [1], "mine code=unknown": [2], "rope": [0]}
    assert all("trained by other code" in " ".join(row.notes) for row in found.rows if row.label != "rope")
    assert found.header["also_differs"] == {}


def test_runs_that_do_not_say_their_code_are_seeds_of_those_that_do(tmp_path: Path) -> None:
    write_run(tmp_path, "mine", seed=0)
    write_run(tmp_path, "mine", seed=1, facts={"code": "aa"})
    assert [(row.label, row.seeds) for row in compared(tmp_path).rows] == [("mine", [0, 1])]


def test_a_row_is_the_lowest_only_if_none_is_clearly_lower(tmp_path: Path) -> None:
    """alibi's mean is the lower one, of a seed that rope lacks; on the shared seed it is the higher one."""
    write_run(tmp_path, "alibi", seed=0, losses={1: 1.0, 8: 1.0})
    write_run(tmp_path, "alibi", seed=1, losses={1: 2.0, 8: 2.0})
    write_run(tmp_path, "rope", seed=1, losses={1: 1.8, 8: 1.8})
    rows = {row.label: row.cells[-1] for row in compared(tmp_path).rows}
    assert rows["alibi"].mean == pytest.approx(1.5) and rows["rope"].mean == pytest.approx(1.8)
    assert (rows["alibi"].mark, rows["rope"].mark) == (None, "lowest")


def test_two_tunings_of_an_extension_are_not_made_into_one_row(tmp_path: Path) -> None:
    def tuned(window: int, loss: float, knob: int) -> Record:
        return record(window, loss, extend={"name": "window", "window": knob, "tuned": ["window"]})

    few = [tuned(m * T, 1.5, 16) for m in (1, 8)]
    many = [tuned(m * T, 1.4, 32) for m in (1, 2, 4, 8)]
    plain = [record(m * T, 1.3) for m in (1, 2, 4, 8)]
    write_run(tmp_path, "rope", records=[*plain, *few, *many])
    found = compared(tmp_path)
    (row,) = [row for row in found.rows if row.extend]
    assert [cell.mean for cell in row.cells] == pytest.approx([1.4] * 4) and found.header["left_out"] == 2


def test_a_probe_is_of_the_checkpoint_whose_loss_is_shown(tmp_path: Path) -> None:
    old = record(8 * T, 2.0, protocol="induction", checkpoint_step=400)
    write_run(tmp_path, "rope", records=[record(T, 1.0), old])
    assert compared(tmp_path).probes == []
    both = [record(T, 1.0), old, record(8 * T, 1.5, protocol="induction")]
    write_run(tmp_path, "alibi", records=both)
    cells = {row.label: row.probes[0].cell for row in compared(tmp_path).rows}
    assert cells["alibi"].mean == pytest.approx(1.5)
    assert (cells["rope"].mean, cells["rope"].note) == (None, "not measured")


def test_undertrained_is_said_of_the_targets_that_are_shown(tmp_path: Path) -> None:
    other = {"targets_hash": "0" * 16}
    for name, of_others in (("rope", 1.9), ("alibi", 1.0)):
        records = [
            *(record(m * T, 1.0) for m in (1, 8)),
            record(T, 2.0, protocol="trigram"),
            record(T, of_others, **other),
            record(T, 2.0, protocol="trigram", **other),
        ]
        write_run(tmp_path, name, records=records)
    assert [row.notes for row in compared(tmp_path).rows] == [[], []]


def test_a_change_of_some_seeds_is_none_beside_a_loss_of_all(tmp_path: Path) -> None:
    write_run(tmp_path, "t5", seed=0, losses={1: 1.2, 8: 2.0})
    write_run(tmp_path, "t5", seed=1, records=[record(T, 0, note="oom"), record(8 * T, 3.0)])
    (row,) = compared(tmp_path).rows
    cell = row.cells[-1]
    assert (cell.mean, cell.seeds, cell.change) == (2.5, 2, None) and cell.note == "1 of 2 with 1x"


def test_a_stride_is_part_of_what_is_ranked(tmp_path: Path) -> None:
    for name, stride, loss in (("rope", 16, 1.0), ("alibi", 32, 1.3)):
        sliding = [record(m * T, loss, protocol="sliding", stride=stride) for m in (1, 8)]
        write_run(tmp_path, name, records=sliding)
    found = compare(load_runs([tmp_path]), "sliding", "nats", True)
    assert not any(column.pairs for column in found.columns)
    assert "no best is marked: these rows are not comparable" in render(found, "markdown", 100, False)


def test_columns_without_ranks_are_named(tmp_path: Path) -> None:
    write_run(tmp_path, "rope", losses={1: 1.0, 2: 1.3})
    write_run(tmp_path, "alibi", losses={1: 1.2, 2: 1.2, 8: 1.2})
    text = render(compared(tmp_path), "markdown", 100, False)
    assert "no mark: higher by more than" in text and "no ranks at 8x: no two rows there" in text


def test_why_nothing_is_marked_is_said_of_what_could_be_ranked(tmp_path: Path) -> None:
    for name in ("rope", "alibi"):
        write_run(tmp_path, name, records=[record(T, 1.0), positions()])
        write_run(tmp_path, name, seed=1, records=[], status="diverged")
    runs = load_runs([tmp_path])
    lost = "no best is marked: rows that lost a seed are not ranked"
    assert lost in render(compare(runs, "fixed-target", "nats", False), "markdown", 100, False)
    assert lost not in render(compare(runs, "positions", "nats", False), "markdown", 100, False)
