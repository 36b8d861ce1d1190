"""Track with Weights & Biases, and `posenc dashboard`. A copy that may fail, never a reason to fail.

wandb's own offline mode and time limits hold where a server is dead, silent or hangs. What it does not do by
itself: go offline after a failed start, and never ask for a key on a terminal.
"""

from __future__ import annotations

import contextlib
import io
import logging
import math
import os
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from posenc.core.atomic_files import write_text_atomic
from posenc.core.console import run_interruptible, say
from posenc.core.errors import RunError, UserError, visible
from posenc.core.paths import conf_dir, output_file
from posenc.evaluation.protocols import protocol_names
from posenc.report.texts import length_text
from posenc.results.settings import own_yaml, parse_multiple
from posenc.tracking import (
    POSITION,
    STEP,
    WINDOW,
    BaseTracker,
    Row,
    TrackedRun,
    reason,
    refuse_without,
)

logger = logging.getLogger(__name__)

LONGEST_NAME, LONGEST_TAG = 128, 64  # characters: more is refused by the server


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
        self._by_position: set[str] = set()
        asked = requested_mode() if mode == "auto" else mode
        why = "as asked"
        if asked == "online" and not has_key():
            asked, why = "offline", f"no API key for {host()}"
        settings: dict[str, Any] = {
            "entity": entity,
            "project": project,
            "run_name": run.name[:LONGEST_NAME],
            "run_group": (group or self.progress.group or "")[:LONGEST_NAME] or None,
            "run_job_type": "train",
            "run_tags": list(dict.fromkeys(tag[:LONGEST_TAG] for tag in [*run.tags, *tags] if tag.strip())),
            "run_id": self.progress.id,
            "root_dir": os.environ.get("WANDB_DIR") or str(run.directory),
            "init_timeout": timeout,
            "finish_timeout": timeout,
            "finish_timeout_raises": True,
            "reinit": "create_new",  # the default hands a second run of one process the first one again
            "resume": "allow",
            "silent": True,
            "console": "off",
        }
        Path(settings["root_dir"]).mkdir(parents=True, exist_ok=True)  # wandb would go to /tmp without a word
        try:
            self._begun = _init({**settings, "mode": asked}, run)
        except Exception as error:
            if asked != "online":
                raise
            asked, why = "offline", reason(error)
            load_wandb().teardown()  # or `init` says that the id of the run that failed is in use
            self._begun = _init({**settings, "mode": asked}, run)
        if asked == "offline":
            words = "W&B is offline (%s). Look: wandb leet %s  Upload: wandb sync %s"
            logger.warning(words, why, self._place(), self._place())
        self.save()

    @staticmethod
    def check(settings: Mapping[str, Any]) -> None:
        """Raise UserError for names W&B does not take, a time-out that is none, mode=online without a key."""
        for key in ("project", "entity"):
            name = settings[key]
            if name is not None and not re.fullmatch(rf"(?=.*\S)[^/\\#?%:]{{1,{LONGEST_NAME}}}", name):
                allowed = f"1 to {LONGEST_NAME} characters without / \\ # ? % :"
                raise UserError(f"tracking.{key}", name, "W&B does not take this name", allowed=allowed)
        timeout, mode = settings["timeout"], settings["mode"]
        if not (math.isfinite(timeout) and timeout > 0):
            raise UserError("tracking.timeout", timeout, "not a time", allowed="seconds above 0")
        if mode == "online" and not has_key():
            hint = "run `wandb login`, set WANDB_API_KEY, or use tracking.mode=offline and sync later"
            raise UserError("tracking.mode", mode, f"there is no W&B API key for {host()}", hint=hint)

    def send(self, row: Row, axis: str, at: int) -> None:
        if axis == STEP:
            self._begun.log(row, step=at, commit=True)
            return
        if axis == POSITION:  # by name: that goes before eval/*
            for name in row.keys() - self._by_position:
                self._begun.define_metric(name, step_metric=POSITION)
            self._by_position |= row.keys()
        # an offline run that is continued counts from 0 again, and its rows would replace earlier ones
        self.progress.step = max(self._begun.step, self.progress.step + 1)
        self._begun.log({axis: at, **row}, step=self.progress.step, commit=True)

    def send_summary(self, row: Row) -> None:
        self._begun.summary.update(row)

    def end(self, status: str) -> None:
        """Upload what is left; the rest stays on disk for `wandb sync`."""
        self._begun.summary["status"] = status
        try:
            self._begun.finish(exit_code=0 if status == "finished" else 1)
        except Exception:
            load_wandb().teardown()  # or its exit hook prints a traceback when the service is gone already
            raise

    def advice(self) -> str:
        return f" Upload: wandb sync {self._place()}"

    def _place(self) -> str:
        return shlex.quote(visible(Path(self._begun.dir).parent))


