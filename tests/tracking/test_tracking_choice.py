from __future__ import annotations

import importlib.util
import json
import logging
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from shipped import installed, shipped

from posenc.core.errors import UserError
from posenc.core.paths import conf_dir
from posenc.tracking import TRACKERS, build_tracker, check_tracking


def test_every_yaml_names_a_tracker_and_has_exactly_the_keys_it_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())  # as if all were installed
    files = sorted((conf_dir() / "tracking").glob("*.yaml"))
    assert [file.stem for file in files] == sorted(TRACKERS)
    for file in files:
        group = shipped(file.stem)
        assert group["name"] == file.stem
        check_tracking(group)
        for key in set(group) - {"name"}:
            with pytest.raises(UserError, match="missing"):
                check_tracking({k: v for k, v in group.items() if k != key})


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("name", "wanbd", "did you mean: wandb"),
        ("name", None, "allowed: none, several, tensorboard, trackio, wandb"),
        ("name", "../x", "no such tracker"),
        ("mode", "onlin", "did you mean: online"),
        ("mode", True, "tracking.mode"),
        ("projct", "x", "did you mean: tracking.project"),
        ("project", "a/b", "does not take this name"),
        ("project", "", "does not take this name"),
        ("entity", "x" * 129, "1 to 128 characters"),
        ("tags", "one", "a list, each text"),
        ("timeout", 0, "seconds above 0"),
        ("timeout", float("nan"), "seconds above 0"),
        ("timeout", "8", "a number"),
    ],
)
def test_wrong_input_is_refused_before_anything_runs(
    wandb_group: dict[str, Any], key: str, value: object, says: str
) -> None:
    with pytest.raises(UserError) as caught:
        check_tracking({**wandb_group, key: value})
    assert says in caught.value.text()


def test_online_without_a_key_is_refused(
    wandb_group: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("WANDB_BASE_URL", "http://user:word@wandb.example:8080/")
    with pytest.raises(UserError) as caught:
        check_tracking({**wandb_group, "mode": "online"})
    assert caught.value.key == "tracking.mode"
    assert "no W&B API key for wandb.example:8080" in caught.value.text()
    assert "wandb login" in caught.value.text()
    with pytest.raises(UserError):
        build_tracker(
            {**wandb_group, "mode": "online"},
            run_name="r",
            group=None,
            tags=[],
            config={},
            run_dir=tmp_path / "run",
        )
    assert not (tmp_path / "run").exists()

    monkeypatch.setenv("WANDB_API_KEY", "k" * 40)
    check_tracking({**wandb_group, "mode": "online"})


def test_online_asked_for_by_the_environment_is_held_to_it(
    wandb_group: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    with pytest.raises(UserError, match="WANDB_MODE=online"):
        check_tracking(wandb_group)
    check_tracking({**wandb_group, "mode": "offline"})


def test_no_tracker_takes_everything_and_leaves_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG):
        tracker = build_tracker(
            {"name": "none"}, run_name="r", group="g", tags=["rope"], config={}, run_dir=tmp_path / "run"
        )
        tracker.log({"loss": 1.0}, 1)
        tracker.evaluation([{"anything": "at all"}])
        tracker.finish("finished")
        tracker.finish("failed")
    assert not (tmp_path / "run").exists()
    assert caplog.text == ""


def test_disabled_by_the_environment_leaves_nothing(
    wandb_group: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_MODE", "disabled")
    tracker = build_tracker(
        wandb_group, run_name="r", group=None, tags=[], config={}, run_dir=tmp_path / "run"
    )
    tracker.log({"loss": 1.0}, 1)
    tracker.finish("finished")
    assert not (tmp_path / "run").exists()


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    program = (
        "import json, sys; from posenc.tracking import check_tracking\n"
        "for group in json.loads(sys.argv[1]): check_tracking(group)\n"
        "heavy = {'wandb', 'trackio', 'tensorboard', 'torch', 'matplotlib'} & set(sys.modules)\n"
        "assert not heavy, heavy"
    )
    groups = [shipped(name) for name in ("none", "wandb", *installed())]
    subprocess.run([sys.executable, "-c", program, json.dumps(groups)], check=True)
