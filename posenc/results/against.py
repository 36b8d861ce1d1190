"""A comparison beside a paper's table, and whether the two agree in direction: sign and order, never size.

Sign: does the loss rise or fall from T on? Order: which of two encodings has the lower loss at a length? A
check passes or fails only where the measured interval is clear; else it cannot tell, and says why.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

from posenc.results.cells import Cell
from posenc.results.comparison import Comparison, Row, compare, protocols_of
from posenc.results.load import Run
from posenc.results.published import TRANSCRIBED, Published, table_rows
from posenc.results.verdicts import SAME

# A published change below 2% of the perplexity is "flat", a published difference below it no order: papers
# print one model's number, and the only ones with a spread have 2 to 3% of it.
FLAT = math.log(1.02)
NEAR = 0.1  # lengths this close to ours, as a share, stand for ours
Outcome = Literal["pass", "fail", "cannot tell"]


@dataclass
class Entry:
    """An encoding at one multiple of T, on both sides; changes are against T, in nats per token."""

    encoding: str
    multiple: float  # of T, as measured; as published where nobody measured it
    published_length: int | None
    published: float | None  # as printed
    published_change: float | None
    measured: float | None
    measured_change: float | None
    measured_half: float | None  # half the 95% interval of the change, in nats per token


@dataclass
class Check:
    """One direction that the paper states."""

    kind: Literal["sign", "order"]
    what: str
    outcome: Outcome
    reason: str


@dataclass
class Block:
    """A table's numbers of one training length."""

    train_length: int
    entries: list[Entry]
    checks: list[Check]
    not_shown: int  # published numbers at lengths that nobody measured


@dataclass
class Against:
    """Both sides with their settings."""

    table: str
    published: dict[str, Any]
    measured: dict[str, Any]
    notes: list[str]
    blocks: list[Block]

    @property
    def checks(self) -> list[Check]:
        """Of all blocks."""
        return [check for block in self.blocks for check in block.checks]


def against(runs: Sequence[Run], table: str, allow_mixed: bool = False) -> Against:
    """The runs beside a published table. Raises UserError for an unknown table, and as `compare` does."""
    rows = table_rows(table)
    wanted = protocol_like(rows[0].protocol)
    there = protocols_of(runs)  # the headline first
    protocol = wanted if wanted in there or not there else there[0]
    comparison = compare(runs, protocol, "nats", allow_mixed)
    notes = ["directions are compared, never sizes: corpus, model, tokenizer and length differ"]
    if protocol != wanted:
        notes.append(
            f"no run has measured {wanted}, which is nearest to the paper's protocol: {protocol} shown"
        )
    elif protocol not in rows[0].protocol:
        notes.append(f"the paper's protocol ({rows[0].protocol}) has no equal here: {protocol} shown")
    if table in TRANSCRIBED:
        notes.append("these numbers come from a transcription: check the paper before quoting them")
    if len(comparison.header["seeds"]) == 1:
        notes.append("one seed: what is measured holds for these models only")
    ours = {_name(row): i for i, row in reversed(list(enumerate(comparison.rows)))}
    missing = [name for name in dict.fromkeys(row.encoding for row in rows) if name not in ours]
    if missing:
        notes.append("published and not measured here: " + ", ".join(missing))
    blocks = [
        _block([row for row in rows if row.train_length == length], comparison, ours)
        for length in sorted({row.train_length for row in rows})
    ]
    keys = ("paper", "arxiv", "parameters", "corpus", "protocol", "metric")
    return Against(
        table=table,
        published={key: _shared(getattr(row, key) for row in rows) for key in keys},
        measured=comparison.header,
        notes=notes,
        blocks=blocks,
    )


def protocol_like(published: str) -> str:
    """The protocol here that measures as a paper's does, or comes nearest."""
    for name in ("nonoverlapping", "sliding"):
        if published.startswith(name):
            return name
    return "fixed-target"


def _name(row: Row) -> str:
    """As tables name it: `rope`, `rope+yarn`; with options or other settings it is something else."""
    plain = row.encoding + (f"+{row.extend}" if row.extend else "")
    return plain if row.label.split(" (beyond")[0] == plain else row.label


