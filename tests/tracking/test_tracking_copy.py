"""What every tracker does alike, seen on one that writes down what it is sent."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from posenc.tracking import TrackedRun
from posenc.tracking.copy import Copy, Evaluation
from posenc.tracking.memory import recall


def cell(window: int, nats: float = 1.0, **more: Any) -> dict[str, Any]:
    figures = {"nats": nats, "bpb": nats, "ppl": nats, "multiple": window / 64}
    return {"protocol": "fixed-target", "window": window, "targets_hash": "a", **figures, **more}


class Written(Copy):
    label = "the tracker"

    def __init__(self, directory: Path, fails: bool = False, timeout: float = 5.0) -> None:
        run = TrackedRun("r", "g", [], {"seed": 1}, directory)
        super().__init__(run, recall(directory, "written", "g"), timeout, [])
        self.memory.save()
        self.steps: list[int | None] = []
        self.windows: list[float] = []
        self.ended: list[str] = []
        self.fails = fails

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        if self.fails:
            raise OSError("gone")
        self.steps.append(step)

    def send_evaluation(self, shown: Evaluation) -> None:
        self.windows += [row["eval/window"] for row in shown.windows]

    def end(self, status: str) -> None:
        self.ended.append(status)


def test_steps_that_were_given_before_a_stop_are_not_given_again(tmp_path: Path) -> None:
    first = Written(tmp_path)
    for step in (25, 50, 75):
        first.log({"loss": 1.0}, step)
    again = Written(tmp_path)  # without a finish: it was killed
    for step in (50, 75, 100):
        again.log({"loss": 1.0}, step)
    assert (first.steps, again.steps) == ([25, 50, 75], [100])
    assert again.memory.id == first.memory.id


def test_cells_are_given_once_and_other_targets_again(tmp_path: Path) -> None:
    first = Written(tmp_path)
    first.evaluation([cell(64), cell(128)])
    again = Written(tmp_path)
    again.evaluation([cell(64), cell(128), cell(256)])
    again.evaluation([cell(64, targets_hash="b")])
    again.evaluation([cell(64, extend={"name": "yarn"})])
    assert (first.windows, again.windows) == ([64, 128], [256, 64, 64])


def test_what_failed_is_not_remembered(tmp_path: Path) -> None:
    Written(tmp_path, fails=True).log({"loss": 1.0}, 25)
    again = Written(tmp_path)
    again.log({"loss": 1.0}, 25)
    assert again.steps == [25]


@pytest.mark.parametrize(
    "content",
    ["", "{", "[]", '{"id": "../../x"}', '{"id": 3}', "\0", '{"id": "abcdefgh", "group": null, "step": "x"}'],
)
def test_a_memory_that_is_damaged_or_foreign_is_a_new_one(tmp_path: Path, content: str) -> None:
    file = tmp_path / "tracking" / "written.json"
    file.parent.mkdir()
    file.write_text(content)
    memory = recall(tmp_path, "written", "g")
    assert memory.id.isalnum() and memory.id not in content and not memory.known
    memory.reached(5)
    assert recall(tmp_path, "written", "other").group == "g"
    assert json.loads(file.read_text())["step"] == 5
    assert recall(tmp_path, "another tracker", "g").id != memory.id


def test_a_run_directory_that_cannot_be_written_does_no_harm(tmp_path: Path) -> None:
    (tmp_path / "tracking").write_text("a file, so that there can be no folder")
    tracker = Written(tmp_path)
    tracker.log({"loss": 1.0}, 25)
    tracker.finish("finished")
    assert (tracker.steps, tracker.ended) == ([25], ["finished"])


def test_the_first_failure_is_one_warning_and_the_run_is_ended_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tracker = Written(tmp_path, fails=True)
    for step in range(5):
        tracker.log({"loss": 1.0}, step)
    tracker.evaluation([cell(64)])
    tracker.finish("failed")
    tracker.finish("finished")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line == "the tracker is switched off, the run goes on without it (OSError: gone)."
    assert (tracker.windows, tracker.ended) == ([], ["failed"])


def test_a_call_that_hangs_is_given_up_and_the_end_does_not_wait_again(tmp_path: Path) -> None:
    class Hanging(Written):
        def send_step(self, row: Mapping[str, float], step: int | None) -> None:
            time.sleep(60)

        def end(self, status: str) -> None:
            time.sleep(60)

    begun = time.monotonic()
    tracker = Hanging(tmp_path, timeout=0.2)
    tracker.log({"loss": 1.0}, 1)
    tracker.log({"loss": 1.0}, 2)
    tracker.finish("finished")
    assert time.monotonic() - begun < 10
