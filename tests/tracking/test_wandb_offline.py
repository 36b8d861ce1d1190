"""Real offline runs, read back with wandb's own reader."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_runs import positions, record, write_run
from leet import contents, history, inspect, offline_runs

from posenc.tracking import Tracker, build_tracker

CONFIG = {"encoding": {"name": "rope", "base": 10000.0}, "context_length": 64, "seed": 3}
RECORDS = [
    {"protocol": protocol, "window": 64 * m, "multiple": m, "nats": nats, "bpb": nats / 2, "ppl": 3.0}
    for protocol, m, nats in [
        ("fixed-target", 1, 1.25),
        ("fixed-target", 8, 2.5),
        ("nonoverlapping", 8, 2.75),
    ]
]


def begin(tracking: dict[str, Any], directory: Path, **changes: Any) -> Tracker:
    given = {"run_name": "rope-nano-L64-s3", "group": "sweep-1", "tags": ["rope", "headline"]}
    return build_tracker(tracking, config=CONFIG, run_dir=directory, **{**given, **changes})


def test_a_run_holds_everything_and_prints_nothing(
    wandb_group: dict[str, Any],
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    wandb_group["tags"] = ["mine", "rope"]
    tracker = begin(wandb_group, tmp_path / "run")
    for step in (25, 50):
        tracker.log({"tokens": step * 2048.0, "loss": 3.0 / step, "train/lr": 1e-3}, step)
    tracker.evaluation(RECORDS)
    tracker.finish("finished")
    tracker.finish("failed")
    tracker.log({"loss": 9.0}, 75)

    (directory,) = offline_runs(tmp_path / "run")
    whole = json.loads(inspect(directory, "--summary"))
    assert whole["config"]["encoding"]["name"] == "rope"
    assert (whole["config"]["context_length"], whole["config"]["seed"]) == (64, 3)
    assert (whole["exit_code"], whole["state"]) == (0, "finished")
    assert whole["tags"] == ["rope", "headline", "mine"]  # one given twice is one
    summary = whole["summary"]
    assert summary["eval/fixed-target/nats@8x"] == 2.5
    assert summary["eval/fixed-target/nats@1x"] == 1.25
    assert summary["status"] == "finished"
    assert summary["train/loss"] == 0.06  # not what was logged after the end
    assert "evaluation" in summary

    lines = contents(directory)
    text = {line["type"]: json.dumps(line) for line in lines}
    for said in ('"run_group": "sweep-1"', '"job_type": "train"', "rope-nano-L64-s3", '"project": "posenc"'):
        assert said in text["run"], said
    assert any("train/tokens" in json.dumps(line) for line in lines if line["type"] == "metric")
    history = [json.dumps(line) for line in lines if line["type"] == "history"]
    both = [row for row in history if "eval/nonoverlapping/nats" in row]
    assert len(both) == 1
    assert "eval/fixed-target/nats" in both[0] and "eval/window" in both[0]
    (table,) = directory.glob("files/media/table/*.json")
    assert json.loads(table.read_text())["data"][1] == ["rope", "fixed-target", 512, 8, 2.5, 1.25, 3.0, 3]

    assert capfd.readouterr() == ("", "")
    (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("posenc")]
    assert "no API key for" in line
    assert f"wandb leet {directory}" in line and f"wandb sync {directory}" in line


def test_metrics_are_drawn_against_tokens_and_window(wandb_group: dict[str, Any], tmp_path: Path) -> None:
    tracker = begin(wandb_group, tmp_path / "run")
    tracker.finish("finished")
    metrics = [line for line in contents(offline_runs(tmp_path / "run")[0]) if line["type"] == "metric"]
    text = json.dumps(metrics)
    for name in ("train/tokens", "train/*", "eval/window", "eval/*"):
        assert f'"{name}"' in text


def test_a_resumed_run_goes_on_and_another_directory_has_its_own(
    wandb_group: dict[str, Any], tmp_path: Path
) -> None:
    stopped = begin(wandb_group, tmp_path / "run")
    for step in (25, 50, 75):
        stopped.log({"loss": 1.0}, step)
    stopped.finish("interrupted")
    again = begin(wandb_group, tmp_path / "run", group="another sweep")
    for step in (50, 75, 100):  # the checkpoint was of step 25
        again.log({"loss": 1.0}, step)
    again.evaluation(RECORDS)
    again.finish("finished")
    later = begin(wandb_group, tmp_path / "run")
    later.evaluation([*RECORDS, {**RECORDS[0], "window": 1024, "multiple": 16, "nats": 3.0}])
    later.finish("finished")
    begin(wandb_group, tmp_path / "other").finish("finished")

    segments = offline_runs(tmp_path / "run")
    whole = [json.loads(inspect(segment, "--summary")) for segment in segments]
    (kept,) = {one["run_id"] for one in whole}
    assert [one["exit_code"] for one in whole] == [1, 0, 0]
    assert kept not in offline_runs(tmp_path / "other")[0].name
    runs = [line["run"] for segment in segments for line in contents(segment) if line["type"] == "run"]
    assert {run["run_group"] for run in runs} == {"sweep-1"}
    rows = [row for segment in segments for row in history(segment)]
    assert [row["_step"] for row in rows if "train/loss" in row] == [25, 50, 75, 100]
    assert [row["eval/window"] for row in rows if "eval/window" in row] == [64, 512, 1024]
    steps = [row["_step"] for row in rows]
    assert steps == sorted(set(steps))  # or `wandb sync` of the last one would write over the others


def test_curves_by_position_have_an_axis_of_their_own(wandb_group: dict[str, Any], tmp_path: Path) -> None:
    run = write_run(tmp_path, records=[record(64, 1.0), positions()])
    tracker = begin(wandb_group, run)
    tracker.evaluation([dict(record(64, 1.0)), dict(positions())])
    tracker.finish("finished")
    (directory,) = offline_runs(run)
    rows = [row for row in history(directory) if "eval/position" in row]
    assert [row["eval/position"] for row in rows] == [8, 16, 32, 48, 64, 96, 128, 256, 512]
    assert [row["eval/positions/nats-by-position"] for row in rows] == [1 + i / 10 for i in range(9)]
    assert not any("eval/window" in row for row in rows)
    axes = {
        line["metric"].get("name"): line["metric"].get("step_metric")
        for line in contents(directory)
        if line["type"] == "metric"
    }
    assert (
        axes["eval/positions/nats-by-position"] == axes["eval/positions/rise-by-position"] == "eval/position"
    )
    assert axes["eval/position"] is None


def test_plots_are_images(wandb_group: dict[str, Any], tmp_path: Path) -> None:
    run = write_run(tmp_path)
    wandb_group["plots"] = ["context", "positions"]  # nobody measured the second
    tracker = begin(wandb_group, run)
    tracker.evaluation([dict(record(64, 1.3))])
    tracker.finish("finished")
    (picture,) = offline_runs(run)[0].glob("files/media/images/plots/*.png")
    assert picture.name.startswith("context_") and picture.read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize("what", ["none", "results", "checkpoint"])
def test_files_of_the_run_are_an_artifact_on_request(
    wandb_group: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("WANDB_DATA_DIR", str(tmp_path / "staging"))
    run = write_run(tmp_path, name="rope+alibi", records=[record(64, 1.0), positions()])
    (run / "metrics.jsonl").write_text("{}\n")
    for step in (25, 50):
        checkpoint = run / "checkpoints" / f"step-{step:08d}"
        checkpoint.mkdir(parents=True)
        (checkpoint / "model.safetensors").write_text("weights")
        if step == 25:
            (checkpoint / "manifest.json").write_text("{}")  # the other one is not whole
    tracker = begin({**wandb_group, "artifact": what, "plots": []}, run, run_name="rope+alibi")
    tracker.evaluation([dict(record(64, 1.0))])
    tracker.finish("finished")
    logged = [line["artifact"] for line in contents(offline_runs(run)[0]) if line["type"] == "artifact"]
    found = [one for one in logged if one["type"] == "run"]  # the table is one too
    paths = [file["path"] for one in found for file in one["manifest"]["contents"]]
    results = ["config.yaml", "metrics.jsonl", "positions.json", "results.json"]
    weights = [f"checkpoints/step-00000025/{name}" for name in ("manifest.json", "model.safetensors")]
    assert sorted(paths) == {"none": [], "results": results, "checkpoint": [*weights, *results]}[what]
    assert [one["name"] for one in found] == ["rope-alibi"] * len(found)


def test_two_runs_of_one_process_are_two(wandb_group: dict[str, Any], tmp_path: Path) -> None:
    first, second = (begin(wandb_group, tmp_path / name, run_name=name) for name in ("a", "b"))
    first.log({"loss": 1.0}, 1)
    second.log({"loss": 2.0}, 1)
    first.finish("finished")
    second.finish("failed")
    whole = [json.loads(inspect(offline_runs(tmp_path / n)[0], "--summary")) for n in ("a", "b")]
    assert [w["summary"]["train/loss"] for w in whole] == [1.0, 2.0]
    assert [w["exit_code"] for w in whole] == [0, 1]


@pytest.mark.parametrize("mode", ["", "nonsense", "OFFLINE"])
def test_a_mode_of_the_environment_that_wandb_stumbles_over_does_no_harm(
    wandb_group: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    mode: str,
) -> None:
    monkeypatch.setenv("WANDB_MODE", mode)
    begin(wandb_group, tmp_path / "run").finish("finished")
    assert len(offline_runs(tmp_path / "run")) == 1
    assert "could not start" not in caplog.text


def test_its_files_go_where_the_user_says(wandb_group: dict[str, Any], tmp_path: Path) -> None:
    begin({**wandb_group, "dir": "elsewhere"}, tmp_path / "run").finish("finished")
    assert offline_runs(tmp_path / "elsewhere") and not offline_runs(tmp_path / "run")


def test_names_too_long_for_the_server_are_cut_not_refused(
    wandb_group: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = begin(
        wandb_group, tmp_path / "run", run_name="n" * 500, group="g" * 500, tags=["t" * 500, "", " "]
    )
    tracker.finish("finished")
    text = json.dumps([line for line in contents(offline_runs(tmp_path / "run")[0]) if line["type"] == "run"])
    assert "n" * 128 in text and "n" * 129 not in text
    assert "t" * 64 in text and "t" * 65 not in text and "g" * 129 not in text


@pytest.mark.skipif(sys.platform == "win32", reason="needs pseudo-terminals")
def test_on_a_terminal_without_a_key_nobody_is_asked(
    wandb_group: dict[str, Any], tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import pty

    program = (
        "import json, sys, pathlib; from posenc.tracking import build_tracker\n"
        "group, place = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])\n"
        "t = build_tracker(group, run_name='r', group=None, tags=[], config={}, run_dir=place)\n"
        "t.log({'loss': 1.0}, 1); t.finish('finished')"
    )
    ours, theirs = pty.openpty()
    started = subprocess.Popen(
        [sys.executable, "-c", program, json.dumps(wandb_group), str(tmp_path / "run")],
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        env={**os.environ, "TERM": "xterm"},
    )
    os.close(theirs)
    try:
        assert started.wait(timeout=30) == 0
        said = os.read(ours, 65536).decode()
    finally:
        started.kill()
        os.close(ours)
    assert said.count("\n") == 1 and said.startswith("W&B is offline (no API key")
    assert len(offline_runs(tmp_path / "run")) == 1
