"""The config groups as shipped, a run to track, and what each tracker has of it, read by its own reader."""

import json
import subprocess
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import yaml

from posenc.core.paths import conf_dir
from posenc.tracking import TrackedRun, build_tracker

TRACKERS = ("tensorboard", "trackio", "wandb")
CONFIG = {"encoding": {"name": "rope", "base": 10000.0}, "context_length": 64, "seed": 3}


def shipped(name):
    """A config group."""
    return yaml.safe_load((conf_dir() / "tracking" / f"{name}.yaml").read_text())


def begin(name, run, group="sweep-1", tags=("rope",), **keys):
    """Start a tracker as shipped, but for `keys`."""
    settings = {**shipped(name), **keys}
    return build_tracker(settings, TrackedRun(run.name, group, tags, CONFIG, run))


@dataclass
class Found:
    """What a tracker has of a run: (where, value) in order, and the names of everything."""

    losses: list[tuple[int, float]]
    windows: list[tuple[int, float]]
    positions: list[int]
    names: set[str]


def found(name, run):
    """Read it back."""
    return {"tensorboard": _tensorboard, "trackio": _trackio, "wandb": _wandb}[name](run)


def _tensorboard(run):
    training, measured = event_files(run / "tensorboard"), event_files(run / "tensorboard" / "eval")

    def points(events, tag):
        there = tag in events.Tags()["scalars"]
        # sorted: the files' names hold seconds, and here several are of one second
        return sorted((e.step, round(e.value, 4)) for e in events.Scalars(tag)) if there else []

    positions = [step for step, _ in points(measured, "eval/positions/nats-by-position")]
    tags = {tag for events in (training, measured) for tag in events.Tags()["scalars"]}
    windows = points(measured, "eval/fixed-target/nats")
    return Found(points(training, "train/loss"), windows, positions, tags)


def event_files(folder):
    """TensorBoard's own reader of them."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0})
    return events.Reload()


def _trackio(run):
    from trackio.sqlite_storage import SQLiteStorage

    rows = SQLiteStorage.get_logs("posenc", run.name)

    def points(metric):
        return [(row["step"], round(row[metric], 4)) for row in rows if metric in row]

    positions = [step for step, _ in points("eval/positions/nats-by-position")]
    names = {key for row in rows for key in row}
    return Found(points("train/loss"), points("eval/fixed-target/nats"), positions, names)


def _wandb(run):
    rows = [row for directory in offline_runs(run) for row in history(directory)]
    losses = [(row["_step"], round(row["train/loss"], 4)) for row in rows if "train/loss" in row]
    windows = [(row["eval/window"], row["eval/fixed-target/nats"]) for row in rows if "eval/window" in row]
    positions = [row["eval/position"] for row in rows if "eval/position" in row]
    names = {name.split("._type")[0] for row in rows for name in row}
    return Found(losses, windows, positions, names)


def offline_runs(run):
    """W&B's offline runs below a run directory, in the order of their beginning."""
    files = (run / "wandb").glob("offline-run-*/*.wandb")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_ctime_ns)]


def contents(directory):
    """Every entry of a W&B run's file, read by wandb's own reader."""
    wandb = Path(sysconfig.get_path("scripts")) / "wandb"
    asked = [str(wandb), "leet", "inspect", "--json", str(directory)]
    said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in said.splitlines() if line.strip()]


def history(directory):
    """The rows of its history."""
    return [line["history"]["item"] for line in contents(directory) if line["type"] == "history"]
