"""The Hugging Face hub: whether it can be reached, and the text of its data sets through `datasets`."""

from __future__ import annotations

import functools
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from posenc.core.console import Title, progress_of, run_interruptible
from posenc.core.errors import RunError, UserError, first_line
from posenc.core.paths import expanded, is_folder

COMMIT = re.compile(r"[0-9a-f]{40}")
PROBE_SECONDS = 3.0  # for name look-up and connection together
OFFLINE = "HF_HUB_OFFLINE"  # environment variable of the hub's libraries
WAYS_OUT = (
    "posenc data prepare on a machine with network, and copy its POSENC_CACHE here; "
    "data=files data.paths=FOLDER; data=sympy"
)
# words in an error of `datasets` -> the setting that is wrong
WRONG_SETTING = {"BuilderConfig": "config", "Bad split": "splits", "doesn't exist on the Hub": "repository"}


# --- Whether it can be reached


def endpoint() -> str:
    """Return the address of the hub: `HF_ENDPOINT` or the public one."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def reachable() -> bool:
    """Tell whether a connection to the hub, or to the proxy before it, opens within three seconds.

    It is tried once. If it fails, the hub's own libraries are told to stay offline: they would try again and
    again for 23 s.
    """
    if os.environ.get(OFFLINE, "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False
    if _connects(endpoint()):
        return True
    go_offline()
    return False


def go_offline() -> None:
    """Make `reachable` say no from now on, and keep the hub's libraries from trying."""
    os.environ[OFFLINE] = "1"


@functools.cache
def _connects(address: str) -> bool:
    """Tell whether a connection opens, to the address or to the proxy that serves it."""
    url = urlsplit(address)

    def connect() -> None:
        target = url
        proxy = getproxies().get(url.scheme)
        if proxy and not proxy_bypass(url.hostname or ""):
            target = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        port = target.port or (443 if target.scheme == "https" else 80)
        socket.create_connection((target.hostname or "", port), timeout=PROBE_SECONDS).close()

    try:
        # a socket's own time limit does not cover the look-up of the name
        run_interruptible(connect, limit=PROBE_SECONDS)
    except (OSError, ValueError):
        return False
    return True


def not_loaded(what: str, error: Exception | None = None, ways_out: str = WAYS_OUT) -> RunError:
    """Make the error for a text or tokenizer that the hub did not give.

    Without an `error` the hub is out of reach, and the cache does not have it.
    """
    if error is None:
        host = endpoint().rpartition("@")[2].removeprefix("https://")  # an address may hold a password
        problem = f"{what} is not cached here and the hub ({host}) is out of reach"
    else:
        problem = f"{what} could not be loaded ({type(error).__name__}: {first_line(error)[:300]})"
    return RunError(problem, hint=f"ways out: {ways_out}")


# --- Text


@dataclass(frozen=True)
class Column:
    """The text in one split of a data set, on the hub or in a local folder with the same files."""

    repository: str
    config: str | None
    revision: str | None  # None of a local folder
    split: str
    text_field: str

    def texts(self, at_once: int, limit: int | None = None) -> Iterator[str]:
        """Yield the text row by row, a row without text as an empty one; fetch some rows `at_once`.

        The progress counts bytes. `limit` is how many bytes of text the caller takes, if it knows.
        Raises UserError for a column, split or data set that is not there, RunError for a network that fails.
        """
        title = Title(f"reading {self.repository} ({self.split})", counts_bytes=True, has_last_line=False)
        read = 0
        try:
            with progress_of(title, limit) as progress:
                rows = load(self)
                progress.total = self._bytes_to_read(rows, limit)
                for batch in rows.iter(batch_size=at_once):
                    for text in self._texts_in(batch):
                        yield text
                        read += len(text.encode(errors="surrogatepass"))
                    progress.update(read)
        except (UserError, RunError):
            raise
        except Exception as error:  # five packages raise errors of their own, also in the middle of a stream
            raise self._explained(error) from error

    def _bytes_to_read(self, rows: Any, limit: int | None) -> int | None:
        """Return the bytes of text that will be read, as far as the data set's card says how large it is.

        The card counts all columns, so the size is known only where the text is the only one.
        """
        splits = rows.info.splits or {}
        has_other_columns = len(rows.column_names or ()) != 1
        if self.split not in splits or has_other_columns:
            return limit
        size = splits[self.split].num_bytes
        return size if limit is None else min(size, limit)

    def _texts_in(self, batch: dict[str, list[Any]]) -> Iterator[str]:
        field = self.text_field
        if field not in batch:
            raise UserError("data.text_field", field, "no such field", allowed=list(batch))
        for value in batch[field]:
            if value is not None and not isinstance(value, str):
                raise UserError("data.text_field", field, f"does not hold text (in {self.split})")
            yield value or ""

    def _explained(self, error: Exception) -> UserError | RunError:
        values = {"config": self.config, "splits": self.split, "repository": self.repository}
        for sign, key in WRONG_SETTING.items():
            if sign in str(error):
                return UserError(f"data.{key}", values[key], first_line(error))
        return not_loaded(self.repository, error)


def newest_commit(repository: str) -> str | None:
    """Return the newest commit of a data set; None where the hub is out of reach, or does not know it."""
    if not reachable():
        return None
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(repository, timeout=PROBE_SECONDS).sha
    except Exception:  # of three packages: what is wrong is said when it is read
        return None


def load(column: Column) -> Any:
    """Return the rows of one split as they come, from the hub or a local folder."""
    is_local = is_folder(column.repository)
    if not is_local and not reachable():
        raise not_loaded(column.repository)
    import datasets

    # The library below `datasets` already tries each read for 25 s; 20 times that would look like a hang.
    datasets.config.STREAMING_READ_MAX_RETRIES = 1
    name = str(expanded(column.repository).resolve()) if is_local else column.repository
    revision = None if is_local else column.revision
    return datasets.load_dataset(name, column.config, revision=revision, split=column.split, streaming=True)
