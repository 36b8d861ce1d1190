"""A comparison beside a paper's table: both sides with their settings, and checks of direction, not of size.

`published.csv` beside this file has a row for each printed number. Sign: does the loss rise or fall from T
on? Order: which of two encodings has the lower loss at a length? A check passes or fails only where both
sides are clear; else it cannot tell, and says why.
"""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from posenc.core.errors import UserError
from posenc.results.cells import NOT_MEASURED, Cell, pair_of, samples_of
from posenc.results.comparison import CompareRequest, Comparison, compare_groups, protocols_of
from posenc.results.load import Run
from posenc.results.ranking import CONFIDENCE
from posenc.results.rows import RowGroup
from posenc.results.schema import HEADLINE, INFLATED
from posenc.results.statistics import MIN_DOCUMENTS, Sample, difference

# Taken from other people's copies of these tables.
TRANSCRIBED = frozenset({"kerple-table3", "scale-invariant-table1", "kazemnejad-appendixF"})
# 2% of the perplexity, in nats: a smaller published change is flat, a smaller difference no order; of what is
# measured, where the whole interval is smaller. The spreads that papers give are 0.6 to 3% at T.
FLAT = math.log(1.02)
# The published length nearest to one of ours stands beside it up to this ratio: alibi-table2 goes from 3 to 5
# times 512 tokens, and 2512 is its length for our 4x. Each such pair is printed with both multiples.
NEAR = math.log(1.25)
PROTOCOLS = (HEADLINE, "sliding", INFLATED)  # that score text in windows of a length, as the papers do
Outcome = Literal["pass", "fail", "cannot tell"]
Pairs = Sequence[tuple[Sample, Sample]]  # both sides of each seed


@dataclass(frozen=True)
class Published:
    """One number of a paper's table, as printed."""

    table: str
    paper: str
    arxiv: str
    parameters: str
    corpus: str
    protocol: str
    train_length: int  # tokens
    eval_length: int  # tokens
    encoding: str
    metric: str  # ppl or nats
    value: float
    spread: float | None  # the paper's own standard deviation

    @property
    def multiple(self) -> float:
        """The evaluation length as a multiple of the training length."""
        return self.eval_length / self.train_length

    @property
    def nats(self) -> float:
        """Per token of that paper's tokenizer."""
        return math.log(self.value) if self.metric == "ppl" else self.value

    @property
    def spread_nats(self) -> float:
        """The paper's standard deviation in nats per token; 0 where it gives none."""
        return (self.spread or 0.0) / (self.value if self.metric == "ppl" else 1.0)


@dataclass
class Check:
    """One direction that the paper states; differences are in nats per token."""

    kind: Literal["sign", "order"]
    what: str
    outcome: Outcome
    reason: str
    published: float  # of a sign the change from T on, of an order the lower one minus the higher one
    measured: float | None = None
    interval: list[float] | None = None  # of `measured`, over seeds and documents; of one seed: documents


@dataclass
class Entry:
    """An encoding at one multiple of T, on both sides; changes are against T, in nats per token."""

    encoding: str
    multiple: float  # of T, as measured; as published where nobody measured it
    published_length: int  # tokens
    published_multiple: float  # of the paper's T
    published: float  # as printed
    published_change: float | None  # null at T
    measured: float | None  # mean over seeds, nats per token
    measured_change: float | None
    measured_half: float | None  # half the 95% interval of the change
    sign: Outcome | None  # of the check of this change


@dataclass
class Block:
    """A table's numbers of one training length."""

    train_length: int
    entries: list[Entry]
    checks: list[Check]
    not_shown: int  # published numbers at lengths between those shown


@dataclass
class PaperComparison:
    """Both sides with their settings."""

    table: str
    published: dict[str, Any]
    measured: dict[str, Any]  # the header of the comparison
    notes: list[str]
    blocks: list[Block]

    @property
    def checks(self) -> list[Check]:
        """Of all blocks."""
        return [check for block in self.blocks for check in block.checks]


