"""Tidy tables: a line for each cell or each seed, with one unit in a column."""

import math
from dataclasses import fields
from pathlib import Path

import pytest
from fake_runs import DOCUMENTS, positions, record, write_run

from posenc.report.lines import cells_table, seeds_table
from posenc.results import load_runs
from posenc.results.comparison import compare_runs
from posenc.results.drafts import CompareRequest
from posenc.results.identity import Conditions

BIT = math.log(2)
YARN = {"name": "yarn", "factor": 2.0, "ramp": "index", "mscale_all_dim": 0.0}
TWO_BYTES = [20] * DOCUMENTS  # of each document's ten tokens


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Two encodings of two seeds, one extended, one that failed and one of another length."""
    root = tmp_path_factory.mktemp("frame")
    for seed in (0, 1):
        harm = seed / 10
        at_t = record(64, 1.0 + harm, bytes=TWO_BYTES)
        rope = [at_t, record(128, 2.0 + harm, bytes=TWO_BYTES)]
        rope += [record(128, 1.5, bytes=TWO_BYTES, extend=YARN), positions()]
        write_run(root, "rope", seed=seed, records=rope)
        write_run(root, "alibi", seed=seed, records=[at_t, record(128, 1.2 + harm, bytes=TWO_BYTES)])
    write_run(root, "nope", status="failed", reason="boom", results=False)
    write_run(root, "t5", facts={"context_length": 32}, records=[record(64, 3.0)])
    return load_runs([root])


def find_line(lines, **values):
    """Return the only line that has these values."""
    fitting = []
    for line in lines:
        if all(line[column] == value for column, value in values.items()):
            fitting.append(line)
    (line,) = fitting
    return line


# --- A line for each cell
@pytest.fixture(scope="module")
def cells(runs):
    return cells_table(compare_runs(runs, CompareRequest("all", baseline="alibi")))


@pytest.fixture(scope="module")
def far_cell(cells):
    """The line of rope at 2x, whose two seeds have losses of 2.0 and 2.1 nats."""
    return find_line(cells, protocol="fixed-target", label="rope", extend=None, multiple=2, context_length=64)


def test_lines_of_all_protocols_groups_and_extensions_have_the_same_columns(cells):
    columns = {tuple(line) for line in cells}
    assert len(columns) == 1


def test_a_cell_has_its_loss_over_seeds(far_cell):
    assert far_cell["seeds"] == 2
    assert far_cell["loss_nats"] == pytest.approx(2.05)
    assert far_cell["loss_nats_sd"] == pytest.approx(0.1 / math.sqrt(2))


def test_a_cell_has_its_change_in_nats_and_bits(far_cell):
    assert far_cell["change_nats"] == pytest.approx(1.0)
    assert far_cell["change_bpb"] == pytest.approx(1.0 / 2 / BIT)


def test_a_cell_has_its_distance_to_the_baseline_and_to_the_best(far_cell):
    assert far_cell["versus_baseline_nats"] == pytest.approx(0.8)
    assert far_cell["versus_best_nats"] == far_cell["versus_baseline_nats"]  # alibi is both


def test_a_cell_has_its_words(far_cell):
    assert far_cell["versus_best"] == "above"
    assert far_cell["verdict"] == "collapsed"


def test_an_extension_has_lines_under_its_label(cells):
    line = find_line(cells, protocol="fixed-target", label="rope+yarn factor=2", multiple=2)
    assert line["extend"] == "yarn"
    assert line["context_length"] == 64
    assert line["loss_nats"] == pytest.approx(1.5)


def test_a_failed_run_has_lines_with_a_note(cells):
    line = find_line(cells, protocol="fixed-target", label="nope", multiple=1)
    assert line["context_length"] == 64
    assert line["note"] == "failed"


def test_runs_of_another_length_have_lines_with_it(cells):
    line = find_line(cells, protocol="fixed-target", label="t5", multiple=1)
    assert line["context_length"] == 32
    assert line["loss_nats"] == pytest.approx(3.0)


def test_bins_of_curves_have_lines(cells):
    line = find_line(cells, protocol="positions", label="rope", extend=None, multiple=2)
    assert line["context_length"] == 64
    assert line["change_nats"] == pytest.approx(0.4)


def test_in_bits_per_byte_there_are_no_columns_in_nats(runs):
    lines = cells_table(compare_runs(runs, CompareRequest(metric="bpb")))
    rope = [line for line in lines if line["label"] == "rope"][-1]
    assert rope["multiple"] == 2
    assert rope["change_bpb"] == pytest.approx(1.0 / 2 / BIT)
    assert "change_nats" not in rope


# --- What keeps lines apart
CONDITIONS = [field.name for field in fields(Conditions)]


@pytest.fixture(scope="module")
def two_experiments(tmp_path_factory):
    """The same encoding, seed and lengths, trained on 4M and on 0.5M tokens."""
    root = tmp_path_factory.mktemp("experiments")
    for tokens, loss in ((4_000_000, 1.2), (500_000, 1.8)):
        about = {"facts": {"tokens": tokens}, "config": {"train": {"tokens": tokens}}}
        write_run(root / str(tokens), losses={1: loss, 8: loss}, **about)
    return load_runs([root])


@pytest.mark.parametrize("lines_of", [cells_table, seeds_table])
def test_lines_of_one_experiment_have_every_condition(runs, lines_of):
    (line, *_) = lines_of(compare_runs(runs, CompareRequest(rows=["alibi"])))
    assert {*CONDITIONS} <= {*line}
    assert not [column for column in line if " " in column]


@pytest.mark.parametrize("lines_of", [cells_table, seeds_table])
def test_lines_of_two_experiments_have_the_columns_of_one(two_experiments, lines_of):
    both = lines_of(compare_runs(two_experiments))
    one = lines_of(compare_runs(two_experiments[:1]))
    assert list(both[0]) == list(one[0])


@pytest.mark.parametrize("lines_of", [cells_table, seeds_table])
def test_two_experiments_are_not_one_row(two_experiments, lines_of):
    losses = {}
    for line in lines_of(compare_runs(two_experiments)):
        losses.setdefault(line["row"], set()).add(round(line["loss_nats"], 6))
    assert losses == {
        "rope [tokens trained 4000000]": {1.2},
        "rope [tokens trained 500000]": {1.8},
    }


def test_the_row_of_one_experiment_is_its_label(runs):
    (line, *_) = cells_table(compare_runs(runs, CompareRequest(rows=["alibi"])))
    assert line["row"] == "alibi"


# --- A line for each seed
@pytest.fixture(scope="module")
def seed_lines(runs):
    return seeds_table(compare_runs(runs, CompareRequest("all", rows=["rope", "nope"])))


@pytest.fixture(scope="module")
def far_seed(seed_lines):
    """The line of rope's second seed at 2x."""
    return find_line(seed_lines, protocol="fixed-target", label="rope", extend=None, seed=1, multiple=2)


def test_a_seed_has_its_loss_in_nats_and_bits(far_seed):
    assert far_seed["loss_nats"] == pytest.approx(2.1)
    assert far_seed["loss_bpb"] == pytest.approx(2.1 / 2 / BIT)


def test_a_seed_has_its_change_in_nats_and_bits(far_seed):
    assert far_seed["change_nats"] == pytest.approx(1.0)
    assert far_seed["change_nats_low"] < 1.0 + 1e-9
    assert far_seed["change_bpb"] == pytest.approx(0.5 / BIT)


def test_a_seed_has_its_run_directory(far_seed):
    assert Path(far_seed["run"]).is_dir()


def test_a_failed_run_has_lines_of_its_seed(seed_lines):
    notes = {line["note"] for line in seed_lines if line["label"] == "nope"}
    assert notes == {"failed"}


def test_every_run_has_a_line_for_every_bin(seed_lines):
    bins = [line for line in seed_lines if line["protocol"] == "positions"]
    assert len(bins) == 3 * 9  # two runs of rope, and the failed one
