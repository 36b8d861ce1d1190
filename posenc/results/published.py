"""Compare runs with the tables of papers. `published.csv` has a row for each printed number."""

from __future__ import annotations

import csv
import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

from posenc.core.errors import UserError
from posenc.results.beside.recall import RECALL, did_not_learn_to_recall
from posenc.results.comparison import Comparison, compare_runs
from posenc.results.drafts import CompareRequest, protocols_of
from posenc.results.headers import Header
from posenc.results.plain import plain
from posenc.results.records import HEADLINE, INFLATED
from posenc.results.rows import Row
from posenc.results.runs import Run

# Two lengths, as multiples of their T, are compared if their ratio is at most 1.25. For example, alibi-table2
# has T = 512 and no length of 4T = 2048, but 2512 (4.9T), which stands beside our 4T. Both
# lengths are printed.
NEAR = math.log(1.25)
# The protocols that score text in windows of a length, as papers do, in the order of preference.
PROTOCOLS = (HEADLINE, "sliding", INFLATED)
ACCURACY = "accuracy"  # the metric of a table that is compared with recall
SOURCE_KEYS = ("paper", "arxiv", "parameters", "corpus", "protocol", "metric")


@dataclass(frozen=True, kw_only=True)
class PublishedNumber:
    """A number that a paper printed."""

    table: str
    paper: str
    arxiv: str
    parameters: str
    corpus: str
    protocol: str
    metric: str  # ppl, nats or accuracy
    encoding: str
    train_length: int  # tokens
    eval_length: int  # tokens
    value: float  # as printed

    @property
    def multiple(self) -> float:
        """Return the length of the evaluation as a multiple of the training length."""
        return self.eval_length / self.train_length

    @property
    def in_our_unit(self) -> float:
        """Return the value in nats per token; an accuracy as a share."""
        return math.log(self.value) if self.metric == "ppl" else self.value


@dataclass(frozen=True, kw_only=True)
class AgainstLine:
    """A published number beside ours. `measured` and changes are in nats per token, or shares."""

    encoding: str
    train_length: int  # of the paper, tokens
    published_length: int  # tokens
    published: float  # as printed
    published_change: float | None  # against the paper's training length
    multiple: float | None  # our window that stands beside it, as a multiple of T; null if none is near
    measured: float | None  # our number
    measured_change: float | None
    measured_spread: float | None  # of the change, standard deviation over seeds
    difference: float | None  # of the changes: ours minus the paper's


@dataclass(frozen=True)
class Against:
    """A published table beside a comparison."""

    table: str
    published: dict[str, str]  # what the paper says of its numbers, by SOURCE_KEYS
    measured: Header  # what the numbers of our table have in common
    notes: tuple[str, ...]
    rows: tuple[AgainstLine, ...]

    @property
    def is_accuracy(self) -> bool:
        """Tell whether the numbers are accuracies of recall, as shares, and not losses."""
        return self.published["metric"] == ACCURACY

    def to_dict(self) -> dict[str, Any]:
        """Return plain data."""
        data: dict[str, Any] = plain(self)
        return data


@functools.cache
def published() -> tuple[PublishedNumber, ...]:
    """Return every published number, in the order of the file."""
    text = files("posenc.results").joinpath("published.csv").read_text(encoding="utf-8")
    numbers = []
    for row in csv.DictReader(text.splitlines()):
        numbers.append(
            PublishedNumber(
                table=row["table"],
                paper=row["paper"],
                arxiv=row["arxiv"],
                parameters=row["parameters"],
                corpus=row["corpus"],
                protocol=row["protocol"],
                metric=row["metric"],
                encoding=row["encoding"],
                train_length=int(row["train_length"]),
                eval_length=int(row["eval_length"]),
                value=float(row["value"]),
            )
        )
    return tuple(numbers)


def tables() -> list[str]:
    """Return the names of the tables."""
    return list(dict.fromkeys(number.table for number in published()))


