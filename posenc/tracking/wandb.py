"""Weights & Biases: one W&B run a training run. A copy that may fail, never a reason for the run to fail."""

from __future__ import annotations

import logging
import math
import os
import re
import secrets
import shlex
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from posenc.errors import UserError
from posenc.tracking import metrics as figures
from posenc.tracking.base import TrackedRun, Tracker
from posenc.tracking.none import NoTracker
from posenc.tracking.wandb_server import answers, credentials, host_of, requested_mode, server_url

logger = logging.getLogger(__name__)

GRACE_SECONDS = 2.0  # beyond wandb's own time-out, for its service process to start or stop
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
            "run_id": _run_id(run.directory),
            "root_dir": str(Path(dir).expanduser() if dir else run.directory),
        }
        Path(settings["root_dir"]).mkdir(parents=True, exist_ok=True)  # wandb would go to /tmp without a word
        begun, why = _begin(settings, dict(run.config), wanted, why, timeout)
        if why is not None:
            place = shlex.quote(_line(Path(begun.dir).parent))
            logger.warning(
                "W&B is offline (%s). Look: wandb leet %s  Upload: wandb sync %s", why, place, place
            )
        return WandbTracker(begun, dict(run.config), timeout)
    except Exception as error:
        logger.warning("W&B could not start, training goes on without it (%s)", _reason(error))
        return NoTracker()


class WandbTracker:
    """A W&B run. The first exception is one warning and switches it off."""

    def __init__(self, run: Any, config: dict[str, Any], timeout: float) -> None:
        self._run = run
        self._config = config
        self._timeout = timeout
        self._on = True
        self._finished = False

    def log(self, metrics: dict[str, float], step: int | None) -> None:
        """One row of history at `step`, with bare names under `train/`."""
        row = {name if "/" in name else f"train/{name}": value for name, value in metrics.items()}
        self._try(lambda: self._run.log(row, step=step, commit=True))

    def evaluation(self, records: list[dict[str, Any]]) -> None:
        """Curves against `eval/window`, summary figures, and the table `evaluation`."""

        def send() -> None:
            import wandb

            for row in figures.by_window(records):
                self._run.log(row)
            self._run.summary.update(figures.summary(records))
            rows = figures.table_rows(records, self._config)
            self._run.log({"evaluation": wandb.Table(columns=list(figures.COLUMNS), data=rows)})

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
            _within(self._timeout + GRACE_SECONDS, end)
        except Exception as error:
            if self._on:
                place = shlex.quote(_line(Path(self._run.dir).parent))
                logger.warning(
                    "W&B did not get everything (%s). Upload: wandb sync %s", _reason(error), place
                )
            _leave()

    def _try(self, action: Callable[[], None]) -> None:
        if not self._on or self._finished:
            return
        try:
            action()
        except Exception as error:
            self._on = False
            logger.warning("W&B is switched off, training goes on without it (%s)", _reason(error))


def _mode(mode: str) -> tuple[str, str | None]:
    """What to do, and the reason to tell the user if it is less than could be expected."""
    wanted = (requested_mode() or "auto") if mode == "auto" else mode
    if wanted != "auto":
        return wanted, "as asked" if wanted == "offline" else None
    url = server_url()
    if credentials(url) is None:
        return "offline", f"no API key for {_line(host_of(url))}"
    if not answers(url):
        return "offline", f"{_line(host_of(url))} does not answer"
    return "online", None


def _begin(
    settings: dict[str, Any], config: dict[str, Any], mode: str, why: str | None, timeout: float
) -> tuple[Any, str | None]:
    """The W&B run; offline, with the reason, where going online fails."""
    if mode == "online":
        try:
            login = credentials(server_url()) or {}  # a key that wandb is given is one it does not ask for
            return _within(
                timeout + GRACE_SECONDS,
                lambda: _init({**settings, **login, "mode": "online"}, config, timeout),
            ), None
        except TimeoutError:
            raise  # wandb hangs in itself, so a second call would too
        except Exception as error:
            why = _reason(error)
    return _within(
        timeout + GRACE_SECONDS, lambda: _init({**settings, "mode": "offline"}, config, timeout)
    ), why


