"""Up to where more text does no harm (effective context), and whether T tokens serve better than T/2."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from posenc.results.cells import Scores, record_of, short, value_of
from posenc.results.records import Metric, Record
from posenc.results.rows import Group, Member
from posenc.results.statistics import Per, difference, same_targets
from posenc.results.verdicts import CONFIDENCE, EFFECTIVE


@dataclass
class EffectiveContext:
    """The largest window whose loss is within 0.02 nats of the row's best, on the same targets."""

    multiple: float  # of T
    window: int  # tokens
    longest: bool  # no longer one has a number of all the row's seeds, so it may be more


@dataclass
class UsesContext:
    """The loss at T minus that at T/2 on the same targets; below 0 it makes use of the second half."""

    change: float  # mean over seeds
    ci95: list[float] | None  # over seeds and documents; null below 30 documents
    seeds: int
    unit: str


def effective_context(group: Group, multiples: Sequence[float]) -> EffectiveContext | None:
    """Of the mean loss over seeds, at windows that all the row's seeds have; None where fewer than two."""
    losses: list[tuple[float, float, int]] = []  # nats, multiple, tokens
    hashes = set()
    measured = [member for member in group.members if member.selected is not None]
    for multiple in multiples:
        records = [record_of(member, group.extend, multiple) for member in measured]
        values = [value_of(record, "nats") for record in records if record is not None]
        whole = [value for value in values if value is not None]
        if not whole or len(whole) < len(measured):
            continue
        found = [record for record in records if record is not None]
        hashes |= {record["targets_hash"] for record in found}
        losses.append((math.fsum(whole) / len(whole), multiple, found[0]["window"]))
    if len(losses) < 2 or len(hashes) != 1:
        return None
    best = min(loss for loss, _, _ in losses)
    near = [(multiple, window) for loss, multiple, window in losses if loss <= best + EFFECTIVE]
    multiple, window = max(near)
    longer = [one for one in multiples if one > multiple]
    complete = {one for _, one, _ in losses}
    told = any(one in complete or _has_no_number(measured, group.extend, one) for one in longer)
    return EffectiveContext(multiple, window, not told)


def _has_no_number(members: Sequence[Member], extend: str | None, multiple: float) -> bool:
    """Whether the encoding itself has none at this window (refused, n/a): memory and time are no reason."""
    records = (record_of(member, extend, multiple) for member in members)
    return any(record is not None and short(record["note"] or "") in ("refused", "n/a") for record in records)


def uses_context(group: Group, metric: Metric) -> UsesContext | None:
    """Over the seeds that have both windows; None where there is none. Perplexities: in nats."""
    pairs: list[Scores] = []
    for member in group.members:
        full, half = (record_of(member, group.extend, multiple) for multiple in (1.0, 0.5))
        if full is None or half is None or not _pairable(full, half):
            continue
        pairs.append((full["per_document"] or {}, half["per_document"] or {}))
    if not pairs:
        return None
    per: Per = "bytes" if metric == "bpb" else "targets"
    try:
        estimate = difference(pairs, per)
    except ValueError:  # no bytes
        return None
    interval = estimate.interval(CONFIDENCE)
    unit = "bits per byte" if metric == "bpb" else "nats per token"
    return UsesContext(estimate.value, None if interval is None else list(interval), len(pairs), unit)


def _pairable(a: Record, b: Record) -> bool:
    ours, theirs = a["per_document"], b["per_document"]
    if ours is None or theirs is None or a["targets_hash"] != b["targets_hash"]:
        return False
    return same_targets(ours, theirs)
