"""The rows of a ranking: which runs are seeds of one row, and what a row is called."""

from __future__ import annotations

import fnmatch
import json
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from posenc.core.run_states import DIVERGED
from posenc.results.identity import (
    OPTIONS,
    Conditions,
    condition_text,
    differing,
    knob_words,
    mixed_values,
    options_of,
    row_name,
    settings_of,
    sizes_of,
    tuned_rate,
)
from posenc.results.measurements import Member
from posenc.results.rankings import Ranking
from posenc.results.runs import Run

CODE = "code"  # the key in a row's settings that tells runs of other code apart


@dataclass(frozen=True)
class RowGroup:
    """The runs of a row: seeds of one encoding and settings, as trained or with one test-time extension."""

    encoding: str  # see identity.row_name
    settings: dict[str, str]  # see identity.settings_of
    extension: str | None = None  # as in Member
    mixed: dict[str, str] = field(default_factory=dict)  # its conditions in which rows of the table differ
    members: tuple[Member, ...] = ()
    notes: tuple[str, ...] = ()
    label: str = ""
    conditions: Conditions | None = None  # of its first run with numbers; without one, by the settings

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
        # A record knows the policy that acted when it was measured, an extension's included. The settings
        # know that of the training alone.
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
        """Return the names by which a user can choose it: its labels, and encoding+extension."""
        extended = self.encoding if self.extend is None else f"{self.encoding}+{self.extend}"
        return {self.label, self.full_label, extended}

    def fits(self, pattern: str) -> bool:
        """Tell whether a pattern of --rows (a name or a glob) chooses the row."""
        return pattern in self.names or bool(fnmatch.filter(self.names, pattern))


def full_label(label: str, mixed: Mapping[str, str]) -> str:
    """Return `rope [context length 64]`, or the label alone if nothing is mixed."""
    if not mixed:
        return label
    values = ", ".join(condition_text(key, value) for key, value in mixed.items())
    return f"{label} [{values}]"


def group_runs(ranking: Ranking) -> list[RowGroup]:
    """Return the rows of a ranking in the order of their labels.

    Runs without numbers join the row of their settings.
    """
    settings = _settings_with_code(ranking.runs)  # by path
    # Rows are made of the runs with numbers first, since only these say in which conditions rows differ. A
    # run without numbers then joins what is there.
    groups = _measured_groups(ranking.members, settings)
    with_numbers = {member.run.path for member in ranking.members}
    for run in ranking.runs:
        if run.path not in with_numbers:
            groups = _with_unmeasured(groups, run, settings[run.path])
    finished = [_with_notes(_with_distinct_seeds(group)) for group in groups]
    return sorted(_labelled(finished), key=lambda group: (group.label, sorted(group.mixed.items())))


def _measured_groups(members: Sequence[Member], settings: Mapping[Path, dict[str, str]]) -> list[RowGroup]:
    """Return the rows of the members with numbers."""
    by_key: dict[_RowKey, list[Member]] = defaultdict(list)
    for member, mixed in zip(members, mixed_values(members), strict=True):
        key = _RowKey(
            encoding=row_name(member.run),
            extension=member.extension,
            settings=tuple(settings[member.run.path].items()),
            mixed=tuple(mixed.items()),
        )
        by_key[key].append(member)
    groups = []
    for key, seeds in by_key.items():
        group = RowGroup(
            encoding=key.encoding,
            settings=dict(key.settings),
            extension=key.extension,
            mixed=dict(key.mixed),
            members=tuple(seeds),
        )
        groups.append(group)
    return groups


@dataclass(frozen=True)
class _RowKey:
    """The values that the seeds of a row have in common."""

    encoding: str
    extension: str | None
    settings: tuple[tuple[str, str], ...]
    mixed: tuple[tuple[str, str], ...]


def _settings_with_code(runs: Sequence[Run]) -> dict[Path, dict[str, str]]:
    """Return the settings of each run by its path, with the hash of its encoding's code where codes differ.

    Runs whose encodings have different code must not be averaged: the row would be of neither formula.
    """
    settings = {run.path: settings_of(run) for run in runs}
    by_row: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        by_row[row_name(run), tuple(settings[run.path].items())].append(run)
    for seeds in by_row.values():
        codes = {run.facts["code"] for run in seeds if run.facts is not None and "code" in run.facts}
        # Only where codes differ: with the hash among the settings of every row, all labels would have it.
        if len(codes) > 1:
            for run in seeds:
                # Runs from before the hash was stored name none, and may be of either code. They are a row
                # apart.
                code = "unknown" if run.facts is None else run.facts.get("code", "unknown")
                settings[run.path] = {**settings[run.path], CODE: code}
    return settings


def _with_unmeasured(groups: Sequence[RowGroup], run: Run, settings: dict[str, str]) -> list[RowGroup]:
    """Add a run without numbers to the row of its settings, or as a new row.

    A run that diverged also joins the rows of extensions, because they lack that seed, too.
    """
    name = row_name(run)
    sizes = sizes_of(run)
    of_settings = [
        index
        for index, group in enumerate(groups)
        if group.encoding == name and group.settings == settings and _is_of_size(group, sizes)
    ]
    as_trained = [index for index in of_settings if groups[index].extension is None]
    unmeasured = [index for index in of_settings if not groups[index].is_measured]
    # With several such rows, in a table of --allow-mixed, nothing says which of them the run would have
    # joined.
    if len(as_trained) == 1:
        rows_to_join = as_trained
        if run.state == DIVERGED:
            mixed = groups[as_trained[0]].mixed
            extended = [index for index in of_settings if groups[index].extension is not None]
            rows_to_join = as_trained + [index for index in extended if groups[index].mixed == mixed]
    elif unmeasured:
        rows_to_join = unmeasured[:1]
    else:
        return [*groups, RowGroup(name, settings, members=(Member(run),))]
    with_run = []
    for index, group in enumerate(groups):
        if index in rows_to_join:
            with_run.append(replace(group, members=(*group.members, Member(run))))
        else:
            with_run.append(group)
    return with_run


