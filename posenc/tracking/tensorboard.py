"""Track with TensorBoard: event files in the run directory. Look: `tensorboard --logdir runs`."""

from __future__ import annotations

from typing import Any

from posenc.results.numbers import flatten
from posenc.tracking.curves import STEP, Row
from posenc.tracking.tracker import BaseTracker, TrackedRun, TrackerState

FOLDER = "tensorboard"  # in the run directory; the steps of its folder `eval` are tokens of context
NOT_FILTERED_BY = ("tracking.", "eval.", "data.exclude")  # beginnings of keys


class TensorboardTracker(BaseTracker):
    """Write two folders of event files: training against steps, evaluation against window and position."""

    label = "TensorBoard"

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(run, "tensorboard")
        folder = run.directory / FOLDER
        if self.resumed and not folder.is_dir():  # somebody deleted them
            self.state = TrackerState(self.state.id, self.state.group)
            self.resumed = False
        self._training: Any = SummaryWriter(str(folder))
        self._measured: Any = SummaryWriter(str(folder / "eval"))
        if not self.resumed:
            # "." is this folder; without a name TensorBoard makes a run of its own
            self._training.add_hparams(hyperparameters(run), {}, run_name=".")
        self.save()

    def send(self, row: Row, axis: str, at: int) -> None:
        """Write scalars; the summary's, beside the hyperparameters, are columns of their table."""
        writer = self._training if axis == STEP else self._measured
        for name, value in row.items():
            writer.add_scalar(name, value, at)
        writer.flush()  # what a kill leaves behind is what the state says

    def end(self, status: str) -> None:
        self._training.add_text("status", status)
        self._training.close()
        self._measured.close()


def hyperparameters(run: TrackedRun) -> dict[str, float | str]:
    """Return flat settings that a dashboard can filter by."""
    values: dict[str, float | str] = {}
    for key, text in flatten(dict(run.config)).items():
        if not key.startswith(NOT_FILTERED_BY):
            values[key] = _number_or_text(text)
    if run.group is not None:
        values["group"] = run.group
    return values


def _number_or_text(text: str) -> float | str:
    try:
        return float(text)
    except ValueError:
        return text
