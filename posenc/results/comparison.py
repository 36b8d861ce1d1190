"""The comparison: rows are encodings, columns window lengths, seeds are averaged, nothing is dropped."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.errors import UserError
from posenc.results.cells import Cell, make_cell, record_of, value_of
from posenc.results.load import Run
from posenc.results.mixing import mixed_values, refuse_mixed, tokens_trained
from posenc.results.names import visible
from posenc.results.numbers import printed
from posenc.results.records import METRICS, SCHEMA_VERSION, Metric
from posenc.results.rows import Group, group_runs
from posenc.results.selection import Selected, select
from posenc.results.settings import as_text, differing, of_options
from posenc.results.statistics import mean_and_spread


@dataclass
class Column:
    """A window length. `window`, `targets`, `documents` are null where the rows differ in them."""

    multiple: float  # of T
    window: int | None  # tokens
    targets: int | None
    documents: int | None


@dataclass
class Row:
    """An encoding with one set of settings; its cells are in the order of the columns."""

    label: str
    encoding: str
    extend: str | None
    beyond: str | None
    mixed: dict[str, str]  # what this row has of the keys in which the runs differ
    seeds: list[int]
    runs: list[str]
    parameters: int | None
    crop: dict[str, float | None] | None  # mean and spread at W = T as trained: the crop line
    cells: list[Cell]
    notes: list[str]


@dataclass
class Comparison:
    """`header` says what was measured; a value there is null where the runs differ (see `mixed`)."""

    header: dict[str, Any]
    columns: list[Column]
    rows: list[Row]

    def to_dict(self) -> dict[str, Any]:
        """Plain data; perplexities may still be infinite."""
        return {"schema_version": SCHEMA_VERSION, **dataclasses.asdict(self)}


def compare(runs: Sequence[Run], protocol: str, metric: Metric, allow_mixed: bool) -> Comparison:
    """Compare runs by one protocol and metric (nats, bpb, ppl).

    Runs without numbers are rows or cells with their reason. The change is against the same run as trained at
    W = T on the same targets (for an extension: against the crop line). Raises UserError when there are no
    runs, nobody measured this protocol, the metric is unknown, or the runs do not belong in one ranking and
    `allow_mixed` is off.
    """
    if metric not in METRICS:
        raise UserError("--metric", visible(metric), "no such metric", allowed=list(METRICS))
    if not runs:
        raise UserError("DIRS", None, "no runs found", hint="train one first: posenc train encoding=rope")
    selected = select(runs, protocol)
    measured = protocols_of(runs)
    if not selected and measured and protocol not in measured:
        raise UserError("--protocol", visible(protocol), "no run has measured it", allowed=measured)
    mixed = mixed_values(selected)
    if not allow_mixed:
        refuse_mixed(selected, mixed)
    groups = group_runs(runs, selected, mixed)
    columns = _columns(selected)
    rows = [_row(group, columns, metric) for group in groups]
    unlike = list(mixed[0]) if mixed else []
    for i in range(len(columns)):
        _mark_best([row.cells[i] for row in rows], metric, unlike)
    return Comparison(_header(selected, groups, protocol, metric, mixed), columns, rows)


def protocols_of(runs: Sequence[Run]) -> list[str]:
    """The protocols that any of the runs has records of; the headline first, then by name."""
    names = {record["protocol"] for run in runs for record in run.records}
    return sorted(names, key=lambda name: (name != "fixed-target", name))


def _columns(selected: Sequence[Selected]) -> list[Column]:
    by_multiple: dict[float, list[Any]] = {}
    for one in selected:
        for cells in one.cells.values():
            for multiple, record in cells.items():
                by_multiple.setdefault(multiple, []).append(record)
    columns = []
    for multiple, records in sorted(by_multiple.items()):
        scored = [record for record in records if record["targets"]]
        counts = [_single({record[key] for record in scored}) for key in ("targets", "documents")]
        columns.append(Column(multiple, _single({record["window"] for record in records}), *counts))
    return columns


def _row(group: Group, columns: Sequence[Column], metric: Metric) -> Row:
    cells = [make_cell(group, column.multiple, metric) for column in columns]
    bases = [record_of(member, None, 1.0) for member in group.members]
    values = [value for base in bases if base and (value := value_of(base, metric)) is not None]
    crop = dict(zip(("mean", "spread"), mean_and_spread(values), strict=True)) if values else None
    counts = {n for m in group.members if isinstance(n := _parameters(m.run), int)}
    notes = list(group.notes)
    for member in group.members:
        if member.selected is None or member.run.state != "finished":
            reason = member.run.problem or member.run.status.get("reason")
            seed = "" if member.run.seed is None else f"seed {member.run.seed} "
            notes.append(f"{seed}{member.run.state}" + (f": {reason}" if reason else ""))
    notes += _record_notes(group)
    return Row(
        label=group.label,
        encoding=group.encoding,
        extend=group.extend_name,
        beyond=group.beyond,
        mixed=group.mixed,
        seeds=group.seeds,
        runs=[str(member.run.path) for member in group.members],
        parameters=_single(counts),
        crop=crop,
        cells=cells,
        notes=notes,
    )


def _record_notes(group: Group) -> list[str]:
    found: dict[str, list[str]] = {}
    for member in group.members:
        cells = member.selected.cells.get(group.extend, {}) if member.selected else {}
        for multiple, record in sorted(cells.items()):
            if record["note"] is not None:
                places = found.setdefault(record["note"], [])
                places += [f"{multiple:g}x"] if f"{multiple:g}x" not in places else []
    return [f"{', '.join(places)}: {note}" for note, places in found.items()]


def _mark_best(cells: Sequence[Cell], metric: Metric, unlike: Sequence[str]) -> None:
    """Mark the lowest of a column and whatever prints the same; a single candidate is not the best of it."""
    ranked = [cell for cell in cells if cell.rankable and cell.mean is not None]
    if len(ranked) < 2:
        return
    same_targets = len({cell.targets_hash for cell in ranked}) == 1 and ranked[0].targets_hash is not None
    same_text = not {"evaluated on", "split", "stride", "context length", "targets"} & set(unlike)
    if not same_targets and not (metric == "bpb" and "tokenizer" in unlike and same_text):
        return
    if metric != "bpb" and "tokenizer" in unlike:
        return
    lowest = printed(min(cell.mean for cell in ranked if cell.mean is not None), metric)
    for cell in ranked:
        cell.best = cell.mean is not None and printed(cell.mean, metric) == lowest


def _header(
    selected: Sequence[Selected],
    groups: Sequence[Group],
    protocol: str,
    metric: Metric,
    mixed: Sequence[dict[str, str]],
) -> dict[str, Any]:
    def shared(value: Callable[[Selected], Any]) -> Any:
        found = {as_text(value(one)): value(one) for one in selected}
        return next(iter(found.values())) if len(found) == 1 else None

    totals = [n for one in selected if isinstance(n := _parameters(one.run), int)]
    scored = [record for one in selected for record in one.records if record["targets"]]
    labelled = {group.encoding for group in groups}
    others = differing([g.settings for g in groups if g.settings]) if len(labelled) > 1 else []
    others = [key for key in others if not key.startswith("encoding.") and not of_options(key)]
    return {
        "protocol": protocol,
        "metric": metric,
        "unit": METRICS[metric],
        "corpus": shared(lambda one: one.records[0]["corpus"]),
        "fingerprint": shared(lambda one: one.records[0]["fingerprint"]),
        "split": shared(lambda one: one.records[0]["split"]),
        "tokenizer": shared(lambda one: (one.run.facts or {}).get("tokenizer")),
        "context_length": shared(lambda one: (one.run.facts or {}).get("context_length")),
        "model": shared(lambda one: (one.run.facts or {}).get("model")),
        "parameters": _ends(totals),
        "tokens": shared(tokens_trained),
        "seeds": sorted({seed for group in groups for seed in group.seeds}),
        "documents": _ends([record["documents"] for record in scored]),
        "targets": _ends([record["targets"] for record in scored]),
        "beyond": {group.label: group.beyond for group in groups if group.beyond},
        "mixed": {key: sorted({row[key] for row in mixed}) for key in (mixed[0] if mixed else {})},
        "also_differs": {
            k: sorted({g.settings.get(k, "unset") for g in groups if g.settings}) for k in others
        },
        "left_out": sum(one.left_out for one in selected),
    }


def _parameters(run: Run) -> object:
    return (run.facts or {}).get("parameters", {}).get("total")


def _ends(values: Sequence[int]) -> list[int] | None:
    """The fewest and the most."""
    return [min(values), max(values)] if values else None


def _single(values: set[Any]) -> Any:
    return next(iter(values)) if len(values) == 1 else None
