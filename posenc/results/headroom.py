"""Headroom: the share of what training long gains that a short-trained model recovers from far text.

recovered = (L(T) - L(8T)) / (L(T) - R(8T)), where L is the loss of a model trained at T in windows of T and
8T, and R the loss of a model trained at 8T in windows of 8T: of the same encoding, settings and tokens, on
the same targets. 0% is what cropping gives, 100% is as good as training long; below 0 the far text harms.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from posenc.results.identity import kind_of
from posenc.results.measurements import Measurement, Member, measurements_of, pair_of, rounded_multiple
from posenc.results.records import HEADLINE
from posenc.results.runs import Run
from posenc.results.statistics.documents import Ratio, Sample, document_part, jackknife_variance, ratios_of
from posenc.results.statistics.intervals import DocumentPart, Interval, mean_and_spread, welch

if TYPE_CHECKING:
    import numpy as np

WITH_ROOM = (HEADLINE, "key-tokens")  # the targets are the same at every window, and see all of it
NO_ROOM = "no room"
FEW_DOCUMENTS = "too few documents"


@dataclass(frozen=True)
class Recovered:
    """How much of the room between its loss at T and the long-trained model's a row gains past T."""

    share: float | None  # 0: cropping, 1: as good as training long; null where there is no room
    ci95: Interval | None  # of the share, over seeds and documents
    room: float  # loss at T minus that of the long-trained model, nats per token
    room_ci95: Interval | None  # of the room; where it includes 0 there is no room
    reference: float  # loss of the long-trained model, nats per token; mean over seeds
    seeds: int  # of the row
    reference_seeds: int  # of the long-trained model
    note: str | None = None  # why there is no share
    multiple: float = 1.0  # of T: the window, and what the long-trained model was trained at
    window: int = 0  # tokens


def long_trained(runs: Sequence[Run], protocol: str) -> list[Measurement]:
    """Return the losses at their own T of runs that share their targets with runs of a shorter T."""
    if protocol not in WITH_ROOM:
        return []
    at_own_length: list[Measurement] = []
    for run in runs:
        if run.facts is not None and run.state != "diverged":
            at_own_length += _at_own_length(run, run.facts["context_length"], protocol)
    lengths: dict[str, set[int]] = defaultdict(set)
    for measurement in at_own_length:
        lengths[measurement.target_set.targets_hash].add(measurement.window)
    return [
        measurement
        for measurement in at_own_length
        if measurement.window > min(lengths[measurement.target_set.targets_hash])
    ]


def _at_own_length(run: Run, context_length: int, protocol: str) -> list[Measurement]:
    """Return the losses of a run's last checkpoint in windows of the length that it was trained at."""
    measured = measurements_of(run, protocol)
    last = max((measurement.step for measurement in measured), default=0)
    return [
        measurement
        for measurement in measured
        if measurement.window == context_length
        and measurement.step == last
        and measurement.extend is None
        and measurement.sums is not None
    ]


def recovered_of(members: Sequence[Member], references: Sequence[Measurement]) -> Recovered | None:
    """Return what the seeds of a row recover, against the longest training of its kind; None without one."""
    with_base = [member for member in members if member.crop_line is not None and member.crop_line.sums]
    if not with_base or not references:
        return None
    base = with_base[0].crop_line
    assert base is not None
    by_window = _references_of_kind(with_base[0].run, base, references)
    for window, long in sorted(by_window.items(), reverse=True):
        multiple = rounded_multiple(window / base.window)
        near_sums: list[Sample] = []  # of each seed, at T
        far_sums: list[Sample] = []  # of the same seeds, in the longer window
        for member in with_base:
            pair = pair_of(member.crop_line, member.by_multiple.get(multiple))
            if pair is not None:
                near, far = pair
                near_sums.append(near)
                far_sums.append(far)
        if near_sums:
            long_sums = [measurement.sums for measurement in long if measurement.sums]
            recovered = _recovered_by_sums(near_sums, far_sums, long_sums)
            return replace(recovered, multiple=multiple, window=window)
    return None


