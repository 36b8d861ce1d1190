"""Headroom: the share of what the far text is worth that a short-trained model gains from it.

recovered = (L(T) - L(8T)) / (L(T) - R(8T)): L is the loss of a model trained at T in windows of T and 8T, R
that of one trained at 8T in windows of 8T, of the same encoding, settings and tokens, on the same targets.
0% is what cropping gives, 100% is as good as training long, below 0 the far text harms.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from posenc.results.load import Run, encoding_of
from posenc.results.ranking import interval_of
from posenc.results.schema import HEADLINE, Record
from posenc.results.selection import Selected
from posenc.results.settings import settings_of, size_of
from posenc.results.statistics import Estimate, Ratio, Sample, document_part, mean_and_spread, ratios_of

PROTOCOLS = (HEADLINE, "key-tokens")  # the targets are the same at every window, and see a whole one
NO_ROOM, FEW_DOCUMENTS = "no room", "too few documents"


@dataclass
class Recovered:
    """How much of the room between its loss at T and the long-trained model's a row gains past T."""

    share: float | None  # 0: cropping, 1: as good as training long; null where there is no room
    ci95: list[float] | None  # of it, over seeds and documents
    room: float  # loss at T minus that of the long-trained model, nats per token
    room_ci95: list[float] | None  # of it; where it includes 0 there is no room
    multiple: float  # of T: the window, and what the long-trained model was trained at
    window: int  # tokens
    reference: float  # loss of the long-trained model, nats per token; mean over seeds
    seeds: int  # of the row
    reference_seeds: int  # of the long-trained model
    note: str | None  # why there is no share


def long_trained(runs: Sequence[Run], protocol: str) -> list[tuple[Run, Record]]:
    """Return the records at their own T of the runs that share their targets with runs of a shorter T."""
    found, lengths = [], defaultdict(set)
    for run in runs if protocol in PROTOCOLS else ():
        if run.facts is None or run.state == "diverged":
            continue
        length = run.facts["context_length"]
        records = [record for record in run.records if record["protocol"] == protocol]
        last = max((record["checkpoint_step"] for record in records), default=0)
        for record in records:
            here = record["window"] == length and record["checkpoint_step"] == last
            if here and record["extend"] is None and record["per_document"] is not None:
                found.append((run, record))
                lengths[record["targets_hash"]].add(length)
    return [(run, one) for run, one in found if one["window"] > min(lengths[one["targets_hash"]])]


def recovered_of(
    members: Sequence[Selected], extension: str | None, references: Sequence[tuple[Run, Record]]
) -> Recovered | None:
    """Return what the seeds of a row recover, against the longest training of its kind; None without one."""
    bases = [(one, base) for one in members if (base := one.record(None, 1.0)) and base["per_document"]]
    if not bases or not references:
        return None
    member, at_t = bases[0]
    kind = _kind(member.run)
    own = [
        (run, record)
        for run, record in references
        if record["targets_hash"] == at_t["targets_hash"] and record["window"] > at_t["window"]
    ]
    own = [(run, record) for run, record in own if _kind(run) == kind]
    for window in sorted({record["window"] for _, record in own}, reverse=True):
        multiple = round(window / at_t["window"], 6)
        pairs = [
            (ours, far)
            for one, base in bases
            if (record := one.record(extension, multiple))
            and (ours := one.sample(base))
            and (far := one.sample(record))
        ]
        by_seed = {run.seed: record for run, record in reversed(own) if record["window"] == window}
        if pairs:
            samples = [Sample(record["per_document"] or {}) for record in by_seed.values()]
            ratios = ratios_of([one for pair in pairs for one in pair] + samples, "targets")
            count = 2 * len(pairs)
            found = share_of(ratios[:count:2], ratios[1:count:2], ratios[count:])
            return replace(found, multiple=multiple, window=window)
    return None


def share_of(near: Sequence[Ratio], far: Sequence[Ratio], long: Sequence[Ratio]) -> Recovered:
    """Return the share that seeds gain from `near` to `far` of what they miss from `near` to `long`.

    A document is left out of all three at once (jackknife). Seeds by the delta method: those of the row have
    both losses, those of the long-trained model are others (Welch). One seed counts as certain, as elsewhere.
    """
    import numpy as np

    at_t, at_far, reference = (np.array([one.value for one in some]) for some in (near, far, long))
    room = float(at_t.mean() - reference.mean())
    interval = interval_of(_estimate(room, at_t, reference, document_part(near, long)))
    found = Recovered(
        share=None,
        ci95=None,
        room=room,
        room_ci95=interval,
        multiple=1.0,
        window=0,
        reference=float(reference.mean()),
        seeds=len(near),
        reference_seeds=len(long),
        note=FEW_DOCUMENTS if interval is None else NO_ROOM,
    )
    if interval is None or interval[0] <= 0:
        return found
    share = float((at_t - at_far).mean()) / room
    without = [np.mean([one.left_out for one in some], axis=0) for some in (near, far, long)]
    left_out = (without[0] - without[1]) / (without[0] - without[2])
    n, freedom = len(left_out), min(one.freedom for one in (*near, *far, *long))
    documents = float((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum())
    own, theirs = (at_t - at_far - share * at_t) / room, share * reference / room
    estimate = _estimate(share, own, theirs, (documents, freedom))
    return replace(found, share=share, ci95=interval_of(estimate), note=None)


def _estimate(
    value: float, a: Iterable[float], b: Iterable[float], documents: tuple[float | None, float]
) -> Estimate:
    """Return the estimate of a value whose seeds vary as mean(a) - mean(b) does, unpaired (Welch 1947)."""
    variance, squares = 0.0, 0.0
    for values in (list(a), list(b)):
        part = (mean_and_spread(values)[1] or 0.0) ** 2 / len(values)
        variance, squares = variance + part, squares + part**2 / max(len(values) - 1, 1)
    freedom = variance**2 / squares if squares else 1.0
    return Estimate(value, variance, *documents, seed_freedom=freedom)


def _kind(run: Run) -> str:
    """Return what two runs share that differ in their training length alone, as comparable text."""
    size = {key: value for key, value in (size_of(run) or {}).items() if key != "context_length"}
    return json.dumps([encoding_of(run), settings_of(run), size], sort_keys=True)
