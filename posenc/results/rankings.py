"""Split runs into rankings: runs of one text, size and set of targets, whose numbers can be compared.

A pool holds the measurements of each run that can be ranked. A member is a run with those of its measurements
that belong together: of one text, precision and set of targets, as trained or with one extension. Both are
made in pools.py.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from posenc.results.identity import UNKNOWN_SIZE, kind_of, mixed_values, telling_sizes
from posenc.results.measurements import Member, count_records
from posenc.results.pools import Pool, left_out_of, members_of, pool_of, rest_of
from posenc.results.runs import Run


@dataclass(frozen=True)
class Ranking:
    """Runs whose numbers can be ranked together."""

    distinct_conditions: dict[str, str]  # those in which it differs from the other rankings
    runs: tuple[Run, ...]
    members: tuple[Member, ...] = ()  # of its runs with numbers
    # by run: how many of its records are in no ranking, by reason
    left_out: Mapping[Path, Counter[str]] = field(default_factory=dict)


def one_ranking(runs: Sequence[Run], protocol: str) -> Ranking:
    """Return all runs as one ranking, even if they were trained and measured on different texts."""
    members: list[Member] = []
    pool = pool_of(runs, protocol)
    unranked = pool
    while unranked:
        # This ends, since each run that is left gives a member in each round, and `rest_of` drops what the
        # members show.
        members_of_round = members_of(unranked)
        members += members_of_round
        unranked = rest_of(unranked, members_of_round)
    (ranking,) = _with_left_out([Ranking({}, tuple(runs), tuple(members))], pool, protocol)
    return ranking


def split_runs(runs: Sequence[Run], protocol: str) -> list[Ranking]:
    """Split runs into rankings, those with the most runs first.

    A run can be in several rankings: if it was measured on several texts, in several precisions, or on
    different targets at different lengths. The rankings of the measurements that represent each run best come
    first.

    A run without numbers joins the first ranking with runs of its settings, else the first with runs of its
    size. Runs of a size that no ranking has get a ranking of their own.
    """
    rankings = _measured_rankings(runs, protocol)
    if not rankings:
        return [Ranking({}, tuple(runs))]
    measured_paths = {run.path for ranking in rankings for run in ranking.runs}
    unmeasured = [run for run in runs if run.path not in measured_paths]
    return _with_unmeasured_runs(rankings, unmeasured) if unmeasured else rankings


def _measured_rankings(runs: Sequence[Run], protocol: str) -> list[Ranking]:
    """Return the rankings of the runs with numbers."""
    pool = pool_of(runs, protocol)
    drafts = _draft_rankings(pool)
    # The values are sought once all rankings are known: what tells a ranking apart depends on the others.
    values = _telling_values([_representative(draft.members) for draft in drafts])
    by_round: dict[int, list[Ranking]] = defaultdict(list)
    for draft, values_of_ranking in zip(drafts, values, strict=True):
        ranking = Ranking(values_of_ranking, _runs_of(draft.members), tuple(draft.members))
        by_round[draft.round_number].append(ranking)
    rankings: list[Ranking] = []
    # Rounds stay in their order: a later one has what is left of runs that already have a table, however many
    # they are.
    for rankings_of_round in by_round.values():
        rankings += sorted(rankings_of_round, key=_most_runs_first)
    return _with_left_out(rankings, pool, protocol)


@dataclass(frozen=True)
class _RankingDraft:
    """The members of a ranking, before it is known how it differs from the others."""

    round_number: int
    members: list[Member]


def _draft_rankings(pool: Pool) -> list[_RankingDraft]:
    """Make rankings in rounds.

    In a round each run gives the measurements that represent it best, and these are split into rankings. The
    next round does the same with the measurements that are still in no ranking.
    """
    drafts: list[_RankingDraft] = []
    unranked = pool
    round_number = 0
    while unranked:
        members_of_round: list[Member] = []
        for members in _split_into_rankings(unranked):
            drafts.append(_RankingDraft(round_number, members))
            members_of_round += members
        unranked = rest_of(unranked, members_of_round)
        round_number += 1
    return drafts


def _split_into_rankings(pool: Pool) -> list[list[Member]]:
    """Return the members of each ranking: one member for each extension of a run in the pool.

    If a run was measured in several circumstances, those are taken that most other runs of the ranking have.
    """
    members = members_of(pool)
    by_values: dict[tuple[tuple[str, str], ...], list[Member]] = defaultdict(list)
    for member, values in zip(members, mixed_values(members), strict=True):
        by_values[tuple(values.items())].append(member)
    if len(by_values) < 2:
        return list(by_values.values())
    # Each part is split again. Between corpora targets are not compared, but inside one corpus they are. And
    # the runs of a part may agree on other circumstances than all runs did.
    rankings: list[list[Member]] = []
    for part in by_values.values():
        # This ends: all members of a run have the same conditions, so a part has fewer runs than the pool.
        rankings += _split_into_rankings({run.path: pool[run.path] for run in _runs_of(part)})
    return rankings


def _runs_of(members: Sequence[Member]) -> tuple[Run, ...]:
    """Return the runs of members, each once."""
    return tuple({member.run.path: member.run for member in members}.values())


def _representative(members: Sequence[Member]) -> Member:
    """Return the member that was measured at the longest window, which names the set of targets."""
    return max(members, key=_longest_multiple)


def _longest_multiple(member: Member) -> float:
    """Return the longest window that a member was measured at, as a multiple of T."""
    return max(measurement.multiple for measurement in member.measurements)


def _telling_values(members: Sequence[Member]) -> list[dict[str, str]]:
    """Return, for each member, the conditions that tell it from the others. None can be ranked together.

    Members may agree in all conditions in which the members differ. They are then compared among themselves,
    where further conditions count.
    """
    values = mixed_values(members)
    by_values: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for index, values_of_member in enumerate(values):
        by_values[tuple(values_of_member.items())].append(index)
    if len(by_values) < 2:
        return values
    for indices in by_values.values():
        further_values = _telling_values([members[index] for index in indices])
        for index, values_of_member in zip(indices, further_values, strict=True):
            values[index] = values[index] | values_of_member
    return values


def _with_left_out(rankings: Sequence[Ranking], pool: Pool, protocol: str) -> list[Ranking]:
    """Return the rankings with the number of records that no ranking shows.

    The records of a run are counted in the first ranking that has the run.
    """
    by_run: dict[Path, list[Member]] = defaultdict(list)
    for ranking in rankings:
        for member in ranking.members:
            by_run[member.run.path].append(member)
    left_out = {}
    for path, members in by_run.items():
        # a pool has the newest checkpoint of a run alone
        of_earlier_checkpoints = count_records(members[0].run, protocol) - len(pool[path])
        left_out[path] = left_out_of(pool[path], members, of_earlier_checkpoints)
    with_left_out = []
    for ranking in rankings:
        left_out_of_ranking = {
            run.path: left_out.pop(run.path) for run in ranking.runs if run.path in left_out
        }
        with_left_out.append(replace(ranking, left_out=left_out_of_ranking))
    return with_left_out


def _most_runs_first(ranking: Ranking) -> tuple[int, list[tuple[str, str]]]:
    """Return the key by which rankings are sorted: most runs first, then by their conditions."""
    return -len(ranking.runs), sorted(ranking.distinct_conditions.items())


# --- runs without numbers


def _with_unmeasured_runs(rankings: Sequence[Ranking], runs: Sequence[Run]) -> list[Ranking]:
    """Add runs without numbers to the rankings."""
    kinds = [_kinds_of(ranking) for ranking in rankings]
    added_runs: dict[int, list[Run]] = defaultdict(list)  # by the index of the ranking
    by_size: dict[str, list[Run]] = defaultdict(list)  # runs of a size that no ranking has
    for run in runs:
        index = _ranking_of(run, kinds)
        if index is None:
            _, size = kind_of(run)
            by_size[size].append(run)
        else:
            added_runs[index].append(run)
    with_unmeasured = [
        replace(ranking, runs=(*ranking.runs, *added_runs[index])) for index, ranking in enumerate(rankings)
    ]
    first_run = rankings[0].runs[0]
    of_other_sizes = []
    for runs_of_size in by_size.values():
        values = telling_sizes(runs_of_size[0], first_run)
        of_other_sizes.append(Ranking(values, tuple(runs_of_size)))
    return [*with_unmeasured, *of_other_sizes]


def _kinds_of(ranking: Ranking) -> set[tuple[str, str]]:
    """Return the settings and sizes that runs of a ranking have."""
    return {kind_of(run) for run in ranking.runs}


def _ranking_of(run: Run, kinds: Sequence[set[tuple[str, str]]]) -> int | None:
    """Return the index of the ranking that a run without numbers joins; None if no ranking has its size.

    A run of unknown size, because it is damaged, joins the first ranking.
    """
    kind = kind_of(run)
    _, size = kind
    for index, kinds_of_ranking in enumerate(kinds):
        if kind in kinds_of_ranking:
            return index
    for index, kinds_of_ranking in enumerate(kinds):
        # A second pass over all rankings: a ranking with runs of the same settings comes before one of the
        # same size alone.
        sizes = {size_of_ranked for _, size_of_ranked in kinds_of_ranking}
        # A ranking that holds a run of unknown size may be of this size, too. In doubt there is no further
        # table.
        if {size, UNKNOWN_SIZE} & sizes:
            return index
    return 0 if size == UNKNOWN_SIZE else None
