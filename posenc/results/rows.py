"""The rows of a comparison: the seeds of one encoding and settings, named by what differs; their cells.

A cell is a row's number at a window length or in a bin of positions.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posenc.results.load import Run, encoding_of, spoken_name
from posenc.results.recall_headroom import Recovered, RowRecall
from posenc.results.schema import (
    BREAK,
    HUGE,
    REFERENCE_PROTOCOL,
    Metric,
    Record,
    multiple_of,
    perplexity,
    printed_change,
)
from posenc.results.settings import (
    OPTIONS,
    Selected,
    as_text,
    differing,
    knob_words,
    options_of,
    pair_of,
    settings_of,
    size_of,
)
from posenc.results.statistics import (
    REFERENCE,
    SAME_WORD,
    Estimate,
    Per,
    Sample,
    Versus,
    difference,
    mean_and_spread,
    verdict,
)

NOT_MEASURED = "not measured"
# Reasons that have nothing to do with how good the encoding is: the other seeds still represent the row.
INNOCENT = {NOT_MEASURED, "running", "dead", "interrupted", "failed", "no results", "damaged", "unknown"}
SHORTEST_SHOWN = 1 / 8  # of T: a table shows the bins of a curve that end at powers of two from here


@dataclass
class Cell:
    """Numbers in the comparison's metric; null where there are none, and then `note` says why."""

    multiple: float  # of T
    window: int | None  # tokens
    mean: float | None = None  # over seeds
    spread: float | None = None  # standard deviation over seeds; null for one seed
    change: float | None = None  # against the run as trained at W = T on the same targets, mean over seeds
    change_spread: float | None = None  # standard deviation of the paired differences over seeds
    change_ci95: list[float] | None = None  # over documents, for one seed: says nothing of other seeds
    seeds: int = 0  # that the mean is of
    note: str | None = None
    verdict: str | None = None  # on the change; null where a seed is missing for being bad
    verdict_change: float | None = None  # the change in bits per byte, whatever the metric
    verdict_ci95: list[float] | None = None  # of it, over seeds and documents (one seed: documents)
    versus_best: Versus | None = None  # against the row with the lowest mean of the column
    targets_hash: str | None = None
    targets: int | None = None  # that were scored in each seed; null where the seeds differ
    documents: int | None = None  # that they are in
    rankable: bool = False  # no seed is left out for being bad
    versus_baseline: Versus | None = None  # against the row that was asked for


@dataclass
class Column:
    """A window length, or a bin of positions. Counts are null where the rows differ in them."""

    multiple: float  # of T; of a bin its last position
    window: int | None  # tokens; of a bin its last position
    targets: int | None
    documents: int | None
    shown: bool = True  # in tables; programs get all


@dataclass
class CurveSummary:
    """Where a row's curves past T break, in tokens."""

    train_length: int  # T
    breaks_at: list[int | None]  # of each seed: the first position that is surely 0.1 nats above T; or none
    holds: list[bool]  # of each seed: whether no position past T can be 0.1 nats above T; else it is unclear


@dataclass(kw_only=True)
class Row:
    """An encoding with one set of settings; its cells are in the order of the columns."""

    label: str = ""  # its name in tables: the encoding, and what tells it from its neighbours
    encoding: str  # its name
    extend: str | None = None  # the name of a test-time extension
    beyond: str | None = None  # the declared policy past T
    mixed: dict[str, str] = field(default_factory=dict)  # what it has of the keys in which the runs differ
    seeds: list[int] = field(default_factory=list)  # that there are runs of
    runs: list[str] = field(default_factory=list)  # their directories
    parameters: int | None = None  # of the whole model
    cells: list[Cell] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)  # what is missing, in words
    undertrained: str | None = None  # by how much its loss at T misses the reference; null where it does not
    curve: CurveSummary | None = None  # of the protocol `positions`
    recovered: Recovered | None = None  # where the same encoding was trained at longer windows, too
    recall: RowRecall | None = None  # of the protocol `recall`
    # not in JSON:
    members: list[Selected] = field(default_factory=list, repr=False)
    settings: dict[str, str] = field(default_factory=dict)
    extension: str | None = None

    @property
    def measured(self) -> bool:
        """Whether any of its runs has a number."""
        return any(member.cells for member in self.members)

    @property
    def tuned(self) -> str | None:
        """How its learning rate was chosen on validation documents; None: it is the one that was given."""
        trains = [(member.run.config or {}).get("train") for member in self.members]
        return next((str(t["tuned"]) for t in trains if isinstance(t, dict) and t.get("tuned")), None)

    @property
    def full_label(self) -> str:
        """The label, with what sets the row apart in a mixed table."""
        shown = ", ".join(f"{key} {value}" for key, value in self.mixed.items())
        return f"{self.label} [{shown}]" if shown else self.label

    @property
    def names(self) -> set[str]:
        """What a user may call it: its label, alone and with what is mixed; encoding+extension."""
        return {self.label, self.full_label, self.encoding + (f"+{self.extend}" if self.extend else "")}