def against(runs: Sequence[Run], table: str) -> Against:
    """Compare the runs with a published table, by the protocol that comes nearest to the paper's.

    If no run was measured by that protocol, the next of PROTOCOLS is taken. Accuracies are compared with
    recall. If the runs make several tables, the one with the most runs is taken. A row is found by its label,
    so a paper's `rope` is compared with the row `rope`, and not with `rope base=500000`. Raises UserError.
    """
    numbers = [number for number in published() if number.table == table]
    if not numbers:
        raise UserError("--against", table, "there is no such table", allowed=tables())
    # all numbers of a published table have one metric and one protocol
    protocol = _nearest_protocol(numbers[0], protocols_of(runs), table)
    comparisons = compare_runs(runs, CompareRequest(protocol))
    comparison = max(comparisons, key=lambda table: len(table.runs))
    our_numbers = _our_numbers(comparison)
    in_order = sorted(numbers, key=lambda number: (number.train_length, number.encoding, number.eval_length))
    return Against(
        table=table,
        published={key: _joined_facts(numbers, key) for key in SOURCE_KEYS},
        measured=comparison.header,
        notes=tuple(_notes(numbers, comparison, our_numbers, len(comparisons) - 1)),
        rows=tuple(_line(number, numbers, comparison, our_numbers) for number in in_order),
    )


def _joined_facts(numbers: Sequence[PublishedNumber], key: str) -> str:
    """Join the distinct values of a field: `A | B`."""
    texts = [str(getattr(number, key)) for number in numbers]
    return " | ".join(dict.fromkeys(texts))


def _nearest_protocol(number: PublishedNumber, protocols: Sequence[str], table: str) -> str:
    """Return the protocol of ours that is nearest to a paper's.

    Raises UserError if the paper gives accuracies and no run was measured by recall.
    """
    if number.metric == ACCURACY:
        if RECALL.protocol not in protocols:
            hint = "posenc train experiment=recall"
            raise UserError("--against", table, "no run was asked to recall", hint=hint)
        return RECALL.protocol
    # a paper's protocol begins with the name of ours: `sliding, stride 1`
    same_protocol = [protocol for protocol in PROTOCOLS if number.protocol.startswith(protocol)]
    # A paper's own protocol first: nonoverlapping windows flatter long ones (docs/reading-the-numbers.md), so
    # that two protocols differ for a reason that is no encoding's.
    available = [protocol for protocol in (*same_protocol, *PROTOCOLS) if protocol in protocols]
    return available[0] if available else HEADLINE  # with no run at all, `compare_runs` raises the error


@dataclass(frozen=True)
class _OurNumber:
    """A number of ours, in nats per token or as a share."""

    mean: float | None
    change: float | None = None  # against T
    spread: float | None = None  # of the change


def _our_numbers(comparison: Comparison) -> dict[tuple[str, float], _OurNumber]:
    """Return our numbers by label and multiple of T. For recall they are those at the farthest distance."""
    numbers: dict[tuple[str, float], _OurNumber] = {}
    for row in comparison.rows:
        if comparison.header.protocol == RECALL.protocol:
            numbers |= _recall_numbers(row)
            continue
        for cell in row.cells:
            numbers[row.label, cell.multiple] = _OurNumber(cell.mean, cell.change, cell.change_spread)
    return numbers


def _recall_numbers(row: Row) -> dict[tuple[str, float], _OurNumber]:
    """Return a row's recall by its label and the multiple of T; empty without recall within T."""
    recall = RECALL.of(row)
    if recall is None or recall.within is None:
        return {}
    # A row that did not learn has nothing to lose, so its change would say nothing. `learned` is None where
    # it was not measured: such a row may have learned.
    may_have_learned = recall.learned is not False
    numbers: dict[tuple[str, float], _OurNumber] = {}
    for cell in recall.cells:
        if cell is not None:
            change = cell.accuracy - recall.within.accuracy if may_have_learned else None
            numbers[row.label, cell.place.multiple] = _OurNumber(cell.accuracy, change)
    return numbers


