"""The plots of one run as PNG, for trackers that show images."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from posenc.core.errors import UserError
from posenc.tracking.guard import reason

logger = logging.getLogger(__name__)


class Pictures:
    """Plots of a run directory, each drawn once. One that cannot be drawn is one warning and left out."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._drawn: dict[str, bytes | None] = {}

    def png(self, kinds: Sequence[str]) -> dict[str, bytes]:
        """Plots by kind (keys of `posenc.report.plots.PLOTS`), without those nothing was measured for."""
        for kind in kinds:
            if kind not in self._drawn:
                self._drawn[kind] = self._draw(kind)
        return {kind: drawn for kind in kinds if (drawn := self._drawn[kind]) is not None}

    def _draw(self, kind: str) -> bytes | None:
        logging.getLogger("matplotlib").setLevel(
            logging.WARNING
        )  # the first time it says what fonts it found
        try:
            from posenc.report.plots import plot_bytes
            from posenc.results.comparison import compare, protocols_of
            from posenc.results.load import load_run

            run = load_run(self._directory)
            measured = protocols_of([run])
            if not measured:
                return None
            if run.status.get("status") == "running":  # it is this very job that asks, at its end
                run.status = {**run.status, "status": "finished"}
            return plot_bytes("png", kind, [run], [compare([run], measured[0], "nats", allow_mixed=True)])
        except UserError as error:
            logger.debug("no plot %s: %s", kind, error.problem)  # nobody measured what it shows
        except Exception as error:
            logger.warning("the plot %s cannot be drawn for the trackers (%s)", kind, reason(error))
        return None


@contextmanager
def as_files(pictures: Mapping[str, bytes]) -> Iterator[dict[str, str]]:
    """Paths by kind, for as long as it lasts: trackers copy a file faster than they encode an image."""
    with tempfile.TemporaryDirectory(prefix="posenc-") as folder:
        paths = {kind: Path(folder) / f"{kind}.png" for kind in pictures}
        for kind, path in paths.items():
            path.write_bytes(pictures[kind])
        yield {kind: str(path) for kind, path in paths.items()}


def check_plots(plots: Sequence[str]) -> None:
    """Raise UserError for a plot that there is none of."""
    if not plots:
        return
    from posenc.report.plots import PLOTS

    for plot in plots:
        if plot not in PLOTS:
            raise UserError("tracking.plots", plot, "no such plot", allowed=list(PLOTS))
