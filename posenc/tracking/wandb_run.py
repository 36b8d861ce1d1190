"""Starting a W&B run: its settings, and offline where going online fails."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from posenc.tracking.copy import GRACE_SECONDS
from posenc.tracking.guard import GivenUpError, reason, within
from posenc.tracking.wandb_server import credentials, load_wandb, server_url

logger = logging.getLogger(__name__)

POSITION = "eval/position"  # what curves by position are drawn against


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
    run.define_metric(POSITION)
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
