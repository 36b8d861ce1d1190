"""The comparison: rows are encodings, columns are window lengths, numbers are means over seeds.

Runs that cannot share a ranking (another corpus, length, model, set of targets) get a table of their own.
A run without numbers is shown with its reason.

The steps before, from records to drafts, and the terms of this package are in posenc/results/__init__.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from posenc.core.errors import UserError
from posenc.core.quantities import length_text
from posenc.results.beside.base import HasNumbersBeside, NumbersBeside, TableBeside, all_numbers_beside
from posenc.results.cells import (
    Cell,
    Column,
    CurveSummary,
    change_pairs_of,
    columns_of,
    curve_summary,
    samples_of,
)
from posenc.results.drafts import (
    DEFAULT_REQUEST,
    CompareRequest,
    Draft,
    drafts_of,
    find_baseline,
    protocols_of,
)
from posenc.results.grouping import RowGroup
from posenc.results.headers import Header, make_header
from posenc.results.headroom import LongTrained, long_trained, recovered_of
from posenc.results.measurements import Member
from posenc.results.plain import FIELDS_IN_JSON, plain
from posenc.results.pools import members_of, pool_beside, pool_of
from posenc.results.records import HEADLINE, Metric
from posenc.results.rows import Row, RowExtras, cells_of, make_row, undertrained_by
from posenc.results.runs import Run
from posenc.results.statistics.ranking import Pairs, Samples, compare_changes, compare_with
from posenc.settings.tree import SCHEMA_VERSION

POSITIONS = "positions"  # the protocol that measures the loss by position, as a curve
Choice = TypeVar("Choice")
Table = TypeVar("Table")


@dataclass(frozen=True)
class Comparison(HasNumbersBeside):
    """One table.

    The comments at fields here and in the classes inside are also the text of docs/schema.md, so they call
    None by its name in JSON, null.
    """

    header: Header
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    # what the table says of the numbers beside the loss, each under its key; null where no row has them
    beside: Mapping[str, Any] = field(default_factory=dict, metadata=FIELDS_IN_JSON)

    @property
    def runs(self) -> list[Run]:
        """Return the runs of its rows, each once."""
        members = [member for row in self.rows for member in row.members]
        runs_by_path = {member.run.path: member.run for member in members}
        return list(runs_by_path.values())

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; perplexities may still be infinite."""
        return {"schema_version": SCHEMA_VERSION, **plain(self)}


def compare_runs(runs: Sequence[Run], request: CompareRequest = DEFAULT_REQUEST) -> list[Comparison]:
    """Compare runs; return a table for each set of them that can share a ranking.

    Tables with most runs come first, and before them those that hold their rows against long-trained runs.

    `header.group` says what tells a table from the others. A run without numbers is a row, or a cell of its
    row, with the reason. The change of a row is against the crop line of its own runs; so is that of a row
    with an extension. A row or column that the request leaves out is not ranked either.

    Raises UserError if the request names a protocol, row, column, order or baseline that no table has.
    """
    drafts = drafts_of(runs, request)
    # A baseline is found before there are numbers, because ranks need it. An order is found after, because it
    # needs the numbers.
    baselines = _choose_in_each(drafts, request.baseline, find_baseline)
    protocols = list(dict.fromkeys(draft.protocol for draft in drafts))
    # Among all runs and not those of a draft: runs that were trained long have another T, so another draft.
    references = {protocol: long_trained(runs, protocol) for protocol in protocols}
    comparisons = [
        _comparison(draft, baseline, request.recall_level, references[draft.protocol])
        for draft, baseline in zip(drafts, baselines, strict=True)
    ]
    orders = _choose_in_each(comparisons, request.sort, _sorted_rows)
    comparisons = [
        comparison if rows is None else replace(comparison, rows=rows)
        for comparison, rows in zip(comparisons, orders, strict=True)
    ]

    def table_order(comparison: Comparison) -> tuple[int, bool]:
        # Long-trained runs have a table too, since they have another T. It comes after the tables whose
        # recovered shares are measured against them: first the answer, then its reference.
        has_recovered_share = any(row.recovered for row in comparison.rows)
        return protocols.index(comparison.header.protocol), not has_recovered_share

    # The sort is stable: otherwise tables keep the order of the drafts, most runs first.
    return sorted(comparisons, key=table_order)


# --- choices that need not fit every table


