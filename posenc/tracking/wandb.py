"""Weights & Biases: one W&B run a training run. A copy that may fail, never a reason for the run to fail."""

from __future__ import annotations

import logging
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from posenc.core.errors import UserError
from posenc.tracking import metrics as figures
from posenc.tracking.base import TrackedRun, Tracker
from posenc.tracking.copy import Copy, Evaluation, check_timeout
from posenc.tracking.guard import one_line, reason
from posenc.tracking.memory import Memory, recall
from posenc.tracking.none import NoTracker
from posenc.tracking.pictures import as_files, check_plots
from posenc.tracking.wandb_files import LONGEST_NAME, artifact_of
from posenc.tracking.wandb_run import POSITION, begin, leave
from posenc.tracking.wandb_server import (
    Mode,
    answers,
    credentials,
    host_of,
    load_wandb,
    requested_mode,
    server_url,
)

logger = logging.getLogger(__name__)

LONGEST_TAG = 64  # more is refused by the server


def check(
    *,
    mode: Literal["auto", "online", "offline", "disabled"],
    project: str,
    entity: str | None,
    group: str | None,
    tags: list[str],
    dir: str | None,
    timeout: float,
    plots: list[str],
    artifact: Literal["none", "results", "checkpoint"],
) -> None:
    """Raise UserError for a name W&B does not take, a time-out that is none, or mode=online without a key."""
    for key, name in (("project", project), ("entity", entity)):
        if name is not None and (
            not name.strip() or len(name) > LONGEST_NAME or re.search(r"[/\\#?%:]", name)
        ):
            raise UserError(
                f"tracking.{key}",
                name,
                "W&B does not take this name",
                allowed=f"1 to {LONGEST_NAME} characters without / \\ # ? % :",
            )
    check_timeout(timeout)
    check_plots(plots)
    if mode == "online" or (mode == "auto" and requested_mode() == "online"):
        url = server_url()
        if credentials(url) is None:
            raise UserError(
                "tracking.mode" if mode == "online" else "WANDB_MODE",
                "online",
                f"there is no W&B API key for {host_of(url)}",
                hint="run `wandb login`, set WANDB_API_KEY, or use tracking.mode=offline and sync later",
            )


def start(
    run: TrackedRun,
    *,
    mode: Literal["auto", "online", "offline", "disabled"],
    project: str,
    entity: str | None,
    group: str | None,
    tags: list[str],
    dir: str | None,
    timeout: float,
    plots: list[str],
    artifact: Literal["none", "results", "checkpoint"],
) -> Tracker:
    """Begin a W&B run, or continue the one of this run directory. Never prompts, never raises.

    `timeout` (seconds) bounds the connection here and the upload in `finish`. Without a key or a server that
    answers, `mode=auto` writes to `dir` only, and one line says how to look at it and how to upload it.
    """
    try:
        load_wandb()  # half a second, or many on a slow disk: not part of the time-outs below
        wanted, why = _mode(mode)
        if wanted == "disabled":
            return NoTracker()
        memory = recall(run.directory, "wandb", run.group)
        settings: dict[str, Any] = {
            "entity": entity,
            "project": project,
            "run_name": run.name[:LONGEST_NAME],
            "run_group": (group or memory.group or "")[:LONGEST_NAME] or None,
            "run_job_type": "train",
            "run_tags": _tags([*run.tags, *tags]),
            "run_id": memory.id,
            "root_dir": str(Path(dir).expanduser() if dir else run.directory),
        }
        Path(settings["root_dir"]).mkdir(parents=True, exist_ok=True)  # wandb would go to /tmp without a word
        begun, why = begin(settings, dict(run.config), wanted, why, timeout)
        if why is not None:
            place = _place(begun)
            logger.warning(
                "W&B is offline (%s). Look: wandb leet %s  Upload: wandb sync %s", why, place, place
            )
        memory.save()
        return WandbTracker(run, memory, begun, timeout, plots, artifact)
    except Exception as error:
        logger.warning("W&B could not start, the run goes on without it (%s)", reason(error))
        return NoTracker()


class WandbTracker(Copy):
    """A W&B run."""

    label = "W&B"

    def __init__(
        self, run: TrackedRun, memory: Memory, begun: Any, timeout: float, plots: Sequence[str], artifact: str
    ) -> None:
        super().__init__(run, memory, timeout, plots)
        self._begun = begun
        self._artifact = artifact

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        self._begun.log(dict(row), step=step, commit=True)

    def send_evaluation(self, shown: Evaluation) -> None:
        for name in {name for row in shown.positions for name in row}:  # by name: that goes before eval/*
            self._begun.define_metric(name, step_metric=None if name == POSITION else POSITION)
        # an offline run that is continued counts from 0 again, and its rows would replace earlier ones
        before = max(self.memory.step, self.memory.row) if self._begun.step == 0 else -1
        for row in [*shown.windows, *shown.positions]:
            self._begun.log(row, step=before + 1 if before >= 0 else None, commit=True)
            before = -1
        self._begun.summary.update(shown.summary)
        wandb = load_wandb()
        with as_files(shown.pictures) as paths:
            media = {f"plots/{kind}": wandb.Image(path) for kind, path in paths.items()}
            table = wandb.Table(columns=list(figures.COLUMNS), data=shown.table)
            self._begun.log({"evaluation": table, **media})
        self.memory.row = self._begun.step
        if self._artifact != "none":
            self._begun.log_artifact(artifact_of(self.run, checkpoint=self._artifact == "checkpoint"))

    def end(self, status: str) -> None:
        """Upload what is left; the rest stays on disk for `wandb sync`."""
        self._begun.summary["status"] = status
        self._begun.finish(exit_code=0 if status == "finished" else 1)

    def leave(self) -> None:
        leave()

    def advice(self) -> str:
        return f" Upload: wandb sync {_place(self._begun)}"


def _place(run: Any) -> str:
    return shlex.quote(one_line(Path(run.dir).parent))


def _mode(mode: Mode | Literal["auto"]) -> tuple[Mode, str | None]:
    """What to do, and the reason to tell the user if it is less than could be expected."""
    wanted = requested_mode() if mode == "auto" else mode
    if wanted is not None:
        return wanted, "as asked" if wanted == "offline" else None
    url = server_url()
    if credentials(url) is None:
        return "offline", f"no API key for {one_line(host_of(url))}"
    if not answers(url):
        return "offline", f"{one_line(host_of(url))} does not answer"
    return "online", None


def _tags(tags: list[str]) -> list[str]:
    return list(dict.fromkeys(str(tag)[:LONGEST_TAG] for tag in tags if str(tag).strip()))
