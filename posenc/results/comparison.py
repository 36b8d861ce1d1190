"""The comparison: rows are encodings, columns are window lengths, numbers are means over seeds.

Runs that cannot share a ranking (another corpus, length, model, set of targets) get a table of their own.
A run without numbers is shown with its reason.

Records become measurements (measurements.py), measurements become members of rows (grouping.py), members
become cells (cells.py), and cells become rows here. No stage changes what an earlier one made.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from posenc.core.errors import UserError
from posenc.results.cells import (
    Cell,
    Column,
    CurveSummary,
    change_pairs_of,
    columns_of,
    curve_summary,
    samples_of,
)
from posenc.results.dispersion import RowDispersion, dispersion_of_row
from posenc.results.drafts import (
    ALL,
    EVERYTHING,
    CompareRequest,
    Draft,
    drafts_of,
    find_baseline,
    protocols_of,
    suited_to_tasks,
)
from posenc.results.exact import LEARNED, ExactColumns, RowExact, exact_of_rows
from posenc.results.grouping import RowGroup
from posenc.results.headers import Header, make_header
from posenc.results.headroom import LongTrained, long_trained, recovered_of
from posenc.results.measurements import Member, members_of, pool_beside, pool_of
from posenc.results.memory import RowMemory, memory_of_row
from posenc.results.plain import plain
from posenc.results.recall import RecallColumns, RowRecall, recall_of_rows
from posenc.results.records import DISPERSION, EXACT, HEADLINE, MEMORY, RECALL, SCHEMA_VERSION, Metric
from posenc.results.rows import Row, RowExtras, cells_of, make_row, undertrained_by
from posenc.results.runs import Run
from posenc.results.statistics.ranking import Pairs, Samples, compare_changes, compare_with
from posenc.results.statistics.verdicts import COLLAPSED_WORD, short_verdict

__all__ = [
    "ALL",
    "EVERYTHING",
    "CompareRequest",
    "Comparison",
    "Header",
    "Row",
    "compare_runs",
    "protocols_of",
    "suited_to_tasks",
]

POSITIONS = "positions"  # the protocol of curves
Choice = TypeVar("Choice")
Table = TypeVar("Table")


@dataclass(frozen=True)
class Comparison:
    """One table."""

    header: Header
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    recall: RecallColumns | None = None  # of the protocol `recall`; null where no row has it
    exact: ExactColumns | None = None  # of the protocol `exact`; null where no row has it

    @property
    def runs(self) -> list[Run]:
        """Return the runs of its rows, each once."""
        return list({member.run.path: member.run for row in self.rows for member in row.members}.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; perplexities may still be infinite."""
        return {"schema_version": SCHEMA_VERSION, **plain(self)}


def compare_runs(runs: Sequence[Run], request: CompareRequest = EVERYTHING) -> list[Comparison]:
    """Compare runs; return a table for each set of them that can share a ranking, most runs first.

    Runs without numbers are rows or cells with their reason. The change is against the same run as trained at
    W = T on the same targets (for an extension: against the crop line). What is not shown is not ranked.
    `header.group` says what tells a table from the others. Raises UserError for what no table has.
    """
    drafts = drafts_of(runs, request)
    baselines = _where_it_fits(request.baseline, drafts, find_baseline)
    protocols = list(dict.fromkeys(draft.protocol for draft in drafts))
    references = {protocol: long_trained(runs, protocol) for protocol in protocols}
    comparisons = [
        _comparison(draft, baseline, request.recall_level, references[draft.protocol])
        for draft, baseline in zip(drafts, baselines, strict=True)
    ]
    orders = _where_it_fits(request.sort, comparisons, _ordered)
    comparisons = [
        comparison if rows is None else replace(comparison, rows=rows)
        for comparison, rows in zip(comparisons, orders, strict=True)
    ]

    def place(comparison: Comparison) -> tuple[int, bool]:
        """Put what is held against long-trained runs before the table of these runs."""
        without_room = not any(row.recovered for row in comparison.rows)
        return protocols.index(comparison.header.protocol), without_room

    return sorted(comparisons, key=place)


# --- choices that need not fit every table


def _where_it_fits(
    option: str | None, tables: Sequence[Table], choose: Callable[[Table, str], Choice]
) -> list[Choice | None]:
    """Return what an option chooses in each table, None where it does not fit; UserError if nowhere."""
    if option is None:
        return [None] * len(tables)
    choices: list[Choice | None] = []
    errors: list[UserError] = []
    for table in tables:
        try:
            choices.append(choose(table, option))
        except UserError as error:
            choices.append(None)
            errors.append(error)
    if errors and len(errors) == len(tables):
        raise errors[0]
    return choices


