"""The comparison: rows are encodings, columns window lengths, seeds are averaged, nothing is dropped."""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from posenc.core.errors import UserError, visible
from posenc.results.baseline import against_baseline, find_baseline
from posenc.results.cells import NOT_MEASURED, Cell, make_cell, record_of, samples_of, value_of
from posenc.results.columns import Column, bin_columns, single, window_columns, window_multiples
from posenc.results.context import EffectiveContext, UsesContext, effective_context, uses_context
from posenc.results.curves import CurveSummary, has_curves, make_bin_cell, summary
from posenc.results.extensions import ExtensionColumn, extension_columns, fold, notes_of
from posenc.results.header import header_of, parameters_of
from posenc.results.load import Run
from posenc.results.mixing import mixed_values, refuse_mixed
from posenc.results.probes import PROBES, Probe, ProbeColumn, probe_columns
from posenc.results.ranking import Pair, compare_pairs, marks, surely_below
from posenc.results.records import HEADLINE, INFLATED, METRICS, REFERENCE_PROTOCOL, SCHEMA_VERSION, Metric
from posenc.results.reference import undertrained
from posenc.results.rows import Group, full_label, group_runs, names_of, relabel, shown_of
from posenc.results.selection import multiple_of, select
from posenc.results.statistics import mean_and_spread
from posenc.results.view import View, choose, choose_multiples, sort_rows

EVERYTHING = View()
MOST_PAIRED = 40  # rows; of more only the pairs with the lowest are made, and corrected for all


@dataclass
class Row:
    """An encoding with one set of settings; its cells are in the order of the columns."""

    label: str  # its name in tables: the encoding, and what tells it from its neighbours
    encoding: str  # its name
    extend: str | None  # the name of a test-time extension
    beyond: str | None  # the declared policy past T
    mixed: dict[str, str]  # what this row has of the keys in which the runs differ
    seeds: list[int]  # that there are runs of
    runs: list[str]  # their directories
    parameters: int | None  # of the whole model
    crop: dict[str, float | None] | None  # mean and spread at W = T as trained: the crop line
    cells: list[Cell]
    notes: list[str]  # what is missing or weak, in words
    effective_context: EffectiveContext | None = None
    uses_context: UsesContext | None = None
    curve: CurveSummary | None = None  # of the protocol `positions`
    probes: list[Probe] = field(default_factory=list)  # in the order of the comparison's
    extensions: list[Cell | None] = field(default_factory=list)  # in the order of the comparison's


@dataclass
class Comparison:
    """`header` says what was measured; a value there is null where the runs differ (see `mixed`)."""

    header: dict[str, Any]
    columns: list[Column]
    probes: list[ProbeColumn]
    rows: list[Row]
    extensions: list[ExtensionColumn] = field(default_factory=list)  # where they are columns, not rows

    def to_dict(self) -> dict[str, Any]:
        """Plain data; perplexities may still be infinite."""
        return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}


def compare(
    runs: Sequence[Run], protocol: str, metric: Metric, allow_mixed: bool, view: View = EVERYTHING
) -> Comparison:
    """Compare runs by one protocol and metric (nats, bpb, ppl).

    Runs without numbers are rows or cells with their reason. The change is against the same run as trained at
    W = T on the same targets (for an extension: against the crop line). `view` chooses rows and columns; what
    is not shown is not ranked. Raises UserError when there are no runs, nobody measured this protocol, the
    metric is unknown or not the protocol's (curves are in nats), the view asks for what is not there, or the
    runs do not belong in one ranking and `allow_mixed` is off.
    """
    check_asked(runs, protocol, metric)
    return compare_checked(runs, protocol, metric, allow_mixed, view)


def check_asked(runs: Sequence[Run], protocol: str, metric: Metric) -> None:
    """Raise UserError for an unknown metric, no runs, or a protocol that nobody measured."""
    if metric not in METRICS:
        raise UserError("--metric", visible(metric), "no such metric", allowed=list(METRICS))
    if not runs:
        raise UserError("DIRS", None, "no runs found", hint="train one first: posenc train encoding=rope")
    measured = protocols_of(runs)
    if measured and protocol not in measured:
        name, hint = visible(protocol), "one that there is: posenc eval run=DIR 'eval.protocols=[...]'"
        raise UserError("--protocol", name, "no run has measured it", allowed=measured, hint=hint)


