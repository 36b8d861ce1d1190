"""W&B: an offline run read back with wandb's own reader, and servers that are dead, silent or fussy."""

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from fake_runs import positions, record
from tracked import begin, contents, history, offline_runs, shipped

from posenc.core.errors import UserError
from posenc.tracking import check_tracking
from posenc.tracking.wandb import host, log_in, project_of

KEY = "k" * 40

# --- Offline


@dataclass(frozen=True)
class Offline:
    """The folder of an offline run, and what posenc logged about it."""

    directory: Path
    messages: list


@pytest.fixture(scope="module")
def already_made():
    """The offline run, made by the first test that asks for it."""
    return []


@pytest.fixture
def offline_run(tmp_path, caplog, capfd, already_made):
    """A run that was tracked without a key and failed, with names that are too long."""
    if not already_made:
        already_made.append(make_offline(tmp_path, caplog, capfd))
    return already_made[0]


@pytest.fixture
def offline(offline_run):
    return offline_run.directory


def make_offline(tmp_path, caplog, capfd):
    tracked = begin("wandb", tmp_path / "rope+alibi", tags=("rope", "t" * 500, " "), group="g" * 500)
    tracked.log({"tokens": 51200.0, "loss": 0.12}, 25)
    records = [
        dict(record(64, 1.25, protocol="fixed-target")),
        dict(record(512, 2.5, protocol="fixed-target")),
        dict(record(512, 2.75, protocol="nonoverlapping")),
        dict(positions()),
    ]
    tracked.log_evaluation(records)
    tracked.finish("failed")
    assert capfd.readouterr() == ("", "")
    (directory,) = offline_runs(tmp_path / "rope+alibi")
    return Offline(
        directory, [entry.getMessage() for entry in caplog.records if entry.name.startswith("posenc")]
    )


def test_one_line_says_why_it_is_offline_and_how_to_upload(offline_run):
    (line,) = offline_run.messages
    assert "no API key for" in line
    assert f"wandb sync {offline_run.directory}" in line


def test_a_run_has_name_group_project_and_tags_that_the_server_takes(offline):
    (run,) = [entry["run"] for entry in contents(offline) if entry["type"] == "run"]
    assert run["display_name"] == "rope+alibi"
    assert run["run_group"] == "g" * 128
    assert run["project"] == "posenc"
    assert run["tags"] == ["rope", "t" * 64]


@pytest.mark.parametrize("text", ['"failed"', '"eval/fixed-target/nats@8x"'])
def test_the_summary_has_the_status_and_the_multiples(offline, text):
    assert text in json.dumps(contents(offline))


@pytest.mark.parametrize(
    ("metric", "axis"),
    [
        ("train/*", "train/tokens"),
        ("eval/*", "eval/window"),
        ("eval/positions/nats-by-position", "eval/position"),
        ("eval/position", None),
    ],
)
def test_each_metric_has_its_axis(offline, metric, axis):
    metrics = [entry["metric"] for entry in contents(offline) if entry["type"] == "metric"]
    axes = {metric.get("name") or metric.get("glob_name"): metric.get("step_metric") for metric in metrics}
    assert axes[metric] == axis


def test_all_figures_of_a_window_are_in_one_row(offline):
    (row,) = [row for row in history(offline) if "eval/nonoverlapping/nats" in row]
    assert row["eval/window"] == 512
    assert row["eval/fixed-target/nats"] == pytest.approx(2.5)


def test_windows_and_positions_are_in_rows_of_their_own(offline):
    rows = [row for row in history(offline) if "eval/position" in row]
    assert rows
    assert not any("eval/window" in row for row in rows)


