"""`posenc runs` and `posenc export`: what is on disk, why it stopped, what continues it."""

import json
import shlex
import shutil
import socket
from pathlib import Path

import pytest
import tiny
from fake_runs import edit_json, only_run

from posenc.results.records import HEADLINE
from posenc.results.runs import load_run


def status(run, **changes):
    edit_json(run / "status.json", **changes)


def rows(posenc, *arguments):
    result = posenc("runs", *arguments, "--format", "json")
    assert (result.code, result.err) == (0, "")
    return {Path(row["path"]).name: row for row in json.loads(result.out)["runs"]}


@pytest.fixture
def several(run_copy):
    """A finished run, and copies that failed, run elsewhere, were killed, are damaged, were interrupted."""
    folder = run_copy.parent
    shutil.copytree(run_copy, folder / "damaged")
    for name in ("failed", "elsewhere", "killed", "interrupted"):
        shutil.copytree(run_copy, folder / name)
        (folder / name / "results.json").unlink()
        lines = (folder / name / "metrics.jsonl").read_text().splitlines()
        (folder / name / "metrics.jsonl").write_text("\n".join(lines[:2]) + '\n{"step": 3')
    status(folder / "failed", status="failed", reason="OSError: [red]disk\x1b[31m full")
    status(folder / "elsewhere", status="running", host="another.machine", pid=1)
    status(folder / "killed", status="running", host=socket.gethostname(), pid=2**22 + 5)
    status(folder / "interrupted", status="interrupted", reason="SIGTERM")
    (folder / "damaged" / "results.json").write_text('{"schema_version": 1, "run": {')
    return folder


def test_every_run_with_status_progress_and_losses(posenc, several, run_copy):
    found = rows(posenc)
    states = {name: name for name in ("failed", "interrupted", "damaged")}
    states |= {"elsewhere": "running", "killed": "dead", run_copy.name: "finished"}
    assert {name: row["status"] for name, row in found.items()} == states
    whole = load_run(run_copy)
    losses = {r["multiple"]: r["nats"] for r in whole.records if r["protocol"] == HEADLINE}
    one = found[run_copy.name]
    assert (one["encoding"], one["seed"], one["context_length"]) == ("rope", 0, 16)
    assert one["nats_at_train_length"] == losses[1] and one["nats_at_longest"] == losses[4]
    assert one["longest_multiple"] == 4 and one["tokens"] == one["tokens_asked"] == tiny.STEPS * 128
    assert one["tokens_per_second"] == whole.facts["tokens_per_second"]
    stopped = found["interrupted"]
    assert (stopped["tokens"], stopped["tokens_asked"]) == (20 * 128, tiny.STEPS * 128)
    assert stopped["nats_at_train_length"] is None and stopped["tokens_per_second"] > 0


def test_the_table_says_why_and_escapes_what_others_wrote(posenc, several, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    result = posenc("runs")
    assert (result.code, result.err) == (0, "")
    assert all(len(line) <= 80 for line in result.out.splitlines() if not line.startswith((" ", "runs/")))
    assert "OSError: [red]disk\\x1b[31m full" in result.out.replace("\n", "") and "\x1b" not in result.out
    flat = " ".join(result.out.split())
    assert "6 runs: 1 finished, 1 running, 1 interrupted, 1 failed, 1 dead, 1 damaged" in flat
    assert "process 1 on another.machine" in flat and "failed/log.txt" in flat
    commands = [line.partition("resume: ")[2] for line in result.out.splitlines() if "resume: " in line]
    listed = [run["continue"] for run in rows(posenc).values() if run["continue"]]
    assert sorted(commands) == sorted(listed) and len(listed) == 3  # on one line: half a command is another


def test_filters_orders_and_empty_folders(posenc, several, run_copy):
    config = several / "killed" / "config.yaml"
    config.write_text(config.read_text().replace("seed: 0", "seed: 7"))
    assert set(rows(posenc, "--where", "seed=7")) == {"killed"}
    assert "killed" not in rows(posenc, "--where", "seed=0", "--where", "encoding=rope")
    assert next(iter(rows(posenc, "--sort", "loss"))) == run_copy.name
    assert [*rows(posenc)] == sorted(rows(posenc))
    Path("empty").mkdir()
    assert posenc("runs", "empty").out == "0 runs\n"


def test_a_bundle_holds_what_has_ended_and_is_no_run_directory(posenc, several, run_copy):
    status(several / "failed", status="diverged")
    exported = posenc("export", "--out", "runs/all.runs.jsonl.gz")
    assert exported.code == 0 and "2 runs (1 diverged)" in exported.err
    assert "left out, not finished" in exported.err and "interrupted" in exported.err
    compared = json.loads(posenc("compare", "runs/all.runs.jsonl.gz", "--format", "json").out)
    assert {row["label"] for row in compared["rows"]} == {"rope"}
    alone = posenc("runs", "runs/all.runs.jsonl.gz")
    assert (alone.code, alone.out) == (0, "0 runs\n") and "posenc compare reads it" in alone.err
    twice = posenc("export", str(run_copy), "runs/all.runs.jsonl.gz", "--out", "b.runs.jsonl.gz")
    assert twice.code == 2 and "several folders" in twice.err and not Path("b.runs.jsonl.gz").exists()


def test_what_it_says_continues_a_run_does(posenc, train, working_folder):
    given = ("encoding.base=500", "eval.lengths=[1x]", "runs_dir=a b", "seed=3")
    assert train(*given).code == 0
    run = only_run(working_folder / "a b")
    status(run, status="interrupted")
    (run / "results.json").unlink()
    command = shlex.split(rows(posenc, "a b")[run.name]["continue"])
    assert command[:2] == ["posenc", "train"] and "seed=3" in command
    again = posenc(*command[1:])
    assert again.code == 0 and "continuing at step" in again.err, again.err
    assert rows(posenc, "a b")[run.name]["status"] == "finished"
