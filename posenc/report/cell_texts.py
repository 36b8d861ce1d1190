"""The numbers of cells and rows as text: losses, changes, shares, lengths."""

from __future__ import annotations

from posenc.core.quantities import length_text
from posenc.results.beside.recall_cells import RowRecall
from posenc.results.cells import LONGEST_NOTE, Cell, CurveSummary
from posenc.results.comparison import Comparison
from posenc.results.headers import Header
from posenc.results.headroom import Recovered
from posenc.results.numbers import printed, printed_change
from posenc.results.rows import Row
from posenc.results.statistics.intervals import Interval
from posenc.results.statistics.ranking import Versus

LOSS_HEAD = "loss"


def half_width(metric: str, spread: float | None, interval: Interval | None = None) -> str:
    """Return ± the spread over seeds, else ± half the interval; empty without either."""
    # The spread over seeds comes first: it says how another training would end, the interval only how other
    # text would.
    half = spread
    if half is None and interval is not None:
        half = (interval[1] - interval[0]) / 2
    return "" if half is None else f"±{printed(half, metric)}"


def loss_text(metric: str, cell: Cell) -> str:
    """Return the loss, or the first words of the reason why there is none."""
    if cell.mean is not None:
        return printed(cell.mean, metric)
    return missing_reason(cell)


def missing_reason(cell: Cell) -> str:
    """Return the first words of the reason why a cell has no number."""
    # The further reasons are in --full. A column of numbers is as wide as its longest cell.
    reason, _, _ = (cell.note or "-").partition(",")
    return reason[:LONGEST_NOTE]


def change_text(metric: str, cell: Cell) -> str:
    """Return the change against T with its sign; empty without one."""
    return "" if cell.change is None else printed_change(cell.change, metric)


def verdict_interval(header: Header, cell: Cell) -> Interval | None:
    """Return the 95% interval of the change that the verdict goes by, in the metric.

    Of one seed it is over documents, else over seeds and documents. Perplexities of several seeds have none.
    """
    if cell.change_ci95 is not None:  # of one seed
        return cell.change_ci95
    # Nats are bits/byte times a constant. A perplexity is not, so its interval cannot be converted.
    if header.one_bit is None or cell.verdict_ci95 is None:
        return None
    low, high = cell.verdict_ci95
    return header.one_bit * low, header.one_bit * high


def versus_text(metric: str, versus: Versus | None) -> str:
    """Return `+0.120 [+0.100, +0.140] p<0.001`; `-` for the best row, and where nothing is compared."""
    if versus is None or versus.word == "best":
        return "-"
    parts = [printed_change(versus.difference, metric)]
    if versus.ci95 is not None:
        low, high = versus.ci95
        parts.append(f"[{printed_change(low, metric)}, {printed_change(high, metric)}]")
    if versus.p is not None:
        parts.append("p<0.001" if versus.p < 0.001 else f"p={versus.p:.3f}")
    # The usual method is not named. The others say that the interval knows less, or more, than the seeds of
    # both rows.
    if versus.method != "welch":
        parts.append(versus.method)
    return " ".join(parts)


def recovered_text(recovered: Recovered | None) -> str:
    """Return the recovered share, `12%`; `<-100%` below that; empty if far text is worth nothing."""
    if recovered is None or recovered.share is None:
        return ""
    # `z` prints a share of -0.3% as 0%, not as -0%.
    return "<-100%" if recovered.share < -1 else f"{100 * recovered.share:z.0f}%"


def recovered_with_interval(recovered: Recovered | None) -> str:
    """Return the recovered share with half its interval, `12% ±3`."""
    if recovered is None or recovered.share is None:
        return ""
    text = f"{100 * recovered.share:z.0f}%"
    if recovered.ci95 is None:
        return text
    low, high = recovered.ci95
    half_percent = 100 * (high - low) / 2
    return f"{text} ±{half_percent:.0f}"


def horizon_text(recall: RowRecall | None) -> str:
    """Return `3.5x`; `7x+` where no longer distance was asked for, `0x` where no distance has half.

    A row that finds nothing within T has `none`.
    """
    if recall is None or recall.learned is None:
        return ""
    if not recall.learned:
        return "did not learn"
    if recall.horizon is None:
        return "" if recall.within is None else "none"
    text = length_text(round(recall.horizon.multiple, 2))
    return f"{text}+" if recall.horizon.longest else text


def breaks_text(curve: CurveSummary) -> str:
    """Return where the seeds of a row break: `1.44x`, `1.44x-2x (2 of 3 seeds)`, `no break`, `unclear`."""
    positions = sorted(position for position in curve.breaks_at if position is not None)
    # "no break" needs an interval below the limit everywhere. Without that, few documents would look like a
    # good row.
    if not positions:
        return "no break" if all(curve.holds) else "unclear"
    first = length_text(round(positions[0] / curve.train_length, 2))
    last = length_text(round(positions[-1] / curve.train_length, 2))
    text = first if first == last else f"{first}-{last}"
    seeds = len(curve.breaks_at)
    return text if len(positions) == seeds else f"{text} ({len(positions)} of {seeds} seeds)"


def is_base(row: Row, cell: Cell) -> bool:
    """Return whether the changes of the row are measured against this cell."""
    # An extension may change the loss at T already, and a curve is measured against its mean from T/2 to T.
    return cell.multiple == 1 and row.extend is None and row.curve is None


def rank_of_number(comparison: Comparison, cell: Cell) -> Versus | None:
    """Return the rank of the number that a cell of the rows' table shows; None for one that has no rank.

    That is the loss at T, elsewhere the change. A difference to a baseline has the rank of the loss: the
    baseline has one loss for all rows of a column.
    """
    if comparison.header.baseline is not None or cell.multiple == 1:
        return cell.versus_best
    return cell.change_versus_best


def has_curves(comparison: Comparison) -> bool:
    """Tell whether the table shows curves by position."""
    return any(row.curve is not None for row in comparison.rows)


def cell_lines(cell: Cell, metric: str) -> list[str]:
    """Return loss, change and verdict of a cell, each ± its spread, or why there is no number."""
    if cell.mean is None:
        return [loss_text(metric, cell)]
    lines = [loss_text(metric, cell) + half_width(metric, cell.spread)]
    # At T a model as trained has no change; with an extension it may have one.
    is_itself = cell.multiple == 1 and cell.change == 0
    if cell.change is not None and not is_itself:
        half = half_width(metric, cell.change_spread, cell.change_ci95)
        lines.append(printed_change(cell.change, metric) + half)
    if cell.verdict is not None:
        lines.append(cell.verdict.word)
    return lines
