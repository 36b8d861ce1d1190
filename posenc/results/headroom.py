"""Headroom: the share of what the far text is worth that a short-trained model gains from it.

recovered = (L(T) - L(8T)) / (L(T) - R(8T)): L is the loss of a model trained at T in windows of T and 8T, R
that of one trained at 8T in windows of 8T, of the same encoding, settings and tokens, on the same targets.
0% is what cropping gives, 100% is as good as training long, below 0 the far text harms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from posenc.results.load import Run
from posenc.results.ranking import interval_of
from posenc.results.schema import HEADLINE, Record
from posenc.results.selection import Selected
from posenc.results.settings import kind_of
from posenc.results.statistics import Ratio, Sample, document_part, mean_and_spread, ratios_of, welch

PROTOCOLS = (HEADLINE, "key-tokens")  # the targets are the same at every window, and see a whole one
NO_ROOM, FEW_DOCUMENTS = "no room", "too few documents"


@dataclass
class Recovered:
    """How much of the room between its loss at T and the long-trained model's a row gains past T."""

    share: float | None  # 0: cropping, 1: as good as training long; null where there is no room
    ci95: list[float] | None  # of it, over seeds and documents
    room: float  # loss at T minus that of the long-trained model, nats per token
    room_ci95: list[float] | None  # of it; where it includes 0 there is no room
    reference: float  # loss of the long-trained model, nats per token; mean over seeds
    seeds: int  # of the row
    reference_seeds: int  # of the long-trained model
    note: str | None = None  # why there is no share
    multiple: float = 1.0  # of T: the window, and what the long-trained model was trained at
    window: int = 0  # tokens


def long_trained(runs: Sequence[Run], protocol: str) -> list[tuple[Run, Record]]:
    """Return the runs that share their targets with runs of a shorter T, with their record at their own T."""
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


def recovered_of(members: Sequence[Selected], references: Sequence[tuple[Run, Record]]) -> Recovered | None:
    """Return what the seeds of a row recover, against the longest training of its kind; None without one."""
    bases = [(one, base) for one in members if (base := one.base) and base["per_document"]]
    if not bases or not references:
        return None
    member, at_t = bases[0]
    long: dict[int, dict[int | None, Record]] = defaultdict(dict)  # by window and seed, the first run of each
    for run, record in reversed(references):
        same = record["targets_hash"] == at_t["targets_hash"] and record["window"] > at_t["window"]
        if same and kind_of(run, length=False) == kind_of(member.run, length=False):
            long[record["window"]][run.seed] = record
    for window, by_seed in sorted(long.items(), reverse=True):
        multiple = round(window / at_t["window"], 6)
        far = [(one, base, one.cells.get(multiple)) for one, base in bases]
        pairs = [(one.sample(base), one.sample(record)) for one, base, record in far if record]
        samples = [one for near, far in pairs if near and far for one in (near, far)]
        if samples:
            count = len(samples)
            samples += [Sample(record["per_document"] or {}) for record in by_seed.values()]
            ratios = ratios_of(samples, "targets")
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
    around = _interval(room, at_t, reference, document_part(near, long))
    found = Recovered(None, None, room, around, float(reference.mean()), len(near), len(long))
    if around is None or around[0] <= 0:
        return replace(found, note=FEW_DOCUMENTS if around is None else NO_ROOM)
    share = float((at_t - at_far).mean()) / room
    without = [np.mean([one.left_out for one in some], axis=0) for some in (near, far, long)]
    left_out = (without[0] - without[1]) / (without[0] - without[2])
    n, freedom = len(left_out), min(one.freedom for one in (*near, *far, *long))
    documents = float((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum())
    own, theirs = (at_t - at_far - share * at_t) / room, share * reference / room
    return replace(found, share=share, ci95=_interval(share, own, theirs, (documents, freedom)))


def _interval(
    value: float, a: Iterable[float], b: Iterable[float], documents: tuple[float | None, float]
) -> list[float] | None:
    """Return the 95% interval of a value whose seeds vary as mean(a) - mean(b) does, unpaired."""
    spreads = [(mean_and_spread(one)[1] or 0.0, len(one)) for one in (list(a), list(b))]
    parts = [(spread**2 / n, max(n - 1, 1)) for spread, n in spreads]
    return interval_of(welch(value, parts, documents))
