"""Data sets of the Hugging Face hub at a pinned commit: read whole, or a limited part of a stream."""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from posenc.core.errors import UserError, visible
from posenc.core.paths import is_folder, looks_local, missing_path
from posenc.data.documents import SPLITS, Document, Notes, hash_fraction, utf8_text
from posenc.data.hub_texts import COMMIT, Column, MissingSplitError, newest_commit
from posenc.data.sections import articles
from posenc.data.sources.base import Source
from posenc.settings.numbers import check_between

Rows = Literal["documents", "wikitext_lines"]
# How many rows are fetched at once. A row that is a document may be a whole book.
ROWS_AT_ONCE: dict[Rows, int] = {"documents": 16, "wikitext_lines": 4096}


@dataclass(frozen=True, kw_only=True)
class _HubSource(Source):
    """A data set of the hub, or a local folder with the same files."""

    is_streamed: ClassVar[bool] = True

    repository: str
    config: str | None
    revision: str | None  # a commit; None for a local folder
    text_field: str

    def check(self) -> None:
        """Raise UserError for a folder that does not exist, and for a revision that is not a commit."""
        if is_folder(self.repository):
            return
        if looks_local(self.repository):
            raise missing_path("data.repository", self.repository, "folder")
        if self.revision is None or not COMMIT.fullmatch(self.revision):
            allowed = "a commit, 40 hex digits: a branch may change under a run"
            problem = "is needed" if self.revision is None else "is no commit"
            # Asked for the hint alone. Without a network the error comes without it.
            commit = newest_commit(self.repository)
            hint = f"the newest one: data.revision={commit}" if commit else ""
            raise UserError("data.revision", self.revision, problem, allowed=allowed, hint=hint)

    def pinned_identity(self) -> dict[str, Any] | None:
        """Return the settings, which name a commit; None for a local folder, which may change."""
        return None if is_folder(self.repository) else dict(vars(self))

    def _texts(self, split: str, at_once: int, limit: int | None = None) -> Iterator[str]:
        """Yield the texts of a split of the data set, as Column does."""
        column = Column(self.repository, self.config, self.revision, split, self.text_field)
        return column.texts(at_once, limit)


@dataclass(frozen=True, kw_only=True)
class HubSource(_HubSource):
    """The train, validation and test splits of a data set. Ids are `split/number`."""

    rows: Rows

    def read(self, notes: Notes) -> Iterator[Document]:
        """Yield the rows with text, or for WikiText the articles that its rows make.

        Raises UserError if a split is missing.
        """
        try:
            # In alphabetical order, which is that of the ids.
            for split in sorted(SPLITS):
                yield from self._documents(split, notes)
        except MissingSplitError as error:
            raise self._without_split(error) from error

    def _documents(self, split: str, notes: Notes) -> Iterator[Document]:
        """Yield the documents of a split, and count the rows without text."""
        texts = self._texts(split, ROWS_AT_ONCE[self.rows])
        # WikiText has a row for each line, and a line is too short to be a document. Its blank rows are part
        # of the articles.
        whole_texts = articles(texts) if self.rows == "wikitext_lines" else texts
        number = 0
        for text in whole_texts:
            if not text.strip():
                notes.left_out["empty"] += 1
                continue
            document_id = f"{split}/{number:08d}"
            yield Document(document_id, utf8_text(text, "data.repository", document_id), split)
            number += 1

    def _without_split(self, error: MissingSplitError) -> UserError:
        """Return the error for a data set that lacks one of the three splits."""
        problem = f"has no {error.value} split, but {visible(', '.join(error.splits))}"
        allowed = f"a data set with the splits {', '.join(SPLITS)}"
        hint = "data=hf reads one with other splits, and data.splits says what share of each goes where"
        return UserError("data.repository", self.repository, problem, allowed=allowed, hint=hint)


@dataclass(frozen=True, kw_only=True)
class StreamSource(_HubSource):
    """The first `documents` or `bytes` of each split of a data set. Ids are `split/row`.

    Each split of the data set is divided into train, validation and test by a hash of the text, so that
    copies of a text are in one split.
    """

    splits: dict[str, Any]  # for each split of the data set, its shares for train, validation and test
    documents: int | None  # the most for each split of the data set
    bytes: int | float | None  # of text, the most for each split of the data set

    def check(self) -> None:
        """Raise UserError for a revision that is not a commit, and for impossible limits and shares."""
        super().check()
        for key, limit in (("documents", self.documents), ("bytes", self.bytes)):
            if limit is not None:
                check_between(f"data.{key}", limit, 1)
        for split, shares in self.splits.items():
            if not _are_shares(shares):
                allowed = "a share above 0 of train, validation or test, with a sum of 1: "
                allowed += "{train: 0.9, test: 0.1}"
                raise UserError(f"data.splits.{split}", shares, "cannot be used", allowed=allowed)

    def pinned_identity(self) -> dict[str, Any] | None:
        """Return the settings. Whole numbers are whole in them, so that 4e6 and 4000000 are the same."""
        identity = super().pinned_identity()
        if identity is None:
            return None
        if self.bytes is not None:
            identity["bytes"] = int(self.bytes)
        identity["splits"] = {split: _with_whole_1(shares) for split, shares in self.splits.items()}
        return identity

    def read(self, notes: Notes) -> Iterator[Document]:
        """Yield the rows with text of each split, until its limit is reached."""
        limit = None if self.bytes is None else int(self.bytes)
        for split in sorted(self.splits):
            count = 0
            size = 0
            for row, value in enumerate(self._texts(split, ROWS_AT_ONCE["documents"], limit)):
                if not value.strip():
                    notes.left_out["empty"] += 1
                    continue
                # By the row and not by a count of documents, so that a row keeps its id where others are
                # blank.
                document_id = f"{split}/{row:09d}"
                text = utf8_text(value, "data.repository", document_id)
                count += 1
                size += len(text)
                # The document that passes the limit is left out, so that the limit is never exceeded.
                if self._is_too_much(count, size):
                    break
                yield Document(document_id, text, split_by_text(text, self.splits[split]))

    def _is_too_much(self, count: int, size: int) -> bool:
        """Tell whether so many documents, or so many bytes, are above a limit."""
        too_many = self.documents is not None and count > self.documents
        too_long = self.bytes is not None and size > self.bytes
        return too_many or too_long


def _are_shares(shares: object) -> bool:
    """Tell whether a setting names shares of our splits that add up to 1."""
    if not isinstance(shares, dict) or not set(shares) <= set(SPLITS):
        return False
    if not all(type(share) in (int, float) and share > 0 for share in shares.values()):
        return False
    # 0.7 + 0.2 + 0.1 is not 1 in floating point.
    return abs(sum(shares.values()) - 1) <= 1e-9


def _with_whole_1(shares: Mapping[str, float]) -> dict[str, float]:
    """Return shares in which all of a split is 1 and not 1.0, as posenc's own YAML has it."""
    return {split: 1 if share == 1 else share for split, share in shares.items()}


def split_by_text(text: bytes, shares: Mapping[str, float]) -> str:
    """Return the split that a hash of the text falls into."""
    splits = [split for split in SPLITS if split in shares]
    # The last edge would be 1 but for rounding, so it is left out, and all that is beyond goes to the last
    # split.
    edges = list(itertools.accumulate(shares[split] for split in splits[:-1]))
    return splits[bisect.bisect_right(edges, hash_fraction(text))]
