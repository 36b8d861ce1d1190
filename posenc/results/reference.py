"""The trigram reference: the loss of a smoothed byte trigram of the training text on the same targets.

In-length quality stands beside every ratio: a model that has learned less than pairs of bytes extrapolates
perfectly, and says nothing about its encoding.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from posenc.results.cells import value_of
from posenc.results.columns import single
from posenc.results.numbers import printed_change
from posenc.results.records import METRICS, REFERENCE_PROTOCOL, Metric, Record
from posenc.results.rows import Group, Member
from posenc.results.selection import Selected
from posenc.results.statistics import Estimate, difference
from posenc.results.verdicts import CONFIDENCE, REFERENCE


def reference(selected: Sequence[Selected], metric: Metric) -> dict[str, Any] | None:
    """The reference on the targets that are shown; `mean` is null where runs differ; None without."""
    values = set()
    for one in selected:
        hashes = {record["targets_hash"] for record in one.records}
        for record in one.run.records:
            if record["protocol"] == REFERENCE_PROTOCOL and record["targets_hash"] in hashes:
                values.add(value_of(record, metric))
    if not values - {None}:
        return None
    return {"protocol": REFERENCE_PROTOCOL, "mean": single(values), "unit": METRICS[metric]}


def undertrained(group: Group) -> str | None:
    """A warning that names the seeds whose loss at W = T, as trained, is not clearly below the reference.

    Clearly: by 0.1 bits per byte with the whole 95% interval over documents (below 30 documents, where there
    is none, with the difference itself).
    """
    gains = {m.run.seed: gain for m in group.members if (gain := _against_reference(m)) is not None}
    weak = {seed: gain for seed, gain in gains.items() if not _clearly_below(gain)}
    if not weak:
        return None
    seeds = "" if len(weak) == len(group.members) else f" (seed {', '.join(map(str, weak))})"
    worst = max(gain.value for gain in weak.values())
    return (
        f"undertrained{seeds}: at 1x not clearly {REFERENCE:g} bits per byte below the trigram reference "
        f"(it is at {printed_change(worst, 'bpb')})"
    )


def _clearly_below(gain: Estimate) -> bool:
    interval = gain.interval(CONFIDENCE)
    return (gain.value if interval is None else interval[1]) < -REFERENCE


def _against_reference(member: Member) -> Estimate | None:
    """The loss as trained minus the reference's on the same targets, in bits per byte.

    Of the records that are shown; of a protocol that has no reference of its own, of the run's newest ones.
    """
    run, selected = member.run, member.selected
    if run.state == "diverged":
        return None
    references = {
        (record["targets_hash"], record["window"]): record
        for record in run.records
        if record["protocol"] == REFERENCE_PROTOCOL and record["per_document"] is not None
    }
    shown = list(selected.cells.get(None, {}).values()) if selected else []
    others = [record for record in run.records if record["protocol"] != REFERENCE_PROTOCOL]
    losses = _of(references, shown) or _of(references, others)
    if not losses:
        return None
    newest = max(losses, key=lambda record: record["checkpoint_step"])
    other = references[newest["targets_hash"], newest["window"]]
    try:
        return difference([(newest["per_document"] or {}, other["per_document"] or {})], "bytes")
    except ValueError:  # no bytes
        return None


def _of(references: Collection[tuple[str, int]], records: Sequence[Record]) -> list[Record]:
    """The losses as trained that there is a reference for."""
    return [
        record
        for record in records
        if record["extend"] is None
        and record["per_document"] is not None
        and (record["targets_hash"], record["window"]) in references
    ]