def measure(row: Row, columns: Sequence[Column], metric: Metric) -> None:
    """Fill a row with its numbers: a cell for each column, and what is of the row as a whole."""
    row.runs = [str(member.run.path) for member in row.members]
    row.parameters = single(n for m in row.members if (n := m.run.parameters) is not None)
    row.notes += _notes(row)
    row.undertrained = _undertrained(row)
    row.cells = [make_cell(row, one.multiple, metric) for one in columns]
    if found := [one.curve for one in row.members if one.curve is not None and "curve" in one.curve]:
        breaks = [record["curve"]["breaks_at"] for record in found]
        length = round(found[0]["window"] / found[0]["multiple"])
        row.curve = CurveSummary(length, breaks, [_holds(record) for record in found])


def _notes(row: Row) -> list[str]:
    """Return what is missing or weak: runs, training, cells."""
    notes: dict[str, list[str]] = defaultdict(list)
    for member in row.members:
        run, seed = member.run, "" if member.run.seed is None else f"seed {member.run.seed} "
        if not member.cells or run.state != "finished":
            state = NOT_MEASURED if run.state == "finished" else run.state
            notes[f"{seed}{state}" + (f": {run.reason}" if run.reason else "")] = []
    for member in row.members:
        for multiple, record in sorted(member.cells.items()):
            if record["note"]:
                notes[record["note"]].append(f"{multiple:g}x")
    return [f"{', '.join(dict.fromkeys(at))}: {note}" if at else note for note, at in notes.items()]


def single(values: Iterable[Any]) -> Any:
    """Return the value that all of them have; None where they differ or there is none."""
    distinct = {as_text(value): value for value in values}
    return next(iter(distinct.values())) if len(distinct) == 1 else None


def make_cell(row: Row, multiple: float, metric: Metric) -> Cell:
    """Return the cell of a row at one window length, or of one bin of its curves."""
    there = [(member, member.cells.get(multiple)) for member in row.members]
    found = [(m, r, value) for m, r in there if r is not None and (value := value_of(r, metric)) is not None]
    reasons = Counter(_reason(m.run, r) for m, r in there if value_of(r, metric) is None)
    records: list[Any] = [record for _, record, _ in found]
    values = [value for _, _, value in found]
    bases = [member.base for member, _, _ in found]
    pairs = [  # of a seed here, and at its crop line
        pair
        for (_, record, _), base in zip(found, bases, strict=True)
        if base is not record
        for pair in pair_of(record, base)
    ]
    cell = Cell(multiple, single(record["window"] for _, record in there if record), seeds=len(values))
    cell.targets_hash = single(record["targets_hash"] for record in records)
    cell.targets, cell.documents = single((r["targets"], r["documents"]) for r in records) or (None, None)
    cell.rankable = bool(values) and set(reasons) <= INNOCENT and all(r["per_document"] for r in records)
    if values:
        cell.mean, cell.spread = mean_and_spread(values)
    of = f" of {len(there)}" if values else ""
    notes = [f"{n}{of} {reason}" if of else reason for reason, n in sorted(reasons.items())]
    references = [value_of(base, metric) for base in bases]
    changes = [
        record.get("rise", None if reference is None else value - reference)
        for record, value, reference in zip(records, values, references, strict=True)
    ]
    based = [change for change in changes if change is not None]
    if 0 < len(based) < len(values):  # a change of some seeds beside a loss of all would be unlike it
        notes.append(f"{len(based)} of {len(values)} with 1x")
    elif values and len(based) == len(values) and all(map(math.isfinite, based)):
        cell.change, cell.change_spread = mean_and_spread(based)
    cell.note = ", ".join(notes) or None
    if len(values) == 1 and cell.change is not None and metric != "ppl":
        own = _difference(pairs, "targets" if metric == "nats" else "bytes")
        cell.change_ci95 = records[0].get("rise_ci95") if own is None else own.interval()
    if cell.rankable and len(pairs) == len(values) and (change := _difference(pairs, "bytes")):
        same = all(ours["nats"] == theirs["nats"] for ours, theirs in pairs)
        cell.verdict = SAME_WORD if same else verdict(change)  # same: one measurement, stored twice
        cell.verdict_change, cell.verdict_ci95 = change.value, change.interval()
    return cell


