"""Real trackio runs, read back with its own command."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

import pytest
from fake_runs import positions, record, write_run
from shipped import shipped

pytest.importorskip("trackio", reason="needs posenc[trackio]")
PROGRAM = """
import json, os, sys
from posenc.tracking import build_tracker
told = json.loads(sys.argv[1])
t = build_tracker(told["group"], run_name="rope-s3", group=told["sweep"], tags=["rope"],
                  config={"encoding": {"name": "rope"}, "seed": 3}, run_dir=told["run"])
for step in told["steps"]:
    t.log({"loss": 100 / step}, step)
t.evaluation(told["records"])
t.finish(told["status"])
"""


def track(run: Path, steps: list[int], records: Any = (), status: str = "finished", **more: Any) -> str:
    """Track in a process of its own, since trackio looks for its folder when imported; what it said."""
    group = {**shipped("trackio"), "plots": ["context"]}
    told = {"group": group, "sweep": "sweep-1", "run": str(run), "steps": steps, "status": status}
    told |= {"records": [dict(one) for one in records], **more}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, json.dumps(told)],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "TRACKIO_DIR": str(run.parent / "trackio")},
    )
    return done.stdout + done.stderr


def ask(run: Path, *words: str) -> Any:
    """What the `trackio` command says."""
    command = Path(sysconfig.get_path("scripts")) / "trackio"
    environment = {**os.environ, "TRACKIO_DIR": str(run.parent / "trackio")}
    asked = [str(command), *words, "--json"]
    return json.loads(
        subprocess.run(asked, check=True, capture_output=True, text=True, env=environment).stdout
    )


def points(run: Path, metric: str) -> list[tuple[int, float]]:
    where = ("--project", "posenc", "--run", "rope-s3", "--metric", metric)
    return [(value["step"], value["value"]) for value in ask(run, "get", "metric", *where)["values"]]


def test_a_run_holds_everything_and_prints_nothing(tmp_path: Path) -> None:
    records = [record(64, 1.0), record(512, 1.5), positions()]
    run = write_run(tmp_path, name="rope-s3", records=records)
    assert track(run, [25, 50], records) == ""
    assert points(run, "train/loss") == [(25, 4.0), (50, 2.0)]
    assert points(run, "eval/fixed-target/nats") == [(64, pytest.approx(1.0)), (512, pytest.approx(1.5))]
    assert [step for step, _ in points(run, "eval/positions/nats-by-position")][-2:] == [256, 512]
    config = ask(run, "get", "run", "--project", "posenc", "--run", "rope-s3")["config"]
    assert (config["encoding"], config["seed"], config["_Group"]) == ({"name": "rope"}, 3, "sweep-1")
    (picture,) = (tmp_path / "trackio" / "media").rglob("*.png")
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_a_resumed_run_goes_on_without_doubled_points(tmp_path: Path) -> None:
    run = tmp_path / "rope-s3"
    track(run, [25, 50, 75], status="interrupted")
    track(run, [50, 75, 100], [record(64, 1.0)], sweep="another")
    track(run, [], [record(64, 1.0), record(512, 1.5)])
    assert ask(run, "list", "runs", "--project", "posenc")["runs"] == ["rope-s3"]
    assert [step for step, _ in points(run, "train/loss")] == [25, 50, 75, 100]
    assert [step for step, _ in points(run, "eval/fixed-target/nats")] == [64, 512]


def test_a_database_that_cannot_be_written_is_a_warning(tmp_path: Path) -> None:
    (tmp_path / "trackio").write_text("in the way")
    said = track(tmp_path / "rope-s3", [25], [record(64, 1.0)])
    assert "trackio" in said and "Traceback" not in said
