"""Collect runs from disk, without torch: as a pandas table, as `posenc compare` shows them, as a picture."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typing_extensions import TypedDict, Unpack  # Unpack is in typing from Python 3.12 on

from posenc.core.atomic_files import write_bytes_atomic
from posenc.core.errors import UserError, visible
from posenc.report.figure import POINTS_OF_INCH, check_kind, check_picture, figure_of, renamed
from posenc.report.lines import cells_table, seeds_table
from posenc.report.parts import chart_of_protocol
from posenc.report.protocol_words import check_protocol
from posenc.results.comparison import Comparison, compare_runs
from posenc.results.discovery import AnyPaths
from posenc.results.discovery import load_runs as read_runs
from posenc.results.drafts import ALL_PROTOCOLS, CompareRequest, suited_to_tasks
from posenc.results.measurements import parse_multiple
from posenc.results.records import HEADLINE
from posenc.results.runs import Run
from posenc.results.where import matching_runs

if TYPE_CHECKING:
    import pandas as pd

    from posenc.report.drawing import Drawing

LINES_PER = {"cell": cells_table, "seed": seeds_table}  # what a line of the pandas table stands for
# A notebook has no columns to ask for.
TEXT_WIDTH = 100  # columns of a comparison that is printed
Multiple = float | str  # of T: 8 or "8x"


def load_runs(*paths: AnyPaths, where: Iterable[str] = ()) -> Runs:
    """Return the runs below paths, each once, as `posenc compare` finds them; without a path those of runs/.

    Several paths may be a list. `where` keeps the runs that meet all conditions such as "encoding=rope,al*".
    Raises UserError.
    """
    # A text is a series of letters, each of which would be taken for a condition.
    conditions = [where] if isinstance(where, str) else where
    return Runs(read_runs(paths or "runs")).where(*conditions)


class CompareOptions(TypedDict, total=False):
    """The options of a comparison. Those of `CompareRequest`, as a user of a notebook types them."""

    protocol: str  # or "all"
    metric: str  # nats, bpb or ppl
    rows: str | Iterable[str] | None  # labels or encodings, globs
    columns: Multiple | Iterable[Multiple] | None
    sort: str | None
    baseline: str | None
    allow_mixed: bool
    recall_level: float  # per cent within T: a row below it did not learn


class Runs(list[Run]):
    """Hold runs, with the tables and pictures of `posenc compare`. Damaged runs have a `problem`."""

    def __repr__(self) -> str:
        names = [visible(run.name) for run in self[:3]]
        if len(self) > 3:
            names.append("...")
        return f"<{len(self)} runs: {', '.join(names)}>"

    def where(self, *conditions: str) -> Runs:
        """Return the runs that meet all conditions: "encoding=rope,al*", "seed=0", "train.lr!=0.002"."""
        return Runs(matching_runs(self, list(conditions))) if conditions else self

    def to_frame(
        self,
        per: str = "seed",
        *,
        protocol: str = HEADLINE,
        extended: bool = False,
        metric: str = "nats",
        allow_mixed: bool = False,
    ) -> pd.DataFrame:
        """Return a pandas table with a line for each seed, or for each cell, the mean over seeds.

        It holds models as trained, by one protocol. `extended` adds lines of test-time extensions, with their
        name in the column `extend`; `protocol="all"` takes every protocol, with its name in the column
        `protocol`. A pivot by `row` averages seeds alone, one by `encoding` would average experiments.
        Raises UserError.
        """
        import pandas as pd

        if per not in LINES_PER:
            raise UserError("per", per, "there is no such table", allowed=LINES_PER)
        request = CompareRequest(protocol, metric, allow_mixed=allow_mixed)  # type: ignore[arg-type]
        request = suited_to_tasks(self, request)
        lines = LINES_PER[per](_comparisons(self, request))
        # As trained and as extended are rows of one encoding, and a pivot by `encoding` would average them.
        if not extended:
            lines = [line for line in lines if line["extend"] is None]
        # Beside the losses a comparison has other numbers of the same runs, such as recall.
        if request.protocol != ALL_PROTOCOLS:
            lines = [line for line in lines if line["protocol"] == request.protocol]
        return pd.DataFrame(lines)

    def compare(self, **request: Unpack[CompareOptions]) -> Table:
        """Return the table of `posenc compare`. Raises UserError.

        `request` takes its options, which are those of `CompareOptions`.
        """
        return Table(_comparisons(self, _request(request)))

    def plot(
        self,
        kind: str | None = None,
        *,
        size: str | None = None,
        labels: Mapping[str, str] | None = None,
        caption: str | None = None,
        legend: bool | str = True,
        font: str | None = None,
        **request: Unpack[CompareOptions],
    ) -> Plot:
        """Return a picture of a kind that `posenc compare --plot-kind` takes. Raises UserError.

        Without `kind` it is the protocol's own kind, else the losses by context. `size` is in inches:
        "3.25x2.4". `labels` are other names of rows. `caption` is a text below the picture; "auto" is what
        posenc says about it. `font` is a family that is installed. `request` takes the options of `compare`.
        A notebook shows the picture by itself; `save` writes it.
        """
        from posenc.report.drawing import draw_figure

        compare_request = suited_to_tasks(self, _request(request))
        kind = kind or chart_of_protocol(compare_request.protocol)
        check_kind(kind)
        figure = figure_of(size, caption, font, has_legend=_has_legend(legend))
        names = [f"{name}={text}" for name, text in (labels or {}).items()]
        comparisons = renamed(_comparisons(self, compare_request), names)
        return Plot(self, kind, draw_figure(kind, comparisons, figure))


def _comparisons(runs: Runs, request: CompareRequest) -> list[Comparison]:
    """Return the tables of a request. Raises UserError."""
    check_protocol(request.protocol, runs)
    return compare_runs(runs, request)


def _request(arguments: CompareOptions) -> CompareRequest:
    """Return the request of keyword arguments. `rows` may be one name, `columns` one multiple: 8 or `8x`."""
    options = [field.name for field in fields(CompareRequest)]
    # A dataclass would raise a TypeError, without what is allowed.
    for key in sorted(arguments):
        if key not in options:
            raise UserError(key, None, "there is no such option", allowed=", ".join(options))
    request: dict[str, Any] = {**arguments, "rows": _as_list(arguments.get("rows", []))}
    multiples = _as_list(arguments.get("columns", []))
    request["columns"] = [parse_multiple(str(multiple), "columns") for multiple in multiples]
    return CompareRequest(**request)


def _as_list(value: Any) -> list[Any]:
    """Return values as a list; a single value becomes a list of one, and None an empty one."""
    if value is None:
        return []
    return [value] if isinstance(value, str | int | float) else list(value)


def _has_legend(legend: bool | str) -> bool:
    """Tell whether a picture has a legend: a truth value, or what `--legend` takes. Raises UserError."""
    choices: dict[bool | str, bool] = {True: True, False: False, "on": True, "off": False}
    if legend not in choices:
        raise UserError("legend", legend, "there is no such choice", allowed="True, False, on, off")
    return choices[legend]


@dataclass(repr=False)
class Table:
    """Hold a comparison: `tables` as data, and as text what `posenc compare` prints."""

    tables: list[Comparison]

    def text(self, format: str = "table") -> str:
        """Return the comparison as table, markdown, csv, latex or json."""
        from posenc.report.formats import render

        return render(self.tables, format, TEXT_WIDTH)

    def to_frame(self) -> pd.DataFrame:
        """Return a pandas table with a line for each row and length: what the CSV of `posenc compare` has."""
        import pandas as pd

        return pd.DataFrame(cells_table(self.tables))

    def __repr__(self) -> str:
        return self.text().rstrip("\n")


@dataclass(repr=False)
class Plot:
    """Hold the picture of a comparison."""

    runs: Runs
    kind: str
    drawing: Drawing

    @property
    def caption(self) -> str:
        """Return what posenc says about the picture, for the text around it."""
        return self.drawing.caption

    def data(self, format: str) -> bytes:
        """Return the picture as png, svg or pdf."""
        return self.drawing.data(format)

    def save(self, path: str | Path) -> Path:
        """Write the picture as the ending of the path says: .png, .svg or .pdf. Raises UserError."""
        target = check_picture("path", Path(path))
        write_bytes_atomic(target, self.data(target.suffix[1:].lower()))
        return target

    def __repr__(self) -> str:
        return f"<plot of {self.kind}, {len(self.runs)} runs: save('loss.png')>"

    def _repr_png_(self) -> tuple[bytes, dict[str, int]]:
        from posenc.report.charts.vega import DPI

        # not as SVG: two pictures in a notebook would have clip paths of the same names
        return self.data("png"), {"width": round(self.drawing.width / POINTS_OF_INCH * DPI / 2)}
