"""Track with Weights & Biases, so that a failure of W&B never ends a run.

wandb's own offline mode and time limits cover a server that is dead, silent or hangs. This module adds what
wandb does not do: it goes offline after a failed start, and never asks for a key on a terminal.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from posenc.core.errors import UserError, visible
from posenc.core.run_states import FINISHED
from posenc.tracking.curves import POSITION, STEP, WINDOW, Row
from posenc.tracking.tracker import BaseTracker, TrackedRun, error_text

logger = logging.getLogger(__name__)

# characters; the server refuses longer ones
LONGEST_NAME = 128
LONGEST_TAG = 64
# not only blanks (the look-ahead), none of / \ # ? % :
NAME = re.compile(rf"(?=.*\S)[^/\\#?%:]{{1,{LONGEST_NAME}}}")
DEFAULT_PROJECT = "posenc"
# what earlier versions of wandb called its modes
MODES = {"run": "online", "shared": "online", "dryrun": "offline"}


class WandbTracker(BaseTracker):
    """Track a W&B run, new or continued; offline without a key or an answer within `timeout` seconds."""

    label = "W&B"
    has_tables = True

    def __init__(
        self,
        run: TrackedRun,
        *,
        mode: Literal["auto", "online", "offline", "disabled"],
        project: str | None,
        entity: str | None,
        group: str | None,
        tags: list[str],
        timeout: float,
    ) -> None:
        super().__init__(run, "wandb")
        self._metrics_by_position: set[str] = set()
        run_tags = [tag[:LONGEST_TAG] for tag in [*run.tags, *tags] if tag.strip()]
        run_group = group or self.state.group
        if run_group is not None:
            run_group = run_group[:LONGEST_NAME]
        settings: dict[str, Any] = {
            "entity": entity,
            "project": self._project(project),
            "run_name": run.name[:LONGEST_NAME],
            "run_group": run_group or None,
            "run_job_type": run.kind,
            "run_tags": list(dict.fromkeys(run_tags)),  # each once
            "run_id": self.state.id,
            "root_dir": os.environ.get("WANDB_DIR") or str(run.directory),
            "init_timeout": timeout,
            "finish_timeout": timeout,
            "finish_timeout_raises": True,  # or the upload would time out without a word
            "reinit": "create_new",  # the default hands a second run of one process the first one again
            # `must` would fail for a run that was deleted on the server, and `never` for every run that goes
            # on.
            "resume": "allow",
            "silent": True,
            "console": "off",
        }
        self._run = self._start(requested_mode() if mode == "auto" else mode, settings)
        self.save()

    def _project(self, named: str | None) -> str:
        """Return the project: of a run that goes on the one where it began, unless a setting names one."""
        # WANDB_PROJECT may have changed since. In another project the same id would be another run.
        if self.resumed and named is None:
            project = self.state.project or DEFAULT_PROJECT  # older states have none, and were there
        else:
            project = project_of(named)
        self.state.project = project
        return project

    def _start(self, mode: str, settings: dict[str, Any]) -> Any:
        """Start the W&B run in a mode, or offline if online is not possible."""
        Path(settings["root_dir"]).mkdir(parents=True, exist_ok=True)  # wandb would go to /tmp without a word
        offline_reason = "as asked"
        if mode == "online":
            try:
                if log_in():
                    return _init({**settings, "mode": "online"}, self.run)
                offline_reason = f"no API key for {host()}"
            # With mode=auto a text that is no key does not end a run: it goes on offline.
            except UserError as error:
                offline_reason = f"{error.key} {error.problem}"
            except Exception as error:
                offline_reason = error_text(error)
                load_wandb().teardown()  # otherwise the next `init` says that the run's id is in use
            mode = "offline"
        run = _init({**settings, "mode": mode}, self.run)
        if mode == "offline":
            _warn_offline(run, offline_reason)
        return run

    @staticmethod
    def check(settings: Mapping[str, Any]) -> None:
        """Raise UserError for names that W&B refuses, a wrong time-out, and mode=online without a key."""
        for key in ("project", "entity"):
            name = settings[key]
            if name is not None and not NAME.fullmatch(name):
                allowed = f"1 to {LONGEST_NAME} characters without / \\ # ? % :"
                raise UserError(f"tracking.{key}", name, "W&B does not take this name", allowed=allowed)
        timeout = settings["timeout"]
        if not (math.isfinite(timeout) and timeout > 0):
            raise UserError("tracking.timeout", timeout, "not a time", allowed="seconds above 0")
        mode = settings["mode"]
        # Who asks for online is told before the run begins; `auto` goes offline instead.
        if mode == "online" and not log_in():
            hint = "run `wandb login`, set WANDB_API_KEY, or use tracking.mode=offline and sync later"
            raise UserError("tracking.mode", mode, f"there is no W&B API key for {host()}", hint=hint)

    def send(self, row: Row, axis: str, x: int) -> None:
        if axis == STEP:
            self._run.log(row, step=x, commit=True)
            return
        if axis == POSITION:
            self._define_metrics_by_position(row)
        # wandb's own step of an offline run that is continued is 0 again, and rows would replace earlier ones
        next_step = max(self._run.step, self.state.step + 1)
        self.state.step = next_step
        self._run.log({axis: x, **row}, step=next_step, commit=True)

    def _define_metrics_by_position(self, row: Row) -> None:
        """Draw these metrics against positions. A metric's own name takes precedence over `eval/*`."""
        for name in row.keys() - self._metrics_by_position:
            self._run.define_metric(name, step_metric=POSITION)
        self._metrics_by_position |= row.keys()

    def send_summary(self, row: Row) -> None:
        self._run.summary.update(row)

    def send_table(self, name: str, columns: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
        # a column may mix numbers and missing ones, which W&B would refuse as of two types
        data = [list(row) for row in rows]
        table = load_wandb().Table(columns=list(columns), data=data, allow_mixed_types=True)
        self._run.log({name: table})

    def end(self, status: str) -> None:
        """Upload what is left; the rest stays on disk for `wandb sync`."""
        self._run.summary["status"] = status
        try:
            self._run.finish(exit_code=0 if status == FINISHED else 1)
        except Exception:
            load_wandb().teardown()  # otherwise its exit hook prints a traceback if the service is gone
            raise

    def advice(self) -> str:
        return f" Upload: wandb sync {_directory(self._run)}"


def _directory(run: Any) -> str:
    """Return the folder of a W&B run, quoted for a shell."""
    return shlex.quote(visible(Path(run.dir).parent))


def _warn_offline(run: Any, reason: str) -> None:
    """Warn that a run is offline, with the commands that show it and upload it."""
    folder = _directory(run)
    logger.warning("W&B is offline (%s). Look: wandb leet %s  Upload: wandb sync %s", reason, folder, folder)


def _init(settings: dict[str, Any], tracked: TrackedRun) -> Any:
    """Start a W&B run, and name the axes of its metrics."""
    wandb = load_wandb()
    run = wandb.init(config=dict(tracked.config), settings=wandb.Settings(**settings))
    # By tokens and not by steps: runs of several batch sizes are compared by what they have read.
    run.define_metric("train/tokens")
    run.define_metric("train/*", step_metric="train/tokens")
    run.define_metric(WINDOW)
    run.define_metric(POSITION)
    run.define_metric("eval/*", step_metric=WINDOW)
    return run


# --- wandb's own settings


def load_wandb() -> Any:
    """Import wandb with its own messages switched off."""
    # with error reporting on, its exit hook waits 12 s and more for a server that hangs (0.31)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb  # takes 0.5 to 0.7 s, which commands without a tracker do not wait for

    return wandb


def user_settings() -> Any:
    """Return wandb's settings of the environment and the user's files."""
    return load_wandb().setup().settings


def requested_mode() -> str:
    """Return the mode that WANDB_MODE or a settings file asks for."""
    mode: str = user_settings().mode
    return MODES.get(mode, mode)


def project_of(named: str | None) -> str:
    """Return the project: that of the setting, else of WANDB_PROJECT or the user's files, else posenc's."""
    users: str | None = user_settings().project
    return named or users or DEFAULT_PROJECT


def log_in() -> bool:
    """Log in with the user's key, without asking for one; return whether there is a key.

    Raises UserError for a text that is no key.
    """
    wandb = load_wandb()
    try:
        # With verify=True a key and a dead network cost 10 s and an error (0.31).
        return bool(wandb.login(prompt=False, verify=False))
    except wandb.errors.AuthenticationError as error:
        raise UserError("WANDB_API_KEY", None, f"is refused by wandb: {error_text(error)}") from error


def host() -> str:
    """Return `host:port` of the server for messages, without any user name and password of the address."""
    url: str = user_settings().base_url
    _, _, host_and_port = urlsplit(url).netloc.rpartition("@")
    return visible(host_and_port or url)