def compare_checked(
    runs: Sequence[Run], protocol: str, metric: Metric, allow_mixed: bool, view: View
) -> Comparison:
    """As `compare`, of runs none of which need have measured the protocol: a part of those asked for."""
    selected = select(runs, protocol)
    curves = has_curves(selected)
    if curves and metric != "nats":
        raise UserError("--metric", metric, f"{visible(protocol)} is in nats per token", allowed=["nats"])
    groups = choose(group_runs(runs, selected, mixed_values(selected)), view.rows, names_of, "--rows")
    folded: list[Group] = []
    if view.extensions == "columns":
        groups, folded = fold(groups)
    selected = shown_of(selected, [*groups, *folded])
    mixed = mixed_values(selected)  # of what is shown
    if not allow_mixed:
        refuse_mixed(selected, mixed)
    relabel(selected, mixed, [*groups, *folded])
    baseline = None if view.baseline is None else find_baseline(groups, view.baseline)
    columns = bin_columns(selected) if curves else window_columns(selected)
    of_protocol = (record for run in runs for record in run.records if record["protocol"] == protocol)
    every = sorted({multiple_of(record) for record in of_protocol}) if view.columns else []
    multiples = choose_multiples([column.multiple for column in columns], view.columns, every)
    if curves and view.columns:
        columns = [replace(one, shown=one.multiple in multiples) for one in columns]
    columns = [one for one in columns if one.multiple in multiples]
    rows = [_row(group, columns, metric, curves) for group in groups]
    unlike = list(mixed[0]) if mixed else []
    if not curves:
        measured = window_multiples(selected)
        for row, group in zip(rows, groups, strict=True):
            if protocol not in (*PROBES, INFLATED):  # of these, the loss says nothing of context
                row.effective_context = effective_context(group, measured)
                row.uses_context = uses_context(group, metric)
        for i in range(len(columns)):
            _rank(columns[i], i, rows, groups, metric, unlike, baseline)
    probes, by_row = probe_columns(runs, groups, protocol)
    extensions, extended = extension_columns(groups, folded, multiples, metric, curves)
    for row, group, of_probes, of_extensions in zip(rows, groups, by_row, extended, strict=True):
        row.probes, row.extensions = of_probes, of_extensions
        row.notes += notes_of(group, folded)
    header = header_of(selected, groups, protocol, metric, mixed)
    header["baseline"] = None if baseline is None else full_label(rows[baseline].label, rows[baseline].mixed)
    order = sort_rows(rows, view.sort)
    for column in columns:
        _renumber(column.pairs, order)
    return Comparison(header, columns, probes, [rows[i] for i in order], extensions)


def protocols_of(runs: Sequence[Run]) -> list[str]:
    """The protocols that any of the runs has records of; the headline first, then by name. No reference."""
    names = {record["protocol"] for run in runs for record in run.records}
    names = names.union(*(run.unread for run in runs)) - {REFERENCE_PROTOCOL}
    return sorted(names, key=lambda name: (name != HEADLINE, name))


def tables_of(runs: Sequence[Run]) -> list[str]:
    """The protocols with a table of their own at the end of a job: probes are columns of the headline's."""
    names = protocols_of(runs) or [HEADLINE]
    return [name for name in names if name not in PROBES] if HEADLINE in names else names


def metric_for(runs: Sequence[Run], protocol: str, metric: Metric) -> Metric:
    """`metric`, or nats where the protocol has nothing else."""
    return "nats" if has_curves(select(runs, protocol)) else metric


def _row(group: Group, columns: Sequence[Column], metric: Metric, curves: bool) -> Row:
    if curves:
        cells = [make_bin_cell(group, column.multiple) for column in columns]
    else:
        cells = [make_cell(group, column.multiple, metric) for column in columns]
    bases = [record_of(member, None, 1.0) for member in group.members]
    values = [value for base in bases if base and (value := value_of(base, metric)) is not None]
    crop = dict(zip(("mean", "spread"), mean_and_spread(values), strict=True)) if values else None
    counts = {n for m in group.members if isinstance(n := parameters_of(m.run), int)}
    return Row(
        label=group.label,
        encoding=group.encoding,
        extend=group.extend_name,
        beyond=group.beyond,
        mixed=group.mixed,
        seeds=group.seeds,
        runs=[str(member.run.path) for member in group.members],
        parameters=single(counts),
        crop=None if curves else crop,
        cells=cells,
        notes=_notes(group),
        curve=summary(group) if curves else None,
    )