def _init(settings: dict[str, Any], run: TrackedRun) -> Any:
    wandb = load_wandb()
    begun = wandb.init(config=dict(run.config), settings=wandb.Settings(**settings))
    begun.define_metric("train/tokens")
    begun.define_metric("train/*", step_metric="train/tokens")
    begun.define_metric(WINDOW)
    begun.define_metric(POSITION)
    begun.define_metric("eval/*", step_metric=WINDOW)
    return begun


def load_wandb() -> Any:
    """Import wandb with its own messages switched off."""
    # with error reporting on, its exit hook waits 12 s and more for a server that hangs (0.31)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return wandb


def settings() -> Any:
    """Return wandb's settings of the environment and the user's files."""
    return load_wandb().setup().settings


def requested_mode() -> str:
    """Return the mode that WANDB_MODE or a settings file asks for."""
    return {"run": "online", "shared": "online", "dryrun": "offline"}.get(settings().mode, settings().mode)


def has_key() -> bool:
    """Tell whether there is a key for the server, and log in with it; nobody is asked for one."""
    return bool(load_wandb().login(prompt=False, verify=False))


def host() -> str:
    """Return `host:port` of the server for messages, without any user name and password of the address."""
    url = settings().base_url
    return visible(urlsplit(url).netloc.rpartition("@")[2] or url)


# --- `posenc dashboard`: the W&B workspace that compares encodings

NAME = "posenc: encodings by context"
MOST_RUNS = 200  # W&B would show ten
SECONDS = 10.0  # to ask the server


def make_dashboard(
    entity: str | None, project: str | None, protocol: str, length: str, out: str | None
) -> None:
    """Save the workspace, bars at `length` times T, and print its address; or write its JSON to `out`."""
    refuse_without("wandb_workspaces", "dashboard", None, "dashboard")
    multiple = length_text(parse_multiple(length, "--length"))
    if protocol.partition("+")[0] not in protocol_names():  # fixed-target+yarn: with a test-time extension
        raise UserError("--protocol", protocol, "there is no such protocol", allowed=protocol_names())
    if (project := project or settings().project) is None:
        project = str(own_yaml(conf_dir() / "tracking" / "wandb.yaml")["project"])
    view, owner = (project, protocol, multiple), entity or settings().entity
    if out is not None:
        place = output_file("--out", out)
        model = build_workspace(owner or "ENTITY", *view)._to_model()
        write_text_atomic(place, model.model_dump_json(by_alias=True, exclude_none=True, indent=2) + "\n")
        say(f"written: {out}; nothing was sent")
        return
    if not has_key():
        hint = "run `wandb login`, which says where to get one; --out needs none"
        raise UserError("WANDB_API_KEY", None, f"there is no W&B API key for {host()}", hint=hint)

    def send() -> str:
        api = load_wandb().Api(timeout=int(SECONDS))
        workspace = build_workspace(owner or api.default_entity, *view)
        workspace.save()
        return str(workspace.url)

    try:
        with contextlib.redirect_stdout(io.StringIO()):
            address = run_interruptible(send, limit=SECONDS)
    except Exception as error:
        problem = "does not answer" if isinstance(error, TimeoutError) else "refuses"
        hint = "--out FILE keeps what would be sent"
        raise RunError(f"the W&B server {host()} {problem} ({reason(error)})", hint=hint) from error
    print(address)


def build_workspace(entity: str, project: str, protocol: str, multiple: str) -> Any:
    """Build a workspace by encoding: curves of `protocol` by window, bars at `multiple`, bands by seed."""
    import wandb_workspaces.reports.v2 as wr
    import wandb_workspaces.workspaces as ws

    look: dict[str, Any] = {
        "max_runs_to_show": MOST_RUNS,
        "groupby": wr.Config("encoding.name"),
        "groupby_aggfunc": "mean",
        "groupby_rangefunc": "stddev",
    }
    nats, by_position = f"eval/{protocol}/nats", "eval/positions/nats-by-position"
    panels: Any = [
        wr.LinePlot(title=f"{protocol}: nats per token by window", x=WINDOW, y=[nats], log_x=True, **look),
        wr.LinePlot(title="nats per token by position", x=POSITION, y=[by_position], log_x=True, **look),
        wr.BarPlot(title=f"{protocol}: nats per token at {multiple}", metrics=[f"{nats}@{multiple}"], **look),
        wr.BarPlot(title=f"{protocol}: nats per token at 1x", metrics=[f"{nats}@1x"], **look),
        wr.LinePlot(title="training: loss", x="train/tokens", y=["train/loss"], **look),
    ]
    section = ws.Section(name="Loss by encoding", panels=panels, is_open=True)
    shown = ws.WorkspaceSettings(max_runs=MOST_RUNS)
    return ws.Workspace(entity=entity, project=project, name=NAME, sections=[section], settings=shown)
