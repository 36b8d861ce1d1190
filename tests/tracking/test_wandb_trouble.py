"""Servers that are dead, silent or fussy, a wandb that is broken: seconds and a warning, never the run."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from fake_runs import write_run
from fake_wandb_server import FakeWandb

from posenc.tracking import TrackedRun, build_tracker
from posenc.tracking.memory import recall
from posenc.tracking.wandb import WandbTracker

KEY = "k" * 40
PROGRAM = """
import json, logging, pathlib, sys
logging.basicConfig(level=logging.INFO)  # as posenc does: wandb's own log must stay out of it
from posenc.tracking import build_tracker
group, place = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
t = build_tracker(group, run_name="r", group="g", tags=[], config={"seed": 0}, run_dir=place)
for step in range(1, 51):
    t.log({"tokens": step, "loss": 1.0}, step)
print("trained", flush=True)
sys.stdin.readline()
t.evaluation([{"protocol": "fixed-target", "window": 64, "multiple": 1, "nats": 1.0, "bpb": 1.4, "ppl": 2.7}])
t.finish("finished")
print("evaluated", flush=True)
"""
# What posenc promises to lose to a bad server is 10 s; the rest is for starting Python on a busy machine.
# wandb by itself would wait 90 s and more, or for ever.
LIMIT = 50.0


class Training:
    """A training process of its own, so that what wandb does when Python exits is seen and timed too."""

    def __init__(self, group: dict[str, Any], place: Path, url: str | None, planted: str = "") -> None:
        address = {} if url is None else {"WANDB_BASE_URL": url}
        write_run(place.parent, name=place.name)  # so that there are plots and files to send
        if planted:
            write_settings(place, planted)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
        self.place = place
        self.process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, json.dumps({**group, "artifact": "results"}), str(place)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**kept, **address, "WANDB_API_KEY": KEY},
        )
        self.begun = time.monotonic()

    def trained(self) -> float:
        """Seconds until the last step has been logged."""
        assert self.process.stdout is not None
        assert self.process.stdout.readline() == "trained\n"
        return time.monotonic() - self.begun

    def end(self) -> tuple[float, str]:
        """Let it evaluate and exit: seconds that took, and what it said on stderr."""
        begun = time.monotonic()
        out, said = self.process.communicate("\n", timeout=120)
        assert (self.process.returncode, out) == (0, "evaluated\n"), said
        for file in self.place.rglob("*"):
            assert not file.is_file() or KEY.encode() not in file.read_bytes(), file
        return time.monotonic() - begun, said


def write_settings(folder: Path, url: str) -> None:
    (folder / "wandb").mkdir(parents=True)
    (folder / "wandb" / "settings").write_text(f"[default]\nbase_url = {url}\nmode = online\n")


def offline_runs(place: Path) -> int:
    return len(list((place / "wandb").glob("offline-run-*/*.wandb")))


def test_the_key_goes_to_the_users_server_whatever_a_strangers_run_directory_says(
    wandb_group: dict[str, Any], tmp_path: Path, home: Path, fake_wandb: FakeWandb
) -> None:
    """W&B has settings in folders called wandb; of a run directory's own none is read."""
    stranger = FakeWandb()
    write_settings(home / ".config", fake_wandb.url)
    try:
        training = Training(wandb_group, tmp_path / "run", None, planted=stranger.url)
        training.trained()
        training.end()
    finally:
        stranger.close()
    assert stranger.requests == []
    assert any("train/loss" in body for body in fake_wandb.requests)


def test_a_server_that_answers_gets_the_run(
    wandb_group: dict[str, Any], tmp_path: Path, fake_wandb: FakeWandb
) -> None:
    training = Training(wandb_group, tmp_path / "run", fake_wandb.url)
    training.trained()
    _, said = training.end()
    assert said == ""
    assert any("upsertBucket" in body for body in fake_wandb.requests)
    assert any("train/loss" in body for body in fake_wandb.requests)
    assert any("eval/fixed-target/nats" in body for body in fake_wandb.requests)
    assert offline_runs(tmp_path / "run") == 0


def test_nobody_at_the_address_is_offline_at_once(
    wandb_group: dict[str, Any], tmp_path: Path, dead_port: str
) -> None:
    training = Training(wandb_group, tmp_path / "run", dead_port)
    starting = training.trained()
    ending, said = training.end()
    assert starting + ending < LIMIT
    assert said.count("\n") == 1 and "does not answer" in said
    assert offline_runs(tmp_path / "run") == 1


@pytest.mark.slow  # waits
def test_a_silent_server_costs_two_seconds(
    wandb_group: dict[str, Any], tmp_path: Path, silent_port: str
) -> None:
    training = Training(wandb_group, tmp_path / "run", silent_port)
    starting = training.trained()
    ending, said = training.end()
    assert starting > 2 and starting + ending < LIMIT
    assert said.count("\n") == 1 and "does not answer" in said
    assert offline_runs(tmp_path / "run") == 1