def _recovered_by_sums(near: Sequence[Sample], far: Sequence[Sample], long: Sequence[Sample]) -> Recovered:
    """Return share_of, of the sums of losses over documents."""
    # in one call, which takes groups for units only if all samples have them
    ratios = ratios_of([*near, *far, *long], "targets")
    far_start = len(near)
    long_start = far_start + len(far)
    return share_of(ratios[:far_start], ratios[far_start:long_start], ratios[long_start:])


def _references_of_kind(
    run: Run, base: Measurement, references: Sequence[Measurement]
) -> dict[int, list[Measurement]]:
    """Return by window the long-trained measurements of the run's encoding, settings and targets.

    One for each seed: of the first run that has it.
    """
    kind = kind_of(run, any_length=True)
    by_window: dict[int, dict[int | None, Measurement]] = defaultdict(dict)
    for reference in reversed(references):
        same_targets = reference.target_set.targets_hash == base.target_set.targets_hash
        is_longer = reference.window > base.window
        if same_targets and is_longer and kind_of(reference.run, any_length=True) == kind:
            by_window[reference.window][reference.run.seed] = reference
    return {window: list(by_seed.values()) for window, by_seed in by_window.items()}


def share_of(near: Sequence[Ratio], far: Sequence[Ratio], long: Sequence[Ratio]) -> Recovered:
    """Return the share that seeds gain from `near` to `far` of what they miss from `near` to `long`.

    A document is left out of all three at once (jackknife). Seeds by the delta method: those of the row have
    both losses, those of the long-trained model are others (Welch). One seed counts as certain, as elsewhere.
    """
    import numpy as np

    at_t = np.array([ratio.value for ratio in near])
    at_far = np.array([ratio.value for ratio in far])
    reference = np.array([ratio.value for ratio in long])
    room = float(at_t.mean() - reference.mean())
    room_interval = _unpaired(room, at_t, reference, document_part(near, long))
    recovered = Recovered(
        share=None,
        ci95=None,
        room=room,
        room_ci95=room_interval,
        reference=float(reference.mean()),
        seeds=len(near),
        reference_seeds=len(long),
    )
    if room_interval is None:
        return replace(recovered, note=FEW_DOCUMENTS)
    if room_interval[0] <= 0:
        return replace(recovered, note=NO_ROOM)
    share = float((at_t - at_far).mean()) / room
    near_without = _without_one(near)
    gains_without = near_without - _without_one(far)
    rooms_without = near_without - _without_one(long)
    shares_without = gains_without / rooms_without  # (D,)
    freedom = min(ratio.freedom for ratio in (*near, *far, *long))
    documents = DocumentPart(jackknife_variance(shares_without), freedom)
    # share = (a - f) / (a - r): a is the loss at T, f that in the longer window, r that of the reference.
    # Small changes of them change the share by ((1 - share) da - df + share dr) / room.
    row_part = (at_t - at_far - share * at_t) / room
    reference_part = share * reference / room
    return replace(recovered, share=share, ci95=_unpaired(share, row_part, reference_part, documents))


def _without_one(ratios: Sequence[Ratio]) -> np.ndarray:
    """Return the mean loss of the seeds without one document (or group) each: (D,)."""
    import numpy as np

    return np.mean([ratio.left_out for ratio in ratios], axis=0)


def _unpaired(
    value: float, first: np.ndarray, second: np.ndarray, documents: DocumentPart
) -> Interval | None:
    """Return the 95% interval of a value whose seeds vary as mean(first) - mean(second) does, unpaired."""
    parts = []
    for seeds in (first, second):
        _, spread = mean_and_spread(list(seeds))
        variance = (spread or 0.0) ** 2 / len(seeds)
        freedom = max(len(seeds) - 1, 1)
        parts.append((variance, freedom))
    return welch(value, parts, documents).interval()
