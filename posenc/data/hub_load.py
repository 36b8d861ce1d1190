"""A data set through the `datasets` library, with its many errors told in ours."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from posenc.core.errors import RunError, UserError, first_line, visible
from posenc.data.hub_access import go_offline, reachable, unreachable

WAYS_OUT = (
    "fill HF_HOME or POSENC_CACHE on a machine with network (posenc data prepare) and copy it here; "
    "data=files data.paths=FOLDER; data=sympy"
)
RETRIES = 1  # of a read: the hub's library below tries for 25 s itself, and 20 times that looks like a hang


def load(repository: str, config: str | None, revision: str | None, **streamed: Any) -> Any:
    """All splits; or with `streaming=True, split=NAME` the rows of one as they come.

    Without network only the library's own cache of this very revision is taken, and then all splits come.
    Raises UserError for a data set, config or split that does not exist, RunError for everything else.
    """
    online = Path(repository).is_dir() or reachable()
    if not online:
        go_offline()
        streamed = {}
    import datasets

    datasets.config.STREAMING_READ_MAX_RETRIES = RETRIES
    what = described(repository, config)
    try:
        loaded = datasets.load_dataset(repository, config, revision=revision, **streamed)
    except datasets.exceptions.DatasetNotFoundError as error:
        if "Revision" in str(error):
            raise UserError("data.revision", visible(revision), _told(error)) from error
        raise UserError("data.repository", visible(repository), _told(error)) from error
    except Exception as error:  # the libraries below raise errors of five packages, all of them final here
        if not online:
            raise unreachable(what, WAYS_OUT) from error
        if isinstance(error, ValueError) and "BuilderConfig" in str(error):
            raise UserError("data.config", config, _told(error)) from error
        if isinstance(error, ValueError) and "Bad split" in str(error):
            raise UserError("data.splits", streamed.get("split"), _told(error)) from error
        raise broken_off(what, error) from error
    if not online:
        _refuse_other_revision(loaded, what, str(revision))
    return loaded


def described(repository: str, config: str | None) -> str:
    """What is asked for, for a message."""
    return f"{visible(repository)} ({visible(config)})" if config else visible(repository)


def broken_off(what: str, error: Exception) -> RunError:
    """The error for a data set that exists and does not come."""
    return RunError(
        f"{what} could not be loaded ({type(error).__name__}: {_told(error)})",
        hint=f"ways out: {WAYS_OUT}",
    )


def _told(error: Exception) -> str:
    """The first line of an error's text, which may be a server's."""
    return visible(first_line(error)[:300])


def _refuse_other_revision(loaded: Any, what: str, revision: str) -> None:
    # without network the library takes the newest cached copy, whatever revision was asked for
    for split in loaded.values():
        for file in split.cache_files:
            cached = Path(file["filename"]).parent.name
            if re.fullmatch(r"[0-9a-f]{40}", cached) and cached != revision:
                raise unreachable(f"revision {revision} of {what}", WAYS_OUT)
