"""Track with Weights & Biases: a copy that may fail, never a reason to fail.

wandb's own offline mode and time limits hold where a server is dead, silent or hangs. What it does not do by
itself: go offline after a failed start, and never ask for a key on a terminal.
"""

from __future__ import annotations

import logging
import math
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from posenc.core.errors import UserError, visible
from posenc.tracking.curves import POSITION, STEP, WINDOW, Row
from posenc.tracking.tracker import BaseTracker, TrackedRun, reason

logger = logging.getLogger(__name__)

# characters: the server refuses more
LONGEST_NAME = 128
LONGEST_TAG = 64
NAME = re.compile(rf"(?=.*\S)[^/\\#?%:]{{1,{LONGEST_NAME}}}")
# what earlier versions of wandb called its modes
MODES = {"run": "online", "shared": "online", "dryrun": "offline"}


class WandbTracker(BaseTracker):
    """A W&B run, new or continued; offline without a key or an answer within `timeout` seconds."""

    label = "W&B"

    def __init__(
        self,
        run: TrackedRun,
        *,
        mode: Literal["auto", "online", "offline", "disabled"],
        project: str,
        entity: str | None,
        group: str | None,
        tags: list[str],
        timeout: float,
    ) -> None:
        super().__init__(run, "wandb")
        self._metrics_by_position: set[str] = set()
        run_tags = [tag[:LONGEST_TAG] for tag in [*run.tags, *tags] if tag.strip()]
        settings: dict[str, Any] = {
            "entity": entity,
            "project": project,
            "run_name": run.name[:LONGEST_NAME],
            "run_group": (group or self.state.group or "")[:LONGEST_NAME] or None,
            "run_job_type": "train",
            "run_tags": list(dict.fromkeys(run_tags)),
            "run_id": self.state.id,
            "root_dir": os.environ.get("WANDB_DIR") or str(run.directory),
            "init_timeout": timeout,
            "finish_timeout": timeout,
            "finish_timeout_raises": True,  # or it would wait for ever for a server that hangs
            "reinit": "create_new",  # the default hands a second run of one process the first one again
            "resume": "allow",
            "silent": True,
            "console": "off",
        }
        self._run = self._started(requested_mode() if mode == "auto" else mode, settings)
        self.save()

    def _started(self, mode: str, settings: dict[str, Any]) -> Any:
        """Start the run in a mode, offline where online is not possible."""
        Path(settings["root_dir"]).mkdir(parents=True, exist_ok=True)  # wandb would go to /tmp without a word
        if mode != "online":
            run = _init({**settings, "mode": mode}, self.run)
            if mode == "offline":
                _warn_offline(run, "as asked")
            return run
        if has_key():
            try:
                return _init({**settings, "mode": "online"}, self.run)
            except Exception as error:
                why = reason(error)
                load_wandb().teardown()  # or `init` says that the id of the run that failed is in use
        else:
            why = f"no API key for {host()}"
        run = _init({**settings, "mode": "offline"}, self.run)
        _warn_offline(run, why)
        return run

    @staticmethod
    def check(settings: Mapping[str, Any]) -> None:
        """Raise UserError for names W&B does not take, a time-out that is none, mode=online without a key."""
        for key in ("project", "entity"):
            name = settings[key]
            if name is not None and not NAME.fullmatch(name):
                allowed = f"1 to {LONGEST_NAME} characters without / \\ # ? % :"
                raise UserError(f"tracking.{key}", name, "W&B does not take this name", allowed=allowed)
        timeout = settings["timeout"]
        if not (math.isfinite(timeout) and timeout > 0):
            raise UserError("tracking.timeout", timeout, "not a time", allowed="seconds above 0")
        mode = settings["mode"]
        if mode == "online" and not has_key():
            hint = "run `wandb login`, set WANDB_API_KEY, or use tracking.mode=offline and sync later"
            raise UserError("tracking.mode", mode, f"there is no W&B API key for {host()}", hint=hint)

    def send(self, row: Row, axis: str, at: int) -> None:
        if axis == STEP:
            self._run.log(row, step=at, commit=True)
            return
        if axis == POSITION:
            self._define_metrics_by_position(row)
        # an offline run that is continued counts from 0 again, and its rows would replace earlier ones
        self.state.step = max(self._run.step, self.state.step + 1)
        self._run.log({axis: at, **row}, step=self.state.step, commit=True)

    def _define_metrics_by_position(self, row: Row) -> None:
        """Draw these against positions: a metric's own name goes before `eval/*`."""
        for name in row.keys() - self._metrics_by_position:
            self._run.define_metric(name, step_metric=POSITION)
        self._metrics_by_position |= row.keys()

    def send_summary(self, row: Row) -> None:
        self._run.summary.update(row)

    def end(self, status: str) -> None:
        """Upload what is left; the rest stays on disk for `wandb sync`."""
        self._run.summary["status"] = status
        try:
            self._run.finish(exit_code=0 if status == "finished" else 1)
        except Exception:
            load_wandb().teardown()  # or its exit hook prints a traceback when the service is gone already
            raise

    def advice(self) -> str:
        return f" Upload: wandb sync {_directory(self._run)}"


def _directory(run: Any) -> str:
    """Return the folder of a W&B run, quoted for a shell."""
    return shlex.quote(visible(Path(run.dir).parent))


def _warn_offline(run: Any, why: str) -> None:
    text = "W&B is offline (%s). Look: wandb leet %s  Upload: wandb sync %s"
    logger.warning(text, why, _directory(run), _directory(run))


def _init(settings: dict[str, Any], tracked: TrackedRun) -> Any:
    wandb = load_wandb()
    run = wandb.init(config=dict(tracked.config), settings=wandb.Settings(**settings))
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
    import wandb

    return wandb


def user_settings() -> Any:
    """Return wandb's settings of the environment and the user's files."""
    return load_wandb().setup().settings


def requested_mode() -> str:
    """Return the mode that WANDB_MODE or a settings file asks for."""
    mode: str = user_settings().mode
    return MODES.get(mode, mode)


def has_key() -> bool:
    """Tell whether there is a key for the server, and log in with it; nobody is asked for one."""
    return bool(load_wandb().login(prompt=False, verify=False))


def host() -> str:
    """Return `host:port` of the server for messages, without any user name and password of the address."""
    url = user_settings().base_url
    return visible(urlsplit(url).netloc.rpartition("@")[2] or url)