def columns_of(selected: Sequence[Selected]) -> list[Column]:
    """Return a column for each window length that any run was measured at, and for each bin of curves.

    Of the bins those that end at powers of two and the last one are shown.
    """
    by_multiple: dict[float, list[Record]] = defaultdict(list)
    for record in (record for one in selected for record in one.cells.values()):
        by_multiple[multiple_of(record)].append(record)
    columns = []
    for multiple, records in sorted(by_multiple.items()):
        scored = [record for record in records if record["targets"]]
        counts = (single(record[key] for record in scored) for key in ("targets", "documents"))
        column = Column(multiple, single(record["window"] for record in records), *counts)
        if any("rise" in record for record in records):
            octave = math.log2(multiple)
            is_power = abs(octave - round(octave)) < 0.02  # up to the rounding to whole positions
            column.shown = multiple == max(by_multiple) or (multiple >= SHORTEST_SHOWN and is_power)
        columns.append(column)
    return columns


def samples_of(row: Row, multiple: float) -> dict[int, Sample]:
    """Return the sums by document of each seed of a row at one window length."""
    records = {m.run.seed: m.cells.get(multiple) for m in row.members}
    samples = {seed: record["per_document"] for seed, record in records.items() if record}
    return {seed: sample for seed, sample in samples.items() if seed is not None and sample}


def value_of(record: Record | None, metric: Metric) -> float | None:
    """Return the number of a record; None without one or with a note. Perplexity beyond 1e30 is infinite."""
    if record is None or record["note"] is not None or record["nats"] is None:
        return None
    if metric == "ppl":
        ppl = perplexity(record["nats"])
        return ppl if ppl <= HUGE else math.inf
    return record[metric]


def short_note(note: str) -> str:
    """Return the first words of a note, as they fit into a cell: `oom`, `n/a`, `refused`."""
    found = re.match(r"[A-Za-z/]+", note)
    return found.group()[:12] if found else "no number"


def _reason(run: Run, record: Record | None) -> str:
    """Return why a seed has no number."""
    if record is not None:
        return short_note(record["note"]) if record["note"] is not None else "no bytes"
    if run.problem is None and run.state == "finished":
        return "no results" if run.facts is None else NOT_MEASURED
    return run.state


def _difference(pairs: Sequence[tuple[Sample, Sample]], per: Per) -> Estimate | None:
    """Return the mean difference; None without pairs or without bytes."""
    try:
        return difference(pairs, per) if pairs else None
    except ValueError:
        return None


def _holds(record: Record) -> bool:
    """Return whether there are bins past T, and each has its whole interval below a break."""
    curve, length = record["curve"], record["window"] / record["multiple"]
    bins = zip(curve["edges"][:-1], curve["rise_ci95"], strict=True)
    past = [interval for start, interval in bins if start > length]
    return bool(past) and all(interval is not None and interval[1] <= BREAK for interval in past)


