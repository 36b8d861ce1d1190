"""Track with TensorBoard: event files in the run directory. Look: `tensorboard --logdir runs`."""

from __future__ import annotations

from typing import Any

from posenc.results.numbers import flat_texts
from posenc.tracking.curves import STEP, Row
from posenc.tracking.tracker import EVENTS_FOLDER, BaseTracker, TrackedRun, TrackerState

NO_HYPERPARAMETERS = ("tracking.", "eval.", "data.exclude")  # beginnings of keys that nobody filters runs by


class TensorboardTracker(BaseTracker):
    """Write two folders of event files: of the training by step, of the evaluation by window and position."""

    label = "TensorBoard"

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(run, "tensorboard")
        folder = run.directory / EVENTS_FOLDER
        if self.resumed and not folder.is_dir():  # somebody deleted the files
            # By the old state everything was sent, and the new files would stay empty.
            self.state = TrackerState(self.state.id, self.state.group)
            self.resumed = False
        self._training_writer: Any = SummaryWriter(str(folder))
        # A folder of its own: TensorBoard counts steps along one axis for each folder, and these are tokens.
        self._eval_writer: Any = SummaryWriter(str(folder / "eval"))
        if not self.resumed:
            # "." is this folder; without a name TensorBoard shows the hyperparameters as another run
            self._training_writer.add_hparams(hyperparameters(run), {}, run_name=".")
        self.save()

    def send(self, row: Row, axis: str, x: int) -> None:
        """Write scalars. Those of the summary become columns of TensorBoard's table of hyperparameters."""
        writer = self._training_writer if axis == STEP else self._eval_writer
        for name, value in row.items():
            writer.add_scalar(name, value, x)
        writer.flush()  # so that files and state agree after a kill

    def end(self, status: str) -> None:
        self._training_writer.add_text("status", status)
        self._training_writer.close()
        self._eval_writer.close()


def hyperparameters(run: TrackedRun) -> dict[str, float | str]:
    """Return flat settings that a dashboard can filter by."""
    values: dict[str, float | str] = {}
    for key, text in flat_texts(dict(run.config)).items():
        if not key.startswith(NO_HYPERPARAMETERS):
            values[key] = _number_or_text(text)
    if run.group is not None:
        values["group"] = run.group
    return values


def _number_or_text(text: str) -> float | str:
    try:
        # TensorBoard filters numbers by ranges and texts by ticking them, so that a rate must not be a text.
        return float(text)
    except ValueError:
        return text