def _is_of_size(group: RowGroup, sizes: dict[str, str] | None) -> bool:
    """Tell whether a run of these sizes can be a seed of a row. A run of unknown sizes can."""
    return sizes is None or all(sizes_of(member.run) in (None, sizes) for member in group.members)


def _with_distinct_seeds(group: RowGroup) -> RowGroup:
    """Return the row with one run for each seed, in the order of seeds.

    If several runs have one seed, a run with numbers is taken, and among equals the first by path.
    """
    by_seed: dict[int, Member] = {}
    without_seed = [member for member in group.members if member.run.seed is None]
    notes = list(group.notes)
    # Two runs of one seed are no independent draws: as two seeds they would make the interval too narrow.
    for member in sorted(group.members, key=lambda member: (not member.by_multiple, str(member.run.path))):
        seed = member.run.seed
        if seed is not None and by_seed.setdefault(seed, member) is not member:
            notes.append(f"seed {seed} is there more than once, shown: {by_seed[seed].run.name}")
    members = [by_seed[seed] for seed in sorted(by_seed)]
    each_note_once = dict.fromkeys(notes)  # of three runs of one seed two are left out, for the same reason
    return replace(group, members=(*members, *without_seed), notes=tuple(each_note_once))


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
    """Return the rows with distinct labels."""
    by_encoding: dict[str, list[dict[str, str]]] = defaultdict(list)
    for group in groups:
        by_encoding[group.encoding].append(group.settings)
    # Within one encoding: between encodings nearly all parameters differ, and the name already says so.
    telling_keys = {name: _TellingKeys.of(settings) for name, settings in by_encoding.items()}
    labelled = [
        replace(group, label=_label(group, telling_keys[group.encoding].of_row(group.settings)))
        for group in groups
    ]
    return _told_apart(labelled)


@dataclass(frozen=True)
class _TellingKeys:
    """The settings in which the rows of one encoding differ: all of them, and those within a choice.

    Settings such as `optim.name` are choices, with parameters `optim.*`. If rows differ in a choice, they
    differ in its parameters because of it. So a parameter tells rows apart only where those with the same
    choice differ in it, too.
    """

    keys: tuple[str, ...]
    within_choice: Mapping[tuple[str, str | None], Collection[str]]  # by the key and the value of the choice

    @classmethod
    def of(cls, settings_of_rows: Sequence[Mapping[str, str]]) -> _TellingKeys:
        """Find the settings in which the rows of an encoding differ."""
        keys = differing(settings_of_rows)
        rows_of_choice: dict[tuple[str, str | None], list[Mapping[str, str]]] = defaultdict(list)
        for key in keys:
            if key == _choice_of(key):
                for settings in settings_of_rows:
                    rows_of_choice[key, settings.get(key)].append(settings)
        within_choice = {choice: differing(rows) for choice, rows in rows_of_choice.items()}
        return cls(tuple(sorted(keys, key=_choice_first)), within_choice)

    def of_row(self, settings: Mapping[str, str]) -> list[str]:
        """Return the keys that tell a row from the others, a choice before its parameters."""
        telling = []
        for key in self.keys:
            choice = _choice_of(key)
            # Of a choice in which no rows differ there is nothing here, and all its parameters count.
            within_choice = self.within_choice.get((choice, settings.get(choice)))
            if within_choice is None or key == choice or key in within_choice:
                telling.append(key)
        return telling


def _choice_of(key: str) -> str:
    """Return the key of the choice that a parameter belongs to: `optim.name` for `optim.beta1`."""
    group, _, _ = key.partition(".")
    return f"{group}.name"


def _choice_first(key: str) -> tuple[str, bool, str]:
    """Return the key by which settings are sorted, so that a choice comes before its parameters."""
    choice = _choice_of(key)
    return choice, key != choice, key


def _label(group: RowGroup, keys: Sequence[str]) -> str:
    """Return a row's label: encoding, extension, options, and the settings that tell it apart, the `keys`."""
    extension: dict[str, Any] | None = None if group.extension is None else json.loads(group.extension)
    parts = [group.encoding if extension is None else f"{group.encoding}+{extension['name']}"]
    parts += options_of(group.settings)
    for key in keys:
        if key not in group.settings or key in OPTIONS:
            continue
        if key == _choice_of(key):
            parts.append(group.settings[key])
        else:
            parameter = key.removeprefix("encoding.").removeprefix("attention.")
            parts.append(f"{parameter}={group.settings[key]}")
    if extension is not None:
        parts += knob_words(extension)
    return " ".join(parts)


def _told_apart(groups: Sequence[RowGroup]) -> list[RowGroup]:
    """Make labels distinct: if several rows have one label, the name of a run follows it.

    The first of these rows, preferably one with numbers, keeps the plain label.
    """
    by_label: dict[object, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        by_label[group.label, tuple(group.mixed.items())].append(index)
    told_apart = list(groups)
    for indices in by_label.values():
        measured_first = sorted(indices, key=lambda index: not groups[index].is_measured)
        for index in measured_first[1:]:
            group = groups[index]
            told_apart[index] = replace(group, label=f"{group.label} [{group.members[0].run.name}]")
    return told_apart
