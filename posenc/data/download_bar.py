"""Show downloads from the hub as posenc's own progress, in bytes.

The hub's libraries count with tqdm, and take the class of the bar as an argument.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tqdm.std import tqdm

from posenc.core.progress import Progress, Title, progress_of


def download_bar(what: str) -> type:
    """Return a class for the argument `tqdm_class`. Its bars are called `downloading WHAT`."""
    # A class and no object, since the hub's libraries make their bars themselves.
    return type("DownloadBar", (_DownloadBar,), {"title": Title(f"downloading {what}", counts_bytes=True)})


class _DownloadBar(tqdm):
    """Pass on the bytes that a library counts to posenc's progress. Bars that count other things are hidden.

    A download of several files has a bar that counts files, and one whose total bytes grow with each file.
    """

    title: Title

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._progress: Progress | None = None
        self._ending = ExitStack()
        keywords.pop("name", None)  # the hub's group of bars, which tqdm does not know
        # With `gui` tqdm leaves the drawing to this class. With `disable` it would not even count.
        keywords |= {"gui": True, "disable": False}
        super().__init__(*arguments, **keywords)
        if self.unit == "B":
            progress = self._ending.enter_context(progress_of(self.title, self.total))
            progress.begin(self.n)  # bytes that an earlier attempt has loaded
            self._progress = progress

    def update(self, n: float | None = 1) -> None:
        """Count more bytes."""
        # Not by tqdm's own method, which looks at the clock to decide whether to draw.
        self.n += n or 0
        self.refresh()

    def refresh(self, *arguments: Any, **keywords: Any) -> None:
        """Show what is counted, with a total that may have grown."""
        if self._progress is not None:
            # A bar whose total grows with each file begins with the total 0.
            self._progress.total = self.total or None
            self._progress.update(self.n)

    def display(self, *arguments: Any, **keywords: Any) -> None:
        """Draw nothing, since posenc's progress draws."""

    def close(self) -> None:
        """End the progress."""
        self._ending.close()
        super().close()