def _block(rows: Sequence[Published], comparison: Comparison, ours: dict[str, int]) -> Block:
    multiples = [column.multiple for column in comparison.columns]
    by_place: dict[tuple[str, float], Published] = {}
    for row in rows:
        near = [m for m in multiples if abs(row.multiple / m - 1) <= NEAR]
        if near:
            multiple = min(near, key=lambda m: abs(row.multiple / m - 1))
            best = by_place.get((row.encoding, multiple))
            if best is None or abs(row.multiple / multiple - 1) < abs(best.multiple / multiple - 1):
                by_place[row.encoding, multiple] = row
    entries, checks = [], []
    for (encoding, multiple), row in sorted(by_place.items()):
        base = by_place.get((encoding, 1.0))
        published_change = None if base is None or row is base else row.nats - base.nats
        cell = _cell(comparison, ours, encoding, multiple)
        entries.append(_entry(encoding, multiple, row, published_change, cell))
        if published_change is not None:
            checks.append(_sign(encoding, multiple, published_change, cell))
    for multiple in sorted({multiple for _, multiple in by_place}):
        here = {name: row for (name, at), row in by_place.items() if at == multiple}
        for a, b in combinations(sorted(here), 2):
            checks.append(_order(here[a], here[b], multiple, comparison, ours))
    return Block(rows[0].train_length, entries, checks, len(rows) - len(by_place))


def _cell(comparison: Comparison, ours: dict[str, int], encoding: str, multiple: float) -> Cell | None:
    if encoding not in ours:
        return None
    cells = comparison.rows[ours[encoding]].cells
    return next((cell for cell in cells if cell.multiple == multiple), None)


def _entry(
    encoding: str, multiple: float, row: Published, published_change: float | None, cell: Cell | None
) -> Entry:
    half = None
    if cell is not None and cell.change and cell.verdict_ci95 and cell.verdict_change:
        low, high = cell.verdict_ci95
        half = abs(
            (high - low) / 2 * cell.change / cell.verdict_change
        )  # from bits per byte to nats per token
    return Entry(
        encoding=encoding,
        multiple=multiple,
        published_length=row.eval_length,
        published=row.value,
        published_change=published_change,
        measured=None if cell is None else cell.mean,
        measured_change=None if cell is None or multiple == 1 else cell.change,
        measured_half=half,
    )


def _sign(encoding: str, multiple: float, published: float, cell: Cell | None) -> Check:
    """Whether the loss moves from T on as the paper's does."""
    word = "stays flat" if abs(published) < FLAT else ("rises" if published > 0 else "falls")
    what = f"{encoding} {word} from 1x to {multiple:g}x"
    if cell is None or cell.mean is None:
        return Check(
            "sign", what, "cannot tell", "not measured" if cell is None else cell.note or "no number"
        )
    if cell.verdict_ci95 is None or cell.verdict_change is None:
        return Check("sign", what, "cannot tell", "no interval for what is measured")
    low, high = cell.verdict_ci95
    shown = f"measured {cell.verdict_change:+.3f} [{low:+.3f}, {high:+.3f}] bits per byte"
    if word == "stays flat":
        outcome: Outcome = "cannot tell"
        if low >= -SAME and high <= SAME:
            outcome = "pass"
        elif low > SAME or high < -SAME:
            outcome = "fail"
        return Check("sign", what, outcome, f"{shown}; flat is within {SAME:g}")
    if low <= 0 <= high:
        return Check("sign", what, "cannot tell", f"{shown}: the interval holds zero")
    return Check("sign", what, "pass" if (low > 0) == (published > 0) else "fail", shown)


def _order(
    a: Published, b: Published, multiple: float, comparison: Comparison, ours: dict[str, int]
) -> Check:
    """Whether the same one of two encodings has the lower loss."""
    lower, higher = (a, b) if a.value <= b.value else (b, a)
    what = f"{lower.encoding} below {higher.encoding} at {multiple:g}x"
    if higher.nats - lower.nats < max(FLAT, _spread(a), _spread(b)):
        return Check(
            "order", what, "cannot tell", "published too close: within 2%, or the paper's own spread"
        )
    absent = [row.encoding for row in (lower, higher) if row.encoding not in ours]
    if absent:
        return Check("order", what, "cannot tell", f"not measured: {', '.join(absent)}")
    i, j = ours[lower.encoding], ours[higher.encoding]
    column = next(column for column in comparison.columns if column.multiple == multiple)
    pair = next((pair for pair in column.pairs if {pair.a, pair.b} == {i, j}), None)
    if pair is None or pair.difference is None or pair.interval is None:
        return Check("order", what, "cannot tell", "these two are not ranked here")
    sign = 1 if pair.a == i else -1
    low, high = sorted(sign * end for end in pair.interval)
    shown = f"measured {sign * pair.difference:+.3f} [{low:+.3f}, {high:+.3f}] bits per byte"
    if pair.word in ("tie", "unclear"):
        return Check("order", what, "cannot tell", f"{shown}: {pair.word}")
    return Check("order", what, "pass" if high < 0 else "fail", shown)


def _spread(row: Published) -> float:
    """The paper's standard deviation, in nats per token."""
    if row.spread is None:
        return 0.0
    return row.spread / row.value if row.metric == "ppl" else row.spread


def _shared(values: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(values))
