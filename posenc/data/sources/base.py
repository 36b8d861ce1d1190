"""The base of all sources of text. To add one, write a class in a file of its own and name it in SOURCES."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar

from posenc.data.documents import Document, Notes


@dataclass(frozen=True, kw_only=True)
class Source:
    """Where the text of a corpus comes from. The fields of a source are its keys in the group `data`."""

    # whether the text comes over the network (unless it is cached), and with splits of its own
    is_streamed: ClassVar[bool] = False

    # whether there is text, in documents with splits
    has_documents: ClassVar[bool] = True

    # whether it is the user's own text: if that is only measured, all of it is
    is_of_the_user: ClassVar[bool] = False

    def check(self) -> None:
        """Raise UserError for values that cannot work. Reads no text."""

    def pinned_identity(self) -> dict[str, Any] | None:
        """Return what identifies the text without reading it; None if only its fingerprint can."""
        return None

    def read(self, notes: Notes) -> Iterable[Document]:
        """Return the documents in any order, and note what was left out. Raises UserError and RunError."""
        raise NotImplementedError
