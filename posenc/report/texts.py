"""Small texts that tables, sentences and charts share: names of rows, lengths, counts, units."""

from __future__ import annotations

from collections.abc import Iterable

from rich.cells import cell_len

from posenc.core.errors import plural, visible
from posenc.results.beside.exact import RowExact, Spread
from posenc.results.beside.recall_cells import Learning, RecallCell
from posenc.results.headers import Header
from posenc.results.rows import Row
from posenc.results.runs import encoding_name
from posenc.results.statistics.intervals import Interval

LONGEST_CHART_NAME = 44  # characters, in charts
MOST_NAMED = 3  # rows that a sentence names; of more it gives their number
LOPSIDED = 2  # points by which the two sides of an interval differ, from which on ± would mislead
# A count gets the unit that it has after rounding to three digits: 999,600 would be 1e+03k otherwise.
UNITS_OF_COUNTS = ((999_500_000, 10**9, "B"), (999_500, 10**6, "M"), (10**4, 10**3, "k"))


def row_label(row: Row) -> str:
    """Return the name that the user gives a row, else its label with what sets it apart in a mixed table."""
    return visible(row.full_label if row.name is None else row.name)


def cut(text: str, longest: int = LONGEST_CHART_NAME) -> str:
    """Return a text as it can be printed, without its middle where it is too long."""
    text = visible(text)
    if cell_len(text) <= longest:
        return text
    half = (longest - 2) // 2
    # The middle goes: names of runs and rows begin with the encoding and end with what tells them apart.
    start = _within(text, half)
    end = _within(text[::-1], longest - 2 - half)[::-1]
    return f"{start}..{end}"


def _within(text: str, width: int) -> str:
    """Return as many of the first characters of a text as have room in columns of a terminal."""
    # By cell_len and not by len: a letter of Chinese takes two columns.
    while cell_len(text) > width:
        text = text[:-1]
    return text


def count_text(count: object) -> str:
    """Return a count of tokens or parameters in three digits: `3.28M`, `512`."""
    if not isinstance(count, int):
        return str(count)
    for least, size, letter in UNITS_OF_COUNTS:
        if count >= least:
            return f"{count / size:.3g}{letter}"
    return str(count)


def span_text(ends: Iterable[object]) -> str:
    """Return the first and the last of sorted values: `3`, `3-5`."""
    values = list(dict.fromkeys(str(end) for end in ends))
    return values[0] if len(values) == 1 else f"{values[0]}-{values[-1]}"


def token_noun(header: Header) -> str:
    """Return `byte` where a token is one, else `token`."""
    return "byte" if encoding_name(header.tokenizer) == "bytes" else "token"


def unit_text(header: Header) -> str:
    """Return the short unit of the losses: `nats/byte`, `bits/byte`, `perplexity`."""
    if header.metric == "bpb":
        return "bits/byte"
    if header.metric == "ppl":
        return "perplexity"
    return f"nats/{token_noun(header)}"


def percent_text(cell: RecallCell | None) -> str:
    """Return a recall as `98%`; empty without one."""
    return "" if cell is None else f"{100 * cell.accuracy:.0f}%"


def percent_interval(interval: Interval) -> str:
    """Return an interval of shares in per cent: `[91, 100]`."""
    low, high = interval
    return f"[{100 * low:.0f}, {100 * high:.0f}]"


def share_text(share: float) -> str:
    """Return a share as `37%`, a small one as `0.4%` or `<0.1%`."""
    # Whole per cent say enough of most shares. A small one would be 0%, which means nothing at all.
    percent = 100 * share
    if 0 < percent < 0.1:
        return "<0.1%"
    return f"{percent:.1f}%" if 0 < percent < 1 else f"{percent:.0f}%"


def share_with_interval(cell: RecallCell) -> str:
    """Return a recall in per cent with its interval: `62±4`, or `71 [3, 100]` where that is lopsided."""
    low, high = cell.ci95
    percent = 100 * cell.accuracy
    above = 100 * high - percent
    below = percent - 100 * low
    # 71±48 once stood for [3, 100]: an interval that is cut at 100 has no single half width.
    if abs(above - below) > LOPSIDED:
        return f"{percent:.0f} {percent_interval(cell.ci95)}"
    return f"{percent:.0f}±{(above + below) / 2:.0f}"


def learning_text(learning: Learning) -> str:
    """Return how many seeds learned to recall, `4 of 5`."""
    return f"{learning.learned} of {learning.seeds}"


def names_text(rows: Iterable[Row], many: str = "rows") -> str:
    """Return `alibi, fire and rope`, or `5 rows` where they are more than a sentence can name."""
    names = [row_label(row) for row in rows]
    # A sentence with more names is a list, and the table below it already is one.
    if len(names) > MOST_NAMED:
        return f"{len(names)} {many}"
    if len(names) == 1:
        return names[0]
    return f"{', '.join(names[:-1])} and {names[-1]}"


def learned_of_seeds(answers: RowExact) -> str:
    """Return `2 of 3 seeds`."""
    return f"{answers.learned} of {plural(answers.seeds, 'seed')}"


def spread_text(spread: Spread) -> str:
    """Return `45 [12, 80]` in per cent; the number alone where all seeds agree."""
    text = whole_percent(spread.median)
    # The range of many seeds is that of the two oddest. Quartiles say where half of them are.
    low, high = spread.quartiles or (spread.low, spread.high)
    # By the printed digits: `45 [45, 45]` would look like a measured agreement.
    if whole_percent(low) == whole_percent(high):
        return text
    return f"{text} [{whole_percent(low)}, {whole_percent(high)}]"


def whole_percent(share: float) -> str:
    """Return a share in whole per cent; 100 and 0 are said only of all and of nothing."""
    rounded = round(100 * share)
    if rounded == 100 and share < 1:
        return ">99"
    if rounded == 0 and share > 0:
        return "<1"
    return str(rounded)
