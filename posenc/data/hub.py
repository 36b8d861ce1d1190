"""Data sets of the Hugging Face hub at a pinned commit, through `datasets`, and how the hub is reached."""

from __future__ import annotations

import bisect
import itertools
import os
import re
import socket
from collections.abc import Iterator
from typing import Any, Literal
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from posenc.core.console import run_interruptible
from posenc.core.errors import RunError, UserError, first_line
from posenc.core.paths import expanded, is_folder
from posenc.core.signature import between
from posenc.data.documents import SPLITS, Document, Notes, articles, hash_fraction

COMMIT = re.compile(r"[0-9a-f]{40}")
PATIENCE = 3.0  # seconds for name look-up and connection together
Rows = Literal["documents", "wikitext_lines"]
ROWS = {"documents": 16, "wikitext_lines": 4096}  # fetched from the library at once; a row may be a book
WAYS_OUT = (
    "posenc data prepare on a machine with network, and copy its POSENC_CACHE here; "
    "data=files data.paths=FOLDER; data=sympy"
)
# words of an error of `datasets`, and the setting that is wrong
BLAME = {"BuilderConfig": "config", "Bad split": "splits", "doesn't exist on the Hub": "repository"}


def read(
    notes: Notes, /, *, repository: str, config: str | None, revision: str, text_field: str, rows: Rows
) -> Iterator[Document]:
    """Yield the documents of the train, validation and test splits; ids are `split/number`."""
    for split in sorted(SPLITS):
        texts = _texts(repository, config, revision, split, text_field, ROWS[rows])
        kept = filter(str.strip, articles(texts) if rows == "wikitext_lines" else texts)
        for number, text in enumerate(kept):
            yield Document(f"{split}/{number:08d}", text.encode("utf-8", "replace"), split)


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
    """Yield documents; ids are `split/row` of the data set, limited to its first `documents` or `bytes`.

    `splits` shares each of its splits out to ours by a hash of the text, so that copies are on one side.
    """
    for split in sorted(splits):
        taken = size = 0
        texts = _texts(repository, config, revision, split, text_field, ROWS["documents"])
        for row, value in enumerate(texts):
            if not value.strip():
                notes.not_read["empty"] += 1
                continue
            text = value.encode("utf-8", "replace")
            taken, size = taken + 1, size + len(text)
            if (documents is not None and taken > documents) or (bytes is not None and size > bytes):
                break
            sides = [side for side in SPLITS if side in splits[split]]
            edges = list(itertools.accumulate(splits[split][side] for side in sides[:-1]))
            side = sides[bisect.bisect_right(edges, hash_fraction(text))]
            yield Document(f"{split}/{row:09d}", text, side)


def check(settings: dict[str, Any]) -> None:
    """Raise UserError for a revision that is no commit, and for limits and shares that make no sense."""
    revision = settings["revision"]
    if not is_folder(settings["repository"]) and not COMMIT.fullmatch(revision):
        allowed = "a commit, 40 hex digits: a branch may change under a run"
        raise UserError("data.revision", revision, "is no commit", allowed=allowed)
    for key in ("documents", "bytes"):
        if (limit := settings.get(key)) is not None:  # null: all of it
            between(f"data.{key}", limit, 1)
    for split, shares in settings.get("splits", {}).items():
        named = isinstance(shares, dict) and set(shares) <= set(SPLITS)
        numbers = named and all(type(share) in (int, float) and share > 0 for share in shares.values())
        if not numbers or abs(sum(shares.values()) - 1) > 1e-9:
            allowed = "a share above 0 of train, validation or test, with a sum of 1: {train: 0.9, test: 0.1}"
            raise UserError(f"data.splits.{split}", shares, "cannot be used", allowed=allowed)


def pinned_identity(settings: dict[str, Any]) -> dict[str, Any] | None:
    """Return the settings, which name a commit; None for a local folder, which may change."""
    if is_folder(settings["repository"]):
        return None
    limit = settings.get("bytes")  # however the number is written
    return settings if limit is None else {**settings, "bytes": int(limit)}


def _texts(
    repository: str, config: str | None, revision: str, split: str, text_field: str, at_once: int
) -> Iterator[str]:
    """Yield one column of one split, row by row; a row without text as an empty one."""
    try:
        for batch in load(repository, config, revision, split).iter(batch_size=at_once):
            if text_field not in batch:
                raise UserError("data.text_field", text_field, "no such field", allowed=list(batch))
            for value in batch[text_field]:
                if value is not None and not isinstance(value, str):
                    raise UserError("data.text_field", text_field, f"does not hold text (in {split})")
                yield value or ""
    except (UserError, RunError):
        raise
    except Exception as error:  # of five packages, also on the way: a connection that breaks off
        given = {"config": config, "splits": split, "repository": repository}
        for key in (key for words, key in BLAME.items() if words in str(error)):
            raise UserError(f"data.{key}", given[key], first_line(error)) from error
        raise not_loaded(repository, error) from error


def load(repository: str, config: str | None, revision: str, split: str) -> Any:
    """Return the rows of one split as they come, from the hub or a local folder."""
    local = is_folder(repository)
    if not local and not reachable():
        raise not_loaded(repository)
    import datasets

    # of a read: the hub's library below tries for 25 s itself, and 20 times that looks like a hang
    datasets.config.STREAMING_READ_MAX_RETRIES = 1
    place = str(expanded(repository).resolve()) if local else repository
    commit = None if local else revision
    return datasets.load_dataset(place, config, revision=commit, split=split, streaming=True)


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
    """Have `reachable` say no from now on."""
    os.environ["HF_HUB_OFFLINE"] = "1"


def not_loaded(what: str, error: Exception | None = None, ways_out: str = WAYS_OUT) -> RunError:
    """Make the error for what the hub did not give, or (no error) is not cached while it is out of reach."""
    if error is None:
        host = endpoint().rpartition("@")[2].removeprefix("https://")  # an address may hold a password
        problem = f"{what} is not cached here and the hub ({host}) is out of reach"
    else:
        problem = f"{what} could not be loaded ({type(error).__name__}: {first_line(error)[:300]})"
    return RunError(problem, hint=f"ways out: {ways_out}")
