"""Group runs into rows: the seeds of one encoding with one set of settings, labelled by what differs."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from posenc.results.run import Run
from posenc.results.selection import Selected
from posenc.results.settings import (
    differing,
    encoding_of,
    is_option,
    knob_words,
    options_of,
    settings_of,
    size_of,
)

CODE = "code"


@dataclass
class RowGroup:
    """The runs of one row, a Selected for each seed; without cells it is a run without a number to show."""

    encoding: str
    extend: str | None  # as JSON
    settings: dict[str, str]
    mixed: dict[str, str]
    members: list[Selected] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    label: str = ""

    @property
    def size(self) -> dict[str, str] | None:
        """The model, corpus and lengths of its runs, where one of them names them."""
        return next((size for m in self.members if (size := size_of(m.run)) is not None), None)

    @property
    def seeds(self) -> list[int]:
        """The seeds of its runs, sorted."""
        return sorted({m.run.seed for m in self.members if m.run.seed is not None})

    @property
    def measured(self) -> bool:
        """Whether any of its runs has a number."""
        return any(member.cells for member in self.members)

    @property
    def beyond(self) -> str | None:
        """The declared policy past T of the encoding or extension, where it has one."""
        records = [r for m in self.members for r in m.cells.get(self.extend, {}).values()]
        policy = next((r["beyond"] for r in records if r["beyond"] is not None), None)
        if policy is None and self.extend is None:
            policy = self.settings.get("encoding.beyond")
        return None if policy in (None, "null", "") else policy

    @property
    def extend_name(self) -> str | None:
        """The extension's name."""
        return None if self.extend is None else str(json.loads(self.extend)["name"])

    @property
    def knobs(self) -> list[str]:
        """The extension's knobs that are not its YAML's, and the names of tuned ones."""
        return [] if self.extend is None else knob_words(json.loads(self.extend))

    @property
    def names(self) -> set[str]:
        """What the row may be called by: its label, with what is mixed; its encoding, with an extension."""
        extended = f"{self.encoding}+{self.extend_name}" if self.extend else self.encoding
        return {self.label, self.full_label, extended}

    @property
    def full_label(self) -> str:
        """The label, with what sets the row apart in a mixed table."""
        return full_label(self.label, self.mixed)

    def alike(self, other: RowGroup) -> bool:
        """Return whether both have seeds of one encoding with one set of settings, at one size."""
        if (self.encoding, self.settings) != (other.encoding, other.settings):
            return False
        return self.size is None or other.size is None or self.size == other.size


def full_label(label: str, mixed: Mapping[str, str]) -> str:
    """Return a row's label with what sets it apart in a mixed table."""
    shown = ", ".join(f"{key} {value}" for key, value in mixed.items())
    return f"{label} [{shown}]" if shown else label


def group_runs(
    runs: Sequence[Run], selected: Sequence[Selected], mixed: Sequence[dict[str, str]]
) -> list[RowGroup]:
    """Return rows in the order of their labels. Runs without numbers join the row of their settings."""
    settings = _settings(runs)
    groups: dict[tuple[object, ...], RowGroup] = {}
    for one, values in zip(selected, mixed, strict=True):
        encoding, own = encoding_of(one.run) or one.run.name, settings[id(one.run)]
        for extend in one.cells:
            key = (encoding, extend, tuple(sorted(own.items())), tuple(values.items()))
            groups.setdefault(key, RowGroup(encoding, extend, own, values)).members.append(one)
    rows = list(groups.values())
    chosen = {id(one.run) for one in selected}
    for run in runs:
        if id(run) not in chosen:
            _add_without_numbers(rows, run, settings[id(run)])
    for row in rows:
        _keep_one_a_seed(row)
        if CODE in row.settings:
            row.notes.append("trained by other code of its encoding than its namesake")
    _label(rows)
    _note_missing_seeds(rows)
    return sorted(rows, key=lambda row: (row.label, sorted(row.mixed.items())))


def _settings(runs: Sequence[Run]) -> dict[int, dict[str, str]]:
    """Return the settings of each run by id; with the encoding's code where it had several.

    Averaged over two formulas a row would be of none. Older runs do not name theirs.
    """
    settings = {id(run): settings_of(run) for run in runs}
    alike: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        alike[encoding_of(run), tuple(sorted(settings[id(run)].items()))].append(run)
    for some in alike.values():
        codes = {run.facts["code"] for run in some if run.facts is not None and "code" in run.facts}
        for run in some if len(codes) > 1 else []:
            settings[id(run)][CODE] = (run.facts or {}).get("code", "unknown")
    return settings


