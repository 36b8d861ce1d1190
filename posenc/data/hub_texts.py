"""The texts of a data set on the Hugging Face hub, read through the library `datasets`."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import RunError, UserError, first_line
from posenc.core.paths import expanded, is_folder
from posenc.core.progress import Title, progress_of
from posenc.data.hub import PROBE_SECONDS, not_loaded, reachable

COMMIT = re.compile(r"[0-9a-f]{40}")
# From words in an error of `datasets` to the setting that is wrong.
WRONG_SETTING = {"BuilderConfig": "config", "doesn't exist on the Hub": "repository"}
# Its error for a split that is not there: `Bad split: test. Available splits: ['train', 'validation']`.
BAD_SPLIT = re.compile(r"Bad split: .*Available splits: \[(.*)\]")


class MissingSplitError(UserError):
    """Report a split that a data set does not have."""

    def __init__(self, split: str, splits: Sequence[str]) -> None:
        """Keep the splits that it has."""
        super().__init__("data.splits", split, "the data set has no such split", allowed=splits)
        self.splits = splits


@dataclass(frozen=True)
class Column:
    """The text in one split of a data set, on the hub or in a local folder with the same files."""

    repository: str
    config: str | None
    revision: str | None  # None for a local folder
    split: str
    text_field: str

    def texts(self, at_once: int, limit: int | None = None) -> Iterator[str]:
        """Yield the text of each row, an empty one if it has none. Rows are fetched `at_once` many at a time.

        `limit` is how many bytes of text the caller will take, if it knows; the progress bar needs it. Raises
        UserError if the column, split or data set does not exist, and RunError if the network fails.
        """
        title = Title(f"reading {self.repository} ({self.split})", counts_bytes=True, has_last_line=False)
        read = 0
        try:
            with progress_of(title, limit) as progress:
                # Inside of the progress, since the first connection alone may take seconds.
                rows = load(self)
                progress.total = self._bytes_to_read(rows, limit)
                for batch in rows.iter(batch_size=at_once):
                    # A caller that has enough stops the loop at a text, so each text is yielded by itself.
                    for text in self._texts_in(batch):
                        yield text
                        # A lone surrogate is refused later, with the row that holds it, so it must not fail
                        # here.
                        read += len(text.encode(errors="surrogatepass"))
                    progress.update(read)
        except (UserError, RunError):
            raise
        except Exception as error:  # five packages have errors of their own, even in the middle of a stream
            raise self._explained(error) from error

    def _bytes_to_read(self, rows: Any, limit: int | None) -> int | None:
        """Return how many bytes of text will be read, if the data set's card says its size.

        The card counts all columns, so it says the size of the text only if there is no other column.
        """
        splits = rows.info.splits or {}
        has_other_columns = len(rows.column_names or ()) != 1
        if self.split not in splits or has_other_columns:
            return limit
        size = splits[self.split].num_bytes
        return size if limit is None else min(size, limit)

    def _texts_in(self, batch: dict[str, list[Any]]) -> Iterator[str]:
        """Yield the text of each row of a batch. Raises UserError if the column is missing or is not text."""
        field = self.text_field
        if field not in batch:
            raise UserError("data.text_field", field, "no such field", allowed=list(batch))
        for value in batch[field]:
            if value is not None and not isinstance(value, str):
                raise UserError("data.text_field", field, f"does not hold text (in {self.split})")
            yield value or ""

    def _explained(self, error: Exception) -> UserError | RunError:
        """Return the error for the user, which names the setting that is wrong, if the library says so."""
        bad_split = BAD_SPLIT.search(str(error))
        if bad_split is not None:
            return MissingSplitError(self.split, re.findall(r"'([^']*)'", bad_split[1]))
        values = {"config": self.config, "repository": self.repository}
        for sign, key in WRONG_SETTING.items():
            if sign in str(error):
                return UserError(f"data.{key}", values[key], first_line(error))
        return not_loaded(self.repository, error)


def newest_commit(repository: str) -> str | None:
    """Return the newest commit of a data set; None if the hub is out of reach, or does not know it."""
    if not reachable():
        return None
    from huggingface_hub import HfApi

    try:
        return HfApi().dataset_info(repository, timeout=PROBE_SECONDS).sha
    except Exception:  # errors of three packages; reading the data set says what is wrong
        return None


def load(column: Column) -> Any:
    """Return a stream of the rows of one split, from the hub or a local folder."""
    is_local = is_folder(column.repository)
    if not is_local and not reachable():
        raise not_loaded(column.repository)
    import datasets

    # A library that `datasets` uses tries each read for 25 s. With the 20 retries of `datasets` that would
    # look like a hang.
    datasets.config.STREAMING_READ_MAX_RETRIES = 1
    name = str(expanded(column.repository).resolve()) if is_local else column.repository
    revision = None if is_local else column.revision
    return datasets.load_dataset(name, column.config, revision=revision, split=column.split, streaming=True)
