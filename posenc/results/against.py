"""A comparison beside a paper's table: both sides with their settings, and checks of direction."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from posenc.core.errors import visible
from posenc.results.cells import NOT_MEASURED, Cell, record_of, samples_of
from posenc.results.comparison import Comparison, compare, protocols_of
from posenc.results.directions import Check, Outcome, Scores, is_clear, order, sign
from posenc.results.load import Run
from posenc.results.mixing import mixed_values
from posenc.results.published import TRANSCRIBED, Published, table_rows
from posenc.results.records import HEADLINE, INFLATED
from posenc.results.rows import Group, group_runs
from posenc.results.selection import select

# The published length nearest to one of ours stands beside it up to this ratio: alibi-table2 goes from 3 to 5
# times 512 tokens, and 2512 is its length for our 4x. Each such pair is printed with both multiples.
NEAR = math.log(1.25)
PROTOCOLS = (HEADLINE, "sliding", INFLATED)  # that score text in windows of a length, as the papers do


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
class Against:
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
class _Ours:
    """What was measured, and where each published name is in it."""

    comparison: Comparison
    groups: list[Group]  # in the order of the comparison's rows
    at: dict[str, int]

    def cell(self, name: str, multiple: float) -> Cell | None:
        cells = self.comparison.rows[self.at[name]].cells if name in self.at else []
        return next((cell for cell in cells if cell.multiple == multiple and cell.seeds), None)


def against(runs: Sequence[Run], table: str, allow_mixed: bool = False) -> Against:
    """The runs beside a published table, by the protocol that comes nearest to the paper's.

    Where no run was measured by that one, by the next of PROTOCOLS, and a note says so. Raises UserError for
    an unknown table, and as `compare` does.
    """
    rows = table_rows(table)
    wanted = protocol_like(rows[0].protocol)
    there = protocols_of(runs)
    protocol = next((name for name in (wanted, *PROTOCOLS) if name in there), HEADLINE)
    comparison = compare(runs, protocol, "nats", allow_mixed)
    selected = select(runs, protocol)
    groups = group_runs(runs, selected, mixed_values(selected))
    names = list(dict.fromkeys(row.encoding for row in rows))
    ours = _Ours(comparison, groups, _find(names, groups))
    keys = ("paper", "arxiv", "parameters", "corpus", "protocol", "metric")
    return Against(
        table=table,
        published={key: _shared(getattr(row, key) for row in rows) for key in keys},
        measured=comparison.header,
        notes=[*_protocol_notes(rows[0].protocol, wanted, ours), *_notes(table, names, ours)],
        blocks=[
            _block([row for row in rows if row.train_length == length], ours)
            for length in sorted({row.train_length for row in rows})
        ],
    )


def protocol_like(published: str) -> str:
    """The protocol here that measures as a paper's does, or comes nearest."""
    return next((name for name in PROTOCOLS if published.startswith(name)), HEADLINE)


def _find(names: Sequence[str], groups: Sequence[Group]) -> dict[str, int]:
    """The index of the one row that is called as the paper calls it, for each name that has one.

    A row with options of its own, or with one of several settings, is called otherwise.
    """
    found = {}
    for name in names:
        rows = [i for i, group in enumerate(groups) if group.label.split(" (beyond")[0] == name]
        if len(rows) == 1:
            found[name] = rows[0]
    return found


def _protocol_notes(published: str, wanted: str, ours: _Ours) -> list[str]:
    protocol, stride = ours.comparison.header["protocol"], ours.comparison.header["stride"]
    if protocol != wanted:
        return [
            f"protocols differ: no run has measured {wanted}, so {protocol} stands beside it, and the "
            f"protocol alone can turn a curve round: posenc eval run=DIR eval.protocols=[{wanted}]"
        ]
    here = protocol if stride is None else f"{protocol} stride={stride}"
    return [] if published.startswith(here) else [f"protocols differ: {published} there, {here} here"]


