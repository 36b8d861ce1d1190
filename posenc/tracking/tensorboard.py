"""TensorBoard: event files in the run directory. `tensorboard --logdir runs` shows them."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any

from posenc.tracking import metrics as figures
from posenc.tracking.base import TrackedRun, Tracker
from posenc.tracking.copy import Copy, Evaluation, check_timeout, refuse_without
from posenc.tracking.guard import reason
from posenc.tracking.memory import Memory, recall
from posenc.tracking.none import NoTracker
from posenc.tracking.pictures import check_plots
from posenc.tracking.tensorboard_events import Events

logger = logging.getLogger(__name__)

FOLDER = (
    "tensorboard"  # in the run directory; its `eval` is a run of its own, whose steps are tokens of context
)


def check(*, timeout: float, plots: list[str]) -> None:
    """Raise UserError for a missing package."""
    refuse_without("tensorboard", "tracking", "tensorboard", "tensorboard")
    check_timeout(timeout)
    check_plots(plots)


def start(run: TrackedRun, *, timeout: float, plots: list[str]) -> Tracker:
    """Write event files, or go on where those of this run directory end. Never raises."""
    try:
        memory = recall(run.directory, "tensorboard", run.group)
        folder = run.directory / FOLDER
        if memory.known and not folder.is_dir():  # somebody deleted them
            memory = Memory(memory.file, memory.id, memory.group)
        tracker = TensorboardTracker(run, memory, Events(folder), Events(folder / "eval"), timeout, plots)
        if not memory.known:
            tracker.describe()
        memory.save()
        return tracker
    except Exception as error:
        logger.warning("TensorBoard could not start, the run goes on without it (%s)", reason(error))
        return NoTracker()


class TensorboardTracker(Copy):
    """Two folders of event files: training against steps, evaluation against window and position."""

    label = "TensorBoard"

    def __init__(
        self,
        run: TrackedRun,
        memory: Memory,
        training: Events,
        measured: Events,
        timeout: float,
        plots: Sequence[str],
    ) -> None:
        super().__init__(run, memory, timeout, plots)
        self._training = training
        self._measured = measured

    def describe(self) -> None:
        """The configuration, as text and as hyperparameters."""
        config = json.dumps(self.run.config, indent=2, ensure_ascii=False, default=str)
        self._training.text("config", "\n".join(f"    {line}" for line in config.splitlines()))
        self._training.hyperparameters(hyperparameters(self.run), self.run.name, time.time())
        self._training.flush()

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        self._training.scalars(row, step or 0)
        self._training.flush()  # what a kill leaves behind is what `memory` says

    def send_evaluation(self, shown: Evaluation) -> None:
        for rows, at in ((shown.windows, "eval/window"), (shown.positions, "eval/position")):
            for row in rows:
                self._measured.scalars({k: v for k, v in row.items() if k != at}, int(row[at]))
        last = max(self.memory.step, 0)
        self._training.scalars(shown.summary, last)  # beside the hyperparameters: columns of their table
        for kind, png in shown.pictures.items():
            self._measured.image(f"plots/{kind}", png, last)
        self._measured.text("evaluation", markdown(shown.table), last)
        self._training.flush()
        self._measured.flush()

    def end(self, status: str) -> None:
        self._training.end_of_session(status == "finished", time.time())
        self._training.close()
        self._measured.close()


def hyperparameters(run: TrackedRun) -> dict[str, Any]:
    """Flat settings that a dashboard can filter by: text, numbers, truth values."""
    from posenc.results.settings import flatten

    skipped = ("tracking.", "eval.", "data.exclude")
    flat = flatten(dict(run.config))
    found: dict[str, Any] = {}
    for key, text in flat.items():
        if key.startswith(skipped):
            continue
        try:
            found[key] = float(text)
        except ValueError:
            found[key] = text
    if run.group is not None:
        found["group"] = run.group
    return found


def markdown(rows: Sequence[Sequence[Any]]) -> str:
    """The table of an evaluation."""
    lines = [figures.COLUMNS, ["---"] * len(figures.COLUMNS), *rows]
    return "\n".join(f"| {' | '.join(_cell(cell) for cell in line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4f}" if isinstance(value, float) else str(value).replace("|", "\\|")