def _undertrained(row: Row) -> str | None:
    """Return which seeds' loss at T, as trained, is not clearly below the reference's, and by how much.

    Such a model may extrapolate perfectly, and says nothing about its encoding. Clearly: by 0.1 bits per byte
    with the whole 95% interval over documents (below 10 documents with the difference itself).
    """
    gains = {m.run.seed: gain for m in row.members if (gain := _against_reference(m)) is not None}
    highest = {seed: (gain.interval() or [gain.value])[-1] for seed, gain in gains.items()}
    weak = [seed for seed in gains if highest[seed] >= -REFERENCE]
    if not weak:
        return None
    seeds = "" if len(weak) == len(row.members) else f"seed {', '.join(map(str, weak))}: "
    mean = printed_change(math.fsum(gains[seed].value for seed in weak) / len(weak), "bpb")
    of = f" in the mean of {len(weak)} seeds" if len(weak) > 1 else ""
    return f"{seeds}{mean} bits per byte from the trigram reference{of}"


def _against_reference(member: Selected) -> Estimate | None:
    """Return the loss as trained minus the reference's on the same targets, in bits per byte.

    Of the records that are shown, or of the run's newest ones where their targets have no reference.
    """
    if member.run.state == "diverged":
        return None

    def place(record: Record) -> tuple[str, int]:
        return record["targets_hash"], record["window"]

    plain = [r for r in member.run.records if r["per_document"] is not None and r["extend"] is None]
    references = {place(r): r for r in plain if r["protocol"] == REFERENCE_PROTOCOL}
    losses = [r for r in plain if r["protocol"] != REFERENCE_PROTOCOL and place(r) in references]
    if not losses:
        return None
    shown = {id(record) for record in [*member.records, member.base]}
    best = max(losses, key=lambda record: (id(record) in shown, record["checkpoint_step"]))
    return _difference(pair_of(best, references[place(best)]), "bytes")


# --- runs into rows

CODE = "code"


def as_trained(settings: Mapping[str, Any]) -> str:
    """Return `rope+yarn` where it was trained with an extension, `rope -> nope` with a run's weights."""
    extend = (settings.get("extend") or {}).get("name")
    name = str(spoken_name(settings.get("encoding"))) + (f"+{extend}" if extend not in (None, "none") else "")
    began = (settings.get("train") or {}).get("began")
    return f"{began['encoding']} -> {name}" if began else name


def _name(run: Run) -> str:
    """Return what a row is called: the encoding, and what was trained before it."""
    config = run.config or {}
    began = config["train"].get("began") if isinstance(config.get("train"), dict) else None
    extended = (config.get("extend") or {}).get("name", "none") != "none"
    if not began and not extended:
        return encoding_of(run) or run.name
    more = f" ({float(config['train']['tokens']) / 1e6:g}M tokens)" if began else ""
    return as_trained(config) + more


def group_runs(
    runs: Sequence[Run], selected: Sequence[Selected], mixed: Sequence[dict[str, str]]
) -> list[Row]:
    """Return rows in the order of their labels. Runs without numbers join the row of their settings."""
    settings = _settings(runs)
    groups: dict[tuple[object, ...], Row] = {}
    for one, values in zip(selected, mixed, strict=True):
        encoding, own = _name(one.run), settings[id(one.run)]
        whole = (encoding, tuple(own.items()), tuple(values.items()))
        new = Row(encoding=encoding, extension=one.extension, settings=own, mixed=values)
        groups.setdefault((one.extension, whole), new).members.append(one)
    rows = list(groups.values())
    chosen = {id(one.run) for one in selected}
    for run in runs:
        if id(run) not in chosen:
            _add_without_numbers(rows, run, settings[id(run)])
    for row in rows:
        _keep_one_a_seed(row)
        row.extend = None if row.extension is None else str(json.loads(row.extension)["name"])
        row.beyond = _beyond(row)
        if CODE in row.settings:
            row.notes.append("trained by other code of its encoding than its namesake")
        if row.tuned is not None:
            row.notes.append(f"train.lr={row.settings.get('train.lr')} is tuned: {row.tuned}")
    _label(rows)
    return sorted(rows, key=lambda row: (row.label, sorted(row.mixed.items())))


