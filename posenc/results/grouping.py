"""Group runs into rankings and rows, and name the rows."""

from __future__ import annotations

import fnmatch
import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posenc.results.identity import (
    OPTIONS,
    UNKNOWN_SIZE,
    Conditions,
    condition_text,
    differing,
    kind_of,
    knob_words,
    mixed_values,
    options_of,
    row_name,
    settings_of,
    sizes_of,
    telling_sizes,
    tuned_rate,
)
from posenc.results.measurements import (
    Member,
    Pool,
    count_records,
    left_out_of,
    members_of,
    pool_of,
    rest_of,
)
from posenc.results.runs import Run

CODE = "code"  # the key in a row's settings that tells runs of other code apart


# --- runs that can share a ranking


@dataclass(frozen=True)
class Ranking:
    """Runs whose numbers can be ranked together."""

    values: dict[str, str]  # the conditions that tell it from the other rankings
    runs: tuple[Run, ...]
    members: tuple[Member, ...] = ()  # of its runs with numbers
    # how many records of a run are in no ranking, by reason
    left_out: Mapping[Path, Counter[str]] = field(default_factory=dict)


def one_ranking(runs: Sequence[Run], protocol: str) -> Ranking:
    """Return all runs as one ranking, although they may differ in what they were trained and measured on."""
    members: list[Member] = []
    pool = pool_of(runs, protocol)
    rest = pool
    while rest:
        chosen = members_of(rest)
        members += chosen
        rest = rest_of(rest, chosen)
    (ranking,) = _with_left_out([Ranking({}, tuple(runs), tuple(members))], pool, protocol)
    return ranking


def split_runs(runs: Sequence[Run], protocol: str) -> list[Ranking]:
    """Return the rankings that the runs make, most runs first.

    A run that was measured on several texts, in several precisions, or on other targets at other lengths
    stands in a ranking for each. The rankings of the measurements that represent each run best come first.

    A run without numbers joins the first ranking with runs of its settings, else the first with runs of its
    size. Runs of a size that no ranking has get a ranking of their own.
    """
    rankings = _measured_rankings(runs, protocol)
    if not rankings:
        return [Ranking({}, tuple(runs))]
    measured = {run.path for ranking in rankings for run in ranking.runs}
    unmeasured = [run for run in runs if run.path not in measured]
    return _with_unmeasured_runs(rankings, unmeasured) if unmeasured else rankings


def _measured_rankings(runs: Sequence[Run], protocol: str) -> list[Ranking]:
    """Return the rankings of the runs with numbers.

    They are made in rounds. A round takes of each run the measurements that represent it best, and splits
    them into rankings. The next round does the same with the measurements that are still in no ranking.
    """
    rounds: list[list[list[Member]]] = []  # of each round, the members of each ranking
    pool = pool_of(runs, protocol)
    rest = pool
    while rest:
        rankings_of_round = _split_into_rankings(rest)
        rounds.append(rankings_of_round)
        rest = rest_of(rest, [member for members in rankings_of_round for member in members])
    representatives: list[Member] = []  # of every ranking
    for rankings_of_round in rounds:
        representatives += [_representative(members) for members in rankings_of_round]
    values = iter(_telling_values(representatives))
    rankings: list[Ranking] = []
    for rankings_of_round in rounds:
        made_in_round = [
            Ranking(next(values), _runs_of(members), tuple(members)) for members in rankings_of_round
        ]
        rankings += sorted(made_in_round, key=_most_runs_first)
    return _with_left_out(rankings, pool, protocol)


def _split_into_rankings(pool: Pool) -> list[list[Member]]:
    """Return the members of each ranking: one member for each extension of a run of the pool.

    A run that was measured in several circumstances has those that most of the runs beside it share.
    """
    members = members_of(pool)
    by_values: dict[tuple[tuple[str, str], ...], list[Member]] = defaultdict(list)
    for member, values in zip(members, mixed_values(members), strict=True):
        by_values[tuple(values.items())].append(member)
    if len(by_values) < 2:
        return list(by_values.values())
    # Each part is split again: where corpora differ the targets are not compared, but inside of one corpus
    # they are, and the runs of a part may prefer other circumstances than all runs did.
    rankings: list[list[Member]] = []
    for part in by_values.values():
        rankings += _split_into_rankings({run.path: pool[run.path] for run in _runs_of(part)})
    return rankings


