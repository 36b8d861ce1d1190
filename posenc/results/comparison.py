"""The comparison: rows are encodings, columns are window lengths, numbers are means over seeds.

Runs that cannot share a ranking (another corpus, length, model, set of targets) get a table of their own.
A run without numbers is shown with its reason.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import math
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from posenc.core.errors import UserError
from posenc.results.load import Run
from posenc.results.recall_headroom import LEVEL, RecallColumns, long_trained, recall_of_rows, recovered_of
from posenc.results.rows import (
    CODE,
    Column,
    Row,
    columns_of,
    group_runs,
    measure,
    samples_of,
    single,
    value_of,
)
from posenc.results.schema import (
    HEADLINE,
    METRICS,
    RECALL,
    REFERENCE_PROTOCOL,
    SCHEMA_VERSION,
    UNIT,
    Metric,
    Record,
)
from posenc.results.settings import (
    Group,
    Selected,
    differing,
    mixed_values,
    select,
    split_runs,
    tokens_trained,
)
from posenc.results.statistics import COLLAPSED, CONFIDENCE, SAME, compare_with

ALL = "all"  # a request's protocol: a table for each one measured


@dataclass(frozen=True)
class CompareRequest:
    """What is compared and shown; the defaults choose everything, in the order of names.

    `rows`, `columns`, `sort` and `baseline` apply to the tables that have such rows and columns.
    """

    protocol: str = HEADLINE  # or ALL
    metric: Metric = "nats"
    rows: Sequence[str] = ()  # labels or encodings, globs; shown in this order
    columns: Sequence[float] = ()  # multiples of T
    sort: str | None = None  # name, 8x (the loss there), change or change@8x; `-` in front reverses it
    baseline: str | None = None  # the row that is subtracted from the others
    allow_mixed: bool = False  # one table of all runs, labelled by what differs, not ranked across it
    recall_level: float = LEVEL  # per cent within T: a row below it did not learn


@dataclass
class Comparison:
    """One table. `header` says what was measured; a value is null where the runs differ (see `mixed`)."""

    header: dict[str, Any]
    columns: list[Column]
    rows: list[Row]
    recall: RecallColumns | None = None  # of the protocol `recall`; null where no row has it

    @property
    def runs(self) -> list[Run]:
        """The runs of its rows, each once."""
        return list({str(m.run.path): m.run for row in self.rows for m in row.members}.values())

    @property
    def selected(self) -> list[Selected]:
        """The records of its rows."""
        return [member for row in self.rows for member in row.members if member.cells]

    def to_dict(self) -> dict[str, Any]:
        """Return plain data; perplexities may still be infinite."""
        rows = [dataclasses.replace(row, members=[]) for row in self.rows]
        plain = dataclasses.asdict(dataclasses.replace(self, rows=rows))
        for row in plain["rows"]:
            for key in ("members", "settings", "extension"):
                del row[key]
        return {"schema_version": SCHEMA_VERSION, **plain}


EVERYTHING = CompareRequest()


def compare_runs(runs: Sequence[Run], request: CompareRequest = EVERYTHING) -> list[Comparison]:
    """Compare runs; return a table for each set of them that can share a ranking, most runs first.

    Runs without numbers are rows or cells with their reason. The change is against the same run as trained at
    W = T on the same targets (for an extension: against the crop line). What is not shown is not ranked.
    `header["group"]` says what tells a table from the others. Raises UserError for what no table has.
    """
    if not 0 <= request.recall_level <= 100:  # nan, too
        raise UserError("--recall-level", request.recall_level, "not a percentage", allowed="0 to 100")
    tables = _choose_rows(_tables(runs, request), request.rows)
    _choose_columns(tables, request.columns)
    baselines = _where_it_fits(request.baseline, tables, _find_baseline)
    protocols = list(dict.fromkeys(table.header["protocol"] for table in tables))
    references = {protocol: long_trained(runs, protocol) for protocol in protocols}
    for table, baseline in zip(tables, baselines, strict=True):
        _compare(table, baseline, request.recall_level, references[table.header["protocol"]])
    for table, rows in zip(tables, _where_it_fits(request.sort, tables, _ordered), strict=True):
        table.rows = rows or table.rows

    def place(one: Comparison) -> tuple[int, bool]:
        """Put what is held against long-trained runs before their table."""
        return protocols.index(one.header["protocol"]), not any(row.recovered for row in one.rows)

    return sorted(tables, key=place)


def protocols_of(runs: Sequence[Run]) -> list[str]:
    """Return the protocols that any of the runs has records of; the headline first, no reference."""
    names = {record["protocol"] for run in runs for record in run.records} - {REFERENCE_PROTOCOL}
    return sorted(names, key=lambda name: (name != HEADLINE, name))


def _tables(runs: Sequence[Run], request: CompareRequest) -> list[Comparison]:
    """Return the tables in their order, with the rows alone. Raises UserError."""
    if request.metric not in METRICS:
        raise UserError("--metric", request.metric, "no such metric", allowed=list(METRICS))
    if not runs:
        raise UserError("DIRS", None, "no runs found", hint="train one first: posenc train encoding=rope")
    measured = protocols_of(runs)
    if measured and request.protocol not in (ALL, *measured):
        hint = "one that there is: posenc eval run=DIR 'eval.protocols=[...]'"
        allowed = [*measured, ALL]
        raise UserError("--protocol", request.protocol, "no run has measured it", allowed=allowed, hint=hint)
    asked = (measured or [HEADLINE]) if request.protocol == ALL else [request.protocol]
    tables, metric = [], request.metric
    for protocol in asked:
        whole: list[Group] = [({}, list(runs), select(runs, protocol))] if request.allow_mixed else []
        for group, members, selected in whole or split_runs(runs, protocol):
            in_nats = any(one.curve for one in selected)
            if in_nats and metric != "nats" and request.protocol != ALL:
                raise UserError("--metric", metric, f"{protocol} is in nats per token", allowed=["nats"])
            if selected or not measured or request.protocol != ALL:
                rows = group_runs(members, selected, mixed_values(selected))
                own = "nats" if in_nats else metric
                header = {"protocol": protocol, "group": dict(group), "metric": own}
                tables.append(Comparison(header, [], rows))
    return tables


def _choose_rows(tables: list[Comparison], asked: Sequence[str]) -> list[Comparison]:
    """Return the tables with the rows that are asked for, without those that have none. Raises UserError.

    A table keeps the values that still tell it from the others, a row those in which its table differs.
    """
    there = {name for table in tables for row in table.rows for name in row.names}
    for pattern in asked:
        if pattern not in there and not fnmatch.filter(there, pattern):
            raise UserError("--rows", pattern, "there is no such row", allowed=sorted(there))
    for table in tables if asked else ():
        pairs = [(pattern, row) for pattern in asked for row in table.rows]
        fits = {id(r): r for one, r in pairs if one in r.names or fnmatch.filter(r.names, one)}
        table.rows = list(fits.values())
    tables = [table for table in tables if table.rows or not asked]
    groups = [table.header["group"] for table in tables]
    shared = {key for group in groups for key in group if len({one.get(key) for one in groups}) == 1}
    for table in tables:
        group, selected = table.header["group"], table.selected
        mixed = mixed_values(selected)
        table.header["group"] = {key: value for key, value in group.items() if key not in shared}
        keys = mixed[0] if mixed else {}
        table.header["mixed"] = {key: sorted({own[key] for own in mixed}) for key in keys}
        values = {id(one.run): own for one, own in zip(selected, mixed, strict=True)}
        for row in table.rows:
            row.mixed = next((values[id(m.run)] for m in row.members if id(m.run) in values), {})
    return tables


def _where_it_fits(asked: str | None, tables: Sequence[Any], choose: Callable[[Any, str], Any]) -> list[Any]:
    """Return what an option chooses in each table, None where it does not fit; UserError if nowhere."""
    found, errors = [], []
    for table in tables:
        try:
            found.append(None if asked is None else choose(table, asked))
        except UserError as error:
            found.append(None)
            errors.append(error)
    if errors and len(errors) == len(tables):
        raise errors[0]
    return found


def _compare(
    table: Comparison, baseline: int | None, level: float, references: Sequence[tuple[Run, Record]]
) -> None:
    """Fill a table with its numbers and its header."""
    rows, columns = table.rows, table.columns
    for row in rows:
        measure(row, columns, table.header["metric"])
        row.recovered = recovered_of(row.members, references)
    for i in range(len(columns)):
        _rank(table, i, baseline)
    table.header = _header(table) | {"baseline": None if baseline is None else rows[baseline].full_label}
    if table.header["protocol"] in (HEADLINE, RECALL):
        hidden = {one.multiple for one in columns_of(table.selected)} - {one.multiple for one in columns}
        table.recall, every = recall_of_rows(_beside(rows, RECALL), level, hidden)
        for row, own in zip(rows, every, strict=True):
            row.recall = own


def _beside(rows: Sequence[Row], protocol: str) -> list[list[Selected]]:
    """Return the records of another protocol of each row's runs, of the checkpoint whose loss is shown."""
    runs = {id(member.run): member.run for row in rows for member in row.members}
    shown = [member for row in rows for member in row.members if member.cells]
    steps = {id(one.run): one.records[0]["checkpoint_step"] for one in shown}
    there = {(id(one.run), one.extension): one for one in select([*runs.values()], protocol, steps)}
    return [[there.get((id(m.run), row.extension), Selected(m.run)) for m in row.members] for row in rows]