@dataclass
class _Measured:
    """Our side: the comparison, and the row of each published name."""

    comparison: Comparison
    groups: list[RowGroup]  # in the order of the comparison's rows
    at: dict[str, int]

    def cell(self, name: str, multiple: float) -> Cell | None:
        cells = self.comparison.rows[self.at[name]].cells if name in self.at else []
        return next((one for one in cells if one.multiple == multiple), None)

    def samples(self, name: str, multiple: float) -> dict[int, Sample] | str:
        """Return an encoding's sums by document of each seed; or why it cannot be judged there."""
        cell = self.cell(name, multiple)
        if cell is not None and cell.rankable:
            return samples_of(self.groups[self.at[name]], multiple)
        if cell is not None and cell.note not in (None, NOT_MEASURED):
            return str(cell.note)
        return f"{NOT_MEASURED} by {self.comparison.header['protocol']}"


@functools.cache
def published() -> tuple[Published, ...]:
    """Return every published number, in the order of the file."""
    kinds = {"train_length": int, "eval_length": int, "value": float}
    with Path(__file__).with_name("published.csv").open(encoding="utf-8", newline="") as file:
        rows: list[dict[str, Any]] = list(csv.DictReader(file))
    for row in rows:
        row |= {name: kind(row[name]) for name, kind in kinds.items()}
        row["spread"] = float(row["spread"]) if row["spread"] else None
    return tuple(Published(**{name: row[name] for name in Published.__dataclass_fields__}) for row in rows)


def tables() -> list[str]:
    """Return the names of the tables."""
    return list(dict.fromkeys(row.table for row in published()))


def against(runs: Sequence[Run], table: str) -> PaperComparison:
    """Compare the runs with a published table, by the protocol that comes nearest to the paper's.

    Where no run was measured by that one, by the next of PROTOCOLS. Of the runs that can share a ranking, the
    most; notes say so. Raises UserError for an unknown table, and as `compare_runs` does.
    """
    rows = [row for row in published() if row.table == table]
    if not rows:
        raise UserError("--against", table, "there is no such table", allowed=tables())
    nearest = next((name for name in PROTOCOLS if rows[0].protocol.startswith(name)), HEADLINE)
    there = protocols_of(runs)
    protocol = next((name for name in (nearest, *PROTOCOLS) if name in there), HEADLINE)
    every = compare_groups(runs, CompareRequest(protocol))
    comparison, groups = every[0]
    names = list(dict.fromkeys(row.encoding for row in rows))
    # a row with options of its own, or with one of several settings, is called otherwise
    bare = [group.label.split(" (beyond")[0] for group in groups]
    ours = _Measured(comparison, groups, {name: bare.index(name) for name in names if bare.count(name) == 1})
    keys = ("paper", "arxiv", "parameters", "corpus", "protocol", "metric")
    lengths = sorted({row.train_length for row in rows})
    return PaperComparison(
        table=table,
        published={key: " | ".join(dict.fromkeys(getattr(row, key) for row in rows)) for key in keys},
        measured=comparison.header,
        notes=_notes(rows[0], nearest, names, ours, [one.header["group"] for one, _ in every[1:]]),
        blocks=[_block([row for row in rows if row.train_length == length], ours) for length in lengths],
    )


