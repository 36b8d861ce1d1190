"""Runs put together to rows: the seeds of one encoding with one set of settings, labelled by what differs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from posenc.results.load import Run
from posenc.results.selection import Selected
from posenc.results.settings import (
    differing,
    encoding_of,
    knob_words,
    of_options,
    options_of,
    settings_of,
    size_of,
)

CODE = "code"


@dataclass
class Member:
    """One seed of a row; without `selected` the run has no number to show."""

    run: Run
    selected: Selected | None


@dataclass
class Group:
    """A row to be."""

    encoding: str
    extend: str | None  # as JSON
    settings: dict[str, str]
    mixed: dict[str, str]
    members: list[Member] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    label: str = ""

    @property
    def size(self) -> dict[str, str] | None:
        """The model, corpus and lengths of its runs, where one of them says so."""
        return next((size for m in self.members if (size := size_of(m.run)) is not None), None)

    @property
    def seeds(self) -> list[int]:
        """The seeds there are runs of, sorted."""
        return sorted({m.run.seed for m in self.members if m.run.seed is not None})

    @property
    def beyond(self) -> str | None:
        """The declared policy past T of what acts, where it has one."""
        for member in self.members:
            cells = member.selected.cells.get(self.extend, {}) if member.selected else {}
            for record in cells.values():
                if record["beyond"] is not None:
                    return record["beyond"]
        if self.extend is not None:
            return None
        return self.settings.get("encoding.beyond", "null").replace("null", "") or None

    @property
    def extend_name(self) -> str | None:
        """The extension's name."""
        return None if self.extend is None else str(json.loads(self.extend)["name"])


def group_runs(
    runs: Sequence[Run], selected: Sequence[Selected], mixed: Sequence[dict[str, str]]
) -> list[Group]:
    """Rows in the order of their labels. Runs without numbers join the row of their settings, or make one."""
    groups: dict[tuple[str, ...], Group] = {}
    settings = _settings(runs)
    for one, values in zip(selected, mixed, strict=True):
        for extend in one.cells:
            _add(groups, Member(one.run, one), settings[id(one.run)], extend, values)
    chosen = {id(one.run) for one in selected}
    for run in runs:
        if id(run) not in chosen:
            _add_without_numbers(groups, run, settings[id(run)])
    rows = list(groups.values())
    for row in rows:
        _keep_one_a_seed(row)
        if CODE in row.settings:
            row.notes.append("trained by other code of its encoding than its namesake")
    _label(rows)
    measured = {seed for row in rows if _measured(row) for seed in row.seeds}
    for row in rows:
        alike = [other for other in rows if _alike(row, other)]
        everything = measured.union(*(other.seeds for other in alike))
        there = {seed for other in alike if row.mixed == other.mixed for seed in other.seeds}
        lacking = [
            ("no run of", everything - there),
            ("not extended:", there - set(row.seeds)),  # the same row as trained has it
        ]
        for words, seeds in lacking if row.seeds else []:
            if seeds:
                row.notes.append(f"{words} seed " + ", ".join(map(str, sorted(seeds))))
    return sorted(rows, key=lambda row: (row.label, sorted(row.mixed.items())))


def _settings(runs: Sequence[Run]) -> dict[int, dict[str, str]]:
    """The settings of each run by id; with the encoding's code where one encoding was trained by several.

    Averaged over two formulas a row would be of none. Older runs do not say theirs.
    """
    settings = {id(run): settings_of(run) for run in runs}
    keys = {id(run): (encoding_of(run), json.dumps(settings[id(run)], sort_keys=True)) for run in runs}
    codes: dict[tuple[str | None, str], set[str]] = defaultdict(set)
    for run in runs:
        if run.facts is not None and "code" in run.facts:
            codes[keys[id(run)]].add(run.facts["code"])
    for run in runs:
        if len(codes[keys[id(run)]]) > 1:
            settings[id(run)] = {**settings[id(run)], CODE: (run.facts or {}).get("code", "unknown")}
    return settings


def _add(
    groups: dict[tuple[str, ...], Group],
    member: Member,
    settings: dict[str, str],
    extend: str | None,
    mixed: dict[str, str],
) -> None:
    encoding = encoding_of(member.run) or member.run.name
    key = (encoding, extend or "", json.dumps(settings, sort_keys=True), json.dumps(mixed, sort_keys=True))
    groups.setdefault(key, Group(encoding, extend, settings, mixed)).members.append(member)


