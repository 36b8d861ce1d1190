"""Choose the records that enter a comparison, and group the runs that have them into its tables and rows.

Of each run: one protocol, the last checkpoint, one set of targets. A row has the seeds of one encoding with
one set of settings, and is labelled by what tells it from its neighbours.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posenc.core.errors import UserError
from posenc.results.load import Run
from posenc.results.schema import REFERENCE_PROTOCOL, Record, multiple_of
from posenc.results.settings import (
    as_text,
    differing,
    encoding_of,
    flatten,
    is_option,
    knob_words,
    options_of,
    settings_of,
    size_of,
)
from posenc.results.statistics import Sample

UNKNOWN = "unknown"
CODE = "code"
TargetSet = tuple[str, str, int, str]  # fingerprint, split, stride or 0, hash of the targets


@dataclass
class Selected:
    """The records of one run that are compared, by extension (None: as trained) and window multiple."""

    run: Run
    cells: dict[str | None, dict[float, Record]] = field(default_factory=dict)  # key: extension as JSON
    left_out: int = 0  # records of this protocol with another checkpoint, corpus or set of targets
    samples: dict[int, Sample] = field(default_factory=dict, repr=False)  # by the record's id

    @property
    def records(self) -> list[Record]:
        """All of them."""
        return [record for cells in self.cells.values() for record in cells.values()]

    @property
    def targets_hash(self) -> str:
        """Of the one set of targets of its records."""
        return self.records[0]["targets_hash"]

    def record(self, extend: str | None, multiple: float) -> Record | None:
        """Return the record at this window length, if any."""
        return self.cells.get(extend, {}).get(multiple)

    def sample(self, record: Record) -> Sample | None:
        """Return a record's sums by document; its ratios are computed once."""
        if record["per_document"] is None:
            return None
        if id(record) not in self.samples:
            self.samples[id(record)] = Sample(record["per_document"])
        return self.samples[id(record)]


def target_set(record: Record) -> TargetSet:
    """Return what identifies the scored targets."""
    return record["fingerprint"], record["split"], record["stride"] or 0, record["targets_hash"]


def extend_key(record: Record) -> str | None:
    """Return the extension with its parameters as one comparable text, the same at every window.

    Knobs that were tuned on validation documents are left out: each seed chooses its own.
    """
    if record["extend"] is None:
        return None
    left_out = {"resolved", *record["extend"].get("tuned", [])}
    kept = {key: value for key, value in record["extend"].items() if key not in left_out}
    return json.dumps(kept, sort_keys=True)


def select(runs: Sequence[Run], protocol: str, steps: Mapping[int, int] | None = None) -> list[Selected]:
    """Return the records of `protocol`, a Selected for each run that has some and has not diverged.

    Of the newest checkpoint that was measured so, or of the step that `steps` has for the run's id. Where a
    run was measured on several sets of targets, one of the test split is taken, of those the one that most
    runs share, then the run's own corpus, the most and the longest windows, the most targets.
    """
    newest: list[tuple[Run, int, list[Record]]] = []
    measured: dict[TargetSet, list[tuple[Run, Record]]] = defaultdict(list)
    for run in runs:
        if run.facts is None or run.state == "diverged":
            continue
        records = [record for record in run.records if record["protocol"] == protocol]
        last = max((record["checkpoint_step"] for record in records), default=0)
        kept = [r for r in records if r["checkpoint_step"] == (steps or {}).get(id(run), last)]
        if kept:
            newest.append((run, len(records), kept))
        for record in kept:
            measured[target_set(record)].append((run, record))
    ranked = {key: _preference(key, found) for key, found in measured.items()}
    selected = []
    for run, count, kept in newest:
        best = min({target_set(record) for record in kept}, key=lambda key: ranked[key])
        one = Selected(run)
        for record in _of_one_tuning([record for record in kept if target_set(record) == best]):
            one.cells.setdefault(extend_key(record), {}).setdefault(multiple_of(record), record)
        one.left_out = count - len(one.records)
        selected.append(one)
    return selected


def _preference(key: TargetSet, found: Sequence[tuple[Run, Record]]) -> tuple[Any, ...]:
    """Return the sort key of a set of targets; the preferred one sorts first."""
    windows = {record["window"] for _, record in found}
    foreign = not any(
        record["fingerprint"] == (run.facts or {}).get("corpus", {}).get("fingerprint")
        for run, record in found
    )
    tuned_on = key[1] != "test"  # extensions are tuned on validation documents and measured there too
    targets = max(record["targets"] for _, record in found)
    owners = len({id(run) for run, _ in found})
    return tuned_on, -owners, foreign, -len(windows), -max(windows), -targets, key


