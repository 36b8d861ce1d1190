"""What holds for every tracker: the same curves, nothing twice, seconds and a warning where it fails."""

import importlib.util
import json
import math

import pytest
from fake_runs import positions, record
from tracked import TRACKERS, begin, found, shipped

import posenc.tracking
from posenc.core.errors import UserError
from posenc.tracking import WINDOW, BaseTracker, TrackedRun, by_axis, check_tracking, curves_of, summary

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


@pytest.fixture(params=TRACKERS)
def tracker(request):
    pytest.importorskip(request.param, reason=f"needs posenc[{request.param}]")
    return str(request.param)


def records(*windows):
    return [dict(record(window, window / 64)) for window in windows]


def test_a_run_is_curves_against_steps_windows_and_positions(tracker, tmp_path, capfd):
    run = tmp_path / f"whole-{tracker}"
    tracked = begin(tracker, run)
    for step in (25, 50):
        tracked.log({"loss": 100 / step, "train/lr": 1e-3, "tokens": step}, step)
    tracked.evaluation([*records(64, 512), dict(positions())])
    tracked.finish("finished")
    tracked.log({"loss": 9.0}, 75)  # after the end
    got = found(tracker, run)
    assert got.losses == [(25, 4.0), (50, 2.0)]
    assert got.windows == [(64, pytest.approx(1.0)), (512, pytest.approx(8.0))]
    assert got.positions == [8, 16, 32, 48, 64, 96, 128, 256, 512]
    assert "train/lr" in got.names
    assert tracker == "wandb" or "eval/fixed-target/nats@8x" in got.names  # W&B has a summary apart
    assert capfd.readouterr().out == ""


def test_a_resumed_run_goes_on_without_doubled_points(tracker, tmp_path):
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
    assert kept["group"] == "a" and kept["step"] >= 100  # it stays in the group that it began in


class Failing(BaseTracker):
    """One that writes down what it is sent, and fails at it."""

    label = "the tracker"

    def __init__(self, run):
        super().__init__(TrackedRun("r", "g", [], {"seed": 1}, run), "written")
        self.save()
        self.got = []

    def send(self, row, axis, at):
        self.got.append(at)
        raise OSError(f"gone with {'k' * 40}\nand more\x1b")

    def end(self, status):
        self.got.append(status)


def test_the_first_failure_is_one_warning_and_is_not_remembered(tmp_path, caplog, monkeypatch):
    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    tracked = Failing(tmp_path)
    for step in (25, 50):
        tracked.log({"loss": 1.0}, step)
    tracked.evaluation(records(64))
    tracked.finish("failed")
    tracked.finish("finished")
    (line,) = [one.getMessage() for one in caplog.records]
    assert line == "the tracker is switched off, the run goes on without it (OSError: gone with ***)."
    assert tracked.got == [25, "failed"] and Failing(tmp_path).progress.step == -1


def test_every_yaml_has_exactly_the_keys_that_its_tracker_takes(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # as if all were installed
    for name in posenc.tracking.TRACKERS:
        group = shipped(name)
        check_tracking(group)
        for key in set(group) - {"name"}:
            with pytest.raises(UserError, match="missing"):
                check_tracking({k: v for k, v in group.items() if k != key})


def test_a_missing_extra_is_refused_with_the_command_that_installs_it(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None)
    for name in ("trackio", "tensorboard"):
        with pytest.raises(UserError, match=f"needs the package {name}, which is not installed") as caught:
            check_tracking(shipped(name))
        assert f"pip install 'posenc[{name}]'" in caught.value.text()


def cell(protocol, window, nats, **more):
    ppl = None if nats is None else math.exp(nats) if nats < 700 else math.inf
    where = {"protocol": protocol, "window": window, "multiple": window / 64, "targets_hash": "a"}
    return {**where, "nats": nats, "ppl": ppl, **more}


def test_what_could_not_be_measured_is_left_out_not_drawn_as_zero():
    figures = {64: 1.0, 128: 800.0, 256: None, 512: math.nan}
    curves = curves_of([cell("fixed-target", *one) for one in figures.items()], {})
    rows = by_axis(curves)[WINDOW]
    assert list(rows) == [64, 128] and "eval/fixed-target/ppl" not in rows[128]
    assert summary(curves) == {"eval/fixed-target/nats@1x": 1.0, "eval/fixed-target/nats@2x": 800.0}


def test_other_text_and_extensions_are_curves_of_their_own_other_targets_and_strides_are_left_out():
    config = {"data": {"name": "sympy"}, "context_length": 64, "eval": {"split": "test"}}
    own = {"corpus": "sympy", "split": "test", "stride": None, "extend": None}
    ways = [
        ({}, "sliding"),
        ({"corpus": "stdlib"}, "sliding on stdlib"),
        ({"split": "validation"}, "sliding validation"),
        ({"extend": {"name": "pi", "factor": "auto"}}, "sliding+pi"),
        ({"extend": {"name": "pi", "factor": 4, "resolved": {"factor": 4}}}, "sliding+pi factor=4"),
    ]
    records = [cell("sliding", 64, float(i), **{**own, **more}) for i, (more, _) in enumerate(ways)]
    (row,) = by_axis(curves_of(records, config))[WINDOW].values()
    assert {f"eval/{name}/nats" for _, name in ways} <= set(row)
    both = [cell("sliding", w, 1.0, **{**own, "stride": 16, "targets_hash": f"{w}"}) for w in (64, 512)]
    fine = cell("sliding", 64, 2.0, **{**own, "stride": 8, "targets_hash": "b"})
    fixed = [cell("fixed-target", w, 1.0) for w in (64, 512)]
    far = cell("fixed-target", 1024, 3.0, targets_hash="b")
    for protocol, given in (("sliding", [fine, *both]), ("fixed-target", [far, *fixed])):
        found = summary(curves_of(given, config))
        assert found == {f"eval/{protocol}/nats@1x": 1.0, f"eval/{protocol}/nats@8x": 1.0}