def _rank(table: Comparison, at: int, baseline: int | None) -> None:
    """Compare each row of a column with the best and with the baseline, if they may be compared."""
    cells, multiple = [row.cells[at] for row in table.rows], table.columns[at].multiple
    metric = table.header["metric"]
    if sum(cell.rankable for cell in cells) < 2 or not _comparable(table, at):
        return
    samples = [samples_of(row, multiple) if row.cells[at].rankable else None for row in table.rows]
    if not all(any(one["bytes"]) for some in samples if some for one in some.values()):
        return  # the margin is in bits per byte, and a probe of random tokens has no bytes
    for i, versus in compare_with(samples, None, metric).items():
        cells[i].versus_best = versus
    against = {} if baseline is None else compare_with(samples, baseline, metric)
    for i, versus in against.items():
        cells[i].versus_baseline = versus


def _comparable(table: Comparison, at: int) -> bool:
    """Return whether the same targets were scored, or in bits per byte the same text by two tokenizers.

    As much text has to come before each target, which the stride and T decide. Perplexities are not ranked:
    their means over seeds are not those of the losses.
    """
    unlike, metric = {*table.header["mixed"]}, table.header["metric"]
    hashes: dict[str | None, set[str | None]] = defaultdict(set)  # by tokenizer
    for row in table.rows:
        if row.cells[at].rankable:
            hashes[row.mixed.get("tokenizer")].add(row.cells[at].targets_hash)
    if metric == "ppl" or unlike & {"stride", "context length"}:
        return False
    if any(len(of_one) != 1 or None in of_one for of_one in hashes.values()):
        return False
    if "tokenizer" in unlike and metric != "bpb":
        return False
    same_text = "tokenizer" in unlike and not unlike & {"evaluated on", "split", "target set"}
    return same_text or len(set.union(*hashes.values())) == 1