def _add_without_numbers(groups: dict[tuple[str, ...], Group], run: Run, settings: dict[str, str]) -> None:
    """One that diverged joins the rows of extensions too: they lack that seed as the row as trained does."""
    alone = Group(encoding_of(run) or run.name, None, settings, {}, [Member(run, None)])
    same = [group for group in groups.values() if _alike(alone, group)]
    trained = [group for group in same if group.extend is None]
    if len(trained) == 1:
        extended = [group for group in same if group.extend and group.mixed == trained[0].mixed]
        for group in [*trained, *(extended if run.state == "diverged" else [])]:
            group.members.append(Member(run, None))
    else:
        size = json.dumps(alone.size, sort_keys=True)
        groups[alone.encoding, "no numbers", json.dumps(settings, sort_keys=True), size] = alone


def _alike(one: Group, other: Group) -> bool:
    """Whether the runs of two rows are seeds of one encoding with one set of settings, at one size."""
    if one.encoding != other.encoding or one.settings != other.settings:
        return False
    sizes = one.size, other.size
    return None in sizes or sizes[0] == sizes[1]


def _measured(row: Group) -> bool:
    return any(member.selected for member in row.members)


def shown_of(selected: Sequence[Selected], groups: Sequence[Group]) -> list[Selected]:
    """What of the runs' records is in these rows."""
    kept = {(id(member.run), group.extend) for group in groups for member in group.members}
    cut = [
        replace(one, cells={key: cells for key, cells in one.cells.items() if (id(one.run), key) in kept})
        for one in selected
    ]
    return [one for one in cut if one.cells]


def relabel(selected: Sequence[Selected], mixed: Sequence[dict[str, str]], groups: Sequence[Group]) -> None:
    """Give each row what it has of the keys in which the shown ones differ, in place."""
    values = {id(one.run): own for one, own in zip(selected, mixed, strict=True)}
    for group in groups:
        group.mixed = next((values[id(m.run)] for m in group.members if id(m.run) in values), {})


def names_of(group: Group) -> set[str]:
    """What a row may be called by: its label, with what is mixed too; its encoding, with an extension."""
    extended = f"{group.encoding}+{group.extend_name}" if group.extend else group.encoding
    return {group.label, full_label(group.label, group.mixed), extended}


def full_label(label: str, mixed: dict[str, str]) -> str:
    """A row's label, with what sets it apart in a mixed table."""
    shown = ", ".join(f"{key} {value}" for key, value in mixed.items())
    return f"{label} [{shown}]" if shown else label


def _keep_one_a_seed(row: Group) -> None:
    """A run that is there twice (say, in two experiments) counts once: with numbers, then first by path."""
    kept: dict[int, Member] = {}
    unknown = [member for member in row.members if member.run.seed is None]
    for member in sorted(row.members, key=lambda m: (m.selected is None, str(m.run.path))):
        seed = member.run.seed
        if seed is not None and kept.setdefault(seed, member) is not member:
            row.notes.append(f"seed {seed} is there more than once, shown: {kept[seed].run.name}")
    row.members = [kept[seed] for seed in sorted(kept)] + unknown


def _label(rows: list[Group]) -> None:
    by_encoding, alike = defaultdict(list), defaultdict(list)
    options = [options_of(row.settings) for row in rows]
    for row, own in zip(rows, options, strict=True):
        by_encoding[row.encoding].append(row.settings)
        alike[row.encoding, *own].append(row.settings)
    general = {key: [k for k in differing(of) if not of_options(k)] for key, of in by_encoding.items()}
    optional = {key: [k for k in differing(of) if of_options(k)] for key, of in alike.items()}
    for row, own in zip(rows, options, strict=True):
        label = row.encoding + (f"+{row.extend_name}" if row.extend_name else "")
        keys = general[row.encoding] + optional[row.encoding, *own]
        parts = own + [
            f"{key.removeprefix('encoding.').removeprefix('attention.')}={row.settings[key]}"
            for key in keys
            if key in row.settings and key != "encoding.beyond"
        ]
        parts += knobs_of(row)
        row.label = " ".join([label, *parts, *([f"(beyond: {row.beyond})"] if row.beyond else [])])
    of_name = defaultdict(list)
    for row in rows:
        of_name[row.label, json.dumps(row.mixed, sort_keys=True)].append(row)
    for twins in of_name.values():
        measured = [row for row in twins if _measured(row)]
        for row in twins if len(twins) > 1 else []:
            if row.members and measured != [row]:
                row.label += f" [{row.members[0].run.name}]"


def knobs_of(row: Group) -> list[str]:
    """The extension's knobs that are not those of its YAML, and that others were chosen for each seed."""
    if row.extend is None:
        return []
    return knob_words(json.loads(row.extend))
