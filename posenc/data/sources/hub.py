"""`source: hub`: a data set of the Hugging Face hub at a pinned revision, with its own splits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from typing import Any, Literal

from posenc.core.errors import UserError
from posenc.core.paths import is_folder
from posenc.data.documents import SPLITS, Document
from posenc.data.hub_load import load

OWN_SPLITS = True
NEEDS_NETWORK = True
# ` = Title = ` opens an article; its sections have two or more signs on each side
TITLE = re.compile(r" = [^=\n]+ = ?\n?")


def read(
    *,
    repository: str,
    config: str | None,
    revision: str,
    text_field: str,
    rows: Literal["documents", "wikitext_lines"],
) -> list[Document]:
    """The documents of the train, validation and test splits; ids are `split/number`.

    Raises UserError for a data set, config or field that does not exist, RunError when the hub is out of
    reach and no cached copy of this revision is found.
    """
    loaded = _load(repository, config, revision)
    documents = []
    for split in SPLITS:
        if split in loaded:
            texts = _column(loaded[split], text_field)
            if rows == "wikitext_lines":
                texts = articles(texts)
            kept = [text.encode("utf-8", "replace") for text in texts if text.strip()]
            documents += [Document(f"{split}/{i:08d}", text, split) for i, text in enumerate(kept)]
    return documents


def pinned_identity(
    *, repository: str, config: str | None, revision: str, text_field: str, rows: str
) -> dict[str, Any] | None:
    """What names this corpus for good without reading it; None unless the revision is a full commit hash.

    Of a folder, whose files may change, it says nothing.
    """
    if is_folder(repository) or not re.fullmatch(r"[0-9a-f]{40}", revision):
        return None
    return {
        "repository": repository,
        "config": config,
        "revision": revision,
        "text_field": text_field,
        "rows": rows,
    }


def articles(lines: Iterable[str]) -> list[str]:
    """WikiText's rows (one line each, blank ones too) put together as articles.

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


def _load(repository: str, config: str | None, revision: str) -> Any:
    return load(repository, config, revision)


def _column(split: Any, text_field: str) -> list[str]:
    if text_field not in split.column_names:
        raise UserError("data.text_field", text_field, "no such field", allowed=split.column_names)
    return list(split[text_field])
