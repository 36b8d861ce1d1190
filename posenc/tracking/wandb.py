"""Track with Weights & Biases: one W&B run a training run. A copy that may fail, never a reason to fail.

wandb's own time limits hold where a server is dead, silent or hangs (0.31: 6.3 s for a limit of 6). What it
does not do by itself: go offline after a failed start, and never ask for a key on a terminal.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from posenc.core.errors import UserError, visible
from posenc.tracking import metrics as figures
from posenc.tracking.base import BaseTracker, Evaluation, TrackedRun, as_files, check_shared, reason

logger = logging.getLogger(__name__)

Mode = Literal["auto", "online", "offline", "disabled"]
MODES: dict[str, Mode] = {"online": "online", "offline": "offline", "disabled": "disabled"}
MODES |= {"run": "online", "shared": "online", "dryrun": "offline"}  # wandb's older words
RESULTS = ("config.yaml", "results.json", "metrics.jsonl", "positions.json")
POSITION = "eval/position"  # what curves by position are drawn against
LONGEST_NAME, LONGEST_TAG = 128, 64  # characters: more is refused by the server


class WandbTracker(BaseTracker):
    """A W&B run, or the one of this run directory continued.

    `timeout` (seconds) bounds the connection here and the upload in `finish`. Without a key or a server that
    answers it writes to `dir` only, and one line says how to look at it and how to upload it.
    """

    label = "W&B"

    def __init__(
        self,
        run: TrackedRun,
        *,
        mode: Mode,
        project: str,
        entity: str | None,
        group: str | None,
        tags: list[str],
        dir: str | None,
        timeout: float,
        plots: list[str],
        artifact: Literal["none", "results", "checkpoint"],
    ) -> None:
        super().__init__(run, "wandb", timeout, plots)
        wandb = load_wandb()
        self._artifact = artifact
        asked = requested_mode() if mode == "auto" else mode
        why = "as asked" if asked == "offline" else None
        if asked == "disabled":
            self._on, self._finished = False, True
            return
        if asked is None and not has_key():
            asked, why = "offline", f"no API key for {host()}"
        settings: dict[str, Any] = {
            "entity": entity,
            "project": project,
            "run_name": run.name[:LONGEST_NAME],
            "run_group": (group or self.progress.group or "")[:LONGEST_NAME] or None,
            "run_job_type": "train",
            "run_tags": list(dict.fromkeys(tag[:LONGEST_TAG] for tag in [*run.tags, *tags] if tag.strip())),
            "run_id": self.progress.id,
            "root_dir": str(Path(dir).expanduser() if dir else run.directory),
            "init_timeout": timeout,
            "finish_timeout": timeout,
            "finish_timeout_raises": True,
            "reinit": "create_new",  # the default hands a second run of one process the first one again
            "resume": "allow",
            "silent": True,
            "console": "off",
        }
        Path(settings["root_dir"]).mkdir(parents=True, exist_ok=True)  # wandb would go to /tmp without a word
        if asked != "offline":
            try:
                has_key()  # logs in with it: `init` would ask for one on a terminal
                self._begun = _init({**settings, "mode": "online"}, run)
            except Exception as error:
                asked, why = "offline", reason(error)
                wandb.teardown()  # or `init` says that the id of the run that failed is in use
        if asked == "offline":
            self._begun = _init({**settings, "mode": "offline"}, run)
            words = "W&B is offline (%s). Look: wandb leet %s  Upload: wandb sync %s"
            logger.warning(words, why, self._place(), self._place())
        self.save()

    @staticmethod
    def check(
        prefix: str,
        *,
        mode: Mode,
        project: str,
        entity: str | None,
        timeout: float,
        plots: list[str],
        **others: Any,
    ) -> None:
        """Raise UserError for names W&B does not take, a time-out that is none, mode=online without a key."""
        for key, name in (("project", project), ("entity", entity)):
            if name is not None and not re.fullmatch(rf"(?=.*\S)[^/\\#?%:]{{1,{LONGEST_NAME}}}", name):
                allowed = f"1 to {LONGEST_NAME} characters without / \\ # ? % :"
                raise UserError(f"{prefix}.{key}", name, "W&B does not take this name", allowed=allowed)
        check_shared(prefix, timeout, plots)
        by_environment = mode == "auto" and os.environ.get("WANDB_MODE") == "online"
        if (mode == "online" or by_environment) and not has_key():
            key = "WANDB_MODE" if by_environment else f"{prefix}.mode"
            hint = f"run `wandb login`, set WANDB_API_KEY, or use {prefix}.mode=offline and sync later"
            raise UserError(key, "online", f"there is no W&B API key for {host()}", hint=hint)

    def send_step(self, row: Mapping[str, float], step: int | None) -> None:
        self._begun.log(dict(row), step=step, commit=True)

    def send_evaluation(self, shown: Evaluation) -> None:
        for name in {name for row in shown.positions for name in row}:  # by name: that goes before eval/*
            self._begun.define_metric(name, step_metric=None if name == POSITION else POSITION)
        # an offline run that is continued counts from 0 again, and its rows would replace earlier ones
        before = max(self.progress.step, self.progress.row) if self._begun.step == 0 else -1
        for row in [*shown.windows, *shown.positions]:
            self._begun.log(row, step=before + 1 if before >= 0 else None, commit=True)
            before = -1
        self._begun.summary.update({**shown.summary, "headline": shown.headline})
        wandb = load_wandb()
        with as_files(shown.pictures) as paths:
            media = {f"plots/{kind}": wandb.Image(path) for kind, path in paths.items()}
            table = wandb.Table(columns=list(figures.COLUMNS), data=shown.table)
            self._begun.log({"evaluation": table, **media})
        self.progress.row = self._begun.step
        if self._artifact != "none":
            self._begun.log_artifact(_artifact_of(self.run, self._artifact == "checkpoint"))

    def end(self, status: str) -> None:
        """Upload what is left; the rest stays on disk for `wandb sync`."""
        self._begun.summary["status"] = status
        self._begun.finish(exit_code=0 if status == "finished" else 1)

    def leave(self) -> None:
        """Shut wandb's service down, or its exit hook prints a traceback when the service is gone already."""
        self._within(load_wandb().teardown)

    def advice(self) -> str:
        return f" Upload: wandb sync {self._place()}"

    def _place(self) -> str:
        return shlex.quote(visible(Path(self._begun.dir).parent))


