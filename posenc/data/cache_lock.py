"""Lock an entry of the cache while it is written."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from posenc.core.atomic_files import cannot_write, file_lock


@contextlib.contextmanager
def cache_lock(path: Path, needed: int = 0) -> Iterator[None]:
    """Hold the lock file of a cache entry.

    An OSError inside becomes a RunError that names the path, the bytes that are `needed`, and the free ones.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # Two jobs of a sweep begin at once and would write the same entry. The second one waits and then
        # reads it.
        with file_lock(path):
            yield
    except OSError as error:
        hint = "POSENC_CACHE=FOLDER puts the cache elsewhere"
        raise cannot_write(path.parent, error, needed=needed, hint=hint) from error
