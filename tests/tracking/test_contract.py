"""What holds for every tracker: the same curves, nothing twice, seconds and a warning where it fails."""

import importlib.util
import json
from dataclasses import dataclass

import pytest
from fake_runs import positions, record
from tracked import CONFIG, TRACKERS, Stored, begin, shipped, stored

import posenc.tracking
from posenc.core.errors import UserError
from posenc.settings.tree import TrackingSettings
from posenc.tracking import BaseTracker, TrackedRun, check_tracking

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(params=TRACKERS)
def tracker(request):
    pytest.importorskip(request.param, reason=f"needs posenc[{request.param}]")
    return str(request.param)


def records(*windows):
    return [dict(record(window, window / 64)) for window in windows]


# --- One run


@pytest.fixture(scope="module")
def already_made():
    """What each tracker has of the runs here, made by the first test that asks for it."""
    return {}


@pytest.fixture
def whole(tracker, tmp_path, capfd, already_made):
    """What a tracker has of a run that was trained and measured."""
    key = ("whole", tracker)
    if key not in already_made:
        already_made[key] = make_whole(tracker, tmp_path, capfd)
    return already_made[key]


def make_whole(tracker, tmp_path, capfd):
    run = tmp_path / f"whole-{tracker}"
    tracked = begin(tracker, run)
    for step in (25, 50):
        tracked.log({"loss": 100 / step, "train/lr": 1e-3, "tokens": step}, step)
    tracked.log_evaluation([*records(64, 512), dict(positions())])
    tracked.finish("finished")
    tracked.log({"loss": 9.0}, 75)  # after the end
    assert capfd.readouterr().out == ""
    return stored(tracker, run)


def test_losses_are_against_steps_until_the_end(whole):
    assert whole.losses == [(25, 4.0), (50, 2.0)]


def test_the_evaluation_is_against_windows(whole):
    assert whole.windows == [(64, pytest.approx(1.0)), (512, pytest.approx(8.0))]


def test_the_loss_by_position_is_against_positions(whole):
    assert whole.positions == [8, 16, 32, 48, 64, 96, 128, 256, 512]


def test_a_name_with_a_slash_stays(whole):
    assert "train/lr" in whole.names


def test_the_summary_has_multiples(whole, tracker):
    assert tracker == "wandb" or "eval/fixed-target/nats@8x" in whole.names  # W&B has a summary apart


# --- A run that goes on


@dataclass(frozen=True)
class Resumed:
    """What a tracker has of a run that was stopped, and its own notes about it."""

    stored: Stored
    state: dict


@pytest.fixture
def resumed(tracker, tmp_path, already_made):
    """A run that was stopped, and later measured once more by another sweep."""
    key = ("resumed", tracker)
    if key not in already_made:
        already_made[key] = make_resumed(tracker, tmp_path)
    return already_made[key]


def make_resumed(tracker, tmp_path):
    run = tmp_path / f"resumed-{tracker}"
    parts = [
        ("a", [25, 50, 75], [], "interrupted"),  # the checkpoint is of step 25
        ("b", [50, 75, 100], [64], "finished"),
        ("c", [100], [64, 512], "finished"),
    ]
    for sweep, steps, windows, status in parts:
        tracked = begin(tracker, run, group=sweep)
        for step in steps:
            tracked.log({"loss": float(step)}, step)
        tracked.log_evaluation(records(*windows))
        tracked.finish(status)
    state = json.loads((run / "tracking" / f"{tracker}.json").read_text())
    return Resumed(stored(tracker, run), state)


def test_a_resumed_run_has_no_doubled_steps(resumed):
    assert resumed.stored.losses == [(step, float(step)) for step in (25, 50, 75, 100)]


def test_a_resumed_run_has_no_doubled_windows(resumed):
    assert [window for window, _ in resumed.stored.windows] == [64, 512]


def test_a_resumed_run_stays_in_the_group_that_it_began_in(resumed):
    assert resumed.state["group"] == "a"
    assert resumed.state["step"] >= 100


# --- Failures


class Failing(BaseTracker):
    """Write down what is sent, and fail at it."""

    label = "the tracker"

    def __init__(self, run):
        super().__init__(TrackedRun("r", "g", [], CONFIG, run), "written")
        self.save()
        self.calls = []

    def send(self, row, axis, x):
        self.calls.append(x)
        raise OSError(f"gone with {'k' * 40}\nand more\x1b")

    def end(self, status):
        self.calls.append(status)


@pytest.fixture
def failing(tmp_path, monkeypatch):
    """A tracker that failed at its first step, and was used on."""
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    tracked = Failing(tmp_path)
    for step in (25, 50):
        tracked.log({"loss": 1.0}, step)
    tracked.log_evaluation(records(64))
    tracked.finish("failed")
    tracked.finish("finished")
    return tracked


def test_the_first_failure_is_one_warning_without_the_key(failing, caplog):
    (line,) = [entry.getMessage() for entry in caplog.get_records("setup")]
    assert line == "the tracker is switched off, the run goes on without it (OSError: gone with ***)."


def test_after_a_failure_nothing_is_sent_but_the_end_once(failing):
    assert failing.calls == [25, "failed"]


def test_what_failed_counts_as_not_sent(failing, tmp_path):
    assert Failing(tmp_path).state.step == -1


# --- Settings


@pytest.fixture
def all_installed(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


@pytest.mark.parametrize("name", posenc.tracking.TRACKERS)
def test_a_yaml_has_the_keys_that_its_tracker_takes(all_installed, name):
    check_tracking(shipped(name))


@pytest.mark.parametrize(
    ("name", "key"), [(name, key) for name in posenc.tracking.TRACKERS for key in shipped(name).parameters]
)
def test_a_yaml_has_every_key_that_its_tracker_takes(all_installed, name, key):
    values = shipped(name).plain()
    del values[key]
    with pytest.raises(UserError, match="has no default and no value"):
        check_tracking(TrackingSettings.model_validate(values))


@pytest.mark.parametrize("name", ["trackio", "tensorboard"])
def test_a_missing_extra_is_refused_with_the_command_that_installs_it(monkeypatch, name):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    with pytest.raises(UserError, match=f"needs the package {name}, which is not installed") as caught:
        check_tracking(shipped(name))
    assert f"pip install 'posenc[{name}]'" in caught.value.text()
