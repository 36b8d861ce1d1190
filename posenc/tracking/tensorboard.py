"""Track with TensorBoard: event files in the run directory. `tensorboard --logdir runs` shows them."""

from __future__ import annotations

from typing import Any

from posenc.results.settings import flatten
from posenc.tracking.base import STEP, BaseTracker, Progress, Row, TrackedRun

FOLDER = "tensorboard"  # in the run directory; the steps of its folder `eval` are tokens of context
SKIPPED = ("tracking.", "eval.", "data.exclude")  # settings that nobody filters runs by


class TensorboardTracker(BaseTracker):
    """Write two folders of event files: training against steps, evaluation against window and position."""

    label = "TensorBoard"

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter
        from torch.utils.tensorboard.summary import hparams  # `add_hparams` makes a run of its own of them

        super().__init__(run, "tensorboard")
        folder = run.directory / FOLDER
        if self.resumed and not folder.is_dir():  # somebody deleted them
            self.progress, self.resumed = Progress(self.progress.id, self.progress.group), False
        self._training: Any = SummaryWriter(str(folder))
        self._measured: Any = SummaryWriter(str(folder / "eval"))
        if not self.resumed:
            writer: Any = self._training.file_writer
            writer.add_summary(hparams(settings_of(run), {})[1])
            self._training.flush()
        self.save()

    def send(self, row: Row, axis: str, at: int) -> None:
        """Write scalars; the summary's, beside the hyperparameters, are columns of their table."""
        writer = self._training if axis == STEP else self._measured
        for name, value in row.items():
            writer.add_scalar(name, value, at)
        writer.flush()  # what a kill leaves behind is what the progress says

    def end(self, status: str) -> None:
        self._training.add_text("status", status)
        self._training.close()
        self._measured.close()


def settings_of(run: TrackedRun) -> dict[str, float | str]:
    """Return flat settings that a dashboard can filter by."""
    found: dict[str, float | str] = {}
    for key, text in flatten(dict(run.config)).items():
        if not key.startswith(SKIPPED):
            try:
                found[key] = float(text)
            except ValueError:
                found[key] = text
    return found if run.group is None else {**found, "group": run.group}