def _notes(group: Group) -> list[str]:
    notes = list(group.notes)
    for member in group.members:
        if member.selected is None or member.run.state != "finished":
            reason = member.run.reason
            seed = "" if member.run.seed is None else f"seed {member.run.seed} "
            state = NOT_MEASURED if member.run.state == "finished" else member.run.state
            notes.append(f"{seed}{state}" + (f": {reason}" if reason else ""))
    weak = undertrained(group)
    return [*notes, *([weak] if weak and group.extend is None else []), *_record_notes(group)]


def _record_notes(group: Group) -> list[str]:
    found: dict[str, list[str]] = {}
    for member in group.members:
        cells = member.selected.cells.get(group.extend, {}) if member.selected else {}
        for multiple, record in sorted(cells.items()):
            if record["note"] is not None:
                places = found.setdefault(record["note"], [])
                places += [f"{multiple:g}x"] if f"{multiple:g}x" not in places else []
    return [f"{', '.join(places)}: {note}" for note, places in found.items()]


def _rank(
    column: Column,
    at: int,
    rows: Sequence[Row],
    groups: Sequence[Group],
    metric: Metric,
    unlike: Sequence[str],
    baseline: int | None,
) -> None:
    """Compare the rows of a column that may be compared, pair by pair, and mark those near the lowest."""
    cells = [row.cells[at] for row in rows]
    ranked = [cell for cell in cells if cell.rankable and cell.mean is not None]
    by_tokenizer: dict[str | None, set[str | None]] = defaultdict(set)
    for row, cell in zip(rows, cells, strict=True):
        if cell in ranked:
            by_tokenizer[row.mixed.get("tokenizer")].add(cell.targets_hash)
    if len(ranked) < 2 or not _comparable(list(by_tokenizer.values()), metric, unlike):
        return
    samples = [
        samples_of(group, column.multiple) if cell.rankable else None
        for group, cell in zip(groups, cells, strict=True)
    ]
    if not all(any(one["bytes"]) for sample in samples if sample for one in sample.values()):
        return  # the margin is in bits per byte, and a probe of random tokens has no bytes
    labels = [row.label for row in rows]
    means = {i: cell.mean for i, cell in enumerate(cells) if cell.rankable and cell.mean is not None}
    lowest, seen = min(means, key=lambda i: means[i]), set[int]()
    while lowest not in seen:  # of other seeds a mean may be lower, and on the shared ones clearly higher
        seen.add(lowest)
        if not column.pairs or len(means) > MOST_PAIRED:
            column.pairs = compare_pairs(labels, samples, lowest if len(means) > MOST_PAIRED else None)
        lowest = min(surely_below(column.pairs, lowest), key=lambda i: means[i], default=lowest)
    for i, mark in marks(column.pairs, lowest).items():
        cells[i].mark = mark
    if baseline is not None:
        pairs = compare_pairs(labels, samples, baseline, chosen=True)
        for i, against in against_baseline(pairs, baseline, samples, metric).items():
            cells[i].against = against


def _renumber(pairs: Sequence[Pair], order: Sequence[int]) -> None:
    place = {old: new for new, old in enumerate(order)}
    for pair in pairs:
        pair.a, pair.b = place[pair.a], place[pair.b]


def _comparable(hashes: Sequence[set[str | None]], metric: Metric, unlike: Sequence[str]) -> bool:
    """Whether one text was scored: the same targets, or in bits per byte another tokenizer's of that text.

    `hashes` are those of the targets, by tokenizer: of one tokenizer they must be the same.

    With as much before each target: the stride says how much that is, and which targets there are does not.

    Perplexities never rank: their means over seeds are not those of the losses.
    """
    if metric == "ppl" or "stride" in unlike or (metric != "bpb" and "tokenizer" in unlike):
        return False
    if any(len(of_one) != 1 or None in of_one for of_one in hashes):
        return False
    same_text = not {"evaluated on", "split", "context length", "targets"} & set(unlike)
    return len(set.union(*hashes)) == 1 or (metric == "bpb" and "tokenizer" in unlike and same_text)
