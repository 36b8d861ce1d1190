from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from fake_runs import record
from leet import history, offline_runs
from shipped import shipped

from posenc.config.compose import compose_jobs
from posenc.config.overrides import parse
from posenc.core.errors import UserError
from posenc.tracking import build_tracker, check_tracking


@pytest.fixture
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())


def composed(*overrides: str) -> dict[str, Any]:
    (job,) = compose_jobs("train", parse(list(overrides))).jobs
    tracking: dict[str, Any] = job.settings["tracking"]
    return tracking


def test_each_has_its_own_settings_below_its_name(several_group: dict[str, Any], all_installed: None) -> None:
    given = composed("tracking=several", "tracking.trackers=[wandb,trackio]", "tracking.wandb.project=mine")
    assert given["wandb"] == {**shipped("wandb"), "project": "mine"}
    assert given["trackio"] == shipped("trackio")
    assert {**given, "trackers": [], "wandb": {}} == {**several_group, "trackers": [], "wandb": {}}
    check_tracking(given)


@pytest.mark.parametrize(
    ("change", "key", "says"),
    [
        ({"trackers": ["wandb", "tensorbord"]}, "tracking.trackers", "did you mean: tensorboard"),
        ({"trackers": ["several"]}, "tracking.trackers", "allowed: wandb, trackio, tensorboard"),
        ({"trackers": []}, "tracking.trackers", "none is named"),
        ({"trackers": "wandb"}, "tracking.trackers", "a list"),
        ({"wandb": {"project": "a/b"}}, "tracking.wandb.project", "does not take this name"),
        ({"wandb": {"mode": "online"}}, "tracking.wandb.mode", "tracking.wandb.mode=offline"),
        ({"wandb": {"projct": "x"}}, "tracking.wandb.projct", "did you mean: tracking.wandb.project"),
        (
            {"trackio": {"projct": "x"}},
            "tracking.trackio.projct",
            "did you mean",
        ),  # not asked for, still wrong
        ({"tensorboard": {"plots": ["x"]}}, "tracking.tensorboard.plots", "no such plot"),
    ],
)
def test_wrong_input_is_refused_by_its_full_name(
    several_group: dict[str, Any], all_installed: None, change: dict[str, Any], key: str, says: str
) -> None:
    for name, value in change.items():
        several_group[name] = {**several_group[name], **value} if isinstance(value, dict) else value
    with pytest.raises(UserError) as caught:
        check_tracking(several_group)
    assert caught.value.key == key
    assert says in caught.value.text()


@pytest.mark.parametrize("name", ["trackio", "tensorboard"])
def test_a_missing_extra_is_refused_with_the_command_that_installs_it(
    several_group: dict[str, Any], monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda package: None if package == name else object())
    for group in (shipped(name), {**several_group, "trackers": ["wandb", name]}):
        with pytest.raises(UserError, match=f"needs the package {name}, which is not installed") as caught:
            check_tracking(group)
        assert f"pip install 'posenc[{name}]'" in caught.value.text()
    check_tracking({**several_group, "trackers": ["wandb"]})


def test_the_failure_of_one_is_its_own(
    several_group: dict[str, Any], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    pytest.importorskip("tensorboard", reason="needs posenc[tensorboard]")
    (tmp_path / "tensorboard").write_text("in the way")
    for group in ("wandb", "tensorboard"):
        several_group[group]["plots"] = []
    tracker = build_tracker(
        {**several_group, "trackers": ["tensorboard", "wandb", "wandb"]},
        run_name="r",
        group="g",
        tags=[],
        config={},
        run_dir=tmp_path,
    )
    tracker.log({"loss": 1.0}, 25)
    tracker.evaluation([dict(record(64, 1.0))])
    tracker.finish("finished")
    (directory,) = offline_runs(tmp_path)
    rows = history(directory)
    assert [row["train/loss"] for row in rows if "train/loss" in row] == [1.0]
    assert [row["eval/window"] for row in rows if "eval/window" in row] == [64]
    said = [one.getMessage() for one in caplog.records if one.name.startswith("posenc")]
    assert len(said) == 2 and "TensorBoard could not start" in said[0] and "W&B is offline" in said[1]
