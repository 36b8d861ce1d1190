"""Run directories and bundles from disk, damaged and hostile ones too; filters; summaries."""

import gzip
import json
import math
import os
import re
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import datetime

import pytest
from fake_runs import MULTIPLES, T, compared, edit_json, positions, record, write_run

from posenc.core.errors import RunError, UserError
from posenc.results import load_runs, records
from posenc.results.bundles import SUFFIX, bundled, packed
from posenc.results.numbers import printed, printed_change
from posenc.results.records import (
    DocumentSums,
    RecordContext,
    RecordKey,
    check_record,
    find_record,
    make_record,
)
from posenc.results.runs import is_dead, load_run, resume_command
from posenc.results.summary import headline_losses, summarize
from posenc.results.where import where


def test_finds_runs_at_any_depth_once(tmp_path):
    a = write_run(tmp_path / "runs" / "default", "rope")
    b = write_run(tmp_path / "runs" / "other" / "deep", "alibi")
    write_run(tmp_path / "runs" / ".sweeps", "t5")
    write_run(a / "inside", "nope")  # within a run: not a run of its own
    (tmp_path / "runs" / "loop").symlink_to(tmp_path / "runs")
    found = load_runs([tmp_path / "runs", str(a), a / "results.json"])
    assert [run.path for run in found] == [a, b]
    assert all(run.state == "finished" and run.problem is None for run in found)
    assert [record["window"] for record in found[0].records] == [32, 64, 128, 256, 512]
    assert found[0].config["encoding"] == {"name": "rope"} and found[0].config["seed"] == found[0].seed == 0
    (tmp_path / "note.txt").write_text("no run")
    for path in ("nowhere", "note.txt", "encoding=rope"):
        with pytest.raises(UserError, match="--where" if "=" in path else path):
            load_runs([tmp_path / path])


def test_the_reference_study_is_there_from_anywhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, least in (("study", 80), ("study-recall", 60), ("study-room", 15)):
        assert len(load_runs([name])) > least
    write_run(tmp_path / "study")
    assert len(load_runs(["study"])) == 1  # a folder of that name is meant