def _ordered(comparison: Comparison, order: str) -> tuple[Row, ...]:
    """Return the rows in the order asked for; those without that number last. Raises UserError."""
    keys = _sort_keys(comparison)
    key = order.removeprefix("-")
    if key not in keys:
        raise UserError("--sort", order, "cannot sort by this", allowed=list(keys))
    sign = -1 if order.startswith("-") else 1
    numbers = keys[key]

    def place(index: int) -> tuple[bool, float]:
        number = numbers[index]
        return number is None, sign * (number or 0.0)

    return tuple(comparison.rows[index] for index in sorted(range(len(numbers)), key=place))


def _sort_keys(comparison: Comparison) -> dict[str, list[float | None]]:
    """Return the numbers of the rows by the name of the order."""
    rows = comparison.rows
    labels = sorted(row.label for row in rows)
    keys: dict[str, list[float | None]] = {"name": [labels.index(row.label) for row in rows]}
    lengths = [f"{column.multiple:g}x" for column in comparison.columns]
    for at, length in enumerate(lengths):
        keys[length] = [row.cells[at].mean for row in rows]
    for at, length in enumerate(lengths):
        keys[f"change@{length}"] = [row.cells[at].change for row in rows]
    keys["change"] = [row.cells[-1].change if row.cells else None for row in rows]
    if comparison.recall is not None:
        keys[RECALL] = [_farthest_recall(row.recall) for row in rows]
    return keys


def _farthest_recall(recall: RowRecall | None) -> float | None:
    if recall is None or not recall.learned or not recall.beyond:
        return None
    farthest = recall.beyond[-1]
    return None if farthest is None else farthest.accuracy


# --- a draft with its numbers


def _comparison(
    draft: Draft, baseline: int | None, level: float, references: Sequence[LongTrained]
) -> Comparison:
    """Return the table with its numbers and its header."""
    undertrained = [undertrained_by(group.members) for group in draft.groups]
    cells = _ranked_cells(draft, baseline, undertrained)
    recall_columns, recalls = _recall(draft, level)
    exact_columns, answers = _answers(draft)
    dispersions = _dispersions(draft, cells)
    memories = _memories(draft)
    only_row = len(draft.groups) == 1
    rows = []
    for index, group in enumerate(draft.groups):
        extras = RowExtras(
            recovered=recovered_of(group.members, references),
            recall=recalls[index],
            exact=answers[index],
            dispersion=dispersions[index],
            memory=memories[index],
            breaks=_breaks(draft, group) if only_row else None,
            undertrained=undertrained[index],
        )
        rows.append(make_row(group, cells[index], extras))
    label = None if baseline is None else draft.groups[baseline].full_label
    return Comparison(make_header(draft, label), draft.columns, tuple(rows), recall_columns, exact_columns)


def _ranked_cells(draft: Draft, baseline: int | None, undertrained: Sequence[str | None]) -> list[list[Cell]]:
    """Return the cells of each row, with their ranks where the cells of a column may be compared.

    The changes of rows that are `undertrained` are not ranked: they say nothing about their encodings.
    """
    rows = [cells_of(group, draft.columns, draft.metric) for group in draft.groups]
    for at, column in enumerate(draft.columns):
        cells = [row[at] for row in rows]
        samples = [
            samples_of(group.members, column.multiple) if cell.rankable else None
            for group, cell in zip(draft.groups, cells, strict=True)
        ]
        if not _may_be_ranked(draft, cells, samples):
            continue
        ranked_cells = _ranked(cells, samples, baseline, draft.metric)
        if column.multiple != 1:  # at T the changes of rows as trained are 0, and tables show losses
            pairs = [
                None if reason else _change_pairs(group, cell)
                for group, cell, reason in zip(draft.groups, cells, undertrained, strict=True)
            ]
            ranked_cells = _with_ranked_changes(ranked_cells, pairs, draft.metric)
        for row, cell in zip(rows, ranked_cells, strict=True):
            row[at] = cell
    return rows


def _ranked(
    cells: Sequence[Cell], samples: Sequence[Samples | None], baseline: int | None, metric: Metric
) -> list[Cell]:
    """Return the cells of a column against the best row and against the baseline."""
    best = compare_with(samples, None, metric)
    against = {} if baseline is None else compare_with(samples, baseline, metric)
    return [
        replace(cell, versus_best=best.get(index), versus_baseline=against.get(index))
        for index, cell in enumerate(cells)
    ]


def _change_pairs(group: RowGroup, cell: Cell) -> Pairs | None:
    """Return what the change of a cell is made of; None where it must not be ranked."""
    if not cell.rankable or cell.change is None:
        return None
    return change_pairs_of(group.members, cell.multiple)


def _with_ranked_changes(cells: Sequence[Cell], pairs: Sequence[Pairs | None], metric: Metric) -> list[Cell]:
    """Return the cells of a column with their changes against the lowest one."""
    best = compare_changes(pairs, metric)
    return [replace(cell, change_versus_best=best.get(index)) for index, cell in enumerate(cells)]