def _runs_of(members: Sequence[Member]) -> tuple[Run, ...]:
    return tuple({member.run.path: member.run for member in members}.values())


def _representative(members: Sequence[Member]) -> Member:
    """Return the member that was measured at the longest window: the name of a set of targets has it."""
    return max(members, key=_longest_multiple)


def _longest_multiple(member: Member) -> float:
    return max(measurement.multiple for measurement in member.measurements)


def _telling_values(members: Sequence[Member]) -> list[dict[str, str]]:
    """Return, for each of members that cannot be ranked together, the conditions that tell it from the
    others.

    Members that agree in all conditions compared first are told apart by others, which are compared among
    them alone.
    """
    values = mixed_values(members)
    by_values: dict[tuple[tuple[str, str], ...], list[int]] = defaultdict(list)
    for index, values_of_member in enumerate(values):
        by_values[tuple(values_of_member.items())].append(index)
    if len(by_values) < 2:
        return values
    for indices in by_values.values():
        inside = _telling_values([members[index] for index in indices])
        for index, more_values in zip(indices, inside, strict=True):
            values[index] = values[index] | more_values
    return values


def _with_left_out(rankings: Sequence[Ranking], pool: Pool, protocol: str) -> list[Ranking]:
    """Return the rankings with how many records of their runs no ranking shows.

    The records of a run are counted in the first ranking that has it.
    """
    by_run: dict[Path, list[Member]] = defaultdict(list)
    for ranking in rankings:
        for member in ranking.members:
            by_run[member.run.path].append(member)
    left_out = {}
    for path, members in by_run.items():
        earlier = count_records(members[0].run, protocol) - len(pool[path])
        left_out[path] = left_out_of(pool[path], members, earlier)
    with_left_out = []
    for ranking in rankings:
        left_out_of_ranking = {
            run.path: left_out.pop(run.path) for run in ranking.runs if run.path in left_out
        }
        with_left_out.append(replace(ranking, left_out=left_out_of_ranking))
    return with_left_out


def _most_runs_first(ranking: Ranking) -> tuple[int, list[tuple[str, str]]]:
    return -len(ranking.runs), sorted(ranking.values.items())


# --- runs without numbers


def _with_unmeasured_runs(rankings: Sequence[Ranking], runs: Sequence[Run]) -> list[Ranking]:
    """Return the rankings with runs that have no numbers."""
    kinds = [{kind_of(run) for run in ranking.runs} for ranking in rankings]
    joined: dict[int, list[Run]] = defaultdict(list)
    by_size: dict[str, list[Run]] = defaultdict(list)
    for run in runs:
        index = _ranking_of(run, kinds)
        if index is None:
            _, size = kind_of(run)
            by_size[size].append(run)
        else:
            joined[index].append(run)
    with_unmeasured = [
        replace(ranking, runs=(*ranking.runs, *joined[index])) for index, ranking in enumerate(rankings)
    ]
    first = rankings[0].runs[0]
    of_other_sizes = [Ranking(telling_sizes(alike[0], first), tuple(alike)) for alike in by_size.values()]
    return [*with_unmeasured, *of_other_sizes]


def _ranking_of(run: Run, kinds: Sequence[set[tuple[str, str]]]) -> int | None:
    """Return the index of the ranking that a run without numbers joins; None if no ranking has its size.

    A damaged run, whose size is not known, joins the first.
    """
    kind = kind_of(run)
    _, size = kind
    for index, kinds_of_ranking in enumerate(kinds):
        if kind in kinds_of_ranking:
            return index
    for index, kinds_of_ranking in enumerate(kinds):
        sizes = {size_of_ranked for _, size_of_ranked in kinds_of_ranking}
        if {size, UNKNOWN_SIZE} & sizes:
            return index
    return 0 if size == UNKNOWN_SIZE else None


# --- runs that are seeds of one row