def _notes(
    numbers: Sequence[PublishedNumber],
    comparison: Comparison,
    our_numbers: Mapping[tuple[str, float], _OurNumber],
    n_other_tables: int,
) -> list[str]:
    """Return sentences on what differs between the paper and the runs."""
    notes = []
    protocol = comparison.header.protocol
    if not numbers[0].protocol.startswith(protocol):
        notes.append(f"protocols differ: {numbers[0].protocol} there, {protocol} here")
    encodings = {number.encoding for number in numbers}
    missing = sorted(encodings - {label for label, _ in our_numbers})
    if missing:
        notes.append(f"published and not measured: {', '.join(missing)}")
    did_not_learn = {row.label for row in comparison.rows if did_not_learn_to_recall(row)}
    without_recall = sorted(encodings & did_not_learn)
    if without_recall and numbers[0].metric == ACCURACY:
        notes.append(f"did not learn to recall within T, so without a change: {', '.join(without_recall)}")
    if n_other_tables:
        notes.append(f"not compared: {n_other_tables} more tables of runs with other settings")
    return notes


def _line(
    number: PublishedNumber,
    numbers: Sequence[PublishedNumber],
    comparison: Comparison,
    our_numbers: Mapping[tuple[str, float], _OurNumber],
) -> AgainstLine:
    """Return the line of a published number, beside the number of ours at the nearest multiple of T."""
    # A table may print one encoding at several training lengths, and each of them has a T of its own.
    same_training = [other for other in numbers if other.train_length == number.train_length]
    our_multiples = [column.multiple for column in comparison.columns]
    published_multiples = [other.multiple for other in same_training]
    multiple = _multiple_beside(number.multiple, published_multiples, our_multiples)
    ours = _OurNumber(None)
    if multiple is not None:
        ours = our_numbers.get((number.encoding, multiple), ours)
    # at T there is no change to compare: it is the difference to itself
    ours_change = None if multiple == 1 else ours.change
    published_change = _published_change(number, same_training)
    difference = None
    if published_change is not None and ours_change is not None:
        difference = ours_change - published_change
    return AgainstLine(
        encoding=number.encoding,
        train_length=number.train_length,
        published_length=number.eval_length,
        published=number.value,
        published_change=published_change,
        multiple=multiple,
        measured=ours.mean,
        measured_change=ours_change,
        measured_spread=None if multiple == 1 else ours.spread,
        difference=difference,
    )


def _published_change(number: PublishedNumber, same_training: Sequence[PublishedNumber]) -> float | None:
    """Return the change against the loss at the paper's training length; None at that length.

    None as well if the paper has no number there.
    """
    if number.multiple == 1:
        return None  # it would be the difference to itself
    at_t = [other for other in same_training if other.encoding == number.encoding and other.multiple == 1]
    if not at_t:
        return None
    return number.in_our_unit - at_t[0].in_our_unit  # a table prints one number at T for each encoding


def _multiple_beside(
    multiple: float, published_multiples: Sequence[float], measured_multiples: Sequence[float]
) -> float | None:
    """Return the measured multiple of T that stands beside a published one.

    None unless the two are each other's nearest, and within NEAR.
    """
    if not measured_multiples:
        return None
    nearest = _nearest(multiple, measured_multiples)
    is_near = abs(math.log(nearest / multiple)) <= NEAR
    # Among the published multiples, the nearest to ours must be this one. Otherwise one number of ours could
    # stand beside two of the paper, of which only the nearer one belongs to it.
    is_mutual = _nearest(nearest, published_multiples) == multiple
    if is_near and is_mutual:
        return nearest
    return None


def _nearest(target: float, multiples: Sequence[float]) -> float:
    """Return the multiple whose ratio to `target` is closest to 1."""
    return min(multiples, key=lambda multiple: abs(math.log(multiple / target)))
