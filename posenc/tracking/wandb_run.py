"""Starting a W&B run: its identity, its settings, and offline where going online fails."""

from __future__ import annotations

import logging
import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from posenc.tracking.guard import GivenUpError, reason, within
from posenc.tracking.wandb_server import credentials, load_wandb, server_url

logger = logging.getLogger(__name__)

GRACE_SECONDS = 1.0  # beyond wandb's own time-out, for its service process to start or stop


def begin(
    settings: dict[str, Any], config: dict[str, Any], mode: str, why: str | None, timeout: float
) -> tuple[Any, str | None]:
    """The W&B run; offline, with the reason, where going online fails."""
    if mode == "online":
        try:
            login = credentials(server_url()) or {}  # a key that wandb is given is one it does not ask for
            return within(
                timeout + GRACE_SECONDS,
                lambda: _init({**settings, **login, "mode": "online"}, config, timeout),
            ), None
        except GivenUpError:
            raise  # wandb hangs in itself, so a second call would too
        except Exception as error:
            why = reason(error)
            leave()  # its service keeps the id of the run that failed
    return within(
        timeout + GRACE_SECONDS, lambda: _init({**settings, "mode": "offline"}, config, timeout)
    ), why


def _init(settings: dict[str, Any], config: dict[str, Any], timeout: float) -> Any:
    wandb = load_wandb()
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
    with _without_mode():
        run = wandb.init(config=config, settings=wandb.Settings(**known))
    run.define_metric("train/tokens")
    run.define_metric("train/*", step_metric="train/tokens")
    run.define_metric("eval/window")
    run.define_metric("eval/*", step_metric="eval/window")
    return run


@contextmanager
def _without_mode() -> Iterator[None]:
    """Hide WANDB_MODE, which has been decided on: an empty one makes wandb raise, whatever it is given."""
    hidden = os.environ.pop("WANDB_MODE", None)
    try:
        yield
    finally:
        if hidden is not None:
            os.environ["WANDB_MODE"] = hidden


def leave() -> None:
    """Shut wandb's service down, or its exit hook prints a traceback when the service is gone already."""
    try:
        within(GRACE_SECONDS, load_wandb().teardown)
    except Exception as error:
        logger.debug("wandb.teardown: %s", reason(error))


def run_id(directory: Path) -> str:
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
        logger.debug("the W&B run id is not kept: %s", reason(error))
    return made
