"""The config groups as shipped, a run to track, and what each tracker has of it, read by its own reader."""

import json
import subprocess
import sysconfig
from typing import NamedTuple

import yaml

from posenc.core.paths import conf_dir
from posenc.tracking import TrackedRun, build_tracker

TRACKERS = ("tensorboard", "trackio", "wandb")
CONFIG = {"encoding": {"name": "rope", "base": 10000.0}, "context_length": 64, "seed": 3}


def shipped(name):
    return yaml.safe_load((conf_dir() / "tracking" / f"{name}.yaml").read_text())


def begin(name, run, group="sweep-1", tags=("rope",), **keys):
    """Start a tracker as shipped, but for `keys`."""
    return build_tracker({**shipped(name), **keys}, TrackedRun(run.name, group, tags, CONFIG, run))


class Found(NamedTuple):
    """What a tracker has of a run: (where, value) in order, and the names of everything."""

    losses: list[tuple[int, float]]
    windows: list[tuple[int, float]]
    positions: list[int]
    names: set[str]


def found(name, run):
    points = [*{"tensorboard": _tensorboard, "trackio": _trackio, "wandb": _wandb}[name](run)]

    def curve(metric):
        return [(at, round(value, 4)) for at, which, value in points if which == metric]

    positions = [at for at, _ in curve("eval/positions/nats-by-position")]
    names = {which for _, which, _ in points}
    return Found(curve("train/loss"), curve("eval/fixed-target/nats"), positions, names)


def _tensorboard(run):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    for folder in (run / "tensorboard", run / "tensorboard" / "eval"):
        events = EventAccumulator(str(folder), size_guidance={"scalars": 0, "tensors": 0}).Reload()
        for tag in events.Tags()["scalars"]:
            # sorted: the files' names hold seconds, and here several are of one second
            yield from sorted((e.step, tag, e.value) for e in events.Scalars(tag))


def _trackio(run):
    from trackio.sqlite_storage import SQLiteStorage

    for row in SQLiteStorage.get_logs("posenc", run.name):
        yield from ((row["step"], *item) for item in row.items())


def _wandb(run):
    for row in (row for directory in offline_runs(run) for row in history(directory)):
        at = row.get("eval/window", row.get("eval/position", row["_step"]))
        yield from ((at, name.split("._type")[0], value) for name, value in row.items())


def offline_runs(run):
    """W&B's offline runs below a run directory, in the order of their beginning."""
    files = (run / "wandb").glob("offline-run-*/*.wandb")
    return [file.parent for file in sorted(files, key=lambda file: file.stat().st_ctime_ns)]


def contents(directory):
    """Every entry of a W&B run's file, read by wandb's own reader."""
    asked = [f"{sysconfig.get_path('scripts')}/wandb", "leet", "inspect", "--json", str(directory)]
    said = subprocess.run(asked, check=True, capture_output=True, text=True).stdout
    return [json.loads(line) for line in said.splitlines() if line.strip()]


def history(directory):
    return [line["history"]["item"] for line in contents(directory) if line["type"] == "history"]