@dataclass(frozen=True)
class RowGroup:
    """The runs of a row: seeds of one encoding and settings, as trained or with one test-time extension."""

    encoding: str  # see identity.row_name
    settings: dict[str, str]
    extension: str | None = None  # as in Member
    mixed: dict[str, str] = field(default_factory=dict)  # its values of the keys in which the runs differ
    members: tuple[Member, ...] = ()
    notes: tuple[str, ...] = ()
    label: str = ""
    conditions: Conditions | None = None  # of its first run with numbers, else of its settings

    @property
    def extend(self) -> str | None:
        """Return the name of its extension."""
        return None if self.extension is None else str(json.loads(self.extension)["name"])

    @property
    def is_measured(self) -> bool:
        """Tell whether any of its runs has a number."""
        return any(member.by_multiple for member in self.members)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Return the seeds of its runs."""
        return tuple(sorted(member.run.seed for member in self.members if member.run.seed is not None))

    @property
    def tuned(self) -> str | None:
        """Return how its learning rate was chosen on validation documents; None if it was given."""
        for member in self.members:
            text = tuned_rate(member.run)
            if text:
                return text
        return None

    @property
    def beyond(self) -> str | None:
        """Return the declared policy past T of the encoding or extension; None without one."""
        for member in self.members:
            for measurement in member.by_multiple.values():
                if measurement.beyond is not None:
                    return measurement.beyond or None
        if self.extension is not None:
            return None
        policy = self.settings.get("encoding.beyond")
        return None if policy in (None, "null", "") else policy

    @property
    def full_label(self) -> str:
        """Return the label, with the conditions that set the row apart in a mixed table."""
        return full_label(self.label, self.mixed)

    @property
    def names(self) -> set[str]:
        """Return the names by which a user may choose it: its labels, and encoding+extension."""
        extended = self.encoding if self.extend is None else f"{self.encoding}+{self.extend}"
        return {self.label, self.full_label, extended}

    def fits(self, pattern: str) -> bool:
        """Tell whether a pattern of --rows, a name or a glob, chooses the row."""
        return pattern in self.names or bool(fnmatch.filter(self.names, pattern))


def full_label(label: str, mixed: Mapping[str, str]) -> str:
    """Return `rope [context length 64]`; the label alone where nothing is mixed."""
    if not mixed:
        return label
    values = ", ".join(condition_text(key, value) for key, value in mixed.items())
    return f"{label} [{values}]"


def group_runs(ranking: Ranking) -> list[RowGroup]:
    """Return the rows of a ranking in the order of their labels.

    Runs without numbers join the row of their settings.
    """
    settings = _settings_with_code(ranking.runs)
    groups = _measured_groups(ranking.members, settings)
    with_numbers = {member.run.path for member in ranking.members}
    for run in ranking.runs:
        if run.path not in with_numbers:
            groups = _with_unmeasured(groups, run, settings[run.path])
    finished = [_with_notes(_with_distinct_seeds(group)) for group in groups]
    return sorted(_labelled(finished), key=lambda group: (group.label, sorted(group.mixed.items())))


def _measured_groups(members: Sequence[Member], settings: Mapping[Path, dict[str, str]]) -> list[RowGroup]:
    """Return the rows of the members with numbers."""
    by_identity: dict[_Identity, list[Member]] = defaultdict(list)
    for member, mixed in zip(members, mixed_values(members), strict=True):
        identity = _Identity(
            encoding=row_name(member.run),
            extension=member.extension,
            settings=tuple(settings[member.run.path].items()),
            mixed=tuple(mixed.items()),
        )
        by_identity[identity].append(member)
    return [
        RowGroup(
            encoding=identity.encoding,
            settings=dict(identity.settings),
            extension=identity.extension,
            mixed=dict(identity.mixed),
            members=tuple(seeds),
        )
        for identity, seeds in by_identity.items()
    ]


@dataclass(frozen=True)
class _Identity:
    """The values that the seeds of a row have in common."""

    encoding: str
    extension: str | None
    settings: tuple[tuple[str, str], ...]
    mixed: tuple[tuple[str, str], ...]


def _settings_with_code(runs: Sequence[Run]) -> dict[Path, dict[str, str]]:
    """Return the settings of each run, with the code of its encoding where the code differs.

    Runs whose encoding code differs must not be averaged: the row would be of neither formula.
    """
    settings = {run.path: settings_of(run) for run in runs}
    alike: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        alike[row_name(run), tuple(settings[run.path].items())].append(run)
    for group in alike.values():
        codes = {run.facts["code"] for run in group if run.facts is not None and "code" in run.facts}
        if len(codes) > 1:
            for run in group:
                code = "unknown" if run.facts is None else run.facts.get("code", "unknown")
                settings[run.path] = {**settings[run.path], CODE: code}
    return settings


def _with_unmeasured(groups: Sequence[RowGroup], run: Run, settings: dict[str, str]) -> list[RowGroup]:
    """Return the rows with a run that has no numbers.

    A run that diverged joins the rows of extensions too, because they lack that seed as well.
    """
    name = row_name(run)
    sizes = sizes_of(run)
    alike = [
        index
        for index, group in enumerate(groups)
        if group.encoding == name and group.settings == settings and _is_of_size(group, sizes)
    ]
    trained = [index for index in alike if groups[index].extension is None]
    unmeasured = [index for index in alike if not groups[index].is_measured]
    if len(trained) == 1:
        joined = trained
        if run.state == "diverged":
            mixed = groups[trained[0]].mixed
            extended = [index for index in alike if groups[index].extension is not None]
            joined = trained + [index for index in extended if groups[index].mixed == mixed]
    elif unmeasured:
        joined = unmeasured[:1]
    else:
        return [*groups, RowGroup(name, settings, members=(Member(run),))]
    return [
        replace(group, members=(*group.members, Member(run))) if index in joined else group
        for index, group in enumerate(groups)
    ]


def _is_of_size(group: RowGroup, sizes: dict[str, str] | None) -> bool:
    """Return whether runs of these sizes, where they are known, can be seeds of a row."""
    return sizes is None or all(sizes_of(member.run) in (None, sizes) for member in group.members)


def _with_distinct_seeds(group: RowGroup) -> RowGroup:
    """Return the row with one run a seed, by rising seed: the run with numbers, else the first by path."""
    by_seed: dict[int, Member] = {}
    without_seed = [member for member in group.members if member.run.seed is None]
    notes = list(group.notes)
    for member in sorted(group.members, key=lambda member: (not member.by_multiple, str(member.run.path))):
        seed = member.run.seed
        if seed is not None and by_seed.setdefault(seed, member) is not member:
            notes.append(f"seed {seed} is there more than once, shown: {by_seed[seed].run.name}")
    members = [by_seed[seed] for seed in sorted(by_seed)]
    return replace(group, members=(*members, *without_seed), notes=tuple(notes))


def _with_notes(group: RowGroup) -> RowGroup:
    """Return the row with notes on its code and its learning rate."""
    notes = list(group.notes)
    if CODE in group.settings:
        notes.append("trained by other code of its encoding than its namesake")
    if group.tuned is not None:
        notes.append(f"train.lr={group.settings.get('train.lr')} is tuned: {group.tuned}")
    return replace(group, notes=tuple(notes))


# --- labels


def _labelled(groups: Sequence[RowGroup]) -> list[RowGroup]:
    """Return the rows with labels: encoding, options, settings in which rows of the encoding differ."""
    by_encoding: dict[str, list[dict[str, str]]] = defaultdict(list)
    for group in groups:
        by_encoding[group.encoding].append(group.settings)
    keys = {name: differing(settings) for name, settings in by_encoding.items()}
    labelled = [replace(group, label=_label(group, keys[group.encoding])) for group in groups]
    return _told_apart(labelled)


def _label(group: RowGroup, keys: Sequence[str]) -> str:
    """Return a row's label: encoding, extension, options, and its settings of the `keys` that differ.

    If rows differ in a choice, such as `optim.name`, its parameters `optim.*` are not named: they differ
    because of the choice.
    """
    choices = tuple(key.removesuffix("name") for key in keys if re.fullmatch(r"\w+\.name", key))
    extension: dict[str, Any] | None = None if group.extension is None else json.loads(group.extension)
    parts = [group.encoding if extension is None else f"{group.encoding}+{extension['name']}"]
    parts += options_of(group.settings)
    for key in keys:
        if key not in group.settings or key in OPTIONS:
            continue
        if not key.startswith(choices):
            parameter = key.removeprefix("encoding.").removeprefix("attention.")
            parts.append(f"{parameter}={group.settings[key]}")
        elif key.endswith(".name"):
            parts.append(group.settings[key])
    if extension is not None:
        parts += knob_words(extension)
    return " ".join(parts)


def _told_apart(groups: Sequence[RowGroup]) -> list[RowGroup]:
    """Return the rows with distinct labels: the name of a run follows a label that another row has.

    The first of such rows, by preference one with numbers, keeps the plain label.
    """
    twins: dict[object, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        twins[group.label, tuple(group.mixed.items())].append(index)
    told_apart = list(groups)
    for indices in twins.values():
        measured_first = sorted(indices, key=lambda index: not groups[index].is_measured)
        for index in measured_first[1:]:
            group = groups[index]
            told_apart[index] = replace(group, label=f"{group.label} [{group.members[0].run.name}]")
    return told_apart
