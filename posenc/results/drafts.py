"""Drafts of tables: their rows and columns, before any number is computed."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from posenc.core.errors import UserError, visible
from posenc.core.quantities import length_text
from posenc.results.beside.base import LEARNED
from posenc.results.beside.exact import EXACT
from posenc.results.cells import Column, columns_of
from posenc.results.grouping import RowGroup, group_runs
from posenc.results.identity import Conditions, conditions_of, planned_conditions, telling_texts
from posenc.results.measurements import Circumstances, Member
from posenc.results.rankings import one_ranking, split_runs
from posenc.results.records import HEADLINE, METRICS, REFERENCES, Metric
from posenc.results.runs import Run

ALL_PROTOCOLS = "all"  # in place of a protocol: a table for each protocol that was measured
MOST_DAMAGED = 3  # runs to name if all are damaged


@dataclass(frozen=True)
class CompareRequest:
    """What is compared and shown. By default that is everything, in the order of names.

    `rows`, `columns`, `sort` and `baseline` apply to those tables that have such rows and columns.
    """

    protocol: str = HEADLINE  # or ALL_PROTOCOLS
    metric: Metric = "nats"
    rows: Sequence[str] = ()  # labels or encodings, globs; shown in this order
    columns: Sequence[float] = ()  # multiples of T
    sort: str | None = None  # name, 8x (the loss there), change or change@8x; `-` in front reverses it
    baseline: str | None = None  # the row that is subtracted from the others
    allow_mixed: bool = False  # one table of all runs, labelled by what differs
    recall_level: float = LEARNED  # per cent within T: a row below it did not learn


DEFAULT_REQUEST = CompareRequest()


def protocols_of(runs: Sequence[Run]) -> list[str]:
    """Return the protocols that any run has records of, the headline first. References are left out."""
    names = {record["protocol"] for run in runs for record in run.records} - set(REFERENCES)
    return sorted(names, key=lambda name: (name != HEADLINE, name))


def drafts_of(runs: Sequence[Run], request: CompareRequest) -> list[Draft]:
    """Return the tables of a request, in their order. Raises UserError for what no table has."""
    request = suited_to_tasks(runs, request)
    _check(runs, request)
    # Rows are chosen before columns, so that a window that only other rows have makes no empty column.
    drafts = _with_chosen_rows(_all_drafts(runs, request), request.rows)
    return _with_columns(drafts, request.columns)


def suited_to_tasks(runs: Sequence[Run], request: CompareRequest) -> CompareRequest:
    """Return the request for whole answers in place of the headline, if only tasks were measured."""
    # Runs of tasks alone have no headline, so that the bare `posenc compare` would be refused.
    if request.protocol == HEADLINE and protocols_of(runs) == [EXACT.protocol]:
        return replace(request, protocol=EXACT.protocol)
    return request


def _check(runs: Sequence[Run], request: CompareRequest) -> None:
    """Raise UserError for a request that no runs could fulfil, and if there are no runs to read."""
    if not 0 <= request.recall_level <= 100:  # nan, too
        raise UserError("--recall-level", request.recall_level, "not a percentage", allowed="0 to 100")
    if request.metric not in METRICS:
        raise UserError("--metric", request.metric, "no such metric", allowed=list(METRICS))
    # The mean of perplexities over seeds is not the perplexity of the mean loss.
    if request.metric == "ppl" and request.baseline is not None:
        raise UserError("--baseline", request.baseline, "perplexities are not compared", allowed="nats, bpb")
    if not runs:
        raise UserError("DIRS", None, "no runs found", hint="train one first: posenc train encoding=rope")
    damaged = [run for run in runs if run.problem is not None]
    if len(damaged) == len(runs):
        lines = [visible(f"{run.name}: {run.problem}") for run in damaged[:MOST_DAMAGED]]
        if len(damaged) > MOST_DAMAGED:
            lines.append(f"and {len(damaged) - MOST_DAMAGED} more: posenc runs lists them")
        raise UserError("DIRS", None, "no run there can be read", hint="\n".join(lines))


@dataclass(frozen=True)
class Draft:
    """A table without numbers: its rows and columns."""

    protocol: str
    metric: Metric
    distinct_conditions: dict[str, str]  # those in which it differs from the other tables
    mixed: dict[str, list[str]]  # the conditions in which its rows differ, with all values
    groups: tuple[RowGroup, ...]  # its rows
    left_out: Mapping[Path, Counter[str]]  # how many records no table shows, by run and reason
    columns: tuple[Column, ...] = ()

    @property
    def members(self) -> list[Member]:
        """Return the members of its rows that have numbers."""
        return [member for group in self.groups for member in group.members if member.by_multiple]

    @property
    def columns_left_out(self) -> bool:
        """Tell whether lengths were measured that are no columns."""
        return len(self.columns) < len(columns_of(self.members))

    @property
    def has_curves(self) -> bool:
        """Tell whether its numbers are losses by position."""
        return _have_curves(self.members)


def _all_drafts(runs: Sequence[Run], request: CompareRequest) -> list[Draft]:
    """Return the tables in their order, with all rows and no columns. Raises UserError."""
    measured_protocols = protocols_of(runs)
    if measured_protocols and request.protocol not in (ALL_PROTOCOLS, *measured_protocols):
        hint = "to measure another one: posenc eval run=DIR 'eval.protocols=[...]'"
        allowed = [*measured_protocols, ALL_PROTOCOLS]
        raise UserError("--protocol", request.protocol, "no run has measured it", allowed=allowed, hint=hint)
    protocols = [request.protocol]
    if request.protocol == ALL_PROTOCOLS:
        protocols = measured_protocols or [HEADLINE]
    drafts = []
    for protocol in protocols:
        rankings = [one_ranking(runs, protocol)] if request.allow_mixed else split_runs(runs, protocol)
        for ranking in rankings:
            metric = _metric(request, protocol, ranking.members)
            # With all protocols, a table without numbers is left out, since its runs are rows of another
            # table. But if nothing was measured at all, it is the only table.
            if ranking.members or not measured_protocols or request.protocol != ALL_PROTOCOLS:
                draft = Draft(
                    protocol=protocol,
                    metric=metric,
                    distinct_conditions=ranking.distinct_conditions,
                    mixed={},
                    groups=tuple(group_runs(ranking)),
                    left_out=ranking.left_out,
                )
                drafts.append(draft)
    return drafts


def _metric(request: CompareRequest, protocol: str, members: Sequence[Member]) -> Metric:
    """Return the metric of a table. Curves have no other than nats per token. Raises UserError."""
    # The bins of a curve keep nats per token and no bytes, so that bits per byte cannot be made of them.
    if request.metric == "nats" or not _have_curves(members):
        return request.metric
    # With all protocols a table in nats among tables in bits is of more use than an error.
    if request.protocol != ALL_PROTOCOLS:
        raise UserError("--metric", request.metric, f"{protocol} is in nats per token", allowed=["nats"])
    return "nats"


def _have_curves(members: Sequence[Member]) -> bool:
    """Tell whether any of the measurements is a loss by position."""
    measurements = [measurement for member in members for measurement in member.measurements]
    return any(measurement.curve is not None for measurement in measurements)


def _with_chosen_rows(drafts: Sequence[Draft], patterns: Sequence[str]) -> list[Draft]:
    """Return the tables with the rows that fit a pattern. Tables without such rows are left out.

    A table keeps the conditions in which it still differs from another table, and a row those in which it
    differs from another row. Raises UserError for a pattern that no row fits.
    """
    groups = [group for draft in drafts for group in draft.groups]
    for pattern in patterns:
        if not any(group.fits(pattern) for group in groups):
            names = sorted({name for group in groups for name in group.names})
            raise UserError("--rows", pattern, "there is no such row", allowed=names)
    if patterns:
        drafts = [replace(draft, groups=_fitting_groups(draft.groups, patterns)) for draft in drafts]
        drafts = [draft for draft in drafts if draft.groups]
    # After rows are chosen: what only left out tables had need not be said of those that stay.
    shared = _shared_keys([draft.distinct_conditions for draft in drafts])
    return [_with_mixed(draft, shared) for draft in drafts]


def _fitting_groups(groups: Sequence[RowGroup], patterns: Sequence[str]) -> tuple[RowGroup, ...]:
    """Return the rows that fit a pattern, in the order of the patterns."""
    indices: list[int] = []
    for pattern in patterns:
        indices += [index for index, group in enumerate(groups) if group.fits(pattern)]
    without_repeats = dict.fromkeys(indices)
    return tuple(groups[index] for index in without_repeats)


def _shared_keys(tables: Sequence[Mapping[str, str]]) -> set[str]:
    """Return the keys that have the same value in all tables."""
    keys = {key for values in tables for key in values}
    shared_keys = set()
    for key in keys:
        distinct_values = {values.get(key) for values in tables}
        if len(distinct_values) == 1:
            shared_keys.add(key)
    return shared_keys


def _with_mixed(draft: Draft, shared: set[str]) -> Draft:
    """Return the table without the values that all tables share, and with those in which its rows differ."""
    # Anew, and not those of the ranking, since only the rows that are left count for what differs.
    conditions = conditions_of(draft.members)
    mixed_by_member = telling_texts(conditions)  # for each member the keys in which members differ
    by_member: dict[tuple[Path, Circumstances], _MemberConditions] = {}
    mixed_values: dict[str, set[str]] = defaultdict(set)
    for member, conditions_of_member, mixed in zip(draft.members, conditions, mixed_by_member, strict=True):
        key_of_member = (member.run.path, member.circumstances)
        by_member[key_of_member] = _MemberConditions(conditions_of_member, mixed)
        for key, value in mixed.items():
            mixed_values[key].add(value)
    still_distinct = {key: value for key, value in draft.distinct_conditions.items() if key not in shared}
    return replace(
        draft,
        distinct_conditions=still_distinct,
        mixed={key: sorted(values) for key, values in mixed_values.items()},
        groups=tuple(_with_conditions(group, by_member) for group in draft.groups),
    )


@dataclass(frozen=True)
class _MemberConditions:
    """The conditions of a member."""

    conditions: Conditions
    mixed: dict[str, str]  # those in which the members of its table differ, as text


def _with_conditions(
    group: RowGroup, by_member: Mapping[tuple[Path, Circumstances], _MemberConditions]
) -> RowGroup:
    """Return the row with the conditions of its first run with numbers; without one, by its settings."""
    for member in group.members:
        if member.by_multiple:
            member_conditions = by_member[member.run.path, member.circumstances]
            return replace(group, conditions=member_conditions.conditions, mixed=member_conditions.mixed)
    return replace(group, conditions=planned_conditions(group.members[0].run), mixed={})


def _with_columns(drafts: Sequence[Draft], multiples: Sequence[float]) -> list[Draft]:
    """Return the tables with the columns of these multiples. A table that has none of them keeps its own.

    Raises UserError for a multiple that no table has.
    """
    columns_by_draft = [columns_of(draft.members) for draft in drafts]
    measured_multiples = {column.multiple for columns in columns_by_draft for column in columns}
    for multiple in multiples:
        if not any(_is_near(multiple, other) for other in measured_multiples):
            hint = "multiples of T, not tokens; if it has targets of its own: compare that run alone"
            allowed = ", ".join(length_text(other) for other in sorted(measured_multiples))
            raise UserError(
                "--columns", length_text(multiple), "nobody measured it", allowed=allowed, hint=hint
            )
    with_columns = []
    for draft, columns in zip(drafts, columns_by_draft, strict=True):
        chosen = _columns_near(columns, multiples) or columns
        with_columns.append(replace(draft, columns=chosen))
    return with_columns


def _columns_near(columns: Sequence[Column], multiples: Sequence[float]) -> tuple[Column, ...]:
    """Return the columns at these multiples. They are shown, even if they are bins that tables leave out."""
    near = []
    for column in columns:
        if any(_is_near(multiple, column.multiple) for multiple in multiples):
            near.append(replace(column, shown=True))
    return tuple(near)


def _is_near(multiple: float, other: float) -> bool:
    """Tell whether two multiples are the same, except for rounding."""
    # Bins end at whole positions and multiples are rounded, so that what a user types meets them only nearly.
    return math.isclose(multiple, other, rel_tol=1e-4)


# --- the baseline


def find_baseline(draft: Draft, name: str) -> int:
    """Return the index of the row that `name` means. Raises UserError if it means none or several.

    A name is a full label, a label, or an encoding that has a single row. No row of a table of curves can be
    a baseline: losses by position are not compared with those of another row.
    """
    if draft.has_curves:
        problem = f"{draft.protocol} measures curves, and these are not compared"
        raise UserError("--baseline", name, problem, hint="leave it out, or choose another --protocol")
    exact_names_first: list[Callable[[RowGroup], set[str]]] = [
        lambda group: {group.full_label},
        lambda group: {group.label},
        lambda group: group.names,
    ]
    matches: list[int] = []
    for names_of in exact_names_first:
        matches = [index for index, group in enumerate(draft.groups) if name in names_of(group)]
        if len(matches) == 1:
            return matches[0]
        # Several exact matches must not fall through to a looser name, which would choose one of them in
        # silence.
        if matches:
            break
    problem = "stands for several rows" if matches else "there is no such row among those shown"
    allowed = [draft.groups[index].full_label for index in matches or range(len(draft.groups))]
    raise UserError("--baseline", name, problem, allowed=allowed)
