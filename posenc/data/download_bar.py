"""Show the downloads of the hub's libraries as progress of posenc, by bytes.

The libraries count with tqdm, and take the class that they count with as an argument.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from tqdm.std import tqdm

from posenc.core.console import Progress, Title, progress_of


def download_bar(what: str) -> type:
    """Return a class for the argument `tqdm_class`, whose bars are called `downloading WHAT`."""
    return type("DownloadBar", (_DownloadBar,), {"title": Title(f"downloading {what}", counts_bytes=True)})


class _DownloadBar(tqdm):
    """Pass on what a library counts to a progress of posenc; show nothing of what is not counted in bytes.

    A download of several files has a bar that counts files, and one whose total grows with each file.
    """

    title: Title

    def __init__(self, *arguments: Any, **keywords: Any) -> None:
        self._progress: Progress | None = None
        self._ending = ExitStack()
        keywords.pop("name", None)  # the hub's group of bars, which tqdm does not know
        # gui: tqdm leaves the drawing to this class. With `disable` it would not count either.
        keywords |= {"gui": True, "disable": False}
        super().__init__(*arguments, **keywords)
        if self.unit == "B":
            progress = self._ending.enter_context(progress_of(self.title, self.total))
            progress.begin(self.n)  # bytes of an earlier attempt
            self._progress = progress

    def update(self, n: float | None = 1) -> None:
        """Count more bytes."""
        self.n += n or 0
        self.refresh()

    def refresh(self, *arguments: Any, **keywords: Any) -> None:
        """Show what is counted, with a total that may have grown."""
        if self._progress is not None:
            self._progress.total = self.total or None
            self._progress.update(self.n)

    def display(self, *arguments: Any, **keywords: Any) -> None:
        """Draw nothing here."""

    def close(self) -> None:
        """End the progress."""
        self._ending.close()
        super().close()
