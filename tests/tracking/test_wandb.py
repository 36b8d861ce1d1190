"""W&B: an offline run read back with wandb's own reader, and servers that are dead, silent or fussy."""

import json
import os
import subprocess
import sys
import time

import pytest
from fake_runs import positions, record
from tracked import begin, contents, history, offline_runs, shipped

from posenc.core.errors import UserError
from posenc.tracking import by_axis, check_tracking, curves_of, summary
from posenc.tracking.wandb import has_key, host, make_dashboard

KEY = "k" * 40


def test_an_offline_run_holds_everything_and_says_where_it_is(tmp_path, capfd, caplog):
    tags = ("rope", "headline", "t" * 500, " ")
    tracked = begin("wandb", tmp_path / "rope+alibi", tags=tags, group="g" * 500)
    tracked.log({"tokens": 51200.0, "loss": 0.12}, 25)
    cells = [("fixed-target", 64, 1.25), ("fixed-target", 512, 2.5), ("nonoverlapping", 512, 2.75)]
    records = [dict(record(window, nats, protocol=name)) for name, window, nats in cells]
    tracked.evaluation([*records, dict(positions())])
    tracked.finish("failed")
    assert capfd.readouterr() == ("", "")
    (directory,) = offline_runs(tmp_path / "rope+alibi")
    (line,) = [r.getMessage() for r in caplog.records if r.name.startswith("posenc")]
    assert "no API key for" in line and f"wandb sync {directory}" in line
    lines, rows = contents(directory), history(directory)
    (entry,) = [one["run"] for one in lines if one["type"] == "run"]
    assert (entry["run_group"], entry["display_name"]) == ("g" * 128, "rope+alibi")
    assert entry["project"] == "posenc" and entry["tags"] == ["rope", "headline", "t" * 64]
    assert '"failed"' in json.dumps(lines) and '"eval/fixed-target/nats@8x"' in json.dumps(lines)
    metrics = [one["metric"] for one in lines if one["type"] == "metric"]
    axes = {one.get("name") or one.get("glob_name"): one.get("step_metric") for one in metrics}
    assert (axes["train/*"], axes["eval/*"]) == ("train/tokens", "eval/window")
    assert axes["eval/positions/nats-by-position"] == "eval/position" and axes["eval/position"] is None
    (both,) = [row for row in rows if "eval/nonoverlapping/nats" in row]
    assert (both["eval/fixed-target/nats"], both["eval/window"]) == (pytest.approx(2.5), 512)
    assert not any("eval/window" in row for row in rows if "eval/position" in row)


@pytest.mark.parametrize(("environment", "file", "found"), [("disabled", "online", 0), (None, "offline", 1)])
def test_the_users_mode_counts(tmp_path, home, monkeypatch, caplog, environment, file, found):
    """WANDB_MODE, before the settings file, where `tracking.mode` is auto; a key changes nothing."""
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    if environment is not None:
        monkeypatch.setenv("WANDB_MODE", environment)
    (home / ".config" / "wandb").mkdir(parents=True)
    (home / ".config" / "wandb" / "settings").write_text(f"[default]\nmode = {file}\n")
    tracked = begin("wandb", tmp_path / "run")
    tracked.log({"loss": 1.0}, 1)
    tracked.finish("finished")
    assert len(offline_runs(tmp_path / "run")) == found
    assert ("W&B is offline (as asked)" in caplog.text) == bool(found)