def _notes(table: str, names: Sequence[str], ours: _Ours) -> list[str]:
    notes, missing = [], []
    if table in TRANSCRIBED:
        notes.append("published numbers from a transcription: check the paper before quoting them")
    if len(ours.comparison.header["seeds"]) == 1:
        notes.append("one seed: what is measured holds for these models only")
    for name in (name for name in names if name not in ours.at):
        rows = [g for g in ours.groups if name == g.encoding + (f"+{g.extend_name}" if g.extend else "")]
        labels = [" ".join([g.label, *(f"[{k} {v}]" for k, v in g.mixed.items())]) for g in rows]
        if labels:
            notes.append(f"{name} has no one row to hold against the paper: {', '.join(labels)}")
        else:
            missing.append(name)
    notes += [f"published and not measured: {', '.join(missing)}"] if missing else []
    return [visible(note) for note in notes]


def _block(rows: Sequence[Published], ours: _Ours) -> Block:
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
        entries.append(_entry(row, multiple, ours.cell(row.encoding, multiple), check))
    for length, multiple in places.items():
        both = [row for row in shown if row.eval_length == length and ours.cell(row.encoding, multiple)]
        pairs = list(combinations(sorted(both, key=lambda row: row.nats), 2))
        of = sum(is_clear(*pair) for pair in pairs)
        for lower, higher in pairs:
            scores = _between(ours, lower.encoding, higher.encoding, multiple)
            checks.append(order(lower, higher, multiple, scores, of))
    return Block(rows[0].train_length, entries, checks, len(rows) - len(shown))


def _places(rows: Sequence[Published], measured: Sequence[float]) -> dict[int, float]:
    """The published lengths to show, and the multiple of T here that each stands beside.

    Those nearest to the lengths measured; where nobody measured, those nearest to powers of two.
    """
    lengths = {row.eval_length: row.multiple for row in sorted(rows, key=lambda row: row.eval_length)}
    octaves = [2.0**k for k in range(round(math.log2(max(lengths.values()))) + 1)]
    wanted = [*measured, *(o for o in octaves if all(_apart(o, one) > NEAR for one in measured))]
    places = {}
    for length, multiple in lengths.items():
        place = min(wanted, key=lambda one: _apart(one, multiple))
        closest = min(lengths.values(), key=lambda other: _apart(other, place))
        if closest == multiple and _apart(place, multiple) <= NEAR:
            places[length] = place if place in measured else multiple
    return places


def _apart(a: float, b: float) -> float:
    return abs(math.log(a / b))


def _entry(row: Published, multiple: float, cell: Cell | None, check: Check | None) -> Entry:
    ends = None if check is None else check.interval
    return Entry(
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


def _from_t(ours: _Ours, name: str, multiple: float) -> Scores | str:
    """Each seed's scores at a length and as trained at T; or why there are none."""
    cell = ours.cell(name, multiple)
    if cell is None or not cell.rankable:
        return _why(ours, name, multiple)
    group, scores = ours.groups[ours.at[name]], []
    for member in group.members:
        here, there = record_of(member, group.extend, multiple), record_of(member, None, 1.0)
        if here is not None and here["per_document"] is not None:
            if there is None or there["per_document"] is None:
                return "not measured at 1x"
            scores.append((here["per_document"], there["per_document"]))
    return scores


def _between(ours: _Ours, a: str, b: str, multiple: float) -> Scores | str:
    """The scores of two encodings at one length, of the seeds that both have; or why there are none."""
    for name in (a, b):
        cell = ours.cell(name, multiple)
        if cell is None or not cell.rankable:
            return f"{name}: {_why(ours, name, multiple)}"
    hashes = {cell.targets_hash for name in (a, b) if (cell := ours.cell(name, multiple))}
    if len(hashes) != 1 or None in hashes:
        return "measured on different targets"
    ones, others = (samples_of(ours.groups[ours.at[name]], multiple) for name in (a, b))
    return [(ones[seed], others[seed]) for seed in sorted(ones) if seed in others]


def _why(ours: _Ours, name: str, multiple: float) -> str:
    """What an encoding's row says of a length at which it cannot be judged."""
    cells = ours.comparison.rows[ours.at[name]].cells if name in ours.at else []
    note = next((cell.note for cell in cells if cell.multiple == multiple), None) or NOT_MEASURED
    return visible(note) + (f" by {ours.comparison.header['protocol']}" if note == NOT_MEASURED else "")


def _shared(values: Iterable[str]) -> str:
    return " | ".join(dict.fromkeys(values))