def _settings(runs: Sequence[Run]) -> dict[int, dict[str, str]]:
    """Return the settings of each run by id, sorted; with the encoding's code where it had several.

    Averaged over two formulas a row would be of none. Older runs do not name theirs.
    """
    settings = {id(run): dict(sorted(settings_of(run).items())) for run in runs}
    alike: dict[object, list[Run]] = defaultdict(list)
    for run in runs:
        alike[_name(run), tuple(settings[id(run)].items())].append(run)
    for some in alike.values():
        codes = {run.facts["code"] for run in some if run.facts is not None and "code" in run.facts}
        for run in some if len(codes) > 1 else []:
            settings[id(run)][CODE] = (run.facts or {}).get("code", "unknown")
    return settings


def _add_without_numbers(rows: list[Row], run: Run, settings: dict[str, str]) -> None:
    """Add a run to its row; one that diverged to the rows of extensions too: they lack that seed as well."""
    alone = Row(encoding=_name(run), settings=settings, members=[Selected(run)])
    same = [row for row in rows if (row.encoding, row.settings) == (alone.encoding, settings)]
    size = size_of(run)  # where it is known
    same = [row for row in same if size is None or all(size_of(m.run) in (None, size) for m in row.members)]
    trained = [row for row in same if row.extension is None]
    if len(trained) == 1:
        extended = [row for row in same if row.extension and row.mixed == trained[0].mixed]
        for row in [*trained, *(extended if run.state == "diverged" else [])]:
            row.members.append(Selected(run))
    elif unmeasured := [row for row in same if not row.measured]:
        unmeasured[0].members.append(Selected(run))
    else:
        rows.append(alone)


def _keep_one_a_seed(row: Row) -> None:
    """Count a run that is there twice once: with numbers, then first by path."""
    kept: dict[int, Selected] = {}
    unknown = [member for member in row.members if member.run.seed is None]
    for member in sorted(row.members, key=lambda m: (not m.cells, str(m.run.path))):
        seed = member.run.seed
        if seed is not None and kept.setdefault(seed, member) is not member:
            row.notes.append(f"seed {seed} is there more than once, shown: {kept[seed].run.name}")
    row.seeds = sorted(kept)
    row.members = [kept[seed] for seed in row.seeds] + unknown


def _beyond(row: Row) -> str | None:
    """Return the declared policy past T of the encoding or extension, where it has one."""
    records = [record for member in row.members for record in member.cells.values()]
    policy = next((r["beyond"] for r in records if r["beyond"] is not None), None)
    if policy is None and row.extension is None:
        policy = row.settings.get("encoding.beyond")
    return None if policy in (None, "null", "") else policy


def _label(rows: Sequence[Row]) -> None:
    """Name each row by its encoding, its options and the settings in which rows of its encoding differ.

    Where they differ in a choice (`optim.name`), what only belongs to it is not named.
    """
    by_encoding, of_name = defaultdict(list), defaultdict(list)
    for row in rows:
        by_encoding[row.encoding].append(row.settings)
    unlike = {name: differing(some) for name, some in by_encoding.items()}
    for row in rows:
        keys = unlike[row.encoding]
        chosen = tuple(key.removesuffix("name") for key in keys if re.fullmatch(r"\w+\.name", key))
        parts = [row.encoding + (f"+{row.extend}" if row.extend else ""), *options_of(row.settings)]
        for key in keys:
            if key not in row.settings or key in OPTIONS:
                continue
            if not key.startswith(chosen):
                short = key.removeprefix("encoding.").removeprefix("attention.")
                parts.append(f"{short}={row.settings[key]}")
            elif key.endswith(".name"):
                parts.append(row.settings[key])
        parts += [] if row.extension is None else knob_words(json.loads(row.extension))
        row.label = " ".join(parts)
        of_name[row.label, tuple(row.mixed.items())].append(row)
    for twins in of_name.values():
        for row in sorted(twins, key=lambda row: not row.measured)[1:]:
            row.label += f" [{row.members[0].run.name}]"