def _of_one_tuning(records: Sequence[Record]) -> list[Record]:
    """Return the records of each extension with the knobs that have the most and the longest windows.

    Tuned anew on other lengths they may differ, and a row made of both would be of neither.
    """
    tunings: dict[str | None, dict[str, list[Record]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        knobs = json.dumps({**(record["extend"] or {}), "resolved": None}, sort_keys=True)
        tunings[extend_key(record)][knobs].append(record)

    def preference(item: tuple[str, list[Record]]) -> tuple[int, int, str]:
        windows = {record["window"] for record in item[1]}
        return len(windows), max(windows), item[0]

    return [record for of in tunings.values() for record in max(of.items(), key=preference)[1]]


def parse_multiple(text: str, option: str = "--length") -> float:
    """Return `16x` as 16.0. Raises UserError."""
    try:
        multiple = float(text.removesuffix("x"))
    except ValueError:
        multiple = math.nan
    if not (math.isfinite(multiple) and multiple > 0):
        raise UserError(option, text, "not a multiple of T", allowed="0.5x, 1x, 16x and the like")
    return multiple


def only(
    runs: Sequence[Run],
    *,
    length: float | None,
    corpus: str | None,
    split: str | None,
    stride: int | None = None,
    protocol: str | None = None,
) -> list[Run]:
    """Return the runs with just the records that are asked for; None asks for nothing.

    `length` is a multiple of T that the targets must have been measured at: the longest window decides which
    targets there are, so a longer evaluation is another set. `stride` in tokens, of records that have one.
    Raises UserError if nothing is left (of `protocol`), though there was something.
    """
    kept = list(runs)
    asked = {"multiple": length, "corpus": corpus, "split": split, "stride": stride}
    for key, value in asked.items():
        if value is None:
            continue
        of = [r for run in kept for r in run.records if protocol in (None, r["protocol"]) or key == "stride"]
        there: set[Any] = {record[key] for record in of} - {None}  # type: ignore[literal-required]
        if (there or key == "stride") and not any(_is(one, value) for one in there):
            option, x = ("--length", "x") if key == "multiple" else (f"--{key}", "")
            shown = [f"{as_text(one)}{x}" for one in sorted(there)]
            raise UserError(option, f"{as_text(value)}{x}", "no record is of this", allowed=shown or "none")
        kept = [dataclasses.replace(run, records=_asked(run.records, key, value)) for run in kept]
    return kept


def _is(value: Any, asked: Any) -> bool:
    return math.isclose(value, asked) if isinstance(asked, float) else bool(value == asked)


def _asked(records: Sequence[Record], key: str, value: Any) -> list[Record]:
    """Return the records with this value; of a length those of all target sets that it was measured on."""
    if key != "multiple":
        return [r for r in records if r[key] == value or (key == "stride" and r[key] is None)]  # type: ignore[literal-required]
    sets = {(r["protocol"], target_set(r)) for r in records if _is(r["multiple"], value)}
    sets |= {(REFERENCE_PROTOCOL, targets) for _, targets in sets}
    return [r for r in records if (r["protocol"], target_set(r)) in sets]


def mixed_values(selected: Sequence[Selected]) -> list[dict[str, str]]:
    """Return for each run the keys that differ anywhere among them, with that run's value as text."""
    rows = [_comparable(one) for one in selected]
    models = [flatten((one.run.facts or {}).get("model", {})) for one in selected]
    unlike = differing(models)
    named = ["name"] if "name" in unlike else unlike
    longest: dict[str, float] = defaultdict(float)  # the longest window decides which targets there are
    for one in selected:
        longest[one.targets_hash] = max(longest[one.targets_hash], *map(multiple_of, one.records))
    for one, row, model in zip(selected, rows, models, strict=True):
        row["model"] = " ".join(
            model.get(k, UNKNOWN) if k == "name" else f"{k}={model.get(k)}" for k in named
        )
        row["target set"] = f"{one.targets_hash[:8]}, to {longest[one.targets_hash]:g}x"
    keys = differing(rows)
    if any(key in keys for key in ("evaluated on", "split", "stride", "tokenizer", "context length")):
        keys = [key for key in keys if key != "target set"]  # then the targets differ anyway: name the cause
    return [{key: row[key] for key in keys} for row in rows]


def split_runs(runs: Sequence[Run], protocol: str) -> list[tuple[dict[str, str], list[Run]]]:
    """Return the runs of each ranking and what tells it from the others ({} for one), most runs first.

    Runs without numbers join the first with runs of their settings, else of their size, else the last.
    """
    found = sorted(_alike(runs, protocol), key=lambda one: (-len(one[1]), sorted(one[0].items())))
    if len(found) < 2:
        return [({}, list(runs))]
    measured = {id(run) for _, members in found for run in members}
    rest = [run for run in runs if id(run) not in measured]
    kinds = [[_kind(run) for run in members] for _, members in found] if rest else []
    for run in rest:
        whole, size = _kind(run)
        places = [i for i, of in enumerate(kinds) if (whole, size) in of]
        places += [i for i, of in enumerate(kinds) if size in (other for _, other in of)]
        found[[*places, -1][0]][1].append(run)
    return found


def _alike(runs: Sequence[Run], protocol: str) -> list[tuple[dict[str, str], list[Run]]]:
    """Return the runs with numbers that may share a ranking, and what they have of the keys that differ."""
    selected = select(runs, protocol)
    by_values: dict[tuple[tuple[str, str], ...], list[Run]] = defaultdict(list)
    for one, values in zip(selected, mixed_values(selected), strict=True):
        by_values[tuple(values.items())].append(one.run)
    if len(by_values) < 2:
        return [(dict(values), some) for values, some in by_values.items()]
    # within one of them other keys may differ: the targets, where the corpora did
    return [
        (dict(values) | own, members)
        for values, some in by_values.items()
        for own, members in _alike(some, protocol)
    ]


def _kind(run: Run) -> tuple[str, str]:
    """Return encoding and settings, and the size, as comparable texts."""
    kind = json.dumps([encoding_of(run), settings_of(run)], sort_keys=True)
    return kind, json.dumps(size_of(run), sort_keys=True)


def _comparable(one: Selected) -> dict[str, str]:
    facts = one.run.facts or {}
    record = one.records[0]
    corpus, tokenizer = facts.get("corpus", {}), facts.get("tokenizer", UNKNOWN)
    if isinstance(tokenizer, dict):
        tokenizer = " ".join(as_text(v) if k == "name" else f"{k}={as_text(v)}" for k, v in tokenizer.items())
    return {
        "corpus": f"{corpus.get('name', UNKNOWN)} {str(corpus.get('fingerprint', UNKNOWN))[:12]}",
        "tokenizer": as_text(tokenizer),
        "context length": as_text(facts.get("context_length", UNKNOWN)),
        "tokens trained": as_text(tokens_trained(one)),
        "evaluated on": f"{record['corpus']} {record['fingerprint'][:12]}",
        "split": record["split"],
        "stride": as_text(record["stride"]),
        "evaluated in": "/".join(sorted({r.get("precision", "its training's") for r in one.records})),
    }


def tokens_trained(one: Selected) -> int | str:
    """Return the tokens that the measured checkpoint had seen: fewer than the run's for an earlier one."""
    facts, step = one.run.facts or {}, one.records[0]["checkpoint_step"]
    tokens, steps = facts.get("tokens"), facts.get("steps")
    if not isinstance(tokens, int):
        return UNKNOWN
    return tokens * step // steps if isinstance(steps, int) and 0 < step < steps else tokens


# --- rows


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
        for row in sorted(twins, key=lambda row: not row.measured)[1:]:
            row.label += f" [{row.members[0].run.name}]"


def shown_of(
    selected: Sequence[Selected], groups: Sequence[RowGroup]
) -> tuple[list[Selected], list[dict[str, str]]]:
    """Return what of the records is in these rows, and `mixed_values` of it, which each row gets too."""
    kept = {(id(member.run), group.extend) for group in groups for member in group.members}
    cut = [{key: one.cells[key] for key in one.cells if (id(one.run), key) in kept} for one in selected]
    shown = [replace(one, cells=cells) for one, cells in zip(selected, cut, strict=True) if cells]
    mixed = mixed_values(shown)
    values = {id(one.run): own for one, own in zip(shown, mixed, strict=True)}
    for group in groups:
        group.mixed = next((values[id(m.run)] for m in group.members if id(m.run) in values), {})
    return shown, mixed


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
