"""Track on this machine: TensorBoard (event files in the run directory) and trackio (a database of its own).

`tensorboard --logdir runs` shows the one, `trackio show` the other; neither needs an account.
"""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

from posenc.core.errors import UserError
from posenc.results.settings import flatten
from posenc.tracking import STEP, BaseTracker, Progress, Row, TrackedRun

FOLDER = "tensorboard"  # in the run directory; the steps of its folder `eval` are tokens of context
SKIPPED = ("tracking.", "eval.", "data.exclude")  # settings that nobody filters runs by
REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")  # environment: where trackio sends to, if anywhere


class TensorboardTracker(BaseTracker):
    """Write two folders of event files: training against steps, evaluation against window and position."""

    label = "TensorBoard"

    def __init__(self, run: TrackedRun) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(run, "tensorboard")
        folder = run.directory / FOLDER
        if self.resumed and not folder.is_dir():  # somebody deleted them
            self.progress, self.resumed = Progress(self.progress.id, self.progress.group), False
        self._training: Any = SummaryWriter(str(folder))
        self._measured: Any = SummaryWriter(str(folder / "eval"))
        if not self.resumed:
            self._training.add_hparams(settings_of(run), {}, run_name=".")  # else a run of its own
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


class TrackioTracker(BaseTracker):
    """A run in trackio's own database (TRACKIO_DIR); steps are training steps, windows and positions."""

    label = "trackio"

    def __init__(self, run: TrackedRun, *, project: str, group: str | None, tags: list[str]) -> None:
        import trackio
        import trackio.run

        super().__init__(run, "trackio")
        if not any(os.environ.get(name) for name in REMOTE):
            # it would ask the hub for the user's name, which may take long where there is no network
            vars(trackio.run)["_get_default_namespace"] = lambda: None
        with contextlib.redirect_stdout(io.StringIO()):  # stdout is for results
            self._begun: Any = trackio.init(
                project=project,
                name=run.name,
                group=group or self.progress.group,
                config={**run.config, "tags": list(dict.fromkeys([*run.tags, *tags]))},
                resume="allow" if self.resumed else "never",
                embed=False,
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        if self._begun.id != self.progress.id:  # new, or the database was deleted, or another one is used
            self.progress = Progress(self._begun.id, self.progress.group)
        self.save()

    @staticmethod
    def check(settings: Mapping[str, Any]) -> None:
        """Raise UserError for a name that trackio does not take."""
        project = settings["project"]
        if not project or not all(c.isalnum() or c in "-_ " for c in project) or project != project.strip():
            allowed = "letters, digits, - _ and blanks inside"
            raise UserError("tracking.project", project, "trackio does not take this name", allowed=allowed)

    def send(self, row: Row, axis: str, at: int) -> None:
        self._begun.log(row, step=at)

    def end(self, status: str) -> None:
        """Wait until the database has everything. A run has no state there: how else it ended is an alert."""
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            if status != "finished":
                step = max(self.progress.step, 0)
                self._begun.alert(f"run {status}", level=trackio.AlertLevel.WARN, step=step)
            self._begun.finish()