def _notes(
    theirs: Published,
    nearest: str,
    names: Sequence[str],
    ours: _Measured,
    groups: Sequence[Mapping[str, str]],
) -> list[str]:
    """Return what sets the two sides apart; `groups` are of runs that are not compared."""
    notes, missing, header = [], [], ours.comparison.header
    here = header["protocol"] + ("" if header["stride"] is None else f" stride={header['stride']}")
    if header["protocol"] != nearest:
        notes.append(
            f"protocols differ: no run has measured {nearest}, so {header['protocol']} stands beside it, and "
            f"the protocol alone can turn a curve round: posenc eval run=DIR eval.protocols=[{nearest}]"
        )
    elif not theirs.protocol.startswith(here):
        notes.append(f"protocols differ: {theirs.protocol} there, {here} here")
    if theirs.table in TRANSCRIBED:
        notes.append("published numbers from a transcription: check the paper before quoting them")
    if len(header["seeds"]) == 1:
        notes.append("one seed: what is measured holds for these models only")
    for group in groups:
        notes.append("not compared, runs with " + ", ".join(f"{key} {value}" for key, value in group.items()))
    for name in (name for name in names if name not in ours.at):
        if labels := [group.label for group in ours.groups if name in group.names]:
            notes.append(f"several rows could be {name}, none is compared: {', '.join(labels)}")
        else:
            missing.append(name)
    return notes + ([f"published and not measured: {', '.join(missing)}"] if missing else [])


def _block(rows: Sequence[Published], ours: _Measured) -> Block:
    places = _places(rows, [column.multiple for column in ours.comparison.columns])
    bases = {row.encoding: row for row in rows if row.multiple == 1}
    shown = [row for row in rows if row.eval_length in places]
    entries, checks = [], []
    for row in sorted(shown, key=lambda row: (row.encoding, row.eval_length)):
        multiple, base = places[row.eval_length], bases.get(row.encoding)
        check = None
        if base is not None and row is not base:
            check = sign(base, row, multiple, _from_t(ours, row.encoding, multiple))
            checks.append(check)
        cell = ours.cell(row.encoding, multiple)
        ends = None if check is None else check.interval
        entries.append(
            Entry(
                encoding=row.encoding,
                multiple=multiple,
                published_length=row.eval_length,
                published_multiple=row.multiple,
                published=row.value,
                published_change=None if check is None else check.published,
                measured=None if cell is None else cell.mean,
                measured_change=None if cell is None or multiple == 1 else cell.change,
                measured_half=None if ends is None else (ends[1] - ends[0]) / 2,
                sign=None if check is None else check.outcome,
            )
        )
    for length, multiple in places.items():
        both = [row for row in shown if row.eval_length == length]
        both = [row for row in both if (cell := ours.cell(row.encoding, multiple)) and cell.seeds]
        pairs = list(combinations(sorted(both, key=lambda row: row.nats), 2))
        of = sum(is_clear(*pair) for pair in pairs)
        for lower, higher in pairs:
            between = _between(ours, lower.encoding, higher.encoding, multiple)
            checks.append(order(lower, higher, multiple, between, of))
    return Block(rows[0].train_length, entries, checks, len(rows) - len(shown))


def _places(rows: Sequence[Published], measured: Sequence[float]) -> dict[int, float]:
    """Return the published lengths to show, and the multiple of T here that each stands beside.

    Those nearest to the lengths measured; where nobody measured, those nearest to powers of two.
    """

    def apart(a: float, b: float) -> float:
        return abs(math.log(a / b))

    lengths = {row.eval_length: row.multiple for row in sorted(rows, key=lambda row: row.eval_length)}
    octaves = [2.0**k for k in range(round(math.log2(max(lengths.values()))) + 1)]
    wanted = [*measured, *(o for o in octaves if all(apart(o, one) > NEAR for one in measured))]
    places = {}
    for length, multiple in lengths.items():
        place = min(wanted, key=lambda one: apart(one, multiple))
        closest = min(lengths.values(), key=lambda other: apart(other, place))
        if closest == multiple and apart(place, multiple) <= NEAR:
            places[length] = place if place in measured else multiple
    return places


def _from_t(ours: _Measured, name: str, multiple: float) -> Pairs | str:
    """Return each seed's sums at a length and as trained at T; or why there are none."""
    here = ours.samples(name, multiple)
    if isinstance(here, str):
        return here
    group = ours.groups[ours.at[name]]
    pairs = [
        p for m in group.members for p in pair_of(m, m.record(group.extend, multiple), m.record(None, 1.0))
    ]
    return pairs if len(pairs) == len(here) else "not measured at 1x"


