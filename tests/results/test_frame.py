"""Tidy tables: a line for each cell or seed, a unit a column."""

import math
from pathlib import Path

import pytest
from fake_runs import positions, record, write_run

from posenc.results import load_runs
from posenc.results.comparison import CompareRequest, compare_runs
from posenc.results.frame import cells_table, seeds_table

BIT = math.log(2)
YARN = {"name": "yarn", "factor": 2.0, "ramp": "index", "mscale_all_dim": 0.0}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Two encodings of two seeds, one extended, and a run of another length; a token has two bytes."""
    root = tmp_path_factory.mktemp("frame")
    for seed in (0, 1):
        for name, far in (("rope", 2.0), ("alibi", 1.2)):
            losses = ((64, 1.0 + seed / 10), (128, far + seed / 10))
            records = [record(window, loss, bytes=[20] * 40) for window, loss in losses]
            if name == "rope":
                records += [record(128, 1.5, bytes=[20] * 40, extend=YARN), positions()]
            write_run(root, name, seed=seed, records=records)
    write_run(root, "nope", status="failed", reason="boom", results=False)
    write_run(root, "t5", facts={"context_length": 32}, records=[record(64, 3.0)])
    return root


def test_a_line_a_cell(folder):
    runs = load_runs([folder])
    lines = cells_table(compare_runs(runs, CompareRequest("all", baseline="alibi")))
    assert len({tuple(line) for line in lines}) == 1  # of all protocols, groups and extensions
    at = {(x["protocol"], x["context length"], x["label"], x["extend"], x["multiple"]): x for x in lines}
    far = at["fixed-target", "64", "rope", None, 2]
    assert (far["loss_nats"], far["change_nats"]) == (pytest.approx(2.05), pytest.approx(1.0))
    assert far["change_bpb"] == pytest.approx(1.0 / 2 / BIT)
    assert (far["seeds"], far["loss_nats_sd"]) == (2, pytest.approx(0.1 / math.sqrt(2)))
    assert far["versus_baseline_nats"] == far["versus_best_nats"] == pytest.approx(0.8)
    assert (far["versus_best"], far["verdict"]) == ("above", "collapsed")
    assert at["fixed-target", "64", "rope+yarn factor=2", "yarn", 2]["loss_nats"] == pytest.approx(1.5)
    assert at["fixed-target", "64", "nope", None, 1]["note"] == "failed"
    assert at["fixed-target", "32", "t5", None, 1]["loss_nats"] == pytest.approx(3.0)
    assert at["positions", None, "rope", None, 2]["change_nats"] == pytest.approx(0.4)
    bits = {line["label"]: line for line in cells_table(compare_runs(runs, CompareRequest(metric="bpb")))}
    assert bits["rope"]["change_bpb"] == pytest.approx(far["change_bpb"])
    assert "change_nats" not in bits["rope"]


def test_a_line_a_seed(folder):
    runs = load_runs([folder])
    lines = seeds_table(runs, CompareRequest("all", rows=["rope", "nope"]))
    at = {(x["protocol"], x["label"], x["extend"], x["seed"], x["multiple"]): x for x in lines}
    far = at["fixed-target", "rope", None, 1, 2]
    assert (far["loss_nats"], far["loss_bpb"]) == (pytest.approx(2.1), pytest.approx(2.1 / 2 / BIT))
    assert (far["change_nats"], far["change_bpb"]) == (pytest.approx(1.0), pytest.approx(0.5 / BIT))
    assert far["change_nats_low"] < 1.0 + 1e-9 and Path(far["run"]).is_dir()
    assert {line["note"] for line in lines if line["label"] == "nope"} == {"failed"}
    assert sum(line["protocol"] == "positions" for line in lines) == 3 * 9  # bins, of two runs and none