def _add_without_numbers(rows: list[RowGroup], run: Run, settings: dict[str, str]) -> None:
    """Add a run to its row; one that diverged to the rows of extensions too: they lack that seed as well."""
    alone = RowGroup(encoding_of(run) or run.name, None, settings, {}, [Selected(run)])
    same = [group for group in rows if alone.alike(group)]
    trained = [group for group in same if group.extend is None]
    if len(trained) == 1:
        extended = [group for group in same if group.extend and group.mixed == trained[0].mixed]
        for group in [*trained, *(extended if run.state == "diverged" else [])]:
            group.members.append(Selected(run))
        return
    unmeasured = [group for group in same if not group.measured and group.size == alone.size]
    if unmeasured:
        unmeasured[0].members.append(Selected(run))
    else:
        rows.append(alone)


def _keep_one_a_seed(row: RowGroup) -> None:
    """Count a run that is there twice once: with numbers, then first by path."""
    kept: dict[int, Selected] = {}
    unknown = [member for member in row.members if member.run.seed is None]
    for member in sorted(row.members, key=lambda m: (not m.cells, str(m.run.path))):
        seed = member.run.seed
        if seed is not None and kept.setdefault(seed, member) is not member:
            row.notes.append(f"seed {seed} is there more than once, shown: {kept[seed].run.name}")
    row.members = [kept[seed] for seed in sorted(kept)] + unknown


def _note_missing_seeds(rows: Sequence[RowGroup]) -> None:
    """Note the seeds that other rows have, and that the same row as trained has."""
    measured = {seed for row in rows if row.measured for seed in row.seeds}
    for row in rows:
        alike = [other for other in rows if row.alike(other)]
        everything = measured.union(*(other.seeds for other in alike))
        there = {seed for other in alike if row.mixed == other.mixed for seed in other.seeds}
        for words, seeds in (("no run of", everything - there), ("not extended:", there - set(row.seeds))):
            if seeds and row.seeds:
                row.notes.append(f"{words} seed " + ", ".join(map(str, sorted(seeds))))


def _label(rows: Sequence[RowGroup]) -> None:
    by_encoding, alike = defaultdict(list), defaultdict(list)
    options = [options_of(row.settings) for row in rows]
    for row, own in zip(rows, options, strict=True):
        by_encoding[row.encoding].append(row.settings)
        alike[row.encoding, *own].append(row.settings)
    general = {key: [k for k in differing(of) if not is_option(k)] for key, of in by_encoding.items()}
    optional = {key: [k for k in differing(of) if is_option(k)] for key, of in alike.items()}
    of_name = defaultdict(list)
    for row, own in zip(rows, options, strict=True):
        parts = [row.encoding + (f"+{row.extend_name}" if row.extend_name else ""), *own]
        for key in general[row.encoding] + optional[row.encoding, *own]:
            if key in row.settings and key != "encoding.beyond":
                short = key.removeprefix("encoding.").removeprefix("attention.")
                parts.append(f"{short}={row.settings[key]}")
        parts += [*row.knobs, *([f"(beyond: {row.beyond})"] if row.beyond else [])]
        row.label = " ".join(parts)
        of_name[row.label, tuple(row.mixed.items())].append(row)
    for twins in of_name.values():
        measured = [row for row in twins if row.measured]
        for row in twins if len(twins) > 1 else []:
            if row.members and measured != [row]:
                row.label += f" [{row.members[0].run.name}]"


def shown_of(selected: Sequence[Selected], groups: Sequence[RowGroup]) -> list[Selected]:
    """Return what of the runs' records is in these rows."""
    kept = {(id(member.run), group.extend) for group in groups for member in group.members}
    cut = [{key: one.cells[key] for key in one.cells if (id(one.run), key) in kept} for one in selected]
    return [replace(one, cells=cells) for one, cells in zip(selected, cut, strict=True) if cells]


def relabel(
    selected: Sequence[Selected], mixed: Sequence[dict[str, str]], groups: Sequence[RowGroup]
) -> None:
    """Set in each row what it has of the keys in which the shown ones differ."""
    values = {id(one.run): own for one, own in zip(selected, mixed, strict=True)}
    for group in groups:
        group.mixed = next((values[id(m.run)] for m in group.members if id(m.run) in values), {})


def fold(groups: Sequence[RowGroup]) -> tuple[list[RowGroup], list[RowGroup]]:
    """Split off the extended rows that can be columns: those of runs that also have a row as trained."""
    columns = [any(extends(group, one) for one in groups) for group in groups]
    split = list(zip(groups, columns, strict=True))
    return [group for group, column in split if not column], [group for group, column in split if column]


def extends(extended: RowGroup, group: RowGroup) -> bool:
    """Return whether `extended` has the same runs as `group`, which is as trained, with an extension."""
    return (
        group.extend is None
        and extended.extend is not None
        and (extended.encoding, extended.settings) == (group.encoding, group.settings)
        and extended.mixed == group.mixed
    )
