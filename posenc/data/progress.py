"""Locks of the cache, and how far reading or tokenising is."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
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


def with_progress(
    documents: Iterator[Document], doing: str, most: str, *, by_split: bool = False
) -> Iterator[Document]:
    """Yield the documents and say every few seconds how many; `most` follows the megabytes (` of 200`).

    `by_split`: count each split of the data set (ids are `split/row`) anew and say so however quick it was.
    """
    began = last = time.monotonic()
    part, count, size, total = "", 0, 0, 0

    def show() -> None:
        rate = total / 1e6 / max(time.monotonic() - began, 1e-9)
        where = f"{part}, " if part else ""
        text = f"{doing}: {where}{count:,} documents, {size / 1e6:,.1f}{most} MB, {rate:,.1f} MB/s"
        say(visible(text))

    for document in documents:
        if by_split and document.id.partition("/")[0] != part:
            if count:
                show()
            part, count, size = document.id.partition("/")[0], 0, 0
        count, size, total = count + 1, size + len(document.text), total + len(document.text)
        if time.monotonic() - last >= SECONDS_BETWEEN_LINES:
            last = time.monotonic()
            show()
        yield document
    if count and (by_split or last > began):
        show()
