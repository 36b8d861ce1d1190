"""Real event files, read with TensorBoard's own reader."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from fake_runs import positions, record, write_run
from shipped import shipped

from posenc.tracking import Tracker, build_tracker

pytest.importorskip("tensorboard", reason="needs posenc[tensorboard]")
CONFIG = {"encoding": {"name": "rope", "base": 10000.0}, "seed": 3, "train": {"lr": 2e-3}}


def begin(run: Path, plots: list[str] | None = None) -> Tracker:
    group = {**shipped("tensorboard"), "plots": plots or []}
    return build_tracker(group, run_name=run.name, group="sweep-1", tags=["rope"], config=CONFIG, run_dir=run)


def read(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    found = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0, "images": 0})
    found.Reload()
    return found


def points(events: Any, tag: str) -> list[tuple[int, float]]:
    return [(event.step, round(event.value, 4)) for event in events.Scalars(tag)]


def test_training_and_evaluation_are_curves(tmp_path: Path) -> None:
    run = write_run(tmp_path, records=[record(64, 1.0), record(512, 1.5), positions()])
    tracker = begin(run, ["context"])
    for step in (25, 50):
        tracker.log({"tokens": step * 2048.0, "loss": 100 / step}, step)
    tracker.evaluation([dict(one) for one in (record(64, 1.0), record(512, 1.5), positions())])
    tracker.finish("finished")

    training, measured = read(run / "tensorboard"), read(run / "tensorboard" / "eval")
    assert points(training, "train/loss") == [(25, 4.0), (50, 2.0)]
    assert points(training, "eval/fixed-target/nats@8x") == [(50, 1.5)]
    assert points(measured, "eval/fixed-target/nats") == [(64, 1.0), (512, 1.5)]
    at = points(measured, "eval/positions/nats-by-position")
    assert at == [(p, round(1 + i / 10, 4)) for i, p in enumerate([8, 16, 32, 48, 64, 96, 128, 256, 512])]
    (picture,) = measured.Images("plots/context")
    assert picture.encoded_image_string.startswith(b"\x89PNG")
    assert (picture.width, picture.height) > (500, 300)
    (table,) = measured.Tensors("evaluation")
    assert b"| rope | fixed-target | 512 | 8.0000 | 1.5000" in table.tensor_proto.string_val[0]
    (config,) = training.Tensors("config")
    assert b'"base": 10000.0' in config.tensor_proto.string_val[0]


def test_the_settings_are_hyperparameters(tmp_path: Path) -> None:
    from tensorboard.plugins.hparams import metadata

    tracker = begin(tmp_path)
    tracker.log({"loss": 1.0}, 1)
    tracker.finish("diverged")
    plugin = read(tmp_path / "tensorboard").PluginTagToContent("hparams")
    start = metadata.parse_session_start_info_plugin_data(plugin[metadata.SESSION_START_INFO_TAG])
    values = {key: value.string_value or value.number_value for key, value in start.hparams.items()}
    assert values == {
        "encoding.name": "rope",
        "encoding.base": 10000,
        "seed": 3,
        "train.lr": 0.002,
        "group": "sweep-1",
    }
    end = metadata.parse_session_end_info_plugin_data(plugin[metadata.SESSION_END_INFO_TAG])
    assert end.status == 2  # failure


def test_a_run_that_was_killed_goes_on_without_doubled_points(tmp_path: Path) -> None:
    program = (
        "import json, os, sys; from posenc.tracking import build_tracker\n"
        "given = dict(run_name='r', group=None, tags=[], config={}, run_dir='.')\n"
        "t = build_tracker(json.loads(sys.argv[1]), **given)\n"
        "for step in (25, 50, 75): t.log({'loss': float(step)}, step)\n"
        "os.kill(os.getpid(), 9)"
    )
    group = '{"name": "tensorboard", "timeout": 7, "plots": []}'
    killed = subprocess.run([sys.executable, "-c", program, group], cwd=tmp_path)
    assert killed.returncode == -9
    for _ in range(2):
        tracker = begin(tmp_path)
        for step in (50, 75, 100):
            tracker.log({"loss": float(step)}, step)
        tracker.evaluation([dict(record(64, 1.0))])
        tracker.finish("finished")
    # sorted: the files' names hold seconds, and here several are of one second
    training = sorted(points(read(tmp_path / "tensorboard"), "train/loss"))
    assert training == [(step, float(step)) for step in (25, 50, 75, 100)]
    assert points(read(tmp_path / "tensorboard" / "eval"), "eval/fixed-target/nats") == [(64, 1.0)]


def test_a_run_whose_event_files_were_deleted_begins_anew(tmp_path: Path) -> None:
    import shutil

    begin(tmp_path).log({"loss": 1.0}, 25)
    shutil.rmtree(tmp_path / "tensorboard")
    tracker = begin(tmp_path)
    tracker.log({"loss": 1.0}, 25)
    tracker.finish("finished")
    assert points(read(tmp_path / "tensorboard"), "train/loss") == [(25, 1.0)]


@pytest.mark.skipif(os.name == "nt", reason="needs a path that is a file")
def test_a_folder_that_cannot_be_made_is_one_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "tensorboard").write_text("in the way")
    tracker = begin(tmp_path)
    tracker.log({"loss": 1.0}, 25)
    tracker.evaluation([dict(record(64, 1.0))])
    tracker.finish("finished")
    (line,) = [one.getMessage() for one in caplog.records if one.name.startswith("posenc")]
    assert "TensorBoard could not start, the run goes on without it" in line
