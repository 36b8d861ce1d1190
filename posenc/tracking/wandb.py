"""Weights & Biases: one W&B run a training run. A copy that may fail, never a reason for the run to fail."""

from __future__ import annotations

import logging
import math
import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal

from posenc.errors import UserError
from posenc.tracking import metrics as figures
from posenc.tracking.base import TrackedRun, Tracker
from posenc.tracking.guard import GivenUpError, one_line, reason, within
from posenc.tracking.none import NoTracker
from posenc.tracking.wandb_run import GRACE_SECONDS, begin, leave, run_id
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

LONGEST_TAG, LONGEST_NAME = 64, 128  # more is refused by the server


def check(
    *,
    mode: Literal["auto", "online", "offline", "disabled"],
    project: str,
    entity: str | None,
    group: str | None,
    tags: list[str],
    dir: str | None,
    timeout: float,
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
    if not (math.isfinite(timeout) and timeout > 0):
        raise UserError("tracking.timeout", timeout, "not a time", allowed="seconds above 0")
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
        settings: dict[str, Any] = {
            "entity": entity,
            "project": project,
            "run_name": run.name[:LONGEST_NAME],
            "run_group": (group or run.group or "")[:LONGEST_NAME] or None,
            "run_job_type": "train",
            "run_tags": _tags([*run.tags, *tags]),
            "run_id": run_id(run.directory),
            "root_dir": str(Path(dir).expanduser() if dir else run.directory),
        }
        Path(settings["root_dir"]).mkdir(parents=True, exist_ok=True)  # wandb would go to /tmp without a word
        begun, why = begin(settings, dict(run.config), wanted, why, timeout)
        if why is not None:
            place = _place(begun)
            logger.warning(
                "W&B is offline (%s). Look: wandb leet %s  Upload: wandb sync %s", why, place, place
            )
        return WandbTracker(begun, dict(run.config), timeout)
    except Exception as error:
        logger.warning("W&B could not start, the run goes on without it (%s)", reason(error))
        return NoTracker()


class WandbTracker:
    """A W&B run. The first exception is one warning and switches it off."""

    def __init__(self, run: Any, config: dict[str, Any], timeout: float) -> None:
        self._run = run
        self._config = config
        self._timeout = timeout
        self._patience = timeout  # for the last upload
        self._on = True
        self._finished = False

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """One row of history at `step`, with bare names under `train/`."""
        row = {name if "/" in name else f"train/{name}": value for name, value in metrics.items()}
        self._try(lambda: self._run.log(row, step=step, commit=True))

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """Curves against `eval/window`, summary figures, and the table `evaluation`."""

        def send() -> None:
            for row in figures.by_window(records):
                self._run.log(row)
            self._run.summary.update(figures.summary(records))
            rows = figures.table_rows(records, self._config)
            self._run.log({"evaluation": load_wandb().Table(columns=list(figures.COLUMNS), data=rows)})

        if records:
            self._try(send)

    def finish(self, status: str) -> None:
        """Upload what is left for at most `timeout` seconds; the rest stays on disk for `wandb sync`."""
        if self._finished:
            return
        self._finished = True

        def end() -> None:
            self._run.summary["status"] = status
            self._run.finish(exit_code=0 if status == "finished" else 1)

        try:
            within(self._patience + GRACE_SECONDS, end)
        except Exception as error:
            if self._on:
                logger.warning("W&B did not get everything (%s). Upload: %s", reason(error), self._upload())
            leave()

    def _try(self, action: Callable[[], None]) -> None:
        if not self._on or self._finished:
            return
        try:
            # logging a table asks the server, and waits for one that is gone
            within(self._timeout, action)
        except Exception as error:
            self._on = False
            if isinstance(error, GivenUpError):
                self._patience = 0.0  # used up
            logger.warning(
                "W&B is switched off, the run goes on without it (%s). Upload: %s",
                reason(error),
                self._upload(),
            )

    def _upload(self) -> str:
        return f"wandb sync {_place(self._run)}"


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
