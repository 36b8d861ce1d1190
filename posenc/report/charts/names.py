"""Names of charts, as `--plot-kind` takes them. Without altair, since `--help` reads this file, too."""

from __future__ import annotations

import ast
import functools
from importlib.resources import files

CHARTS_OF_LOSSES = {
    "context": "loss against context",
    "change": "change against the loss at T, against context",
    "heatmap": "change against T by encoding and context",
}
DEFAULT_PLOT = "context"
OWN_CAPTION = "auto"  # stands for what posenc says about a picture


@functools.cache
def plots() -> dict[str, str]:
    """Return every kind of chart with what it shows: those of losses, then `CHARTS` of each file of parts/.

    `CHARTS` is read from the source. `--help` names the kinds, and to import the files would take it half a
    second longer; to read them takes 0.002 s.
    """
    kinds = dict(CHARTS_OF_LOSSES)
    folder = files("posenc.report").joinpath("parts")
    for file in sorted(folder.iterdir(), key=lambda file: file.name):
        if file.name.endswith(".py"):
            kinds |= _charts_in(file.read_text(encoding="utf-8"))
    return kinds


def _charts_in(source: str) -> dict[str, str]:
    """Return the dictionary `CHARTS` in the source of a file; empty without one."""
    # The dictionary has lines of its own because `ruff format` keeps it so. A test compares what is read with
    # what is there.
    _, start, rest = source.partition("\nCHARTS = {\n")
    if not start:
        return {}
    entries, _, _ = rest.partition("\n}\n")
    # literal_eval takes plain data alone, so that reading a file never runs a part of it.
    charts: dict[str, str] = ast.literal_eval(f"{{{entries}}}")
    return charts