DAMAGE = {
    "cut": lambda p: p.write_text(p.read_text()[:200]),
    "deep": lambda p: p.write_text("[" * 200_000),
    "version": lambda p: edit_json(p, schema_version=99),
    "no facts": lambda p: edit_json(p, run=None),
    "foreign record": lambda p: edit_json(p, records=[{"protocol": "x"}]),
    "nan": lambda p: p.write_text(p.read_text().replace('"nats": 1.3', '"nats": NaN')),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_a_problem_never_an_exception(tmp_path, how):
    DAMAGE[how](write_run(tmp_path, losses={1: 1.3}) / "results.json")
    (run,) = load_runs([tmp_path])
    assert run.problem and (run.state, run.records, run.facts) == ("damaged", [], None), run.problem
    assert summarize(run).status == "damaged"


ODD = (
    "!!python/object/apply:os.getcwd []",
    "[",
    "!!int ''",
    "!!bool maybe",
    "2001-01-01",
    "!!set {a}",
    "!!binary aGk=",
    "{3: x}",
    "\x00",
)


@pytest.mark.parametrize("value", ODD)
def test_settings_that_are_no_plain_data_are_refused(tmp_path, value):
    config = write_run(tmp_path) / "config.yaml"
    config.write_text(config.read_text().replace("name: rope", f"name: rope\n  odd: {value}"))
    (run,) = load_runs([tmp_path])
    assert (run.state, run.settings) == ("damaged", None)
    assert run.problem.startswith("config.yaml: ")


def test_interpolations_in_settings_are_plain_text(tmp_path):
    write_run(tmp_path, params={"home": "${oc.env:HOME}"})
    (run,) = load_runs([tmp_path])
    assert run.settings.encoding.parameters == {"home": "${oc.env:HOME}"}


def test_settings_of_another_schema_name_their_reader(tmp_path):
    config = write_run(tmp_path) / "config.yaml"
    config.write_text(config.read_text().replace("schema_version: 2", "schema_version: 1"))
    (run,) = load_runs([tmp_path])
    assert "which the posenc that wrote it" in run.problem


@pytest.mark.parametrize(("version", "reader"), [(1, "the posenc that wrote it"), (3, "a newer posenc")])
def test_results_of_another_schema_name_their_reader(tmp_path, version, reader):
    edit_json(write_run(tmp_path) / "results.json", schema_version=version)
    (run,) = load_runs([tmp_path])
    assert run.problem.startswith(f"results.json: schema {version}, which {reader}")


def test_a_killed_process_is_dead_and_a_reused_number_too():
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    now = datetime.now().astimezone().isoformat()
    status = {"pid": process.pid, "host": socket.gethostname(), "updated": now}
    old = {**status, "updated": "2020-01-01T00:00:00+00:00"}
    try:
        assert not is_dead(status) and is_dead(old)  # it began after that
        for other in ({"host": "elsewhere"}, *({"pid": pid} for pid in (-1, 0, None, "7", 2**70, True))):
            assert not is_dead({**old, **other})
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it has ended, and stays a zombie
        assert is_dead(status)
    finally:
        process.kill()
        process.communicate()
    assert is_dead(status)


def test_a_summary_has_progress_and_the_tables_losses(tmp_path):
    other = [record(w, 2.2, targets_hash="b" * 16) for w in (T // 4, T // 2, T)]
    refused = record(8 * T, 0.0, note="refused: beyond=refuse")
    run = write_run(tmp_path, records=[record(T // 2, 1.3), record(T, 1.2), refused, *other])
    losses, found = headline_losses(load_run(run)), summarize(load_run(run))
    shown = {cell.multiple: cell.mean for cell in compared(tmp_path).rows[0].cells if cell.mean is not None}
    assert losses == pytest.approx(shown) and found.nats_at_train_length == pytest.approx(1.2)
    assert [getattr(found, key) for key in ("status", "encoding", "model")] == ["finished", "rope", "nano"]
    assert found.experiment == tmp_path.name
    assert (found.context_length, found.tokens, found.seconds_left) == (T, 3_276_800, None)
    stopped = write_run(tmp_path, "alibi", status="running", results=False)
    lines = [{"step": i, "tokens": i * 1000, "loss": 3 / i, "tokens_per_second": 500.0} for i in (1, 2)]
    (stopped / "metrics.jsonl").write_text("\n".join([*map(json.dumps, lines), '{"cut']))
    found = summarize(load_run(stopped))
    assert (found.status, found.tokens, found.tokens_asked) == ("running", 2000, 3_276_800)
    assert (found.training_loss, found.seconds_left) == (1.5, (3_276_800 - 2000) / 500)
    assert found.continue_ is None
    for state, more in {"interrupted": "", "diverged": " --retry"}.items():
        edit_json(stopped / "status.json", status=state)
        assert summarize(load_run(stopped)).continue_ == f"posenc train encoding=alibi seed=0{more}"
    edit_json(stopped / "status.json", overrides=["data.paths=a b"])
    assert resume_command(load_run(stopped)) == "posenc train 'data.paths=a b'"
    edit_json(stopped / "status.json", overrides=None)
    assert resume_command(load_run(stopped)) is None


@pytest.fixture
def runs(tmp_path):
    write_run(tmp_path, "rope", seed=0)
    write_run(tmp_path, "rope", seed=1, config={"train": {"tokens": 5, "lr": 0.001}})
    write_run(tmp_path, "alibi", seed=0, status="failed", results=False)
    write_run(tmp_path, "t5", seed=12, config={"model": {"name": "tiny"}}, results=False)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "results.json").write_text("{")
    return load_runs([tmp_path])


def test_conditions_keep_what_fulfils_all(runs):
    counts = {
        (): 5,
        ("encoding=rope",): 2,
        ("encoding=*o*",): 2,
        ("encoding!=rope",): 3,  # the damaged one has no encoding: it is not rope
        ("seed=1",): 1,  # not 12
        ("seed=0", "encoding=rope"): 1,
        ("train.lr=1e-3",): 1,
        ("model.name=tiny",): 1,
        ("status=failed",): 1,
        ("T=64",): 4,
        ("name=rope-*",): 2,
    }
    assert {conditions: len(where(runs, conditions)) for conditions in counts} == counts


def test_wrong_conditions_name_what_there_is(runs):
    said = {
        ("encoding",): ["not a condition", "key=value"],
        ("encodng=rope",): ["--where=encodng", "no run has this key", "did you mean: encoding"],
        ("encoding=ropee",): ["no run fulfils it", "alibi, rope, t5", "did you mean: rope"],
        ("encoding=rope", "seed=\x1b[31m7"): ["no run fulfils it", "\\x1b", "allowed: 0, 1"],
    }
    for conditions, words in said.items():
        with pytest.raises(UserError) as caught:
            where(runs, conditions)
        text = caught.value.text()
        assert all(word in text for word in words) and "\x1b" not in text, text


@pytest.fixture
def two(tmp_path):
    for seed in range(2):
        write_run(tmp_path / "runs", seed=seed, losses={m: 1.2 + m / 10 + seed / 70 for m in MULTIPLES})
    write_run(tmp_path / "runs", seed=2, status="diverged", reason="nan", results=False)
    return load_runs([tmp_path / "runs"])


def test_a_bundle_holds_the_results(two, tmp_path):
    runs, bundle = two, tmp_path / f"two{SUFFIX}"
    settings = runs[0].settings.with_changes(runs_dir="/home/me/runs")
    status = {**runs[0].status, "host": "mine", "pid": 77}
    runs[0] = replace(runs[0], status=status, settings=settings)
    lines = [bundled(run) for run in runs]
    assert b"mine" not in lines[0] and b"/home/me" not in lines[0]
    bundle.write_bytes(packed(lines))
    again = load_runs([bundle])
    assert packed([bundled(run) for run in again]) == bundle.read_bytes()  # a bundle of a bundle
    assert [run.path for run in again] == [bundle / run.name for run in runs]
    assert (again[2].state, again[2].reason, again[2].problem) == ("diverged", "nan", None)
    here, there = compared(tmp_path / "runs"), compared(bundle)
    assert [cell.mean for cell in there.rows[0].cells] == [cell.mean for cell in here.rows[0].cells]
    earlier = [json.loads(line) | {"losses": {"tokens": [1], "loss": [3.0]}} for line in lines]
    bundle.write_bytes(packed([json.dumps(one).encode() + b"\n" for one in earlier]))  # with training losses
    assert [run.records for run in load_runs([bundle])] == [run.records for run in again]


def test_a_damaged_bundle_is_a_problem(two, tmp_path):
    bundle, data = tmp_path / f"bad{SUFFIX}", packed([bundled(run) for run in two])
    broken = [gzip.compress(b"x" * 100)[:10] + b"\x07" + b"\xff" * 40, gzip.compress(b'{"posenc_bundle": 2}')]
    for share in (0.1, 0.5, 0.99):
        at = int(share * len(data))
        broken += [data[:at], data[:at] + bytes([data[at] ^ 4]) + data[at + 1 :]]
    for content in broken:
        bundle.write_bytes(content)
        assert any(run.problem for run in load_runs([bundle]))
    lines = ['{"name": "../../x", "results": []}', '{"results": {"schema_version": 9}}', '{"name": 3}']
    bundle.write_bytes(packed([f"{line}\n".encode() for line in lines]))
    runs = load_runs([bundle])
    assert len(runs) == 3 and all(run.problem and run.path.parent == bundle for run in runs)


# --- Records on disk: what one says, its file, results.json; and settings as a command
PLACE = (
    RecordKey(
        protocol="fixed-target",
        window=128,
        fingerprint="f",
        split="test",
        targets_hash="h",
        checkpoint_step=3,
    ),
    RecordContext(corpus="c", train_length=64, seconds=0.5),
)


def test_a_record_by_hand():
    sums = DocumentSums([4, 2, 7], nats=[30.0, 10.0, 0.0], targets=[10, 10, 0], bytes=[40, 10, 0])
    one = make_record(*PLACE, sums)
    assert (one["nats"], one["targets"], one["documents"], one["multiple"]) == (2.0, 20, 2, 2.0)
    assert one["bpb"] == pytest.approx(40 / (math.log(2) * 50))
    assert one["ppl"] == pytest.approx(math.exp(2))
    assert one["ci95"] is None  # two documents
    assert one["per_document"]["document"] == [2, 4] and one["per_document"]["nats"] == [10.0, 30.0]
    assert check_record(json.dumps(one).encode()) == one
    low, high = record(64, 1.3)["ci95"]
    assert low < 1.3 < high


def test_overflow_note_and_divergence_have_no_numbers():
    huge = make_record(*PLACE, DocumentSums([0], nats=[8000.0], targets=[10], bytes=[10]))
    assert (huge["nats"], huge["ppl"], huge["note"]) == (800.0, None, None)
    oom = make_record(*PLACE, note="oom at 128 tokens")
    assert oom["nats"] is oom["bpb"] is oom["ppl"] is oom["per_document"] is None
    bad = make_record(*PLACE, DocumentSums([0, 1], nats=[1.0, math.nan], targets=[1, 1], bytes=[1, 1]))
    assert (bad["nats"], bad["note"], bad["targets"]) == (None, "diverged", 0)


SUMS, CURVE = {"document": [0], "nats": [1.0], "targets": [1], "bytes": [1]}, positions()["curve"]
WRONG = [  # key, value, what is said
    ("window", "64", "window"),
    ("window", 0, "window"),
    ("nats", None, "null without a note"),
    ("nats", 1e200, "nats"),
    ("targets", -1, "targets"),
    ("checkpoint_step", True, "checkpoint_step"),
    ("ci95", [1.0], "ci95"),
    ("extend", {}, "extend.name"),
    ("extend", {"name": "yarn", "tuned": [1]}, "tuned"),
    ("per_document", {**SUMS, "targets": [0]}, "targets"),
    ("per_document", {**SUMS, "nats": []}, "different lengths"),
    ("per_document", {key: 2 * values for key, values in SUMS.items()}, "twice"),
    ("curve", {**CURVE, "nats": [1.0]}, "different lengths"),
    ("curve", {**CURVE, "edges": list(range(10, 0, -1))}, "must rise"),
]


@pytest.mark.parametrize(("key", "value", "words"), WRONG, ids=str)
def test_a_wrong_record_is_refused_by_name(key, value, words):
    with pytest.raises(ValueError, match=words):
        check_record(json.dumps({**record(64, 1.0), key: value}).encode())


def test_one_file_a_cell_and_its_name(tmp_path):
    changes = [{}, {"targets_hash": "b"}, {"split": "validation"}, {"checkpoint_step": 1600}]
    changes += [{"extend": {"name": "../y|arn", "factor": factor}} for factor in (2, 4)]
    cells = [*(record(128, 1.0, **one) for one in changes), record(64, 1.0)]
    cells.append(record(128, 1.0, protocol="sliding", stride=8))
    paths = {records.write_record(tmp_path, one) for one in cells}
    assert len(paths) == len(cells)
    assert all(p.parent == tmp_path / "records" and re.fullmatch(r"[A-Za-z0-9._+-]+", p.name) for p in paths)
    # pinned: the finished cells of older runs are found by it
    assert records.write_record(tmp_path, cells[0]).name == "fixed-target-W128-step800-b590177a.json"
    assert set((tmp_path / "records").iterdir()) == paths  # no temporary is left
    assert len(records.read_records(tmp_path)) == len(cells)


def test_a_record_is_found_by_its_cell_and_not_when_damaged(tmp_path):
    one = record(128, 1.0)
    key = RecordKey.of(one)
    assert find_record(tmp_path, key) is None
    path = records.write_record(tmp_path, one)
    assert find_record(tmp_path, key) == one
    for field, other in {"window": 256, "split": "validation", "stride": 8, "targets_hash": "b"}.items():
        assert find_record(tmp_path, replace(key, **{field: other})) is None
    path.write_text(path.read_text()[:50])
    assert find_record(tmp_path, key) is None
    with pytest.raises(RunError, match=re.escape(path.name)):
        records.read_records(tmp_path)


def test_results_are_sorted_and_whole(tmp_path):
    run = write_run(tmp_path, records=[positions(), *(record(w, 1.0) for w in (512, 64, 32))])
    data = json.loads((run / "results.json").read_text())
    assert (data["schema_version"], data["run"]["encoding"]) == (2, {"name": "rope"})
    order = [(r["protocol"], r["window"]) for r in data["records"]]
    assert order == [*(("fixed-target", window) for window in (32, 64, 512)), ("positions", 512)]
    (curve,) = json.loads((run / "positions.json").read_text())["curves"]
    assert curve["protocol"] == "positions" and curve["level"] == 1.2 and curve["documents"] == 40
    before = (run / "results.json").read_bytes()
    records.assemble_results(run, data["run"])
    assert (run / "results.json").read_bytes() == before
    records.assemble_results(tmp_path, {"name": "x"})
    assert json.loads((tmp_path / "results.json").read_text())["records"] == []


def test_numbers_as_tables_print_them():
    shown = [printed(v, m) for v, m in ((1.2346, "nats"), (12.346, "ppl"), (1234.6, "ppl"), (2e6, "ppl"))]
    assert shown == ["1.235", "12.35", "1235", "2.00e+06"]
    assert (printed(2e30, "ppl"), printed(-0.0001, "nats")) == (">1e30", "0.000")
    changes = [printed_change(v, "nats") for v in (0.5, -0.5, -0.0001, math.inf, -math.inf)]
    assert changes == ["+0.500", "-0.500", "+0.000", ">+1e30", "<-1e30"]
