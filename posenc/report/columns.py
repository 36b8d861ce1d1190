"""The columns of the comparison, as data.

An entry of CELL_COLUMNS is a number of each row and window, an entry of ROW_COLUMNS one of each row. The
entry has everything that is said of it: its head and text in tables, its fields in CSV, its terms in
`--explain`. A new column is a new entry (and, where no result has its number yet, a field of
`posenc.results`, which brings it into the JSON).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from posenc.report.tables import BEST, TIED
from posenc.report.texts import length_text, share_text, token_noun
from posenc.results.beside.dispersion import DISPERSION, DispersionCell
from posenc.results.beside.exact import EXACT
from posenc.results.beside.memory import MEMORY, ShorterWindow
from posenc.results.beside.recall import RECALL, RowRecall
from posenc.results.cells import Cell, CurveSummary
from posenc.results.comparison import Comparison, Row
from posenc.results.headroom import Recovered
from posenc.results.numbers import printed, printed_change
from posenc.results.statistics.intervals import Interval
from posenc.results.statistics.ranking import Versus
from posenc.results.statistics.verdicts import short_verdict

LOSS_HEAD = "loss"
LONGEST_REASON = 12  # characters of the reason why a cell has no number

CsvFields = dict[str, Any]
Term = tuple[str, str]  # a word and what it means, for --explain


@dataclass(frozen=True, kw_only=True)
class CellColumn:
    """A number of each row and window. Without a head it is in CSV only."""

    head: Callable[[Comparison], str] | None = None
    text: Callable[[Comparison, Row, Cell], str] = lambda comparison, row, cell: ""
    csv: Callable[[Comparison, Row, Cell], CsvFields] = lambda comparison, row, cell: {}
    terms: tuple[Term, ...] = ()
    is_words: bool = False


@dataclass(frozen=True, kw_only=True)
class RowColumn:
    """A number of each row. Without a head it is in CSV only."""

    head: Callable[[Comparison], str] | None = None
    text: Callable[[Row], str] = lambda row: ""  # in the tables of --full
    short: Callable[[Row], str] | None = None  # in the table of one screen, which does not have all columns
    paper: Callable[[Row], str] | None = None  # in a paper, with its interval
    csv: Callable[[Comparison, Row], CsvFields] = lambda comparison, row: {}
    terms: tuple[Term, ...] = ()
    protocol: str | None = None  # the table of one screen has it for this protocol alone


# --- numbers as text


def half_width(metric: str, spread: float | None, interval: Interval | None = None) -> str:
    """Return ± the spread over seeds, else ± half the interval; empty without either."""
    half = spread
    if half is None and interval is not None:
        half = (interval[1] - interval[0]) / 2
    return "" if half is None else f"±{printed(half, metric)}"


def loss_text(metric: str, cell: Cell) -> str:
    """Return the loss, or the first words of the reason why there is none."""
    if cell.mean is not None:
        return printed(cell.mean, metric)
    reason, _, _ = (cell.note or "-").partition(",")
    return reason[:LONGEST_REASON]


def change_text(metric: str, cell: Cell) -> str:
    """Return the change against T with its sign; empty without one."""
    return "" if cell.change is None else printed_change(cell.change, metric)


def versus_text(metric: str, versus: Versus | None) -> str:
    """Return `+0.120 [+0.100, +0.140] p<0.001`; `-` for the best row, and where nothing is compared."""
    if versus is None or versus.word == "best":
        return "-"
    parts = [printed_change(versus.difference, metric)]
    if versus.ci95 is not None:
        low, high = (printed_change(end, metric) for end in versus.ci95)
        parts.append(f"[{low}, {high}]")
    if versus.p is not None:
        parts.append("p<0.001" if versus.p < 0.001 else f"p={versus.p:.3f}")
    if versus.method != "welch":
        parts.append(versus.method)
    return " ".join(parts)


def recovered_text(recovered: Recovered | None) -> str:
    """Return the recovered share, `12%`; `<-100%` below that; empty if far text is worth nothing."""
    if recovered is None or recovered.share is None:
        return ""
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
    """Return `3.5x`; `7x+` where no longer distance was asked for, `0x` where no distance has half."""
    if recall is None or recall.learned is None:
        return ""
    if recall.horizon is None:
        return "did not learn"
    text = length_text(round(recall.horizon.multiple, 2))
    return f"{text}+" if recall.horizon.longest else text


def breaks_text(curve: CurveSummary) -> str:
    """Return where the seeds of a row break: `1.44x`, `1.44x-2x (2 of 3 seeds)`, `no break`, `unclear`."""
    positions = sorted(position for position in curve.breaks_at if position is not None)
    if not positions:
        return "no break" if all(curve.holds) else "unclear"
    first = length_text(round(positions[0] / curve.train_length, 2))
    last = length_text(round(positions[-1] / curve.train_length, 2))
    text = first if first == last else f"{first}-{last}"
    seeds = len(curve.breaks_at)
    return text if len(positions) == seeds else f"{text} ({len(positions)} of {seeds} seeds)"


def is_base(row: Row, cell: Cell) -> bool:
    """Return whether the changes of the row are measured against this cell."""
    return cell.multiple == 1 and row.extend is None and row.curve is None


def rank_of_number(comparison: Comparison, cell: Cell) -> Versus | None:
    """Return the rank of the number that a cell of the rows' table shows; None for one that has no rank.

    That is the loss at T, elsewhere the change. A difference to a baseline has the rank of the loss: the
    baseline has one loss for all rows of a column.
    """
    if comparison.header.baseline is not None or cell.multiple == 1:
        return cell.versus_best
    return cell.change_versus_best


def _has_curves(comparison: Comparison) -> bool:
    return any(row.curve is not None for row in comparison.rows)


# --- by row and window


def _change_head(comparison: Comparison) -> str:
    return "rise" if _has_curves(comparison) else "change"


def _change_column_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    return "-" if is_base(row, cell) else change_text(comparison.header.metric, cell)


def _change_spread_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    return "" if is_base(row, cell) else half_width(comparison.header.metric, cell.change_spread)


def _verdict_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    return "" if row.undertrained else short_verdict(cell.verdict or "")


def _versus_head(comparison: Comparison) -> str:
    baseline = comparison.header.baseline
    return "above the lowest loss" if baseline is None else f"minus {baseline}"


def _versus(comparison: Comparison, cell: Cell) -> Versus | None:
    """Return the loss of a cell against the baseline, if there is one, else against the best row."""
    return cell.versus_best if comparison.header.baseline is None else cell.versus_baseline


def _versus_column_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    return versus_text(comparison.header.metric, _versus(comparison, cell))


def _rank_text(versus: Versus | None) -> str:
    return "" if versus is None else versus.word


def _change_versus(comparison: Comparison, cell: Cell) -> Versus | None:
    """Return the change of a cell against the lowest one; None in a table of differences to a baseline."""
    return cell.change_versus_best if comparison.header.baseline is None else None


def _change_versus_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    return versus_text(comparison.header.metric, _change_versus(comparison, cell))


def with_interval(name: str, value: float | None, interval: Interval | None) -> CsvFields:
    """Return a number with the ends of its interval."""
    low, high = interval or (None, None)
    return {name: value, f"{name}_low": low, f"{name}_high": high}


def _window_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    return {"multiple": cell.multiple, "window": cell.window, "seeds": cell.seeds}


def _loss_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    name = f"loss_{comparison.header.metric}"
    return {name: cell.mean, f"{name}_sd": cell.spread}


def _change_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    name = f"change_{comparison.header.metric}"
    fields = {name: cell.change, f"{name}_sd": cell.change_spread}
    fields |= with_interval(name, cell.change, cell.change_ci95)
    if cell.verdict is not None:  # the margins of a verdict are in bits per byte, whatever the metric
        fields |= with_interval("change_bpb", cell.verdict_change, cell.verdict_ci95)
    return fields


def _verdict_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    return {"verdict": cell.verdict}


def _versus_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    metric = comparison.header.metric
    best = _versus_fields("versus_best", metric, cell.versus_best)
    return best | _versus_fields("versus_baseline", metric, cell.versus_baseline)


def _change_versus_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    return _versus_fields("change_versus_best", comparison.header.metric, cell.change_versus_best)


def _versus_fields(name: str, metric: str, versus: Versus | None) -> CsvFields:
    """Return the word, the difference with its interval, p, method, and what an unresolved one needs."""
    if versus is None:
        return {}
    difference = with_interval(f"{name}_{metric}", versus.difference, versus.ci95)
    return {
        name: versus.word,
        **difference,
        f"{name}_p": versus.p,
        f"{name}_method": versus.method,
        f"{name}_needs": versus.needs,
    }


def _counts_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    return {"targets": cell.targets, "documents": cell.documents, "note": cell.note}


def _whole_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    """Return the whole answers in a window: of the seeds that learned; if none learned, of all."""
    answers = EXACT.of(row)
    for answer in () if answers is None else answers.cells:
        if answer is not None and answer.multiple == cell.multiple:
            return {
                "whole_median": answer.whole.median,
                "whole_low": answer.whole.low,
                "whole_high": answer.whole.high,
                "tokens_median": answer.tokens.median,
            }
    return {}


def _farther_back(row: Row, cell: Cell) -> ShorterWindow | None:
    """Return the comparison that the memory of a cell is; None where it was not measured."""
    memory = MEMORY.of(row)
    memory_cell = None if memory is None else memory.cell_at(cell.multiple)
    return None if memory_cell is None else memory_cell.farther_back


def _memory_text(comparison: Comparison, row: Row, cell: Cell) -> str:
    memory = _farther_back(row, cell)
    return "" if memory is None else f"{memory.variation:.3f}"


def _right_token_text(row: Row, cell: Cell) -> str:
    """Return what the right token gains and loses, `+0.012 -0.104`."""
    memory = _farther_back(row, cell)
    return "" if memory is None else f"+{memory.gained:.3f} -{memory.lost:.3f}"


def _memory_csv(comparison: Comparison, row: Row, cell: Cell) -> CsvFields:
    memory = _farther_back(row, cell)
    if memory is None:
        return {}
    return {
        **with_interval("memory", memory.variation, memory.ci95),
        "memory_sd": memory.spread,
        "memory_farther_than": memory.window,
        "right_token_gains": memory.gained,
        "right_token_loses": memory.lost,
    }


CELL_COLUMNS = (
    CellColumn(csv=_window_csv),
    CellColumn(
        head=lambda comparison: LOSS_HEAD,
        text=lambda comparison, row, cell: loss_text(comparison.header.metric, cell),
        csv=_loss_csv,
        terms=(
            ("loss", "nats/token, or nats/byte where a token is a byte; --metric bpb, ppl"),
            ("1x (T)", "the crop line: the loss if you truncate the text to T tokens"),
        ),
    ),
    CellColumn(
        head=lambda comparison: "sd",
        text=lambda comparison, row, cell: half_width(comparison.header.metric, cell.spread),
    ),
    CellColumn(
        head=_change_head,
        text=_change_column_text,
        csv=_change_csv,
        terms=(
            ("change", "loss minus the loss at 1x as trained; above 0, longer text harms"),
            ("±", "several seeds: standard deviation over seeds; one seed: half the 95% CI"),
        ),
    ),
    CellColumn(
        head=lambda comparison: "95% CI",
        text=lambda comparison, row, cell: half_width(comparison.header.metric, None, cell.change_ci95),
        terms=(
            (
                "95% CI",
                "over test documents (by folder, book or article where known) and seeds; with one seed over "
                "documents only: it says nothing about other seeds",
            ),
        ),
    ),
    CellColumn(head=lambda comparison: f"sd of {_change_head(comparison)}", text=_change_spread_text),
    CellColumn(
        head=lambda comparison: "verdict",
        text=_verdict_text,
        csv=_verdict_csv,
        is_words=True,
        terms=(
            (
                "verdict",
                "on the change in bits/byte, with its whole 95% CI: same within {same:g}, better or worse "
                "beyond it, collapsed above {collapsed:g}; unclear: the CI crosses a threshold",
            ),
        ),
    ),
    CellColumn(
        head=_versus_head,
        text=_versus_column_text,
        csv=_versus_csv,
        terms=(
            (BEST, "the best of what its column shows: the lowest loss, the lowest change or difference"),
            (
                TIED,
                "tied with it: the whole 95% CI of the difference (corrected for the rows) lies within "
                "{same:g} bits/byte, of recall within {same_recall:.0%}",
            ),
            (
                "no mark",
                "above the best: by surely more than {same:g} bits/byte; or unresolved: the CI is too wide "
                "for any word, so there is no rank; or not comparable with it (undertrained, other targets). "
                "--full has the word of each",
            ),
        ),
    ),
    CellColumn(
        head=lambda comparison: "rank",
        text=lambda comparison, row, cell: _rank_text(_versus(comparison, cell)),
        is_words=True,
    ),
    CellColumn(
        head=lambda comparison: "above the lowest change",
        text=_change_versus_text,
        csv=_change_versus_csv,
    ),
    CellColumn(
        head=lambda comparison: "rank",
        text=lambda comparison, row, cell: _rank_text(_change_versus(comparison, cell)),
        is_words=True,
    ),
    CellColumn(csv=_counts_csv),
    CellColumn(csv=_whole_csv),
    CellColumn(
        head=lambda comparison: MEMORY.protocol,
        text=_memory_text,
        csv=_memory_csv,
        terms=(
            (
                "memory",
                "how far the next-token distribution moves when text farther back comes in: the total "
                "variation, mean over targets; 0: not at all, 1: wholly. Past T that is all text before the "
                "last T tokens, up to T the older half of the window (protocol memory). It is not use: a "
                "model that breaks in long windows moves far as well, and its loss rises",
            ),
        ),
    ),
    CellColumn(
        head=lambda comparison: "right token",
        text=lambda comparison, row, cell: _right_token_text(row, cell),
        terms=(
            (
                "right token",
                "of the memory: the probability that the right token gains where it gains, and loses where "
                "it loses, each a mean over all targets. The rest moves between wrong tokens",
            ),
        ),
    ),
)


# --- by row


def _undertrained_csv(comparison: Comparison, row: Row) -> CsvFields:
    return {"undertrained": row.undertrained is not None}


def _breaks_csv(comparison: Comparison, row: Row) -> CsvFields:
    if row.curve is None:
        return {}
    positions = ["none" if position is None else str(position) for position in row.curve.breaks_at]
    return {"breaks_at": " ".join(positions)}


def _seeds_text(row: Row) -> str:
    return " ".join(str(seed) for seed in row.seeds)


def _worth_text(row: Row) -> str:
    recovered = row.recovered
    return "" if recovered is None else _nats_text(recovered.worth, recovered.worth_ci95)


def _long_difference_text(row: Row) -> str:
    recovered = row.recovered
    return "" if recovered is None else _nats_text(recovered.difference, recovered.difference_ci95)


def _nats_text(change: float | None, interval: Interval | None) -> str:
    """Return a change with half its interval, `+0.061±0.012`; empty without a number."""
    if change is None:
        return ""
    return printed_change(change, "nats") + half_width("nats", None, interval)


def _recovered_csv(comparison: Comparison, row: Row) -> CsvFields:
    """Return all numbers of a row that need a long-trained model."""
    recovered = row.recovered
    if recovered is None:
        return {}
    return {
        **with_interval("worth_nats", recovered.worth, recovered.worth_ci95),
        **with_interval("minus_long_nats", recovered.difference, recovered.difference_ci95),
        **with_interval("recovered", recovered.share, recovered.ci95),
    }


def _recovered_column_text(row: Row) -> str:
    if row.recovered is None:
        return ""
    share = row.recovered.note or recovered_with_interval(row.recovered)
    return f"{share} at {length_text(row.recovered.multiple)}"


def _reference_csv(comparison: Comparison, row: Row) -> CsvFields:
    header = comparison.header
    if header.reference is None:
        return {}
    return {f"reference_{header.metric}": header.reference.mean}


def _exact_csv(comparison: Comparison, row: Row) -> CsvFields:
    answers = EXACT.of(row)
    if answers is None:
        return {}
    return {"learned": answers.learned, "learned_of": answers.seeds}


def _entropy_text(row: Row) -> str:
    """Return the entropy at T and in the longest window, mean of the layers: `2.52 to 4.64`."""
    return _from_t_to_longest(row, lambda cell: f"{cell.mean_entropy:.2f}")


def _first_token_text(row: Row) -> str:
    """Return the weight on the first token at T and in the longest window, mean of the layers: `7% to 1%`."""
    return _from_t_to_longest(row, lambda cell: share_text(cell.mean_first))


def _from_t_to_longest(row: Row, text_of: Callable[[DispersionCell], str]) -> str:
    """Return what attention does at T and in the longest window; empty without a number at T."""
    dispersion = DISPERSION.of(row)
    if dispersion is None or dispersion.at_t is None:
        return ""
    return f"{text_of(dispersion.at_t)} to {text_of(dispersion.longest)}"


def _variance_text(row: Row) -> str:
    """Return the variance of the outputs in the longest window as a multiple of that at T, `x0.31`."""
    dispersion = DISPERSION.of(row)
    ratio = None if dispersion is None else dispersion.variance_ratio
    return "" if ratio is None else f"x{ratio:.2g}"


def _far_text(row: Row) -> str:
    """Return the change of the loss that far positions make by themselves; empty without one."""
    dispersion = DISPERSION.of(row)
    if dispersion is None:
        return ""
    far_change = dispersion.far_change(dispersion.longest)
    return "" if far_change is None else printed_change(far_change, "nats")


def _why_text(row: Row) -> str:
    """Return the reasons of a collapse that the numbers support: `positions, spread`; `none` without one."""
    dispersion = DISPERSION.of(row)
    if dispersion is None or dispersion.reasons is None:
        return ""
    return ", ".join(dispersion.reasons) or "none"


def _dispersion_csv(comparison: Comparison, row: Row) -> CsvFields:
    dispersion = DISPERSION.of(row)
    if dispersion is None or dispersion.at_t is None:
        return {}
    return {
        "entropy_at_t": dispersion.at_t.mean_entropy,
        "entropy_at_longest": dispersion.longest.mean_entropy,
        "first_token_at_t": dispersion.at_t.mean_first,
        "first_token_at_longest": dispersion.longest.mean_first,
        "output_variance_ratio": dispersion.variance_ratio,
        "far_positions_nats": dispersion.longest.far_nats,
        "why": _why_text(row),
    }


def _memory_at_t_text(row: Row) -> str:
    memory = MEMORY.of(row)
    at_t = None if memory is None else memory.cell_at(1)
    return "" if at_t is None else _memory_with_interval(at_t.farther_back)


def _longest_memory_head(comparison: Comparison) -> str:
    """Return `memory@8x`, of the longest window."""
    return f"memory@{length_text(comparison.columns[-1].multiple)}"


def _longest_memory_text(row: Row) -> str:
    memory = _farther_back(row, row.cells[-1]) if row.cells else None
    return "" if memory is None else _memory_with_interval(memory)


def _memory_with_interval(memory: ShorterWindow) -> str:
    """Return `0.214±0.003`: with the standard deviation over seeds, or half the interval of one seed."""
    return f"{memory.variation:.3f}{half_width('nats', memory.spread, memory.ci95)}"


def _longest_right_token_text(row: Row) -> str:
    return _right_token_text(row, row.cells[-1]) if row.cells else ""


ROW_COLUMNS = (
    RowColumn(
        csv=_undertrained_csv,
        terms=(
            (
                "undertrained",
                "at T not {reference:g} bits/byte below a byte trigram of the training text: its change past "
                "T says nothing about the encoding",
            ),
        ),
    ),
    RowColumn(
        csv=_breaks_csv,
        terms=(
            (
                "breaks at",
                "the first position past T where the loss exceeds its level at T by {break_at:g} nats "
                "(95% confidence)",
            ),
        ),
    ),
    RowColumn(head=lambda comparison: "seeds", text=_seeds_text),
    RowColumn(
        head=lambda comparison: f"far text worth, nats/{token_noun(comparison.header)}",
        text=_worth_text,
        csv=_recovered_csv,
        terms=(
            (
                "worth",
                "of far text: what a model trained at 8T gains from 8T of text over T, on the same targets",
            ),
        ),
    ),
    RowColumn(
        head=lambda comparison: "minus the long-trained at T",
        text=_long_difference_text,
    ),
    RowColumn(
        head=lambda comparison: "recovered",
        text=_recovered_column_text,
        short=lambda row: recovered_text(row.recovered),
        paper=lambda row: recovered_with_interval(row.recovered),
        terms=(
            (
                "recovered",
                "the share of the far text's worth that the row, trained at T, gains at 8T: 0% is cropping, "
                "100% as much as training long gains; blank: far text is worth nothing (95% CI)",
            ),
        ),
    ),
    RowColumn(
        head=lambda comparison: "recall horizon",
        text=lambda row: horizon_text(RECALL.of(row)),
        terms=(
            (
                "learned",
                "how many seeds learned to recall: they find {level:g}% of the planted values within T "
                "(--recall-level). Its CI is that of a binomial: 3 of 3 mean a probability above 37%",
            ),
            (
                "recall@T",
                "share of the planted values found in windows of T by the seeds that learned, mean over "
                "the distances within T; @8x: at the farthest distance in windows of 8T. A guess finds one "
                "in data.plant.alphabet. Each seed draws its windows. The 95% CI is over these seeds; with "
                "one seed over its windows (Wilson's)",
            ),
            (
                "did not learn",
                "to recall: no seed did. The number in brackets is the mean of all seeds and has no rank: "
                "far text may be unused whatever the loss says",
            ),
            (
                "recall horizon",
                "the largest distance, in the longest window, with at least {kept:.0%} of the recall within "
                "T",
            ),
        ),
    ),
    RowColumn(csv=_reference_csv),
    RowColumn(
        csv=_exact_csv,
        terms=(
            (
                "learned",
                "of a task: seeds with at least {learned:g}% of the answers wholly right in windows of T; "
                "a row without any is in brackets",
            ),
            (
                "@8x",
                "of a task: the share of answers that are wholly right in windows of 8T. It is the median of "
                "the seeds that learned, with their range; from five seeds on with the quartiles",
            ),
        ),
    ),
    RowColumn(
        head=lambda comparison: "entropy",
        text=_entropy_text,
        short=_entropy_text,
        csv=_dispersion_csv,
        terms=(
            (
                "entropy",
                "of attention at T and in the longest window, in nats, mean of the layers. An entropy of log "
                "n is that of n keys with equal weights (protocol dispersion)",
            ),
        ),
        protocol=DISPERSION.protocol,
    ),
    RowColumn(
        head=lambda comparison: "first token",
        text=_first_token_text,
        short=_first_token_text,
        terms=(("first token", "the share of attention on the window's first token, the sink"),),
        protocol=DISPERSION.protocol,
    ),
    RowColumn(
        head=lambda comparison: "variance",
        text=_variance_text,
        short=_variance_text,
        terms=(
            (
                "variance",
                "of the attention's outputs over the queries, as a multiple of that at T: it falls where "
                "attention becomes a mean over many keys",
            ),
        ),
        protocol=DISPERSION.protocol,
    ),
    RowColumn(
        head=lambda comparison: "far",
        text=_far_text,
        short=_far_text,
        terms=(
            (
                "far",
                "change of the loss, in nats, of the last T tokens alone, with the older half placed as far "
                "away as the longest window reaches: what unseen positions do without one more key",
            ),
        ),
        protocol=DISPERSION.protocol,
    ),
    RowColumn(
        head=lambda comparison: "why",
        text=_why_text,
        short=_why_text,
        terms=(
            (
                "why",
                "of a collapsed row. positions: far is at least {far_share:.0%} of the change. spread: the "
                "entropy rises by at least {spread_share:.0%} of log(W/T), and the variance falls below "
                "{less_variance:.0%}. sink: the layer with most weight on the first token at T (at least "
                "{sink_weight:.0%}) loses more than {less_sink:.0%} of it. none: none of these",
            ),
        ),
        protocol=DISPERSION.protocol,
    ),
    RowColumn(
        head=lambda comparison: "memory@T",
        text=_memory_at_t_text,
        short=_memory_at_t_text,
        protocol=MEMORY.protocol,
    ),
    RowColumn(
        head=_longest_memory_head,
        text=_longest_memory_text,
        short=_longest_memory_text,
        protocol=MEMORY.protocol,
    ),
    RowColumn(
        head=lambda comparison: "right token",
        text=_longest_right_token_text,
        short=_longest_right_token_text,
        protocol=MEMORY.protocol,
    ),
)
