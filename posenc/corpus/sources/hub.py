"""`source: hub`: a data set of the Hugging Face hub at a pinned revision, with its own splits."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

from posenc.corpus.documents import SPLITS, Document, printable
from posenc.corpus.hub_access import go_offline, reachable, unreachable
from posenc.errors import RunError, UserError

OWN_SPLITS = True
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
    """What names this corpus for good without reading it; None unless the revision is a full commit hash."""
    if not re.fullmatch(r"[0-9a-f]{40}", revision):
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
    online = reachable()
    if not online:
        go_offline()
    import datasets

    what = f"{printable(repository)} ({printable(config)})" if config else printable(repository)
    ways_out = (
        "fill HF_HOME or POSENC_CACHE on a machine with network (posenc data prepare) and copy it here; "
        "data=files data.paths=FOLDER; data=sympy"
    )
    try:
        loaded = datasets.load_dataset(repository, config, revision=revision)
    except datasets.exceptions.DatasetNotFoundError as error:
        raise UserError("data.repository", printable(repository), _first_line(error)) from error
    except Exception as error:  # the libraries below raise errors of five packages, all of them final here
        if not online:
            raise unreachable(what, ways_out) from error
        if isinstance(error, ValueError) and "BuilderConfig" in str(error):
            raise UserError("data.config", config, printable(_first_line(error))) from error
        raise RunError(
            f"{what} could not be loaded ({type(error).__name__}: {printable(_first_line(error))})",
            hint=f"ways out: {ways_out}",
        ) from error
    if not online:
        _refuse_other_revision(loaded, what, revision, ways_out)
    return loaded


def _refuse_other_revision(loaded: Any, what: str, revision: str, ways_out: str) -> None:
    # without network the library takes the newest cached copy, whatever revision was asked for
    for split in loaded.values():
        for file in split.cache_files:
            cached = Path(file["filename"]).parent.name
            if re.fullmatch(r"[0-9a-f]{40}", cached) and cached != revision:
                raise unreachable(f"revision {revision} of {what}", ways_out)


def _column(split: Any, text_field: str) -> list[str]:
    if text_field not in split.column_names:
        raise UserError("data.text_field", text_field, "no such field", allowed=split.column_names)
    return list(split[text_field])


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0]
