"""Data sets of the Hugging Face hub, whole or row by row, and how it is reached."""

from __future__ import annotations

import functools
import itertools
import math
import os
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from posenc.core.console import run_interruptible
from posenc.core.errors import RunError, UserError, first_line
from posenc.core.paths import is_folder
from posenc.data.documents import SPLITS, Document, Notes, hash_fraction
from posenc.data.sections import articles

COMMIT = re.compile(r"[0-9a-f]{40}")
PATIENCE = 3.0  # seconds for name look-up and connection together
ROWS = {"documents": 16, "wikitext_lines": 4096}  # fetched from the library at once; a row may be a book
WAYS_OUT = (
    "fill HF_HOME or POSENC_CACHE on a machine with network (posenc data prepare) and copy it here; "
    "data=files data.paths=FOLDER; data=sympy"
)


def read(
    notes: Notes,
    /,
    *,
    repository: str,
    config: str | None,
    revision: str,
    text_field: str,
    rows: Literal["documents", "wikitext_lines"],
) -> Iterator[Document]:
    """Yield the documents of the train, validation and test splits; ids are `split/number`.

    Raises UserError for a data set, config or field that does not exist, RunError when the hub is out of
    reach and this revision is not cached.
    """
    commit = None if is_folder(repository) else revision
    for split in sorted(SPLITS):
        texts = _texts(repository, config, commit, split, text_field, ROWS[rows])
        kept = filter(str.strip, articles(texts) if rows == "wikitext_lines" else texts)
        for number, text in enumerate(kept):
            yield Document(f"{split}/{number:08d}", text.encode("utf-8", "replace"), split)


