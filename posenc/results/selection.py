"""Which records of a run stand in a comparison: one protocol, the last checkpoint, one set of targets."""

from __future__ import annotations

import dataclasses
import json
import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from posenc.core.errors import UserError, visible
from posenc.results.load import Run
from posenc.results.records import REFERENCE_PROTOCOL, Record

TargetSet = tuple[str, str, int, str]  # fingerprint, split, stride or 0, hash of the targets


@dataclass
class Selected:
    """The records of one run, by extension (None: as trained) and window multiple."""

    run: Run
    cells: dict[str | None, dict[float, Record]] = field(default_factory=dict)  # key: extension as JSON
    left_out: int = 0  # records of this protocol that belong to another checkpoint, corpus or set of targets

    @property
    def records(self) -> list[Record]:
        """All of them."""
        return [record for cells in self.cells.values() for record in cells.values()]


def multiple_of(record: Record) -> float:
    """The window as a multiple of T, rounded so that it can be a key."""
    return round(record["multiple"], 6)


def select(runs: Sequence[Run], protocol: str, steps: Mapping[int, int] | None = None) -> list[Selected]:
    """The records of `protocol`, a Selected for each run that has some and has not diverged.

    Of the newest checkpoint that was measured so, or of the step that `steps` has for the run's id.

    Where a run was measured on several sets of targets, one of the test split is taken, of those the one that
    most runs share, then the run's own corpus, the most and the longest windows, the most targets.
    """
    last = {id(run): _at_checkpoint(run, protocol, (steps or {}).get(id(run))) for run in runs}
    ranked = _rank(runs, last)
    return [_select_run(run, protocol, last[id(run)], ranked) for run in runs if last[id(run)]]


def parse_multiple(text: str, option: str = "--length") -> float:
    """`16x` as 16.0. Raises UserError."""
    try:
        multiple = float(text.removesuffix("x"))
    except ValueError:
        multiple = math.nan
    if not (math.isfinite(multiple) and multiple > 0):
        raise UserError(option, visible(text), "not a multiple of T", allowed="0.5x, 1x, 16x and the like")
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
    """The runs with just the records that are asked for; None asks for nothing.

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
    if not any(_of(run.records, protocol) for run in kept):
        _refuse_choice(runs, asked, protocol)
    if stride is not None and not any(r["stride"] == stride for run in kept for r in run.records):
        _refuse_choice(runs, {"--stride": stride}, None)  # kept are those that have no stride
    return kept


def _of(records: Sequence[Record], protocol: str | None) -> list[Record]:
    return [record for record in records if protocol in (None, record["protocol"])]


def _refuse_choice(runs: Sequence[Run], asked: dict[str, Any], protocol: str | None) -> None:
    """Raise UserError for the choice that leaves no record of the protocol, though there are some."""
    there = [record for run in runs for record in _of(run.records, protocol)]
    shown = {
        "--length": lambda r: f"{r['multiple']:g}x",
        "--corpus": lambda r: r["corpus"],
        "--split": lambda r: r["split"],
        "--stride": lambda r: r["stride"],
    }
    for key, value in asked.items():
        if value is None:
            continue
        found = sorted({shown[key](record) for record in there} - {None}, key=_by_number)
        text = f"{value:g}x" if key == "--length" else visible(value)
        if text not in map(str, found):
            raise UserError(
                key, text, "no record is of this", allowed=[visible(one) for one in found] or "none"
            )
    if there:
        given = ", ".join(f"{key} {visible(value)}" for key, value in asked.items() if value is not None)
        raise UserError(given, None, "no record is of all these")


def _by_number(shown: Any) -> tuple[float, str]:
    try:
        return float(str(shown).removesuffix("x")), ""
    except ValueError:
        return math.inf, str(shown)


def target_set(record: Record) -> TargetSet:
    """What was scored."""
    return record["fingerprint"], record["split"], record["stride"] or 0, record["targets_hash"]


def _at_checkpoint(run: Run, protocol: str, step: int | None) -> list[Record]:
    if run.facts is None or run.state == "diverged":
        return []
    records = [record for record in run.records if record["protocol"] == protocol]
    if step is None:
        step = max((record["checkpoint_step"] for record in records), default=0)
    return [record for record in records if record["checkpoint_step"] == step]


def _rank(runs: Sequence[Run], last: dict[int, list[Record]]) -> dict[TargetSet, tuple[Any, ...]]:
    """A sort key for every set of targets; the preferred one sorts first."""
    owners: dict[TargetSet, set[int]] = defaultdict(set)
    windows: dict[TargetSet, set[int]] = defaultdict(set)
    own: dict[TargetSet, int] = defaultdict(int)
    targets: dict[TargetSet, int] = defaultdict(int)
    for run in runs:
        trained_on = (run.facts or {}).get("corpus", {}).get("fingerprint")
        for record in last[id(run)]:
            key = target_set(record)
            owners[key].add(id(run))
            windows[key].add(record["window"])
            own[key] += record["fingerprint"] == trained_on
            targets[key] = max(targets[key], record["targets"])
    return {
        key: (
            key[1] != "test",  # what was tuned on validation documents was measured there, and is not to win
            -len(owners[key]),
            own[key] == 0,
            -len(windows[key]),
            -max(windows[key]),
            -targets[key],
            key,
        )
        for key in owners
    }


def _select_run(
    run: Run, protocol: str, records: list[Record], ranked: dict[TargetSet, tuple[Any, ...]]
) -> Selected:
    by_set: dict[TargetSet, list[Record]] = defaultdict(list)
    for record in records:
        by_set[target_set(record)].append(record)
    selected = Selected(run)
    chosen = by_set[min(by_set, key=lambda key: ranked[key])]
    knobs = _knobs_shown(chosen)
    for record in chosen:
        if knobs[extend_key(record)] == _knobs(record):
            cells = selected.cells.setdefault(extend_key(record), {})
            cells.setdefault(multiple_of(record), record)
    of_protocol = sum(record["protocol"] == protocol for record in run.records)
    selected.left_out = of_protocol - len(selected.records)
    return selected


def _knobs(record: Record) -> str:
    """All that was set; `resolved` is what came of it at one window."""
    return json.dumps({**(record["extend"] or {}), "resolved": None}, sort_keys=True)


def _knobs_shown(records: Sequence[Record]) -> dict[str | None, str]:
    """For each extension its knobs with the most and the longest windows.

    Chosen anew on other lengths they may differ, and a row made of both would be of neither.
    """
    windows: dict[tuple[str | None, str], set[int]] = defaultdict(set)
    for record in records:
        windows[extend_key(record), _knobs(record)].add(record["window"])
    order = sorted(windows, key=lambda key: (len(windows[key]), max(windows[key]), key[1]))
    return dict(order)


def extend_key(record: Record) -> str | None:
    """The extension with its parameters as one comparable text, the same at every window.

    Knobs that were chosen on validation documents are left out: each seed chooses its own.
    """
    if record["extend"] is None:
        return None
    left_out = {"resolved", *record["extend"].get("tuned", [])}
    kept = {key: value for key, value in record["extend"].items() if key not in left_out}
    return json.dumps(kept, sort_keys=True)
