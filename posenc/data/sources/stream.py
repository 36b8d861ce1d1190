"""`source: stream`: a data set of the Hugging Face hub row by row, as much of it as is asked for.

A row is a document. Nothing is kept in memory: the documents go to the token cache one by one.
"""

from __future__ import annotations

import functools
import logging
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import digest_of, read_sealed, write_sealed
from posenc.core.errors import UserError, visible
from posenc.core.paths import cache_dir, is_folder
from posenc.data.documents import SPLITS, Document, point_of
from posenc.data.hub_access import endpoint, reachable, unreachable
from posenc.data.hub_load import WAYS_OUT, broken_off, described, load

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
    """Documents in the order of their ids, which are `split/row` of the data set.

    `splits` says for each split of the data set what share of its documents goes where; which document goes
    where is a hash of its text, so that two copies are never on both sides. `documents` and `bytes` limit
    each split of the data set: its first rows that fit. Raises as `hub_load.load`; on the way too.
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
            over = (documents is not None and taken > documents) or (bytes is not None and size > bytes)
            if over:
                break
            yield Document(f"{split}/{row:09d}", text, _side(text, splits[split]))


def check(
    *,
    repository: str,
    config: str | None,
    revision: str,
    text_field: str,
    splits: dict[str, Any],
    documents: int | None,
    bytes: int | float | None,
) -> None:
    """Raises UserError for values that make no sense; asks nobody."""
    for key, limit in (("documents", documents), ("bytes", bytes)):
        if limit is not None and not (math.isfinite(limit) and limit >= 1):
            raise UserError(f"data.{key}", limit, "out of range", allowed="null (all of it), or 1 and more")
    if not splits:
        raise UserError("data.splits", splits, "names no split of the data set")
    for split, shares in splits.items():
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


def pinned_identity(
    *,
    repository: str,
    config: str | None,
    revision: str,
    text_field: str,
    splits: dict[str, Any],
    documents: int | None,
    bytes: int | float | None,
) -> dict[str, Any] | None:
    """What names this corpus for good without reading it; None for a folder, whose files may change.

    A branch or tag stands for the commit it is at now. Raises UserError, RunError when nobody can say which.
    """
    if is_folder(repository):
        return None
    return {
        "repository": repository,
        "config": config,
        "revision": _commit(repository, revision),
        "text_field": text_field,
        "splits": splits,
        "documents": documents,
        "bytes": None if bytes is None else int(bytes),
    }


def _side(text: bytes, shares: dict[str, float]) -> str:
    point, reached = point_of(text), 0.0
    sides = [side for side in SPLITS if side in shares]
    for side in sides[:-1]:
        reached += shares[side]
        if point < reached:
            return side
    return sides[-1]


@functools.cache
def _commit(repository: str, revision: str) -> str:
    """The commit of a branch or tag; remembered for when the hub is out of reach."""
    if re.fullmatch(r"[0-9a-f]{40}", revision):
        return revision
    asked = {"commit of": repository, "revision": revision, "at": endpoint()}
    path = cache_dir() / "identity" / f"{digest_of(asked)}.json"
    if not reachable():
        known = read_sealed(path)
        if known is None:
            what = f"what revision {visible(revision)} of {visible(repository)} is"
            raise unreachable(what, f"data.revision=COMMIT (40 hex digits); {WAYS_OUT}")
        return str(known["commit"])
    from huggingface_hub import HfApi
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        commit = str(HfApi(endpoint=endpoint()).dataset_info(repository, revision=revision).sha)
    except RepositoryNotFoundError as error:
        raise UserError("data.repository", visible(repository), "there is no such data set") from error
    except RevisionNotFoundError as error:
        raise UserError("data.revision", visible(revision), "there is no such revision") from error
    except Exception as error:  # of five packages; all final here
        raise broken_off(described(repository, None), error) from error
    try:
        write_sealed(path, {"commit": commit})
    except OSError as error:
        log.warning("cannot remember the commit of %s in %s: %s", repository, path.parent, error.strerror)
    return commit


def _values(
    repository: str, config: str | None, commit: str | None, split: str, text_field: str
) -> Iterator[Any]:
    """One column of one split, row by row."""
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
            raise broken_off(described(repository, config), error) from error
        if batch is None:
            return
        if text_field not in batch:
            raise UserError("data.text_field", text_field, "no such field", allowed=list(batch))
        yield from batch[text_field]