def test_a_key_that_the_server_refuses_is_offline(
    wandb_group: dict[str, Any], tmp_path: Path, fake_wandb: FakeWandb
) -> None:
    fake_wandb.state = "unauthorized"
    training = Training(wandb_group, tmp_path / "run", fake_wandb.url)
    starting = training.trained()
    ending, said = training.end()
    assert starting + ending < LIMIT
    assert said.count("\n") == 1 and "W&B is offline" in said and KEY not in said
    assert offline_runs(tmp_path / "run") == 1


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["auto", "online"])
def test_a_server_that_hangs_after_the_first_answer_costs_the_time_out(
    wandb_group: dict[str, Any], tmp_path: Path, fake_wandb: FakeWandb, mode: str
) -> None:
    fake_wandb.state = "graphql-hangs"
    training = Training({**wandb_group, "mode": mode}, tmp_path / "run", fake_wandb.url)
    starting = training.trained()
    ending, said = training.end()
    assert starting + ending < LIMIT
    assert said.count("\n") == 1 and "W&B is offline" in said
    assert offline_runs(tmp_path / "run") == 1


@pytest.mark.slow
@pytest.mark.parametrize("death", ["hanging", "closed"])
def test_a_server_that_dies_during_training_costs_the_time_out_at_the_end(
    wandb_group: dict[str, Any], tmp_path: Path, fake_wandb: FakeWandb, death: str
) -> None:
    training = Training(wandb_group, tmp_path / "run", fake_wandb.url)
    training.trained()
    time.sleep(0.5)
    fake_wandb.state = "hanging"
    if death == "closed":
        fake_wandb.server.server_close()
        fake_wandb.release.set()
    seconds, said = training.end()
    assert seconds < LIMIT
    assert "Traceback" not in said
    assert said.count("\n") == 1 and "Upload: wandb sync" in said, said


def broken(*_: Any, **__: Any) -> Any:
    raise RuntimeError(f"no luck with {KEY}\nsecond line\x1b[31m")


def test_a_wandb_that_cannot_start_is_one_warning(
    wandb_group: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    import wandb

    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setattr(wandb, "init", broken)
    tracker = build_tracker(
        {**wandb_group, "mode": "offline"},
        run_name="r",
        group=None,
        tags=[],
        config={},
        run_dir=tmp_path / "run",
    )
    tracker.log({"loss": 1.0}, 1)
    tracker.evaluation([{"protocol": "p", "window": 1}])
    tracker.finish("finished")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "RuntimeError: no luck with ***" in line
    assert "\n" not in line and KEY not in line and "second" not in line


def test_an_installation_without_wandb_is_one_warning(
    wandb_group: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "wandb", None)
        tracker = build_tracker(
            wandb_group, run_name="r", group=None, tags=[], config={}, run_dir=tmp_path / "run"
        )
        tracker.log({"loss": 1.0}, 1)
        tracker.finish("finished")
    (line,) = [record.getMessage() for record in caplog.records]
    assert "could not start" in line and "wandb" in line


class BrokenRun:
    """A W&B run whose every method raises, once it has begun."""

    def __init__(self) -> None:
        self.summary: dict[str, Any] = {}
        self.dir = "/nowhere/wandb/run/files"
        self.calls = 0

    def log(self, *_: Any, **__: Any) -> None:
        self.calls += 1
        raise OSError("the service is gone")

    def finish(self, **_: Any) -> None:
        raise OSError("the service is gone")


def tracked(begun: Any, place: Path, timeout: float) -> WandbTracker:
    run = TrackedRun("r", None, [], {}, place)
    return WandbTracker(run, recall(place, "wandb", None), begun, timeout, [], "none")


def test_one_failure_is_one_warning_and_the_end_of_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = BrokenRun()
    tracker = tracked(run, tmp_path, 1.0)
    for step in range(5):
        tracker.log({"loss": 1.0}, step)
    tracker.evaluation([{"protocol": "p", "window": 1, "nats": 1.0}])
    tracker.finish("finished")
    assert run.calls == 1
    warnings = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    assert warnings == [
        "W&B is switched off, the run goes on without it (OSError: the service is gone). "
        "Upload: wandb sync /nowhere/wandb/run"
    ]


def test_a_finish_that_never_returns_is_left_behind(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Stuck(BrokenRun):
        def finish(self, **_: Any) -> None:
            time.sleep(30)

    begun = time.monotonic()
    tracked(Stuck(), tmp_path, 0.1).finish("finished")
    assert time.monotonic() - begun < 15
    assert "W&B did not get everything" in caplog.text
    assert "wandb sync /nowhere/wandb/run" in caplog.text
