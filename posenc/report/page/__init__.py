"""One page of HTML with everything about a comparison, in a single file that needs no network."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from posenc.results.comparison import Comparison
from posenc.results.load import Run


def write_page(
    path: Path, runs: Sequence[Run], comparisons: Sequence[Comparison], command: Sequence[str] | None = None
) -> None:
    """Write the page, whole or not at all; the same runs give the same bytes.

    `comparisons` are facets or protocols of `runs`, each a section; `command` is the command line that makes
    the page again (without it one is put together from the comparisons). Raises RunError where the file
    cannot be written or the chart library is not installed.
    """
    from posenc.core.atomic_files import write_text_atomic
    from posenc.report.page.document import page

    write_text_atomic(path, page(runs, comparisons, command or _command(path, runs, comparisons)))


def _command(path: Path, runs: Sequence[Run], comparisons: Sequence[Comparison]) -> list[str]:
    """Protocol, metric, facet and baseline of the first comparison; the folders that the runs lie in."""
    words = ["posenc", "compare", *sorted({str(run.path.parent) for run in runs})]
    for option in ("protocol", "metric", "baseline"):
        value = comparisons[0].header[option] if comparisons else None
        words += [f"--{option}", str(value)] if value is not None else []
    facet = comparisons[0].header["facet"] if comparisons else None
    words += ["--facet", str(facet["key"])] if facet else []
    words += ["--allow-mixed"] if any(one.header["mixed"] for one in comparisons) and not facet else []
    return [*words, "--html", path.name]
