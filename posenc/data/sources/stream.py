"""`source: stream`: a data set of the Hugging Face hub row by row, as much of it as is asked for.

A row is a document. Nothing is kept in memory: the documents go to the token cache one by one.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.errors import UserError
from posenc.core.paths import cache_dir, is_folder
from posenc.data.documents import SPLITS, Document, hash_fraction
from posenc.data.sources.hub import COMMIT, WAYS_OUT, endpoint, load, load_failed, reachable, unreachable

log = logging.getLogger(__name__)

OWN_SPLITS = True
STREAMED = True
NEEDS_NETWORK = True
ROWS = 16  # fetched from the library at once; a row may be a book


def read(
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
    the data set to its first rows that fit. Raises as `hub.load`, on the way too.
    """
    commit = None if is_folder(repository) else _commit(repository, revision)
    for split in sorted(splits):
        taken = size = 0
        for row, value in enumerate(_values(repository, config, commit, split, text_field)):
            if value is not None and not isinstance(value, str):
                raise UserError("data.text_field", text_field, f"does not hold text (row {row} of {split})")
            text = (value or "").encode("utf-8", "replace")
            if not text.strip():
                continue
            taken, size = taken + 1, size + len(text)
            if (documents is not None and taken > documents) or (bytes is not None and size > bytes):
                break
            yield Document(f"{split}/{row:09d}", text, _split_of_text(text, splits[split]))


def check(settings: dict[str, Any]) -> None:
    """Raise UserError for values that make no sense; asks nobody."""
    for key in ("documents", "bytes"):
        limit = settings[key]
        if limit is not None and not (math.isfinite(limit) and limit >= 1):
            raise UserError(f"data.{key}", limit, "out of range", allowed="null (all of it), or 1 and more")
    if not settings["splits"]:
        raise UserError("data.splits", settings["splits"], "names no split of the data set")
    for split, shares in settings["splits"].items():
        key = f"data.splits.{split}"
        if not isinstance(shares, dict) or not shares:
            raise UserError(key, shares, "wrong type", allowed="{train: SHARE, validation: SHARE, ...}")
        for side, share in shares.items():
            if side not in SPLITS:
                raise UserError(f"{key}.{side}", share, "there is no such split", allowed=SPLITS)
            if type(share) not in (int, float) or not 0 < share <= 1:
                raise UserError(f"{key}.{side}", share, "out of range", allowed="a share above 0, up to 1")
        if abs(sum(shares.values()) - 1) > 1e-9:
            raise UserError(key, shares, f"the shares sum to {sum(shares.values()):g}", allowed="a sum of 1")


def pinned_identity(settings: dict[str, Any]) -> dict[str, Any] | None:
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
    """Return the commit of a branch or tag, and cache it for when the hub is out of reach."""
    if COMMIT.fullmatch(revision):
        return revision
    asked = {"commit of": repository, "revision": revision, "at": endpoint()}
    path = cache_dir() / "identity" / f"{digest_of(asked)}.json"
    if not reachable():
        known = read_sealed(path)
        if known is None:
            what = f"what revision {revision} of {repository} is"
            raise unreachable(what, f"data.revision=COMMIT (40 hex digits); {WAYS_OUT}")
        return str(known["commit"])
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        commit = str(HfApi(endpoint=endpoint()).dataset_info(repository, revision=revision).sha)
    except RepositoryNotFoundError as error:
        raise UserError("data.repository", repository, "there is no such data set") from error
    except RevisionNotFoundError as error:
        raise UserError("data.revision", revision, "there is no such revision") from error
    except Exception as error:  # of five packages; all final here
        raise load_failed(repository, error) from error
    try:
        write_sealed(path, {"commit": commit})
    except OSError as error:
        log.warning("cannot cache the commit of %s in %s: %s", repository, path.parent, error.strerror)
    return commit


def _values(
    repository: str, config: str | None, commit: str | None, split: str, text_field: str
) -> Iterator[Any]:
    """Yield one column of one split, row by row."""
    place = str(Path(repository).expanduser().resolve()) if commit is None else repository
    rows = load(place, config, commit, streaming=True, split=split)
    if isinstance(rows, dict):  # from the library's cache, without network
        if split not in rows:
            raise UserError("data.splits", split, "there is no such split", allowed=list(rows))
        rows = rows[split]
    batches = rows.iter(batch_size=ROWS)
    while True:
        try:
            batch = next(batches, None)
        except Exception as error:  # a connection that breaks off, a file that is damaged
            raise load_failed(repository, error) from error
        if batch is None:
            return
        if text_field not in batch:
            raise UserError("data.text_field", text_field, "no such field", allowed=list(batch))
        yield from batch[text_field]