def _may_be_ranked(draft: Draft, cells: Sequence[Cell], samples: Sequence[Samples | None]) -> bool:
    """Return whether a column has two rows that can be compared.

    The same targets were scored, or in bits per byte the same text by two tokenizers. As much text has to
    come before each target, which the stride and T decide. Perplexities are not ranked: their means over
    seeds are not those of the losses.
    """
    if sum(cell.rankable for cell in cells) < 2:
        return False
    if draft.metric == "ppl" or {"stride", "context length"} & {*draft.mixed}:
        return False
    hashes = _targets_by_tokenizer(draft, cells)
    if any(len(targets) != 1 or None in targets for targets in hashes.values()):
        return False
    if "tokenizer" in draft.mixed and draft.metric != "bpb":
        return False
    same_text = "tokenizer" in draft.mixed and not {"evaluated on", "split", "target set"} & {*draft.mixed}
    same_targets = len(set().union(*hashes.values())) == 1
    # The margin is in bits per byte, and a probe of random tokens has no bytes.
    have_bytes = all(any(sample["bytes"]) for row in samples if row for sample in row.values())
    return (same_text or same_targets) and have_bytes


def _targets_by_tokenizer(draft: Draft, cells: Sequence[Cell]) -> dict[str | None, set[str | None]]:
    """Return the targets that were scored with each tokenizer."""
    hashes: dict[str | None, set[str | None]] = defaultdict(set)
    for group, cell in zip(draft.groups, cells, strict=True):
        if cell.rankable:
            hashes[group.mixed.get("tokenizer")].add(cell.targets_hash)
    return hashes


def _recall(draft: Draft, level: float) -> tuple[RecallColumns | None, list[RowRecall | None]]:
    """Return the recall of each row, which stands beside the headline's losses."""
    if draft.protocol not in (HEADLINE, RECALL):
        return None, [None] * len(draft.groups)
    measured = {column.multiple for column in columns_of(draft.members)}
    hidden = measured - {column.multiple for column in draft.columns}
    return recall_of_rows(_members_beside(draft, RECALL), level, hidden)


def _answers(draft: Draft) -> tuple[ExactColumns | None, list[RowExact | None]]:
    """Return the columns of a table of tasks, and the answers of each row."""
    if draft.protocol != EXACT:
        return None, [None] * len(draft.groups)
    multiples = [column.multiple for column in draft.columns]
    return exact_of_rows([group.members for group in draft.groups], LEARNED, multiples)


def _dispersions(draft: Draft, cells: Sequence[Sequence[Cell]]) -> list[RowDispersion | None]:
    """Return what attention does in each row, with the reasons of the rows that collapse."""
    if draft.protocol not in (HEADLINE, DISPERSION):
        return [None] * len(draft.groups)
    rows = []
    for members, cells_of_row in zip(_members_beside(draft, DISPERSION), cells, strict=True):
        verdict = cells_of_row[-1].verdict if cells_of_row else None  # at the longest length
        has_collapsed = short_verdict(verdict or "") == COLLAPSED_WORD
        rows.append(dispersion_of_row(members, has_collapsed))
    return rows


def _memories(draft: Draft) -> list[RowMemory | None]:
    """Return the memory of each row, which stands beside the headline's losses."""
    if draft.protocol not in (HEADLINE, MEMORY):
        return [None] * len(draft.groups)
    return [memory_of_row(members) for members in _members_beside(draft, MEMORY)]


def _members_beside(draft: Draft, protocol: str) -> list[list[Member]]:
    """Return what each row's runs have of another protocol, on the text and of the weights that are shown."""
    first_of_run: dict[Path, Member] = {}
    for member in draft.members:
        first_of_run.setdefault(member.run.path, member)
    unmeasured = {
        member.run.path: member.run
        for group in draft.groups
        for member in group.members
        if member.run.path not in first_of_run
    }
    pool = pool_beside([*first_of_run.values()], protocol) | pool_of([*unmeasured.values()], protocol)
    beside = {(member.run.path, member.extension): member for member in members_of(pool)}

    def member_beside(member: Member, extension: str | None) -> Member:
        nothing = Member(member.run)
        first = first_of_run.get(member.run.path)
        if first is not None and member.by_multiple and member.circumstances != first.circumstances:
            return nothing
        return beside.get((member.run.path, extension), nothing)

    return [[member_beside(member, group.extension) for member in group.members] for group in draft.groups]


def _breaks(draft: Draft, group: RowGroup) -> CurveSummary | None:
    """Return where the curves of a row as trained break, for the table of another protocol."""
    if draft.protocol == POSITIONS or group.extension is not None:
        return None
    measured = [member for member in group.members if member.by_multiple]
    curves = members_of(pool_beside(measured, POSITIONS))
    return curve_summary([member for member in curves if member.extension is None])
