import json
import math
import os
import re
from pathlib import Path

import pytest
from fake_runs import record, write_run

from posenc.core.atomic_files import write_json_atomic, write_text_atomic
from posenc.core.errors import RunError
from posenc.results.check import check_record
from posenc.results.records import make_record
from posenc.results.store import CELL, assemble_results, find_record, read_records, write_record

PLACE = {"corpus": "c", "fingerprint": "f", "split": "test", "targets_hash": "h", "seconds": 0.5}
PLACE |= {"protocol": "fixed-target", "window": 128, "train_length": 64, "checkpoint_step": 3}


def cell_of(one):
    return {key: one[key] for key in CELL}


def test_a_record_by_hand() -> None:
    one = make_record(**PLACE, documents=[4, 2], nats=[30.0, 10.0], targets=[10, 10], bytes=[40, 10])
    assert (one["nats"], one["targets"], one["documents"], one["multiple"]) == (2.0, 20, 2, 2.0)
    assert one["bpb"] == pytest.approx(40 / (math.log(2) * 50))
    assert one["ppl"] == pytest.approx(math.exp(2))
    assert one["ci95"] is None  # two documents
    assert one["per_document"]["document"] == [2, 4]
    assert check_record(json.loads(json.dumps(one))) == one


def test_interval_from_thirty_documents() -> None:
    low, high = record(64, 1.3)["ci95"]
    assert low < 1.3 < high


def test_overflow_note_and_divergence_have_no_numbers() -> None:
    huge = make_record(**PLACE, documents=[0], nats=[8000.0], targets=[10], bytes=[10])
    assert (huge["nats"], huge["ppl"], huge["note"]) == (800.0, None, None)
    oom = make_record(**PLACE, note="oom at 128 tokens")
    assert oom["nats"] is oom["bpb"] is oom["ppl"] is oom["per_document"] is None
    bad = make_record(**PLACE, documents=[0, 1], nats=[1.0, math.nan], targets=[1, 1], bytes=[1, 1])
    assert (bad["nats"], bad["note"], bad["targets"]) == (None, "diverged", 0)
    for one in (huge, oom, bad):
        json.dumps(one, allow_nan=False)


@pytest.mark.parametrize(
    "wrong",
    [{}, {"documents": [1, 1], "nats": [1, 1], "targets": [1, 1], "bytes": [1, 1]}, {"documents": [1]}],
)
def test_records_without_sense_are_refused(wrong) -> None:
    with pytest.raises(ValueError):
        make_record(**PLACE, **wrong)


def test_one_file_a_cell_and_its_name(tmp_path: Path) -> None:
    cells = [
        record(64, 1.0),
        record(128, 1.0),
        record(128, 1.0, extend={"name": "../y|arn", "factor": 2}),
        record(128, 1.0, extend={"name": "../y|arn", "factor": 4}),
        record(128, 1.0, protocol="sliding", stride=8),
        record(128, 1.0, targets_hash="b"),
        record(128, 1.0, split="validation"),
        record(128, 1.0, checkpoint_step=1600),
    ]
    paths = {write_record(tmp_path, one) for one in cells}
    assert len(paths) == len(cells)
    assert all(p.parent == tmp_path / "records" and re.fullmatch(r"[A-Za-z0-9._+-]+", p.name) for p in paths)
    assert write_record(tmp_path, cells[0]).name.startswith("fixed-target-W64-step800-")
    assert set((tmp_path / "records").iterdir()) == paths  # no temporary is left
    assert len(read_records(tmp_path)) == len(cells)


def test_a_record_is_found_by_its_cell_and_not_when_damaged(tmp_path: Path) -> None:
    one = record(128, 1.0)
    assert find_record(tmp_path, **cell_of(one)) is None
    path = write_record(tmp_path, one)
    assert find_record(tmp_path, **cell_of(one)) is not None
    assert find_record(tmp_path, **{**cell_of(one), "window": 256}) is None
    path.write_text(path.read_text()[:50])
    assert find_record(tmp_path, **cell_of(one)) is None
    with pytest.raises(RunError, match=re.escape(path.name)):
        read_records(tmp_path)


def test_results_are_sorted_and_whole(tmp_path: Path) -> None:
    run = write_run(tmp_path, losses={8: 2.0, 1: 1.0, 0.5: 1.1})
    data = json.loads((run / "results.json").read_text())
    assert data["schema_version"] == 1
    assert data["run"]["encoding"] == {"name": "rope"}
    assert [r["window"] for r in data["records"]] == [32, 64, 512]
    before = (run / "results.json").read_bytes()
    assemble_results(run, data["run"])
    assert (run / "results.json").read_bytes() == before


def test_an_empty_run_has_valid_results(tmp_path: Path) -> None:
    assemble_results(tmp_path, {"name": "x"})
    assert json.loads((tmp_path / "results.json").read_text())["records"] == []


def test_failed_writes_leave_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    write_json_atomic(path, {"a": 1})
    with pytest.raises(ValueError):
        write_json_atomic(path, {"a": math.nan})

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(RunError, match="No space") as error:
        write_text_atomic(path, "new")
    assert "free:" in str(error.value)
    assert json.loads(path.read_text()) == {"a": 1}
    assert list(tmp_path.iterdir()) == [path]
