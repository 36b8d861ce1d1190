"""Track with trackio: a local dashboard on an embedded database, no account. `trackio show` opens it."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

from posenc.core.errors import UserError
from posenc.tracking import metrics as figures
from posenc.tracking.base import (
    BaseTracker,
    Evaluation,
    Progress,
    TrackedRun,
    as_files,
    check_shared,
    refuse_without,
)

REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")  # environment: where trackio sends to, if anywhere


class TrackioTracker(BaseTracker):
    """A trackio run. Its steps are training steps, windows and positions: each curve has its own.

    The database is trackio's own (TRACKIO_DIR, else below `~/.cache/huggingface/trackio`).
    """

    label = "trackio"

    def __init__(
        self,
        run: TrackedRun,
        *,
        project: str,
        group: str | None,
        tags: list[str],
        timeout: float,
        plots: list[str],
    ) -> None:
        import trackio
        import trackio.run

        super().__init__(run, "trackio", timeout, plots)
        if not any(os.environ.get(name) for name in REMOTE):
            # it would ask the hub for the user's name, which may take long where there is no network
            vars(trackio.run)["_get_default_namespace"] = lambda: None

        def begin() -> None:
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

        with contextlib.redirect_stdout(io.StringIO()):  # stdout is for results
            self._within(begin)
        if self._begun.id != self.progress.id:  # new, or the database was deleted, or another one is used
            self.progress = Progress(self._begun.id, self.progress.group)
        self.save()

    @staticmethod
    def check(
        prefix: str, *, project: str, group: str | None, tags: list[str], timeout: float, plots: list[str]
    ) -> None:
        """Raise UserError for a missing package or a name that trackio does not take."""
        refuse_without("trackio", "tracking", "trackio", "trackio")
        if not project or not all(c.isalnum() or c in "-_ " for c in project) or project != project.strip():
            allowed = "letters, digits, - _ and blanks inside"
            raise UserError(f"{prefix}.project", project, "trackio does not take this name", allowed=allowed)
        check_shared(prefix, timeout, plots)

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        self._begun.log(dict(row), step=step)

    def send_evaluation(self, shown: Evaluation) -> None:
        import trackio

        for rows, at in ((shown.windows, "eval/window"), (shown.positions, "eval/position")):
            for row in rows:
                self._begun.log({k: v for k, v in row.items() if k != at}, step=int(row[at]))
        with as_files(shown.pictures) as paths:
            media: dict[str, Any] = {f"plots/{kind}": trackio.Image(path) for kind, path in paths.items()}
            media["evaluation"] = trackio.Table(columns=list(figures.COLUMNS), data=shown.table)
            self._begun.log(
                {**shown.summary, "headline": shown.headline, **media}, step=max(self.progress.step, 0)
            )

    def end(self, status: str) -> None:
        """Wait until the database has everything. A run has no state there: how else it ended is an alert."""
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            if status != "finished":
                step = max(self.progress.step, 0)
                self._begun.alert(f"run {status}", level=trackio.AlertLevel.WARN, step=step)
            self._begun.finish()


TRACKER = TrackioTracker