def _header(table: Comparison) -> dict[str, Any]:
    """Return what the rows share; a value is null where the runs differ in it (`mixed` says how)."""
    selected, rows, metric = table.selected, table.rows, table.header["metric"]

    def ends(values: Sequence[int]) -> list[int] | None:
        return [min(values), max(values)] if values else None

    units = single(record["unit"] for one in selected for record in one.records)
    scored = [record for one in selected for record in one.records if record["targets"]]
    settings = [row.settings for row in rows if row.settings]
    several = len({row.encoding for row in rows}) > 1
    named = ("encoding.", "attention.", "positions.", CODE)  # in the rows' labels and notes
    others = [key for key in differing(settings) if several and not key.startswith(named)]
    of_records, of_runs = ("corpus", "fingerprint", "split", "stride"), ("tokenizer", "context_length")
    return {
        **{key: table.header[key] for key in ("protocol", "group", "metric")},
        "unit": (units or UNIT) if metric == "nats" else METRICS[metric],
        **{key: single(one.records[0].get(key) for one in selected) for key in of_records},
        **{key: single((one.run.facts or {}).get(key) for one in selected) for key in of_runs},
        "model": single(one.run.sizes for one in selected),
        "parameters": ends([n for one in selected if (n := one.run.parameters) is not None]),
        "tokens": single(map(tokens_trained, selected)),
        "seeds": sorted({seed for row in rows for seed in row.seeds}),
        "documents": ends([record["documents"] for record in scored]),
        "targets": ends([record["targets"] for record in scored]),
        "mixed": table.header["mixed"],
        "also_differs": {key: sorted({own.get(key, "unset") for own in settings}) for key in others},
        "reference": _reference(selected, metric),
        "margins": {"unit": METRICS["bpb"], "same": SAME, "collapsed": COLLAPSED, "confidence": CONFIDENCE},
        "left_out": sum({id(one.run): one.left_out for one in selected}.values()),
    }


