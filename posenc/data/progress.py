"""Locks of the cache, and how far reading or tokenising is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from filelock import Timeout

from posenc.core.atomic_files import cannot_write, file_lock
from posenc.core.console import SECONDS_BETWEEN_LINES, say
from posenc.core.errors import visible
from posenc.data.documents import Document

ELSEWHERE = "POSENC_CACHE=FOLDER puts the cache elsewhere"


@contextlib.contextmanager
def cache_lock(path: Path, doing: str, *, needed: int | None = None) -> Iterator[None]:
    """Hold a lock of the cache; a second process waits and says for what.

    Any OSError becomes a RunError that says path, bytes `needed` and free.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = file_lock(path)
        try:
            lock.acquire(timeout=1)
        except Timeout:
            say(visible(f"waiting for another process that is {doing}"))
            lock.acquire()
        try:
            yield
        finally:
            lock.release()
    except OSError as error:
        raise cannot_write(path.parent, error, needed=needed, hint=ELSEWHERE) from error


def with_progress(documents: Iterable[Document], doing: str) -> Iterator[Document]:
    """Yield the documents and say every few seconds how many there were."""
    last, count, size = time.monotonic(), 0, 0
    for document in documents:
        count, size = count + 1, size + len(document.text)
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            say(visible(f"{doing}: {count:,} documents, {size / 1e6:,.1f} MB"))
        yield document
