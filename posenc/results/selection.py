"""Which records enter a comparison (one protocol, the last checkpoint, one set of targets); do they mix?"""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posenc.core.errors import UserError, visible
from posenc.results.run import Run, run_names
from posenc.results.schema import REFERENCE_PROTOCOL, Record, multiple_of
from posenc.results.settings import as_text, differing, flatten
from posenc.results.statistics import Sample

UNKNOWN = "unknown"
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

    def record(self, extend: str | None, multiple: float) -> Record | None:
        """Return the record at this window length, if there is one."""
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
    newest = {id(run): _at_checkpoint(run, protocol, (steps or {}).get(id(run))) for run in runs}
    ranked = _rank_sets(runs, newest)
    return [_select_run(run, protocol, newest[id(run)], ranked) for run in runs if newest[id(run)]]


def _at_checkpoint(run: Run, protocol: str, step: int | None) -> list[Record]:
    if run.facts is None or run.state == "diverged":
        return []
    records = [record for record in run.records if record["protocol"] == protocol]
    if step is None:
        step = max((record["checkpoint_step"] for record in records), default=0)
    return [record for record in records if record["checkpoint_step"] == step]


def _rank_sets(runs: Sequence[Run], newest: Mapping[int, list[Record]]) -> dict[TargetSet, tuple[Any, ...]]:
    """Return a sort key for every set of targets; the preferred one sorts first."""
    owners: dict[TargetSet, set[int]] = defaultdict(set)
    measured: dict[TargetSet, list[tuple[int, int]]] = defaultdict(list)  # window, targets
    of_own_corpus = set()
    for run in runs:
        own = (run.facts or {}).get("corpus", {}).get("fingerprint")
        for record in newest[id(run)]:
            key = target_set(record)
            owners[key].add(id(run))
            measured[key].append((record["window"], record["targets"]))
            if record["fingerprint"] == own:
                of_own_corpus.add(key)
    ranked = {}
    for key, pairs in measured.items():
        windows, targets = {window for window, _ in pairs}, max(targets for _, targets in pairs)
        tuned_on = key[1] != "test"  # extensions are tuned on validation documents and measured there too
        foreign = key not in of_own_corpus
        ranked[key] = (tuned_on, -len(owners[key]), foreign, -len(windows), -max(windows), -targets, key)
    return ranked


def _select_run(
    run: Run, protocol: str, records: Sequence[Record], ranked: Mapping[TargetSet, tuple[Any, ...]]
) -> Selected:
    best = min({target_set(record) for record in records}, key=lambda key: ranked[key])
    chosen = [record for record in records if target_set(record) == best]
    knobs = _knobs_shown(chosen)
    selected = Selected(run)
    for record in chosen:
        if knobs[extend_key(record)] == _knobs(record):
            selected.cells.setdefault(extend_key(record), {}).setdefault(multiple_of(record), record)
    of_protocol = sum(record["protocol"] == protocol for record in run.records)
    selected.left_out = of_protocol - len(selected.records)
    return selected


def _knobs(record: Record) -> str:
    """Return all that was set; `resolved` is what came of it at one window."""
    if record["extend"] is None:
        return ""
    return json.dumps({**record["extend"], "resolved": None}, sort_keys=True)


