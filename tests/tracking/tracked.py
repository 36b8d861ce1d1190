"""The config groups as shipped, a run to track, and what each tracker has of it, read by its own reader."""

import functools
import json
import subprocess
import sysconfig
from typing import NamedTuple

import yaml

from posenc.core.paths import conf_dir
from posenc.settings.tree import TrackingSettings
from posenc.tracking import TrackedRun, build_tracker

TRACKERS = ("tensorboard", "trackio", "wandb")
CONFIG = {
    "encoding": {"name": "rope", "base": 10000.0},
    "data": {"name": "sympy"},
    "eval": {"split": "test"},
    "context_length": 64,
    "seed": 3,
}


def shipped(name, **changes):
    """The settings of a tracker as its YAML has them, with changes."""
    values = yaml.safe_load((conf_dir() / "tracking" / f"{name}.yaml").read_text())
    return TrackingSettings.model_validate({**values, **changes})


def begin(name, run, group="sweep-1", tags=("rope",), **changes):
    """Start a tracker as shipped, but for changes."""
    return build_tracker(shipped(name, **changes), TrackedRun(run.name, group, tags, CONFIG, run))


class Stored(NamedTuple):
    """What a tracker has of a run: (at, value) in order, and the names of everything."""

    losses: list[tuple[int, float]]
    windows: list[tuple[int, float]]
    positions: list[int]
    names: set[str]


class Point(NamedTuple):
    at: int
    name: str
    value: float


def stored(name, run):
    """Read what a tracker has of a run."""
    read = {"tensorboard": _tensorboard, "trackio": _trackio, "wandb": _wandb}[name]
    points = list(read(run))

    def curve(metric):
        return [(point.at, round(point.value, 4)) for point in points if point.name == metric]

    return Stored(
        losses=curve("train/loss"),
        windows=curve("eval/fixed-target/nats"),
        positions=[at for at, _ in curve("eval/positions/nats-by-position")],
        names={point.name for point in points},
    )


def _tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for folder in (run / "tensorboard", run / "tensorboard" / "eval"):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            # sorted: the files' names hold seconds, and here several are of one second
            yield from sorted(Point(event.step, tag, event.value) for event in events.Scalars(tag))


def _trackio(run):
    from trackio.sqlite_storage import SQLiteStorage

    for row in SQLiteStorage.get_logs("posenc", run.name):
        for name, value in row.items():
            yield Point(row["step"], name, value)


def _wandb(run):
    for directory in offline_runs(run):
        for row in history(directory):
            at = row.get("eval/window", row.get("eval/position", row["_step"]))
            for name, value in row.items():
                yield Point(at, name.split("._type")[0], value)


def offline_runs(run):
    """W&B's offline runs below a run directory, in the order of their beginning."""
    files = (run / "wandb").glob("offline-run-*/*.wandb")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_ctime_ns)]


@functools.cache
def contents(directory):
    """Every entry of the file of a W&B run that has ended, read by wandb's own reader."""
    command = [f"{sysconfig.get_path('scripts')}/wandb", "leet", "inspect", "--json", str(directory)]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in output.splitlines() if line.strip()]


def history(directory):
    return [entry["history"]["item"] for entry in contents(directory) if entry["type"] == "history"]
