"""`source: hub`: a data set of the Hugging Face hub at a pinned revision, with its own splits.

Also how every other source and the tokenizers reach the hub.
"""

from __future__ import annotations

import itertools
import os
import re
import socket
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from posenc.core.errors import RunError, UserError, first_line
from posenc.core.paths import is_folder
from posenc.data.documents import SPLITS, Document

OWN_SPLITS = True
NEEDS_NETWORK = True
COMMIT = re.compile(r"[0-9a-f]{40}")
# ` = Title = ` opens an article; its sections have two or more signs on each side
TITLE = re.compile(r" = [^=\n]+ = ?\n?")
PATIENCE = 3.0  # seconds for name look-up and connection together
WAYS_OUT = (
    "fill HF_HOME or POSENC_CACHE on a machine with network (posenc data prepare) and copy it here; "
    "data=files data.paths=FOLDER; data=sympy"
)


def read(
    *,
    repository: str,
    config: str | None,
    revision: str,
    text_field: str,
    rows: Literal["documents", "wikitext_lines"],
) -> list[Document]:
    """Return the documents of the train, validation and test splits; ids are `split/number`.

    Raises UserError for a data set, config or field that does not exist, RunError when the hub is out of
    reach and this revision is not cached.
    """
    loaded = load(repository, config, revision)
    documents = []
    for split in SPLITS:
        if split in loaded:
            if text_field not in loaded[split].column_names:
                raise UserError(
                    "data.text_field", text_field, "no such field", allowed=loaded[split].column_names
                )
            texts = list(loaded[split][text_field])
            if rows == "wikitext_lines":
                texts = articles(texts)
            kept = [text.encode("utf-8", "replace") for text in texts if text.strip()]
            documents += [Document(f"{split}/{i:08d}", text, split) for i, text in enumerate(kept)]
    return documents


def pinned_identity(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings where they name a commit; None for a branch or a local folder, which may change."""
    if is_folder(settings["repository"]) or not COMMIT.fullmatch(settings["revision"]):
        return None
    return settings


def articles(lines: Iterable[str]) -> list[str]:
    """Join WikiText's rows (one line each, blank ones too) to articles.

    An article opens at a title line between blank lines: a few table rows look like titles and are not.
    Lines before the first title make an article of their own.
    """
    rows = list(lines)

    def blank(i: int) -> bool:
        return not 0 <= i < len(rows) or not rows[i].strip()

    starts = [i for i, row in enumerate(rows) if TITLE.fullmatch(row) and blank(i - 1) and blank(i + 1)]
    edges = [0, *(i for i in starts if i > 0), len(rows)]
    # blank rows come with or without their line end
    whole = [row if row.endswith("\n") else row + "\n" for row in rows]
    joined = ["".join(whole[a:b]) for a, b in itertools.pairwise(edges)]
    return [text for text in joined if text.strip()]


def load(repository: str, config: str | None, revision: str | None, **streamed: Any) -> Any:
    """Load all splits; or with `streaming=True, split=NAME` the rows of one as they come.

    Without network only the library's own cache of this very revision is read, and then all splits come.
    Raises UserError for a data set, config or split that does not exist, RunError for everything else.
    """
    online = Path(repository).is_dir() or reachable()
    if not online:
        go_offline()
        streamed = {}
    import datasets

    # of a read: the hub's library below tries for 25 s itself, and 20 times that looks like a hang
    datasets.config.STREAMING_READ_MAX_RETRIES = 1
    what = f"{repository} ({config})" if config else repository
    try:
        loaded = datasets.load_dataset(repository, config, revision=revision, **streamed)
    except datasets.exceptions.DatasetNotFoundError as error:
        if "Revision" in str(error):
            raise UserError("data.revision", revision, first_line(error)) from error
        raise UserError("data.repository", repository, first_line(error)) from error
    except Exception as error:  # the libraries below raise errors of five packages, all of them final here
        if not online:
            raise unreachable(what) from error
        if isinstance(error, ValueError) and "BuilderConfig" in str(error):
            raise UserError("data.config", config, first_line(error)) from error
        if isinstance(error, ValueError) and "Bad split" in str(error):
            raise UserError("data.splits", streamed.get("split"), first_line(error)) from error
        raise load_failed(what, error) from error
    if not online:
        # the library takes the newest cached copy, whatever revision was asked for
        for file in itertools.chain.from_iterable(split.cache_files for split in loaded.values()):
            cached = Path(file["filename"]).parent.name
            if COMMIT.fullmatch(cached) and cached != revision:
                raise unreachable(f"revision {revision} of {what}")
    return loaded


def endpoint() -> str:
    """Return the address of the hub: `HF_ENDPOINT` or the public one."""
    return os.environ.get("HF_ENDPOINT") or "https://huggingface.co"


def reachable() -> bool:
    """Return whether a connection to the hub, or to the proxy before it, opens within three seconds."""
    if switched_off():
        return False
    try:
        url = urlsplit(endpoint())
        proxy = getproxies().get(url.scheme)
        if proxy and not proxy_bypass(url.hostname or ""):
            url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
    except ValueError:
        return False
    answered = threading.Event()

    def connect() -> None:
        try:
            socket.create_connection(address, timeout=PATIENCE).close()
            answered.set()
        except OSError:
            pass

    # a thread, because the timeout of a socket does not cover the look-up of its name
    attempt = threading.Thread(target=connect, daemon=True)
    attempt.start()
    attempt.join(PATIENCE)
    return answered.is_set()


def switched_off() -> bool:
    """Return whether the environment keeps the hub's libraries from the network."""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}


def go_offline() -> None:
    """Keep the hub's libraries, loaded already or not, from the network; cached copies still load."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    for module, name in (
        ("huggingface_hub.constants", "HF_HUB_OFFLINE"),
        ("datasets.config", "HF_HUB_OFFLINE"),
        ("datasets.config", "HF_DATASETS_OFFLINE"),
    ):
        if module in sys.modules:
            setattr(sys.modules[module], name, True)


def unreachable(what: str, ways_out: str = WAYS_OUT) -> RunError:
    """Make the error for something that is neither cached nor to be had; its second line has the ways out."""
    host = endpoint().rpartition("@")[2].removeprefix("https://")  # an address may hold a password
    return RunError(
        f"{what} is not cached here and the hub ({host}) is out of reach", hint=f"ways out: {ways_out}"
    )


def load_failed(what: str, error: Exception) -> RunError:
    """Make the error for a data set that exists and does not come."""
    problem = f"{what} could not be loaded ({type(error).__name__}: {first_line(error)[:300]})"
    return RunError(problem, hint=f"ways out: {WAYS_OUT}")