def _knobs_shown(records: Sequence[Record]) -> dict[str | None, str]:
    """Return for each extension its knobs with the most and the longest windows.

    Tuned anew on other lengths they may differ, and a row made of both would be of neither.
    """
    windows: dict[tuple[str | None, str], set[int]] = defaultdict(set)
    for record in records:
        windows[extend_key(record), _knobs(record)].add(record["window"])
    order = sorted(windows, key=lambda key: (len(windows[key]), max(windows[key]), key[1]))
    return dict(order)


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
    Raises UserError if nothing is left (of `protocol`).
    """
    asked = {"--length": length, "--corpus": corpus, "--split": split, "--stride": stride}
    if all(value is None for value in asked.values()):
        return list(runs)
    kept = []
    for run in runs:
        some = [r for r in run.records if corpus in (None, r["corpus"]) and split in (None, r["split"])]
        some = [r for r in some if stride is None or r["stride"] in (None, stride)]
        if length is not None:
            sets = {(r["protocol"], target_set(r)) for r in some if math.isclose(r["multiple"], length)}
            sets |= {(REFERENCE_PROTOCOL, targets) for _, targets in sets}
            some = [r for r in some if (r["protocol"], target_set(r)) in sets]
        kept.append(dataclasses.replace(run, records=some))
    if not any(protocol in (None, record["protocol"]) for run in kept for record in run.records):
        _refuse_choice(runs, asked, protocol)
    if stride is not None and not any(r["stride"] == stride for run in kept for r in run.records):
        _refuse_choice(runs, {"--stride": stride}, None)  # kept are those that have no stride
    return kept


def _refuse_choice(runs: Sequence[Run], asked: Mapping[str, Any], protocol: str | None) -> None:
    """Raise UserError for the choice that leaves no record of the protocol, though there are some."""
    there = [record for run in runs for record in run.records if protocol in (None, record["protocol"])]
    given = {key: value for key, value in asked.items() if value is not None}
    given = {key: f"{value:g}x" if key == "--length" else str(value) for key, value in given.items()}
    for key, text in given.items():
        name = "multiple" if key == "--length" else key.removeprefix("--")
        values = sorted({record[name] for record in there} - {None})  # type: ignore[literal-required]
        found = [f"{value:g}x" if key == "--length" else str(value) for value in values]
        if text not in found:
            raise UserError(key, text, "no record is of this", allowed=found or "none")
    if there:
        every = ", ".join(f"{key} {text}" for key, text in given.items())
        raise UserError(every, None, "no record is of all these")


def mixed_values(selected: Sequence[Selected]) -> list[dict[str, str]]:
    """Return for each run the keys that differ anywhere among them, with that run's value as text."""
    rows = [_comparable(one) for one in selected]
    hashes = _differing_targets(selected)
    models = [flatten((one.run.facts or {}).get("model", {})) for one in selected]
    unlike = differing(models)
    named = ["name"] if "name" in unlike else unlike
    for one, row, model in zip(selected, rows, models, strict=True):
        row["model"] = " ".join(
            model.get(k, UNKNOWN) if k == "name" else f"{k}={model.get(k)}" for k in named
        )
        row["targets"] = hashes.get(id(one), "")
    keys = differing(rows)
    if any(key in keys for key in ("evaluated on", "split", "stride", "tokenizer", "context length")):
        keys = [key for key in keys if key != "targets"]  # then the targets differ anyway: name the cause
    return [{key: row[key] for key in keys} for row in rows]


def refuse_mixed(selected: Sequence[Selected], mixed: Sequence[Mapping[str, str]]) -> None:
    """Raise UserError that names every differing key with its values and their runs, if there is one."""
    if not mixed or not mixed[0]:
        return
    lines, every = [], [one.run for one in selected]
    for key in mixed[0]:
        runs = defaultdict(list)
        for one, values in zip(selected, mixed, strict=True):
            runs[values[key]].append(one.run)
        shown = [
            f"{visible(value)} ({visible(run_names(some, among=every))})" for value, some in runs.items()
        ]
        lines.append(f"  {key}: {'; '.join(shown)}")
    problem = "these runs do not belong in one ranking, they differ in\n" + "\n".join(lines)
    hint = "name the runs to compare, or add --allow-mixed to see them side by side, labelled"
    if list(mixed[0]) == ["targets"]:
        keys = ("eval.lengths", "eval.max_targets", "eval.target_fraction")
        settings = [flatten(one.run.config or {}) for one in selected]
        unlike = differing([{key: flat.get(key, "") for key in keys} for flat in settings])
        causes = ", ".join(unlike or ["the longest of eval.lengths"])
        hint = f"the targets depend on {causes}: posenc eval run=DIR with the same again\n" + hint
    raise UserError("compare", None, problem, hint=hint)


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
    }


def tokens_trained(one: Selected) -> int | str:
    """Return the tokens that the measured checkpoint had seen: fewer than the run's for an earlier one."""
    facts, step = one.run.facts or {}, one.records[0]["checkpoint_step"]
    tokens, steps = facts.get("tokens"), facts.get("steps")
    if not isinstance(tokens, int):
        return UNKNOWN
    return tokens * step // steps if isinstance(steps, int) and 0 < step < steps else tokens


def _differing_targets(selected: Sequence[Selected]) -> dict[int, str]:
    """Return the hash of each run's targets in the first column where they are not all the same, by id."""
    columns: dict[float, dict[int, str]] = defaultdict(dict)
    for one in selected:
        for cells in one.cells.values():
            for multiple, record in cells.items():
                column = 0.0 if "curve" in record else multiple  # curves share their columns, the bins
                columns[column].setdefault(id(one), record["targets_hash"])
    for _, hashes in sorted(columns.items()):
        if len(set(hashes.values())) > 1:
            return hashes
    return {}