TRACKER = WandbTracker


def _init(settings: dict[str, Any], run: TrackedRun) -> Any:
    wandb = load_wandb()
    with _without_mode():
        begun = wandb.init(config=dict(run.config), settings=wandb.Settings(**settings))
    begun.define_metric("train/tokens")
    begun.define_metric("train/*", step_metric="train/tokens")
    begun.define_metric("eval/window")
    begun.define_metric(POSITION)
    begun.define_metric("eval/*", step_metric="eval/window")
    return begun


def _artifact_of(run: TrackedRun, checkpoint: bool) -> Any:
    """Make an artifact of a run's results and maybe its newest whole checkpoint, which is not copied."""
    name = re.sub(r"[^A-Za-z0-9._-]", "-", run.name)[:LONGEST_NAME]
    artifact = load_wandb().Artifact(name, type="run", metadata={"group": run.group, "tags": list(run.tags)})
    for file in (run.directory / name for name in RESULTS):
        if file.is_file():
            artifact.add_file(str(file), name=file.name)
    whole = sorted(run.directory.glob("checkpoints/step-*/manifest.json"))[-1:] if checkpoint else []
    for manifest in whole:
        for file in sorted(manifest.parent.iterdir()):
            inside = f"checkpoints/{manifest.parent.name}/{file.name}"
            artifact.add_file(str(file), name=inside, policy="immutable", skip_cache=True)
    return artifact


# What the user has set, as wandb finds it: environment, settings files, netrc


def load_wandb() -> Any:
    """Import wandb, told before to be quiet."""
    # with error reporting on, its exit hook waits 12 s and more for a server that hangs (0.31)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    return wandb


def settings() -> Any:
    """Return wandb's settings of the environment and the user's files."""
    with _without_mode():
        return load_wandb().setup().settings


def requested_mode() -> Mode | None:
    """Return the mode that WANDB_MODE or a settings file asks for; None for online, the default."""
    said = MODES.get(os.environ.get("WANDB_MODE", "").strip().lower()) or MODES[settings().mode]
    return None if said == "online" else said


def has_key() -> bool:
    """Tell whether there is a key for the server, and log in with it; nobody is asked for one."""
    found = settings()
    before, found.mode = found.mode, "online"  # `login` returns False where a settings file says offline
    try:
        return bool(load_wandb().login(prompt=False, verify=False))
    finally:
        found.mode = before


def host() -> str:
    """Return `host:port` of the server for messages, without any user name and password of the address."""
    url = settings().base_url
    return visible(urlsplit(url).netloc.rpartition("@")[2] or url)


@contextmanager
def _without_mode() -> Iterator[None]:
    """Hide WANDB_MODE, which is read here: an empty or misspelt one makes wandb raise."""
    hidden = os.environ.pop("WANDB_MODE", None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ["WANDB_MODE"] = hidden