def _choose_in_each(
    tables: Sequence[Table], option: str | None, choose: Callable[[Table, str], Choice]
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


def _sorted_rows(comparison: Comparison, order: str) -> tuple[Row, ...]:
    """Return the rows in the order of --sort; rows without that number come last. Raises UserError."""
    keys = _sort_keys(comparison)
    key = order.removeprefix("-")
    if key not in keys:
        raise UserError("--sort", order, "cannot sort by this", allowed=list(keys))
    # The sign reverses the order, and not `reverse=True`, which would put rows without a number first.
    sign = -1 if order.startswith("-") else 1
    numbers = keys[key]

    def missing_last(index: int) -> tuple[bool, float]:
        number = numbers[index]
        return number is None, sign * (number or 0.0)

    indices = sorted(range(len(numbers)), key=missing_last)
    return tuple(comparison.rows[index] for index in indices)


def _sort_keys(comparison: Comparison) -> dict[str, list[float | None]]:
    """Return a number of each row for every key of --sort: `name`, `8x`, `change`, `change@8x`, `recall`."""
    rows = comparison.rows
    # By place in the sorted labels, since every key of --sort has to be a number.
    labels = sorted(row.label for row in rows)
    keys: dict[str, list[float | None]] = {"name": [labels.index(row.label) for row in rows]}
    length_labels = [length_text(column.multiple) for column in comparison.columns]
    for index, label in enumerate(length_labels):
        keys[label] = [row.cells[index].mean for row in rows]
    for index, label in enumerate(length_labels):
        keys[f"change@{label}"] = [row.cells[index].change for row in rows]
    keys["change"] = [row.cells[-1].change if row.cells else None for row in rows]
    for numbers in all_numbers_beside():
        values = [numbers.of(row) for row in rows]
        if numbers.sort_number is not None and any(value is not None for value in values):
            keys[numbers.protocol] = [
                None if value is None else numbers.sort_number(value) for value in values
            ]
    return keys


# --- a draft with its numbers


def _comparison(
    draft: Draft, baseline: int | None, level: float, references: Sequence[LongTrained]
) -> Comparison:
    """Return the table with its numbers and its header."""
    # Before the ranks, which need it: a model that has learned little loses nothing past T, so that it once
    # had the lowest change of its table (docs/log.md, 2026-11-26).
    undertrained_reasons = [undertrained_by(group.members) for group in draft.groups]
    is_undertrained = [reason is not None for reason in undertrained_reasons]
    cells = _ranked_cells(draft, baseline, is_undertrained)
    beside = _numbers_beside(draft, cells, level)
    only_row = len(draft.groups) == 1
    rows = []
    for index, group in enumerate(draft.groups):
        extras = RowExtras(
            recovered=recovered_of(group.members, references),
            beside={key: values[index] for key, values in beside.of_rows.items()},
            # The sentence about a single row names its break. A table of several rows does not.
            breaks=_curve_breaks(draft, group) if only_row else None,
            undertrained=undertrained_reasons[index],
        )
        rows.append(make_row(group, cells[index], extras))
    label = None if baseline is None else draft.groups[baseline].full_label
    return Comparison(make_header(draft, label), draft.columns, tuple(rows), beside.of_table)


def _ranked_cells(draft: Draft, baseline: int | None, is_undertrained: Sequence[bool]) -> list[list[Cell]]:
    """Return the cells of each row, with their ranks where the cells of a column may be compared."""
    rows = [cells_of(group, draft.columns, draft.metric) for group in draft.groups]
    # Ranks compare the rows of one column, so that the cells go through here by column and come out by row.
    ranked_columns: list[list[Cell]] = []
    for index, column in enumerate(draft.columns):
        cells = [row[index] for row in rows]
        ranked_columns.append(_ranked_column(draft, column, cells, baseline, is_undertrained))
    return [[cells[row] for cells in ranked_columns] for row in range(len(rows))]


def _ranked_column(
    draft: Draft,
    column: Column,
    cells: Sequence[Cell],
    baseline: int | None,
    is_undertrained: Sequence[bool],
) -> list[Cell]:
    """Return the cells of a column, one for each row, with their ranks if they may be compared.

    The changes of undertrained rows are not ranked, because they say nothing about their encodings.
    """
    samples = [
        samples_of(group.members, column.multiple) if cell.rankable else None
        for group, cell in zip(draft.groups, cells, strict=True)
    ]
    if not _may_be_ranked(draft, cells, samples):
        return list(cells)
    ranked_cells = _with_ranked_losses(cells, samples, baseline, draft.metric)
    if column.multiple == 1:  # the change of a row as trained is 0 at T, so tables show its loss there
        return ranked_cells
    pairs = [
        None if is_weak else _change_pairs(group, cell)
        for group, cell, is_weak in zip(draft.groups, cells, is_undertrained, strict=True)
    ]
    return _with_ranked_changes(ranked_cells, pairs, draft.metric)


def _with_ranked_losses(
    cells: Sequence[Cell], samples: Sequence[Samples | None], baseline: int | None, metric: Metric
) -> list[Cell]:
    """Return the cells of a column with their losses against the best row and against the baseline.

    `samples` has the losses by document and seed of each row, None for a row that is not ranked.
    """
    best_row = None  # the reference of a comparison: None stands for the row with the lowest mean
    best = compare_with(samples, best_row, metric)
    against = {} if baseline is None else compare_with(samples, baseline, metric)
    return [
        replace(cell, versus_best=best.get(index), versus_baseline=against.get(index))
        for index, cell in enumerate(cells)
    ]


def _change_pairs(group: RowGroup, cell: Cell) -> Pairs | None:
    """Return the two losses of each seed whose difference is the change of a cell; None if it has no rank."""
    if not cell.rankable or cell.change is None:
        return None
    return change_pairs_of(group.members, cell.multiple)


def _with_ranked_changes(cells: Sequence[Cell], pairs: Sequence[Pairs | None], metric: Metric) -> list[Cell]:
    """Return the cells of a column with their changes against the lowest one."""
    # Not against the baseline as well: a table with one shows differences of losses in place of changes.
    best = compare_changes(pairs, metric)
    return [replace(cell, change_versus_best=best.get(index)) for index, cell in enumerate(cells)]


def _may_be_ranked(draft: Draft, cells: Sequence[Cell], samples: Sequence[Samples | None]) -> bool:
    """Tell whether the rows of a column may be ranked.

    At least two rows need numbers that represent them, on targets that can be compared (see
    `_have_comparable_targets`).
    """
    n_rivals = sum(cell.rankable for cell in cells)
    if n_rivals < 2:
        return False
    # The mean of perplexities over seeds is not the perplexity of the mean loss.
    if draft.metric == "ppl":
        return False
    # The stride and T decide how much text comes before each target.
    if "stride" in draft.mixed or "context length" in draft.mixed:
        return False
    if not _have_comparable_targets(draft, cells):
        return False
    # The margins of the ranks are in bits per byte, and the random tokens of a probe have no bytes.
    samples_of_rows = [sample for row in samples if row for sample in row.values()]
    return all(sample.bytes.any() for sample in samples_of_rows)


def _have_comparable_targets(draft: Draft, cells: Sequence[Cell]) -> bool:
    """Tell whether the rankable cells of a column are of the same targets, or of the same text.

    Rows with the same tokenizer must have scored the same targets. Rows of two tokenizers may have scored the
    same text instead, but can be compared in bits per byte only.
    """
    targets_by_tokenizer = _targets_by_tokenizer(draft, cells)
    # Between tokenizers ids differ although the text is the same, so each tokenizer is looked at by itself.
    for targets in targets_by_tokenizer.values():
        seeds_agree = None not in targets
        rows_agree = len(targets) == 1
        if not (seeds_agree and rows_agree):
            return False
    all_targets: set[str | None] = set().union(*targets_by_tokenizer.values())
    has_same_targets = len(all_targets) == 1
    if "tokenizer" not in draft.mixed:
        return has_same_targets
    if draft.metric != "bpb":
        return False
    has_same_text = not any(key in draft.mixed for key in ("evaluated on", "split", "target set"))
    return has_same_targets or has_same_text


def _targets_by_tokenizer(draft: Draft, cells: Sequence[Cell]) -> dict[str | None, set[str | None]]:
    """Return the hashes of the targets that the rankable cells of a column have, by tokenizer.

    The key is None unless the rows differ in their tokenizers. A hash is None if the seeds of a row differ.
    """
    hashes: dict[str | None, set[str | None]] = defaultdict(set)
    for group, cell in zip(draft.groups, cells, strict=True):
        if cell.rankable:
            hashes[group.mixed.get("tokenizer")].add(cell.targets_hash)
    return hashes


# --- numbers beside the loss


@dataclass(frozen=True)
class _DraftBeside:
    """The numbers beside the losses of a draft, by their keys."""

    of_table: Mapping[str, Any]  # what the table says of all its rows
    of_rows: Mapping[str, Sequence[Any]]  # the values of its rows; None for a row without a number


def _numbers_beside(draft: Draft, cells: Sequence[Sequence[Cell]], level: float) -> _DraftBeside:
    """Return what the runs of a draft measured beside its losses."""
    of_table: dict[str, Any] = {}
    of_rows: dict[str, Sequence[Any]] = {}
    # Sought once for all protocols: most tables have no such numbers, and looking for them flattens every
    # record again.
    measured_protocols = protocols_of([member.run for group in draft.groups for member in group.members])
    left_out = _columns_left_out(draft)
    cells_left_out = [cells_of(group, left_out, draft.metric) for group in draft.groups]
    for numbers in all_numbers_beside():
        table = None
        if numbers.protocol in measured_protocols:
            rows = _rows_beside(draft, numbers)
            if rows is not None:
                table = TableBeside(
                    rows=rows,
                    cells=cells,
                    multiples=tuple(column.multiple for column in draft.columns),
                    left_out={column.multiple for column in left_out},
                    cells_left_out=cells_left_out,
                    recall_level=level,
                )
        # Every row has every key, null without a number, so that readers of the JSON need not ask which keys
        # there are.
        of_rows[numbers.key] = [None] * len(draft.groups) if table is None else numbers.rows_of(table)
        if numbers.whole_of is not None:
            of_table[numbers.key] = None if table is None else numbers.whole_of(table)
    return _DraftBeside(of_table, of_rows)


def _columns_left_out(draft: Draft) -> list[Column]:
    """Return the columns of the lengths that were measured and that the draft does not show."""
    multiples = {column.multiple for column in draft.columns}
    return [column for column in columns_of(draft.members) if column.multiple not in multiples]


def _rows_beside(draft: Draft, numbers: NumbersBeside[Any, Any, Any]) -> list[Sequence[Member]] | None:
    """Return each row of a draft with what its runs measured; None for a table that does not show it."""
    if draft.protocol == numbers.protocol:
        return [group.members for group in draft.groups]
    if draft.protocol == HEADLINE and numbers.is_beside_losses:
        return [*_members_beside(draft, numbers.protocol)]
    return None


def _members_beside(draft: Draft, protocol: str) -> list[list[Member]]:
    """Return, for each row, its members with their measurements by another protocol in place of its own.

    They are of the same text, precision and checkpoint as the losses in the table (`pool_beside`). A run
    without losses has its newest checkpoint instead. If the losses are those of `rope` and `rope+yarn` after
    step 900, then for `recall` this returns the recall of `rope` after step 900 in the first row, and its
    recall with YaRN in the second.
    """
    first_of_run = _first_member_of_each_run(draft)
    unmeasured_runs: dict[Path, Run] = {}
    for group in draft.groups:
        for member in group.members:
            if member.run.path not in first_of_run:
                unmeasured_runs[member.run.path] = member.run
    pool = pool_beside(list(first_of_run.values()), protocol)
    pool |= pool_of(list(unmeasured_runs.values()), protocol)
    members_of_pool = {(member.run.path, member.extension): member for member in members_of(pool)}

    rows: list[list[Member]] = []
    for group in draft.groups:
        row: list[Member] = []
        for member in group.members:
            # By the extension of the row and not of the member: a run without losses is a member of extended
            # rows, too.
            beside = members_of_pool.get((member.run.path, group.extension))
            if beside is None or not _agrees(member, first_of_run.get(member.run.path)):
                beside = Member(member.run)  # without numbers
            row.append(beside)
        rows.append(row)
    return rows


def _first_member_of_each_run(draft: Draft) -> dict[Path, Member]:
    """Return the first member with losses of each run, by the path of the run."""
    first_of_run: dict[Path, Member] = {}
    for member in draft.members:
        first_of_run.setdefault(member.run.path, member)
    return first_of_run


def _agrees(member: Member, first_of_run: Member | None) -> bool:
    """Return whether a member has the circumstances in which the other protocol of its run is read.

    They are those of the run's first member. Only a table of --allow-mixed has members of one run in several
    circumstances, such as two texts; the others of them get no numbers beside theirs.
    """
    if first_of_run is None or not member.by_multiple:
        return True
    return member.circumstances == first_of_run.circumstances


def _curve_breaks(draft: Draft, group: RowGroup) -> CurveSummary | None:
    """Return where the curves of a row as trained break, for the table of another protocol."""
    # A table of `positions` has the break in its own column. Curves with an extension are held against the
    # level as trained, so that they have another break.
    if draft.protocol == POSITIONS or group.extension is not None:
        return None
    members_with_numbers = [member for member in group.members if member.by_multiple]
    members_with_curves = members_of(pool_beside(members_with_numbers, POSITIONS))
    return curve_summary([member for member in members_with_curves if member.extension is None])