def _between(ours: _Measured, a: str, b: str, multiple: float) -> Pairs | str:
    """Return the sums of two encodings at one length, of the seeds that both have; or why there are none."""
    ones, others = ours.samples(a, multiple), ours.samples(b, multiple)
    if isinstance(ones, str) or isinstance(others, str):
        return f"{a}: {ones}" if isinstance(ones, str) else f"{b}: {others}"
    return [(ones[seed], others[seed]) for seed in sorted(ones) if seed in others]


def sign(base: Published, row: Published, multiple: float, pairs: Pairs | str) -> Check:
    """Check whether the loss moves from T on as in the paper. `pairs` at `multiple` and at T, or why none.

    Flat is a published change of less than 2% of the perplexity, and a measured 95% interval within 2%.
    """
    published = row.nats - base.nats
    flat = abs(published) < FLAT
    word = "stays flat" if flat else ("rises" if published > 0 else "falls")
    check = Check("sign", f"{row.encoding} {word} from 1x to {multiple:.3g}x", "cannot tell", "", published)
    _measure(check, pairs, CONFIDENCE)
    if abs(published) < math.hypot(base.spread_nats, row.spread_nats):
        check.reason = "published within its own spread"
    elif check.interval is not None and flat:
        low, high = check.interval
        if low > FLAT or high < -FLAT:
            check.outcome = "fail"
        elif low >= -FLAT and high <= FLAT:
            check.outcome = "pass"
        else:
            check.reason += f": partly beyond {FLAT:.2f}, so flat or not"
    else:
        _judge(check, rises=published > 0)
    return check


def order(lower: Published, higher: Published, multiple: float, pairs: Pairs | str, of: int) -> Check:
    """Check whether the same one of two encodings has the lower loss. `pairs` of the lower and the higher.

    `of` is how many orders are checked at this length; their intervals hold together in 95% of cases
    (Bonferroni), as a ranking's do.
    """
    what = f"{lower.encoding} below {higher.encoding} at {multiple:.3g}x"
    check = Check("order", what, "cannot tell", "", lower.nats - higher.nats)
    if not is_clear(lower, higher):
        check.reason = "published within 2%, or their spread"
        return check
    _measure(check, pairs, 1 - (1 - CONFIDENCE) / of)
    _judge(check, rises=False)
    return check


def is_clear(a: Published, b: Published) -> bool:
    """Return whether two published numbers differ by 2% of the perplexity and by their spread."""
    return abs(a.nats - b.nats) >= max(FLAT, math.hypot(a.spread_nats, b.spread_nats))


def _measure(check: Check, pairs: Pairs | str, confidence: float) -> None:
    """Set the measured difference and its interval, or why there is none."""
    if isinstance(pairs, str):
        check.reason = pairs
    elif not pairs:
        check.reason = "no seed in common"
    else:
        estimate = difference(pairs, "targets")
        interval = estimate.interval(confidence)
        check.measured = estimate.value
        check.reason = f"measured {estimate.value:+.3f}"
        if interval is None:
            check.reason += f": no interval below {MIN_DOCUMENTS} documents"
        else:
            check.interval = list(interval)
            check.reason += f" [{interval[0]:+.3f}, {interval[1]:+.3f}]"


def _judge(check: Check, rises: bool) -> None:
    """Pass or fail where the interval lies on one side of zero and not all within what is flat."""
    if check.interval is None:
        return
    low, high = check.interval
    if low <= 0 <= high:
        check.reason += ": holds zero"
    elif max(-low, high) <= FLAT:
        check.reason += f": within {FLAT:.2f}, no direction"
    else:
        check.outcome = "pass" if (low > 0) == rises else "fail"
