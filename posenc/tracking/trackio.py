"""trackio: a local dashboard on an embedded database, without an account. `trackio show` opens it."""

from __future__ import annotations

import contextlib
import io
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from posenc.core.errors import UserError
from posenc.tracking import metrics as figures
from posenc.tracking.base import TrackedRun, Tracker
from posenc.tracking.copy import GRACE_SECONDS, Copy, Evaluation, check_timeout, refuse_without
from posenc.tracking.guard import reason, within
from posenc.tracking.memory import Memory, recall
from posenc.tracking.none import NoTracker
from posenc.tracking.pictures import as_files, check_plots

logger = logging.getLogger(__name__)

REMOTE = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL")  # environment: where trackio sends to, if anywhere


def check(*, project: str, group: str | None, tags: list[str], timeout: float, plots: list[str]) -> None:
    """Raise UserError for a missing package or a name that trackio does not take."""
    refuse_without("trackio", "tracking", "trackio", "trackio")
    if not project or not all(c.isalnum() or c in "-_ " for c in project) or project != project.strip():
        raise UserError(
            "tracking.project",
            project,
            "trackio does not take this name",
            allowed="letters, digits, - _ and blanks inside",
        )
    check_timeout(timeout)
    check_plots(plots)


def start(
    run: TrackedRun, *, project: str, group: str | None, tags: list[str], timeout: float, plots: list[str]
) -> Tracker:
    """Begin a trackio run, or continue the one of this run directory. Never raises.

    The database is trackio's own (TRACKIO_DIR, else below `~/.cache/huggingface/trackio`).
    """
    try:
        import trackio

        memory = recall(run.directory, "trackio", run.group)
        if not any(os.environ.get(name) for name in REMOTE):
            _stay_local()
        with _quiet():
            begun = within(
                timeout + GRACE_SECONDS,
                lambda: trackio.init(
                    project=project,
                    name=run.name,
                    group=group or memory.group,
                    config={**run.config, "tags": list(dict.fromkeys([*run.tags, *tags]))},
                    resume="allow" if memory.known else "never",
                    embed=False,
                    auto_log_cpu=False,
                    auto_log_gpu=False,
                ),
            )
        if memory.known and begun.id != memory.id:  # the database was deleted, or another one is used
            memory = Memory(memory.file, begun.id, memory.group)
        memory.id = begun.id
        memory.save()
        return TrackioTracker(run, memory, begun, timeout, plots)
    except Exception as error:
        logger.warning("trackio could not start, the run goes on without it (%s)", reason(error))
        return NoTracker()


class TrackioTracker(Copy):
    """A trackio run. Its steps are training steps, windows and positions: each curve has its own."""

    label = "trackio"

    def __init__(
        self, run: TrackedRun, memory: Memory, begun: Any, timeout: float, plots: Sequence[str]
    ) -> None:
        super().__init__(run, memory, timeout, plots)
        self._begun = begun

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        self._begun.log(dict(row), step=step)

    def send_evaluation(self, shown: Evaluation) -> None:
        import trackio

        for rows, at in ((shown.windows, "eval/window"), (shown.positions, "eval/position")):
            for row in rows:
                self._begun.log({k: v for k, v in row.items() if k != at}, step=int(row[at]))
        with as_files(shown.pictures) as paths:
            self._begun.log(
                {
                    **shown.summary,
                    **{f"plots/{kind}": trackio.Image(path) for kind, path in paths.items()},
                    "evaluation": trackio.Table(columns=list(figures.COLUMNS), data=shown.table),
                },
                step=max(self.memory.step, 0),
            )

    def end(self, status: str) -> None:
        """Wait until the database has everything. A run has no state there: how else it ended is an alert."""
        if status != "finished":
            import trackio

            self._begun.alert(f"run {status}", level=trackio.AlertLevel.WARN, step=max(self.memory.step, 0))
        self._begun.finish()

    def finish(self, status: str) -> None:
        with _quiet():
            super().finish(status)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What trackio prints is not for stdout, which is for results."""
    with contextlib.redirect_stdout(io.StringIO()):
        yield


def _stay_local() -> None:
    """Let trackio not ask the hub for the user's name, which may take long where there is no network."""
    import trackio.run

    if hasattr(trackio.run, "_get_default_namespace"):
        vars(trackio.run)["_get_default_namespace"] = lambda: None