def _init(settings: dict[str, Any], config: dict[str, Any], timeout: float) -> Any:
    # With error reporting on, wandb's exit hook waits 12 s or more for a server that hangs (0.31)
    os.environ.setdefault("WANDB_ERROR_REPORTING", "false")
    os.environ.setdefault("WANDB_SILENT", "true")
    import wandb

    ours = {
        **settings,
        "init_timeout": timeout,
        "login_timeout": timeout,
        "finish_timeout": timeout,
        "finish_timeout_raises": True,
        "reinit": "create_new",  # the default hands a second run of one process the first one again
        "resume": "allow",
        "silent": True,
        "console": "off",
    }
    known = {name: value for name, value in ours.items() if name in wandb.Settings.model_fields}
    with _valid_environment():
        run = wandb.init(config=config, settings=wandb.Settings(**known))
    run.define_metric("train/tokens")
    run.define_metric("train/*", step_metric="train/tokens")
    run.define_metric("eval/window")
    run.define_metric("eval/*", step_metric="eval/window")
    return run


@contextmanager
def _valid_environment() -> Iterator[None]:
    """Hide a WANDB_MODE that wandb would stumble over, an empty one for instance."""
    unknown = os.environ.get("WANDB_MODE") if requested_mode() is None else None
    if unknown is not None:
        del os.environ["WANDB_MODE"]
    try:
        yield
    finally:
        if unknown is not None:
            os.environ["WANDB_MODE"] = unknown


def _within(seconds: float, action: Callable[[], Any]) -> Any:
    """`action()` in a thread of its own, given up after `seconds` with TimeoutError."""
    result: list[Any] = []
    failure: list[BaseException] = []

    def work() -> None:
        try:
            result.append(action())
        except BaseException as error:
            failure.append(error)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    worker.join(seconds)
    if failure:
        raise failure[0] if isinstance(failure[0], Exception) else RuntimeError(repr(failure[0]))
    if not result:
        raise TimeoutError(f"no answer within {seconds:g} s")
    return result[0]


def _leave() -> None:
    """Shut wandb's service down, or its exit hook prints a traceback when the service is gone already."""
    import wandb

    try:
        _within(GRACE_SECONDS, wandb.teardown)
    except Exception as error:
        logger.debug("wandb.teardown: %s", _reason(error))


def _run_id(directory: Path) -> str:
    """The W&B id of a run directory, made once and kept in it, so that a resumed run continues its W&B run.

    An id made from the directory's hash would be the same for everybody who trains the same thing, and again
    after the directory is deleted: two runs in one.
    """
    file = directory / "wandb" / "run-id"
    try:
        kept = file.read_text(encoding="utf-8").strip()
        if re.fullmatch(r"[a-z0-9]{12}", kept):
            return kept
    except (OSError, UnicodeDecodeError):
        pass
    made = secrets.token_hex(6)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(made + "\n", encoding="utf-8")
    except OSError as error:
        logger.debug("the W&B run id is not kept: %s", _reason(error))
    return made


def _tags(tags: list[str]) -> list[str]:
    return list(dict.fromkeys(str(tag)[:LONGEST_TAG] for tag in tags if str(tag).strip()))


def _reason(error: BaseException) -> str:
    """What happened, on one line, without the key."""
    key = os.environ.get("WANDB_API_KEY")
    text = str(error).replace(key, "***") if key else str(error)
    words = _line(text.partition("\n")[0])[:200]
    return f"{type(error).__name__}: {words}" if words else type(error).__name__


def _line(text: object) -> str:
    """`text` without line breaks or control characters."""
    return "".join(c if c.isprintable() else "?" for c in str(text))