def test_online_without_a_key_is_refused(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_BASE_URL", "http://user:word@wandb.example:8080/")
    with pytest.raises(UserError) as caught:
        begin("wandb", tmp_path / "run", mode="online")
    assert caught.value.key == "tracking.mode" and "wandb login" in caught.value.text()
    assert "no W&B API key for wandb.example:8080" in caught.value.text() and not (tmp_path / "run").exists()
    check_tracking({**shipped("wandb"), "mode": "offline"})
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    check_tracking({**shipped("wandb"), "mode": "online"})
    assert host() == "wandb.example:8080"


def test_a_key_is_found_where_wandb_finds_it(home, monkeypatch):
    monkeypatch.setenv("WANDB_BASE_URL", "https://wandb.example")
    assert not has_key()
    (home / ".netrc").write_text(f"machine wandb.example login user password {KEY}\n")
    assert has_key()


PROGRAM = """
import json, logging, pathlib, sys
logging.basicConfig(level=logging.INFO)  # as posenc does: wandb's own log must stay out of it
from posenc.tracking import TrackedRun, build_tracker
group, place = json.loads(sys.argv[1]), pathlib.Path(sys.argv[2])
t = build_tracker(group, TrackedRun("r", "g", [], {"seed": 0}, place))
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


def train(place, url, dies=None):
    """Track in a process of its own, so that what wandb does when Python exits is seen too; what it said."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("WANDB_")}
    env = {**kept, **({} if url is None else {"WANDB_BASE_URL": url}), "WANDB_API_KEY": KEY}
    begun, pipe = time.monotonic(), subprocess.PIPE
    command = [sys.executable, "-c", PROGRAM, json.dumps(shipped("wandb")), str(place)]
    process = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=env)
    assert process.stdout is not None and process.stdout.readline() == "trained\n"
    if dies is not None:
        time.sleep(0.5)
        dies()
    out, said = process.communicate("\n", timeout=120)
    assert (process.returncode, out) == (0, "evaluated\n"), said
    assert time.monotonic() - begun < LIMIT
    assert KEY not in said and "Traceback" not in said
    for file in place.rglob("*"):
        assert not file.is_file() or KEY.encode() not in file.read_bytes(), file
    return said


@pytest.mark.slow
def test_the_key_goes_to_the_users_server_whatever_a_run_directory_says(tmp_path, home, fake_wandb, stranger):
    """W&B has settings in folders called wandb; of a run directory's own none is read."""
    run = tmp_path / "run"
    for folder, url in ((home / ".config" / "wandb", fake_wandb.url), (run / "wandb", stranger.url)):
        folder.mkdir(parents=True)
        (folder / "settings").write_text(f"[default]\nbase_url = {url}\nmode = online\n")
    said = train(run, None)
    assert stranger.requests == [] and said == ""
    for sent in ("upsertBucket", "train/loss", "eval/fixed-target/nats"):
        assert any(sent in body for body in fake_wandb.requests), sent
    assert not offline_runs(tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize("state", ["dead", "hanging", "dies"])
def test_a_server_in_trouble_costs_seconds_and_one_warning(tmp_path, fake_wandb, state):
    def dies():
        fake_wandb.state = "hanging"

    fake_wandb.state = "ok" if state == "dies" else state
    url = "http://127.0.0.1:9" if state == "dead" else fake_wandb.url
    told = train(tmp_path / "run", url, dies if state == "dies" else None)
    said = "Upload: wandb sync" if state == "dies" else "W&B is offline"
    assert told.count("\n") == 1 and said in told, told
    assert state == "dies" or len(offline_runs(tmp_path / "run")) == 1


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of that package's own models
def test_the_workspace_compares_encodings_by_what_runs_are_tracked_with(tmp_path):
    pytest.importorskip("wandb_workspaces", reason="needs posenc[dashboard]")
    make_dashboard("someone", "mine", "sliding", "0.50x", str(tmp_path / "view.json"))
    view = json.loads((tmp_path / "view.json").read_text())
    assert (view["entity"], view["project"]) == ("someone", "mine")
    bank = view["spec"]["section"]["panelBankConfig"]
    panels = [panel["config"] for section in bank["sections"] for panel in section["panels"]]
    by_encoding = {"groupBy": "encoding.value.name", "groupAgg": "mean", "groupArea": "stddev"}
    assert len(panels) == 5 and all(by_encoding.items() <= panel.items() for panel in panels)
    records = [dict(record(w, 1.0, protocol="sliding")) for w in (32, 64)]
    curves = curves_of([*records, dict(positions())], {})
    rows = [row for of in by_axis(curves).values() for row in of.values()] + [summary(curves)]
    tracked = {name for row in rows for name in row}
    tracked |= {"eval/window", "eval/position", "train/loss", "train/tokens"}
    for panel in panels:
        drawn = [*panel["metrics"], *([panel["xAxis"]] if "xAxis" in panel else [])]
        assert set(drawn) <= tracked, panel["chartTitle"]
