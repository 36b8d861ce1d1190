"""Records on disk: what one says, its file, results.json; and settings as a command."""

import json
import math
import re

import pytest
from fake_runs import positions, record, write_run

from posenc.core.errors import RunError
from posenc.results.load import CELL, assemble_results, find_record, read_records, write_record
from posenc.results.schema import check_record, make_record, printed, printed_change

PLACE = {"corpus": "c", "fingerprint": "f", "split": "test", "targets_hash": "h", "seconds": 0.5}
PLACE |= {"protocol": "fixed-target", "window": 128, "train_length": 64, "checkpoint_step": 3}


def test_a_record_by_hand():
    one = make_record(
        **PLACE, documents=[4, 2, 7], nats=[30.0, 10.0, 0.0], targets=[10, 10, 0], bytes=[40, 10, 0]
    )
    assert (one["nats"], one["targets"], one["documents"], one["multiple"]) == (2.0, 20, 2, 2.0)
    assert one["bpb"] == pytest.approx(40 / (math.log(2) * 50))
    assert one["ppl"] == pytest.approx(math.exp(2))
    assert one["ci95"] is None  # two documents
    assert one["per_document"]["document"] == [2, 4] and one["per_document"]["nats"] == [10.0, 30.0]
    assert check_record(json.dumps(one).encode()) == one
    low, high = record(64, 1.3)["ci95"]
    assert low < 1.3 < high


def test_overflow_note_and_divergence_have_no_numbers():
    huge = make_record(**PLACE, documents=[0], nats=[8000.0], targets=[10], bytes=[10])
    assert (huge["nats"], huge["ppl"], huge["note"]) == (800.0, None, None)
    oom = make_record(**PLACE, note="oom at 128 tokens")
    assert oom["nats"] is oom["bpb"] is oom["ppl"] is oom["per_document"] is None
    bad = make_record(**PLACE, documents=[0, 1], nats=[1.0, math.nan], targets=[1, 1], bytes=[1, 1])
    assert (bad["nats"], bad["note"], bad["targets"]) == (None, "diverged", 0)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"window": "64"}, "window"),
        ({"window": 0}, "window"),
        ({"nats": None}, "null without a note"),
        ({"nats": 1e200}, "nats"),
        ({"targets": -1}, "targets"),
        ({"checkpoint_step": True}, "checkpoint_step"),
        ({"ci95": [1.0]}, "ci95"),
        ({"extend": {}}, "must have a name"),
        ({"extend": {"name": "yarn", "tuned": [1]}}, "tuned"),
        ({"per_document": {"document": [0], "nats": [1.0], "targets": [0], "bytes": [1]}}, "targets"),
        ({"per_document": {"document": [0], "nats": [], "targets": [1], "bytes": [1]}}, "different lengths"),
        ({"per_document": {"document": [0, 0], "nats": [1, 1], "targets": [1, 1], "bytes": [1, 1]}}, "twice"),
        ({"curve": positions()["curve"] | {"nats": [1.0]}}, "different lengths"),
        ({"curve": positions()["curve"] | {"edges": list(range(10, 0, -1))}}, "must rise"),
    ],
)
def test_a_wrong_record_is_refused_by_name(change, words):
    with pytest.raises(ValueError, match=words):
        check_record(json.dumps({**record(64, 1.0), **change}).encode())


def test_one_file_a_cell_and_its_name(tmp_path):
    changes = [{}, {"targets_hash": "b"}, {"split": "validation"}, {"checkpoint_step": 1600}]
    changes += [{"extend": {"name": "../y|arn", "factor": factor}} for factor in (2, 4)]
    cells = [*(record(128, 1.0, **one) for one in changes), record(64, 1.0)]
    cells.append(record(128, 1.0, protocol="sliding", stride=8))
    paths = {write_record(tmp_path, one) for one in cells}
    assert len(paths) == len(cells)
    assert all(p.parent == tmp_path / "records" and re.fullmatch(r"[A-Za-z0-9._+-]+", p.name) for p in paths)
    # pinned: the finished cells of older runs are found by it
    assert write_record(tmp_path, cells[0]).name == "fixed-target-W128-step800-b590177a.json"
    assert set((tmp_path / "records").iterdir()) == paths  # no temporary is left
    assert len(read_records(tmp_path)) == len(cells)


def test_a_record_is_found_by_its_cell_and_not_when_damaged(tmp_path):
    one = record(128, 1.0)
    cell = {key: one[key] for key in CELL}
    assert find_record(tmp_path, **cell) is None
    path = write_record(tmp_path, one)
    assert find_record(tmp_path, **cell) == one
    for key, other in {"window": 256, "split": "validation", "stride": 8, "targets_hash": "b"}.items():
        assert find_record(tmp_path, **{**cell, key: other}) is None
    path.write_text(path.read_text()[:50])
    assert find_record(tmp_path, **cell) is None
    with pytest.raises(RunError, match=re.escape(path.name)):
        read_records(tmp_path)


def test_results_are_sorted_and_whole(tmp_path):
    run = write_run(tmp_path, records=[positions(), *(record(w, 1.0) for w in (512, 64, 32))])
    data = json.loads((run / "results.json").read_text())
    assert (data["schema_version"], data["run"]["encoding"]) == (1, {"name": "rope"})
    assert [(r["protocol"], r["window"]) for r in data["records"][:3]] == [
        ("fixed-target", window) for window in (32, 64, 512)
    ]
    (curve,) = json.loads((run / "positions.json").read_text())["curves"]
    assert curve["protocol"] == "positions" and curve["level"] == 1.2 and curve["documents"] == 40
    before = (run / "results.json").read_bytes()
    assemble_results(run, data["run"])
    assert (run / "results.json").read_bytes() == before
    assemble_results(tmp_path, {"name": "x"})
    assert json.loads((tmp_path / "results.json").read_text())["records"] == []


def test_numbers_as_tables_print_them():
    shown = [printed(v, m) for v, m in ((1.2346, "nats"), (12.346, "ppl"), (1234.6, "ppl"), (2e6, "ppl"))]
    assert shown == ["1.235", "12.35", "1235", "2.00e+06"]
    assert (printed(2e30, "ppl"), printed(-0.0001, "nats")) == (">1e30", "0.000")
    changes = [printed_change(v, "nats") for v in (0.5, -0.5, -0.0001, math.inf, -math.inf)]
    assert changes == ["+0.500", "-0.500", "+0.000", ">+1e30", "<-1e30"]