@pytest.mark.parametrize(("environment", "file", "runs"), [("disabled", "online", 0), (None, "offline", 1)])
def test_the_users_mode_counts(tmp_path, home, monkeypatch, caplog, environment, file, runs):
    """WANDB_MODE, before the settings file, where `tracking.mode` is auto; a key changes nothing."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    if environment is not None:
        monkeypatch.setenv("WANDB_MODE", environment)
    (home / ".config" / "wandb").mkdir(parents=True)
    (home / ".config" / "wandb" / "settings").write_text(f"[default]\nmode = {file}\n")
    tracked = begin("wandb", tmp_path / "run")
    tracked.log({"loss": 1.0}, 1)
    tracked.finish("finished")
    assert len(offline_runs(tmp_path / "run")) == runs
    assert ("W&B is offline (as asked)" in caplog.text) == bool(runs)


# --- Sweeps


@pytest.fixture
def summary_runs(run_copy, working_folder, train):
    """The offline runs with the comparison of a sweep that was called twice; its run is trained already."""
    for _ in range(2):
        result = train("-m", "encoding=rope", "seed=0", "tracking=wandb")
        assert result.code == 0, result.err
    (folder,) = (working_folder / "runs" / ".sweeps").glob("*-comparison")
    return offline_runs(folder)


def test_a_sweep_ends_with_its_comparison_as_a_table(summary_runs):
    logged = history(summary_runs[-1])[-1]
    assert logged["comparison._type"] == "table-file"
    table = json.loads((summary_runs[-1] / "files" / logged["comparison.path"]).read_text())
    windows = [line[table["columns"].index("window")] for line in table["data"]]
    assert windows == [16, 32, 64]


def test_the_comparison_is_one_run_in_the_group_of_the_sweep(summary_runs):
    entries = [entry["run"] for run in summary_runs for entry in contents(run) if entry["type"] == "run"]
    assert len({entry["run_id"] for entry in entries}) == 1
    for entry in entries:
        assert entry["job_type"] == "comparison"
        assert entry["display_name"] == f"{entry['run_group']}-comparison"


# --- Keys


@pytest.fixture
def own_server(monkeypatch):
    """A server of the user's, whose address holds a password."""
    monkeypatch.setenv("WANDB_BASE_URL", "http://user:word@wandb.example:8080/")


def test_online_without_a_key_is_refused(own_server, tmp_path):
    with pytest.raises(UserError) as caught:
        begin("wandb", tmp_path / "run", mode="online")
    assert caught.value.key == "tracking.mode"
    assert "wandb login" in caught.value.text()
    assert "no W&B API key for wandb.example:8080" in caught.value.text()
    assert not (tmp_path / "run").exists()


def test_offline_needs_no_key(own_server):
    check_tracking(shipped("wandb", mode="offline"))


