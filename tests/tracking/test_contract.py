"""What holds for every tracker: the same curves, nothing twice, seconds and a warning where it fails."""

from __future__ import annotations

import importlib.util
import json
import logging
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from fake_runs import positions, record, write_run
from tracked import TRACKERS, begin, found, offline_runs, shipped

import posenc.tracking
from posenc.core.errors import UserError
from posenc.core.paths import conf_dir
from posenc.tracking import BaseTracker, TrackedRun, check_tracking
from posenc.tracking.base import Evaluation

PACKAGES = {"tensorboard": "tensorboard", "trackio": "trackio", "wandb": "wandb"}
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(params=TRACKERS)
def tracker(request: pytest.FixtureRequest) -> str:
    pytest.importorskip(PACKAGES[request.param], reason=f"needs posenc[{request.param}]")
    return str(request.param)


def records(*windows: int) -> list[dict[str, Any]]:
    return [dict(record(window, window / 64)) for window in windows]


def test_a_run_is_curves_against_steps_windows_and_positions(
    tracker: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    measured = [*records(64, 512), dict(positions())]
    run = write_run(tmp_path, name=f"whole-{tracker}", records=measured)  # type: ignore[arg-type]
    tracked = begin(tracker, run, plots=["context", "probes"])  # nobody measured probes
    for step in (25, 50):
        tracked.log({"loss": 100 / step, "train/lr": 1e-3, "tokens": step}, step)
    tracked.evaluation(measured)
    tracked.finish("finished")
    tracked.log({"loss": 9.0}, 75)  # after the end
    got = found(tracker, run)
    assert got.losses == [(25, 4.0), (50, 2.0)]
    assert got.windows == [(64, pytest.approx(1.0)), (512, pytest.approx(8.0))]
    assert got.positions == [8, 16, 32, 48, 64, 96, 128, 256, 512]
    assert {"train/lr", "plots/context"} <= got.names
    assert tracker == "wandb" or "eval/fixed-target/nats@8x" in got.names  # W&B has a summary apart
    assert "plots/probes" not in got.names
    assert capfd.readouterr().out == ""


def test_a_resumed_run_goes_on_without_doubled_points(tracker: str, tmp_path: Path) -> None:
    run = tmp_path / f"resumed-{tracker}"
    first, again, later = [25, 50, 75], [50, 75, 100], [100]  # the checkpoint was of step 25
    for steps, cells, sweep in ((first, [], "a"), (again, [64], "b"), (later, [64, 512], "c")):
        tracked = begin(tracker, run, group=sweep)
        for step in steps:
            tracked.log({"loss": float(step)}, step)
        tracked.evaluation(records(*cells))
        tracked.finish("finished" if cells else "interrupted")
    got = found(tracker, run)
    assert got.losses == [(step, float(step)) for step in (25, 50, 75, 100)]
    assert [window for window, _ in got.windows] == [64, 512]
    kept = json.loads((run / "tracking" / f"{tracker}.json").read_text())
    assert kept["group"] == "a" and kept["step"] == 100  # it stays in the group that it began in


def test_several_trackers_get_everything_and_the_failure_of_one_is_its_own(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("in the way")
    groups = {name: {**shipped(name), "plots": []} for name in TRACKERS}
    tracked = begin("several", tmp_path, trackers=["tensorboard", "wandb", "wandb"], **groups)
    tracked.log({"loss": 1.0}, 25)
    tracked.evaluation(records(64))
    tracked.finish("finished")
    got = found("wandb", tmp_path)
    assert (got.losses, got.windows) == ([(25, 1.0)], [(64, 1.0)]) and len(offline_runs(tmp_path)) == 1
    said = [one.getMessage() for one in caplog.records if one.name.startswith("posenc")]
    assert len(said) == 2 and "TensorBoard could not start" in said[0] and "W&B is offline" in said[1]


class Written(BaseTracker):
    """One that writes down what it is sent, and fails or hangs as told."""

    label = "the tracker"

    def __init__(self, run: Path, trouble: Any = None, timeout: float = 5.0) -> None:
        super().__init__(TrackedRun("r", "g", [], {"seed": 1}, run), "written", timeout, [])
        self.save()
        self.trouble = trouble
        self.got: list[Any] = []

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        self.got.append(step)
        if isinstance(self.trouble, Exception):
            raise self.trouble

    def send_evaluation(self, shown: Evaluation) -> None:
        self.got += [row["eval/window"] for row in shown.windows]
        time.sleep(60 if self.trouble == "hangs" else 0)

    def end(self, status: str) -> None:
        self.got.append(status)


def test_cells_are_sent_once_and_other_targets_or_extensions_again(tmp_path: Path) -> None:
    for path, content in ((tmp_path / "a", '{"id": "../../x"}'), (tmp_path / "b", "{")):
        (path / "tracking").mkdir(parents=True)
        (path / "tracking" / "written.json").write_text(content)  # damaged or foreign: begun anew
        first = Written(path)
        assert first.progress.id.isalnum() and not first.resumed
        first.evaluation(records(64, 128))
        again = Written(path)
        again.evaluation(records(64, 128, 256))
        again.evaluation([{**records(64)[0], "targets_hash": "b"}])
        again.evaluation([{**records(64)[0], "extend": {"name": "yarn"}}])
        assert (first.got, again.got) == ([64, 128], [256, 64, 64])


def test_a_plot_that_fails_is_one_warning_and_the_others_are_drawn(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(format: str, kind: str, *_: object) -> bytes:
        if kind == "change":
            raise ZeroDivisionError("no width\nat all")
        return b"drawn"

    monkeypatch.setattr("posenc.report.charts.plot_bytes", fails)
    run = TrackedRun("r", None, [], {}, write_run(tmp_path))
    assert run.png(["change", "context"]) == {"context": b"drawn"}
    (line,) = [one.getMessage() for one in caplog.records]
    assert "plot change" in line and "ZeroDivisionError: no width" in line and "\n" not in line


def test_the_first_failure_is_one_warning_and_is_not_remembered(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    tracked = Written(tmp_path, trouble=OSError(f"gone with {'k' * 40}\nand more\x1b"))
    for step in (25, 50):
        tracked.log({"loss": 1.0}, step)
    tracked.evaluation(records(64))
    tracked.finish("failed")
    tracked.finish("finished")
    (line,) = [one.getMessage() for one in caplog.records]
    assert line == "the tracker is switched off, the run goes on without it (OSError: gone with ***)."
    assert tracked.got == [25, "failed"] and Written(tmp_path).progress.step == -1


def test_a_call_that_hangs_is_given_up_and_the_end_does_not_wait_again(tmp_path: Path) -> None:
    tracked = Written(tmp_path, trouble="hangs", timeout=0.1)
    begun = time.monotonic()
    tracked.evaluation(records(64))
    tracked.finish("finished")
    assert time.monotonic() - begun < 10 and tracked.got == [64]


# The choice


def test_every_yaml_names_a_tracker_and_has_exactly_the_keys_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # as if all were installed
    files = sorted((conf_dir() / "tracking").glob("*.yaml"))
    assert [file.stem for file in files] == sorted(posenc.tracking.TRACKERS)
    for file in files:
        group = shipped(file.stem)
        assert group["name"] == file.stem
        check_tracking(group)
        for key in set(group) - {"name"}:
            with pytest.raises(UserError, match="missing"):
                check_tracking({k: v for k, v in group.items() if k != key})


@pytest.mark.parametrize(
    ("name", "change", "key", "says"),
    [
        ("wandb", {"name": "wanbd"}, "tracking", "did you mean: wandb"),
        ("wandb", {"project": "a/b"}, "tracking.project", "does not take this name"),
        ("wandb", {"timeout": 0}, "tracking.timeout", "seconds above 0"),
        ("wandb", {"plots": ["position"]}, "tracking.plots", "did you mean: positions"),
        ("several", {"trackers": ["wandb", "tensorbord"]}, "tracking.trackers", "did you mean: tensorboard"),
        ("several", {"wandb": {"mode": "online"}}, "tracking.wandb.mode", "tracking.wandb.mode=offline"),
    ],
)
def test_wrong_input_is_refused_by_its_full_name(
    monkeypatch: pytest.MonkeyPatch, name: str, change: dict[str, Any], key: str, says: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: object())
    group = shipped(name)
    for which, value in change.items():
        group[which] = {**group[which], **value} if isinstance(value, dict) else value
    with pytest.raises(UserError) as caught:
        check_tracking(group)
    assert caught.value.key == key and says in caught.value.text()


@pytest.mark.parametrize("name", ["trackio", "tensorboard"])
def test_a_missing_extra_is_refused_with_the_command_that_installs_it(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None if package == name else object())
    for group in (shipped(name), {**shipped("several"), "trackers": ["wandb", name]}):
        with pytest.raises(UserError, match=f"needs the package {name}, which is not installed") as caught:
            check_tracking(group)
        assert f"pip install 'posenc[{name}]'" in caught.value.text()
    check_tracking({**shipped("several"), "trackers": ["wandb"]})


def test_no_tracker_takes_everything_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    with caplog.at_level(logging.DEBUG, "posenc"):
        for name in ("none", "wandb"):
            tracked = begin(name, tmp_path / "run")
            tracked.log({"loss": 1.0}, 1)
            tracked.evaluation([{"anything": "at all"}])
            tracked.finish("finished")
    assert not (tmp_path / "run").exists() and caplog.text == ""