def pinned_identity(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings where they name a commit; None for a branch or a local folder, which may change."""
    if is_folder(settings["repository"]) or not COMMIT.fullmatch(settings["revision"]):
        return None
    return settings


def stream(
    notes: Notes,
    /,
    *,
    repository: str,
    config: str | None,
    revision: str,
    text_field: str,
    splits: dict[str, Any],
    documents: int | None,
    bytes: int | float | None,
) -> Iterator[Document]:
    """Yield documents in the order of their ids, which are `split/row` of the data set.

    `splits` gives for each split of the data set the share of its documents that goes to each of ours, by a
    hash of the text, so that two copies are never on both sides. `documents` and `bytes` limit each split of
    the data set to its first rows that fit. Raises as `read`, on the way too.
    """
    commit = None if is_folder(repository) else _commit(repository, revision)
    for split in sorted(splits):
        taken = size = 0
        texts = _texts(repository, config, commit, split, text_field, ROWS["documents"])
        for row, value in enumerate(texts):
            if not value.strip():
                notes.not_read["empty"] += 1
                continue
            text = value.encode("utf-8", "replace")
            taken, size = taken + 1, size + len(text)
            if (documents is not None and taken > documents) or (bytes is not None and size > bytes):
                break
            yield Document(f"{split}/{row:09d}", text, _split_of_text(text, splits[split]))


def check_stream(settings: dict[str, Any]) -> None:
    """Raise UserError for limits and shares that make no sense; asks nobody."""
    for key in ("documents", "bytes"):
        limit = settings[key]
        if limit is not None and not (math.isfinite(limit) and limit >= 1):
            raise UserError(f"data.{key}", limit, "out of range", allowed="null (all of it), or 1 and more")
    if not settings["splits"]:
        raise UserError("data.splits", settings["splits"], "names no split of the data set")
    for split, shares in settings["splits"].items():
        named = isinstance(shares, dict) and set(shares) <= set(SPLITS)
        numbers = named and all(type(share) in (int, float) and share > 0 for share in shares.values())
        if not numbers or abs(sum(shares.values()) - 1) > 1e-9:
            allowed = "a share above 0 of train, validation or test, with a sum of 1: {train: 0.9, test: 0.1}"
            raise UserError(f"data.splits.{split}", shares, "cannot be used", allowed=allowed)


def pinned_stream(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings with the commit that a branch or tag is at now; None for a local folder.

    Raises UserError, RunError when nobody can say which commit.
    """
    if is_folder(settings["repository"]):
        return None
    limit = settings["bytes"]
    commit = _commit(settings["repository"], settings["revision"])
    return {**settings, "revision": commit, "bytes": None if limit is None else int(limit)}


def _split_of_text(text: bytes, shares: dict[str, float]) -> str:
    point, reached = hash_fraction(text), 0.0
    sides = [side for side in SPLITS if side in shares]
    for side in sides[:-1]:
        reached += shares[side]
        if point < reached:
            return side
    return sides[-1]


@functools.cache
def _commit(repository: str, revision: str) -> str:
    """Return the commit that a branch or tag is at now."""
    if COMMIT.fullmatch(revision):
        return revision
    if not reachable():
        what = f"what revision {revision} of {repository} is"
        raise unreachable(what, f"data.revision=COMMIT (40 hex digits); {WAYS_OUT}")
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        return str(HfApi(endpoint=endpoint()).dataset_info(repository, revision=revision).sha)
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise UserError("data.revision", revision, f"there is no such revision of {repository}") from error
    except Exception as error:  # of five packages; all final here
        raise _load_failed(repository, error) from error


def _texts(
    repository: str, config: str | None, commit: str | None, split: str, text_field: str, at_once: int
) -> Iterator[str]:
    """Yield one column of one split, row by row; a row without text as an empty one."""
    place = str(Path(repository).expanduser().resolve()) if commit is None else repository
    rows = load(place, config, commit, streaming=True, split=split)
    if isinstance(rows, dict):  # from the library's cache, without network
        if split not in rows:
            raise UserError("data.splits", split, "there is no such split", allowed=list(rows))
        rows = rows[split]
    batches = rows.iter(batch_size=at_once)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:  # a connection that breaks off, a file that is damaged
            raise _load_failed(repository, error) from error
        if batch is None:
            return
        if text_field not in batch:
            raise UserError("data.text_field", text_field, "no such field", allowed=list(batch))
        for value in batch[text_field]:
            if value is not None and not isinstance(value, str):
                raise UserError("data.text_field", text_field, f"does not hold text (in {split})")
            yield value or ""


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
    except Exception as error:  # the libraries below raise errors of five packages, all of them final here
        problem = first_line(error)
        if isinstance(error, datasets.exceptions.DatasetNotFoundError):
            key, value = ("revision", revision) if "Revision" in str(error) else ("repository", repository)
            raise UserError(f"data.{key}", value, problem) from error
        if not online:
            raise unreachable(what) from error
        if isinstance(error, ValueError) and "BuilderConfig" in str(error):
            raise UserError("data.config", config, problem) from error
        if isinstance(error, ValueError) and "Bad split" in str(error):
            raise UserError("data.splits", streamed.get("split"), problem) from error
        raise _load_failed(what, error) from error
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
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in {"1", "ON", "YES", "TRUE"}:
        return False

    def connect() -> None:
        url = urlsplit(endpoint())
        proxy = getproxies().get(url.scheme)
        if proxy and not proxy_bypass(url.hostname or ""):
            url = urlsplit(proxy if "://" in proxy else f"http://{proxy}")
        address = (url.hostname or "", url.port or (443 if url.scheme == "https" else 80))
        socket.create_connection(address, timeout=PATIENCE).close()

    try:
        run_interruptible(connect, limit=PATIENCE)  # a socket's own does not cover the look-up of its name
    except (OSError, ValueError):
        return False
    return True


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
    problem = f"{what} is not cached here and the hub ({host}) is out of reach"
    return RunError(problem, hint=f"ways out: {ways_out}")


def _load_failed(what: str, error: Exception) -> RunError:
    problem = f"{what} could not be loaded ({type(error).__name__}: {first_line(error)[:300]})"
    return RunError(problem, hint=f"ways out: {WAYS_OUT}")