def test_online_with_a_key_is_taken(own_server, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    check_tracking(shipped("wandb", mode="online"))


def test_a_server_is_named_without_its_password(own_server):
    assert host() == "wandb.example:8080"


def test_a_key_is_found_where_wandb_finds_it(home, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert not log_in()
    (home / ".netrc").write_text(f"machine wandb.example login user password {KEY}\n")
    assert log_in()


def test_a_key_that_is_none_is_refused_and_not_printed(own_server, monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_API_KEY", "too-short")
    with pytest.raises(UserError) as caught:
        begin("wandb", tmp_path / "run", mode="online")
    assert caught.value.key == "WANDB_API_KEY"
    assert "40+ characters" in caught.value.text()
    assert "too-short" not in caught.value.text()


def test_a_key_that_is_none_leaves_a_run_offline(own_server, monkeypatch, tmp_path, caplog):
    monkeypatch.setenv("WANDB_API_KEY", "too-short")
    monkeypatch.setenv("WANDB_MODE", "online")
    begin("wandb", tmp_path / "run", mode="auto").finish("finished")
    assert "WANDB_API_KEY is refused" in caplog.text
    assert offline_runs(tmp_path / "run")


def test_a_project_is_that_of_the_setting_else_of_the_environment(home, monkeypatch):
    monkeypatch.setenv("WANDB_PROJECT", "theirs")
    assert project_of(None) == "theirs"
    assert project_of("mine") == "mine"


def test_a_run_that_goes_on_stays_in_its_project(home, monkeypatch, tmp_path):
    begin("wandb", tmp_path / "run", mode="offline", project="first").finish("interrupted")
    monkeypatch.setenv("WANDB_PROJECT", "second")
    begin("wandb", tmp_path / "run", mode="offline").finish("finished")
    state = json.loads((tmp_path / "run/tracking/wandb.json").read_text())
    assert state["project"] == "first"


# --- Servers

PROGRAM = """
import logging, pathlib, sys
logging.basicConfig(level=logging.INFO)  # as posenc does: wandb's own log must stay out of it
from posenc.settings.tree import TrackingSettings
from posenc.tracking import TrackedRun, build_tracker
settings = TrackingSettings.model_validate_json(sys.argv[1])
config = {"data": {"name": "sympy"}, "eval": {"split": "test"}}
t = build_tracker(settings, TrackedRun("r", "g", [], config, pathlib.Path(sys.argv[2])))
for step in range(1, 51):
    t.log({"tokens": step, "loss": 1.0}, step)
print("trained", flush=True)
sys.stdin.readline()
record = {"protocol": "fixed-target", "window": 64, "multiple": 1, "nats": 1.0, "bpb": 1.4, "ppl": 2.7}
record |= {"corpus": "sympy", "split": "test", "extend": None, "stride": None}
t.log_evaluation([{**record, "targets_hash": "a", "checkpoint_step": 50}])
t.finish("finished")
print("evaluated", flush=True)
"""
# What posenc promises to lose to a bad server is 10 s; the rest is for starting Python on a busy machine.
# wandb by itself would wait 90 s and more, or for ever.
LIMIT = 50.0


def train(run, url, strike=None):
    """Track in a process of its own, so that what wandb does when Python exits is seen too.

    `strike` is called between training and evaluation. Returns stderr.
    """
    env = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    env["WANDB_API_KEY"] = KEY
    if url is not None:
        env["WANDB_BASE_URL"] = url
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, shipped("wandb").model_dump_json(), str(run)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=env,
    )
    assert process.stdout.readline() == "trained\n"
    if strike is not None:
        time.sleep(0.5)
        strike()
    out, err = process.communicate("\n", timeout=120)
    assert process.returncode == 0, err
    assert out == "evaluated\n"
    assert time.monotonic() - began < LIMIT
    assert "Traceback" not in err
    assert_no_key(err, run)
    return err


def assert_no_key(text, run):
    assert KEY not in text
    for file in run.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file


def write_settings(folder, url):
    folder.mkdir(parents=True)
    (folder / "settings").write_text(f"[default]\nbase_url = {url}\nmode = online\n")


@pytest.mark.slow
def test_the_key_goes_to_the_users_server_whatever_a_run_directory_says(tmp_path, home, fake_wandb, stranger):
    """W&B has settings in folders called wandb; of a run directory's own none is read."""
    write_settings(home / ".config" / "wandb", fake_wandb.url)
    write_settings(tmp_path / "run" / "wandb", stranger.url)
    assert train(tmp_path / "run", None) == ""
    assert stranger.requests == []
    for text in ("upsertBucket", "train/loss", "eval/fixed-target/nats"):
        assert any(text in body for body in fake_wandb.requests), text
    assert not offline_runs(tmp_path / "run")


@pytest.mark.slow
def test_a_dead_server_costs_seconds_and_one_warning(tmp_path):
    err = train(tmp_path / "run", "http://127.0.0.1:9")
    assert err.count("\n") == 1
    assert "W&B is offline" in err
    assert len(offline_runs(tmp_path / "run")) == 1


@pytest.mark.slow
def test_a_server_that_hangs_costs_seconds_and_one_warning(tmp_path, fake_wandb):
    fake_wandb.state = "hanging"
    err = train(tmp_path / "run", fake_wandb.url)
    assert err.count("\n") == 1
    assert "W&B is offline" in err
    assert len(offline_runs(tmp_path / "run")) == 1


@pytest.mark.slow
def test_a_server_that_dies_on_the_way_costs_seconds_and_one_warning(tmp_path, fake_wandb):
    def die():
        fake_wandb.state = "hanging"

    err = train(tmp_path / "run", fake_wandb.url, die)
    assert err.count("\n") == 1
    assert "Upload: wandb sync" in err
