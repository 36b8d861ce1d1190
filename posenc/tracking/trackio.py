"""Track with trackio: a database on this machine, no account. Look: `trackio show`."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Mapping
from typing import Any

from posenc.core.errors import UserError
from posenc.core.run_states import FINISHED
from posenc.tracking.curves import Row
from posenc.tracking.tracker import BaseTracker, TrackedRun, TrackerState

SERVER_VARIABLES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")  # environment variables that name a server


class TrackioTracker(BaseTracker):
    """Track a run in trackio's own database (TRACKIO_DIR). A window or a position is sent as the step."""

    label = "trackio"

    def __init__(self, run: TrackedRun, *, project: str, group: str | None, tags: list[str]) -> None:
        import trackio
        import trackio.run

        super().__init__(run, "trackio")
        if not any(os.environ.get(name) for name in SERVER_VARIABLES):
            # trackio would ask the hub for the user's name, which may take long where there is no network
            setattr(trackio.run, "_get_default_namespace", lambda: None)  # noqa: B010
        all_tags = list(dict.fromkeys([*run.tags, *tags]))
        with contextlib.redirect_stdout(io.StringIO()):  # stdout is for results
            self._run: Any = trackio.init(
                project=project,
                name=run.name,
                group=group or self.state.group,
                config={**run.config, "tags": all_tags},
                # By name and not by id: `never` keeps a second run of the same name apart, `allow` continues
                # the one that is there.
                resume="allow" if self.resumed else "never",
                # In a notebook trackio would start its dashboard below the cell (0.43).
                embed=False,
                # By itself trackio logs the load of the machine every ten seconds, between the curves of the
                # run (0.43).
                auto_log_cpu=False,
                auto_log_gpu=False,
            )
        is_other_run = self._run.id != self.state.id  # a new one: the database was deleted, or is another
        if is_other_run:
            self.state = TrackerState(self._run.id, self.state.group)
        self.save()

    @staticmethod
    def check(settings: Mapping[str, Any]) -> None:
        """Raise UserError for a name that trackio does not take."""
        project = settings["project"]
        has_allowed_characters = all(character.isalnum() or character in "-_ " for character in project)
        has_outer_blanks = project != project.strip()
        if not project or not has_allowed_characters or has_outer_blanks:
            allowed = "letters, digits, - _ and blanks inside"
            raise UserError("tracking.project", project, "trackio does not take this name", allowed=allowed)

    def send(self, row: Row, axis: str, x: int) -> None:
        self._run.log(row, step=x)

    def end(self, status: str) -> None:
        """Wait until the database has everything. trackio stores no status, so another end is an alert."""
        import trackio

        with contextlib.redirect_stdout(io.StringIO()):
            if status != FINISHED:
                step = max(self.state.step, 0)
                self._run.alert(f"run {status}", level=trackio.AlertLevel.WARN, step=step)
            self._run.finish()
