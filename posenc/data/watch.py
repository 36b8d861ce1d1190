"""How far reading or tokenising is, on stderr: one line that changes in a terminal, else one now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator

from posenc.core.console import screen
from posenc.core.errors import visible
from posenc.data.documents import Document

SECONDS_BETWEEN_LINES = 5.0


def watched(
    documents: Iterator[Document],
    doing: str,
    *,
    most: str,
    part_of: Callable[[Document], str] = lambda _: "",
    always: bool = False,
) -> Iterator[Document]:
    """The same documents, one by one. What is done within five seconds is told only if `always`.

    `most` follows the megabytes (`of 200`); they are counted anew for each part.
    """
    live = sys.stderr.isatty()
    began = last = time.monotonic()
    part, count, size, total, told = "", 0, 0, 0, False

    def show(end: str) -> None:
        rate = total / 1e6 / max(time.monotonic() - began, 1e-9)
        text = f"{visible(doing)}: {visible(part)}{', ' * bool(part)}{count:,} documents, "
        text += f"{size / 1e6:,.1f}{most} MB, {rate:,.1f} MB/s"
        print(f"\r{text:<79}" if live else text, end=end, file=screen(), flush=True)

    for document in documents:
        if part_of(document) != part:
            if count and always:
                show("\n")
            part, count, size = part_of(document), 0, 0
        length = len(document.text)
        count, size, total = count + 1, size + length, total + length
        now = time.monotonic()
        if now - last >= (0.25 if live and told else 1.0 if live else SECONDS_BETWEEN_LINES):
            last, told = now, True
            show("" if live else "\n")
        yield document
    if total and (told or always):
        show("\n")


def tell(text: str) -> None:
    """One plain line on stderr."""
    print(text, file=screen(), flush=True)