def _reference(selected: Sequence[Selected], metric: Metric) -> dict[str, Any] | None:
    """Return the trigram reference on the targets that are shown: the loss of a smoothed byte trigram.

    `mean` is null where runs differ; None without one.
    """
    values = set()
    for one in selected:
        hashes = {record["targets_hash"] for record in one.records}
        references = [record for record in one.run.records if record["protocol"] == REFERENCE_PROTOCOL]
        values |= {value_of(record, metric) for record in references if record["targets_hash"] in hashes}
    if not values - {None}:
        return None
    return {"protocol": REFERENCE_PROTOCOL, "mean": single(values), "unit": METRICS[metric]}


def _find_baseline(table: Comparison, asked: str) -> int:
    """Return the index of the row that `asked` names, or its encoding with one row. Raises UserError."""
    found: list[int] = []
    for names in (lambda row: {row.full_label}, lambda row: {row.label}, lambda row: row.names):
        found = found or [i for i, row in enumerate(table.rows) if asked in names(row)]
    if len(found) == 1:
        return found[0]
    problem = "stands for several rows" if found else "there is no such row among those shown"
    allowed = [row.full_label for i, row in enumerate(table.rows) if i in found or not found]
    raise UserError("--baseline", asked, problem, allowed=allowed)


def _choose_columns(tables: Sequence[Comparison], asked: Sequence[float]) -> None:
    """Give each table the columns that are asked for, or all if it has none of them. Raises UserError."""
    there: set[float] = set()
    for table in tables:
        every = columns_of(table.selected)
        there |= {column.multiple for column in every}
        chosen = [c for c in every if any(math.isclose(one, c.multiple, rel_tol=1e-4) for one in asked)]
        table.columns = [dataclasses.replace(column, shown=True) for column in chosen] or every
    for multiple in asked:
        if not any(math.isclose(multiple, one, rel_tol=1e-4) for one in there):
            hint = "multiples of T, not tokens; if it has targets of its own: compare that run alone"
            shown = ", ".join(f"{one:g}x" for one in sorted(there))
            raise UserError("--columns", f"{multiple:g}x", "nobody measured it", allowed=shown, hint=hint)


def _ordered(comparison: Comparison, order: str) -> list[Row]:
    """Return the rows in the order asked for; those without that number last. Raises UserError."""
    sign, asked, rows = -1 if order.startswith("-") else 1, order.removeprefix("-"), comparison.rows
    places = {id(row): i for i, row in enumerate(sorted(rows, key=lambda row: row.label))}
    keys: dict[str, list[float | None]] = {"name": [places[id(row)] for row in rows]}
    lengths = [f"{column.multiple:g}x" for column in comparison.columns]
    keys |= {name: [row.cells[i].mean for row in rows] for i, name in enumerate(lengths)}
    keys |= {f"change@{name}": [row.cells[i].change for row in rows] for i, name in enumerate(lengths)}
    keys["change"] = [row.cells[-1].change if row.cells else None for row in rows]
    if comparison.recall is not None:
        learned = [row.recall.beyond[-1:] if row.recall and row.recall.learned else [] for row in rows]
        keys[RECALL] = [cells[0].accuracy if cells and cells[0] else None for cells in learned]
    if asked not in keys:
        raise UserError("--sort", order, "cannot sort by this", allowed=list(keys))
    found = sorted(zip(keys[asked], range(len(rows)), strict=True), key=lambda one: sign * (one[0] or 0.0))
    return [rows[i] for _, i in sorted(found, key=lambda one: one[0] is None)]
