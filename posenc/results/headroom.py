"""Headroom: what far text is worth to a model trained long, and how much of it a short-trained one gets.

Two models of the same encoding, settings and number of training tokens are measured on the same targets. S is
the loss of the model that was trained short, at T. L is that of the model that was trained long, at 8T.

    worth = L(T) - L(8T)                    what far text gives a model that had it in training
    difference = S(T) - L(T)                how much worse the short-trained model is without far text
    recovered = (S(T) - S(8T)) / worth      0% is what cropping gives; below 0 the far text harms

S(T) and L(T) are losses in windows of T (near), S(8T) and L(8T) in windows of 8T (far).

Before 0.2 the worth was S(T) - L(8T). That is the worth plus the difference. It hides the gain of a
long-trained model that is worse at T: for T5's bias it was -0.056 nats, where the worth is 0.061.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from posenc.core.run_states import DIVERGED
from posenc.results.identity import kind_of, tokens_trained_at
from posenc.results.measurements import (
    Measurement,
    Member,
    TargetSet,
    measurements_of,
    pair_of,
    rounded_multiple,
)
from posenc.results.pools import of_newest_checkpoint
from posenc.results.records import HEADLINE
from posenc.results.runs import Run
from posenc.results.statistics.documents import Ratio, Sample, document_part, jackknife_variance, ratios_of
from posenc.results.statistics.intervals import DocumentPart, Interval, mean_and_spread, welch

if TYPE_CHECKING:
    import numpy as np

# The protocols that score the same targets at the end of every window, so that targets see all of its text.
PROTOCOLS_WITH_WORTH = (HEADLINE, "key-tokens")
SAME_TOKENS = 0.01  # batches of another T may hold a few tokens more, so that the last update ends elsewhere
NO_WORTH = "worth nothing"
NOT_MEASURED_AT_T = "trained long, not measured at T"
FEW_DOCUMENTS = "too few documents"


@dataclass(frozen=True)
class LongTrained:
    """The losses of a run that was trained at a longer T, on the targets of runs with a shorter T."""

    at_own_length: Measurement  # in windows of the length that it was trained at
    by_window: Mapping[int, Measurement]  # of the same weights and targets; `at_own_length` is among them

    @property
    def targets_hash(self) -> str:
        """Return the hash of its targets."""
        return self.at_own_length.target_set.targets_hash


@dataclass(frozen=True)
class Recovered:
    """What far text is worth to the long-trained model, and how much of that a row gains past T."""

    worth: float | None  # loss of the long-trained model at T minus that in its own windows, nats per token
    worth_ci95: Interval | None  # over its seeds and documents; if it includes 0 there is no share
    difference: float | None  # loss of the row minus that of the long-trained model, at T, nats per token
    difference_ci95: Interval | None  # over seeds and documents
    share: float | None  # of the worth; 0: as much as by cropping, 1: as much as by training long
    ci95: Interval | None  # of the share, over seeds and documents
    reference: float  # loss of the long-trained model in its own windows, nats per token; mean over seeds
    seeds: int  # of the row
    reference_seeds: int  # of the long-trained model
    note: str | None = None  # why there is no share
    multiple: float = 1.0  # of T: the window, and what the long-trained model was trained at
    window: int = 0  # tokens


def long_trained(runs: Sequence[Run], protocol: str) -> list[LongTrained]:
    """Return the losses of the runs that share their targets with a run of a shorter T."""
    # The common table has one T. Then nothing is long-trained, and no record has to be flattened to find that
    # out.
    train_lengths = {run.facts["context_length"] for run in runs if run.facts is not None}
    if protocol not in PROTOCOLS_WITH_WORTH or len(train_lengths) < 2:
        return []
    measured_runs: list[LongTrained] = []
    for run in runs:
        if run.facts is not None and run.state != DIVERGED:
            measured_runs += _at_own_length(run, run.facts["context_length"], protocol)
    # Long is relative: among three lengths the middle one is long for the shortest, and short for the
    # longest.
    lengths: dict[str, set[int]] = defaultdict(set)
    for measured in measured_runs:
        lengths[measured.targets_hash].add(measured.at_own_length.window)
    longer = []
    for measured in measured_runs:
        if measured.at_own_length.window > min(lengths[measured.targets_hash]):
            longer.append(measured)
    return longer


def _at_own_length(run: Run, context_length: int, protocol: str) -> list[LongTrained]:
    """Return the losses of a run for each set of targets, of the newest checkpoint measured on that text.

    A set is left out if the run was not measured on it at the length of its training.
    """
    # A measurement in another precision has other losses. The worth is a difference of two of one precision.
    comparable: dict[tuple[TargetSet, str | None], dict[int, Measurement]] = defaultdict(dict)
    for measurement in of_newest_checkpoint(measurements_of(run, protocol)):
        if measurement.extend is None and measurement.sums is not None:
            by_window = comparable[measurement.target_set, measurement.precision]
            by_window[measurement.window] = measurement
    return [
        LongTrained(by_window[context_length], by_window)
        for by_window in comparable.values()
        if context_length in by_window
    ]


def recovered_of(members: Sequence[Member], references: Sequence[LongTrained]) -> Recovered | None:
    """Return how much of the worth of far text the seeds of a row recover.

    If models of the row's encoding and settings were trained at several longer lengths, the longest is taken
    in whose windows the row was measured. None if there is no such model.
    """
    measured_members = [
        member for member in members if member.crop_line is not None and member.crop_line.sums is not None
    ]
    if not measured_members or not references:
        return None
    crop_line = measured_members[0].crop_line
    assert crop_line is not None
    by_window = _references_of_kind(measured_members[0].run, crop_line, references)
    for window, references_of_window in sorted(by_window.items(), reverse=True):
        multiple = rounded_multiple(window / crop_line.window)
        pairs = [pair_of(member.crop_line, member.by_multiple.get(multiple)) for member in measured_members]
        short = _TwoSamples.of(pairs)
        if short.near:
            recovered = _recovered_by_samples(short, references_of_window, crop_line.window)
            return replace(recovered, multiple=multiple, window=window)
    return None


@dataclass(frozen=True)
class _TwoSamples:
    """The sums by document of the seeds of one model, in windows of T and in long ones."""

    near: list[Sample]  # a sample for each seed
    far: list[Sample]  # of the same seeds

    @classmethod
    def of(cls, pairs: Sequence[tuple[Sample, Sample] | None]) -> _TwoSamples:
        """Collect the samples of the seeds that have both."""
        complete_pairs = [pair for pair in pairs if pair is not None]
        return cls([near for near, _ in complete_pairs], [far for _, far in complete_pairs])


def _recovered_by_samples(
    short: _TwoSamples, references: Sequence[LongTrained], near_window: int
) -> Recovered:
    """Return what the seeds of a row recover. `near_window` is the row's T."""
    pairs = [
        pair_of(reference.by_window.get(near_window), reference.at_own_length) for reference in references
    ]
    long = _TwoSamples.of(pairs)
    # Without its own loss at T the worth is not known. The loss at 8T alone gave the worth of before 0.2,
    # which mixed two things (see above).
    if not long.near:
        losses = [reference.at_own_length.nats for reference in references]
        far_losses = [loss for loss in losses if loss is not None]  # all of them: such a measurement has sums
        return Recovered(
            worth=None,
            worth_ci95=None,
            difference=None,
            difference_ci95=None,
            share=None,
            ci95=None,
            reference=sum(far_losses) / len(far_losses),
            seeds=len(short.near),
            reference_seeds=len(references),
            note=NOT_MEASURED_AT_T,
        )
    # All in one call, which divides them into the same units: groups of documents if every sample has groups,
    # else documents. The result has the order of the arguments.
    ratios = iter(ratios_of([*short.near, *short.far, *long.near, *long.far], "targets"))
    short_near = list(islice(ratios, len(short.near)))
    short_far = list(islice(ratios, len(short.far)))
    long_near = list(islice(ratios, len(long.near)))
    long_far = list(islice(ratios, len(long.far)))
    return share_of(TwoLosses(short_near, short_far), TwoLosses(long_near, long_far))


def _references_of_kind(
    run: Run, crop_line: Measurement, references: Sequence[LongTrained]
) -> dict[int, list[LongTrained]]:
    """Return the long-trained losses of the run's encoding, settings and targets, by their training length.

    If several runs have the same seed, the first one counts.
    """
    # T is left out of the kind, because it is what the two models are meant to differ in.
    kind = kind_of(run, any_length=True)
    by_window: dict[int, dict[int | None, LongTrained]] = defaultdict(dict)
    for reference in reversed(references):  # the first run of a seed replaces the others
        measurement = reference.at_own_length
        has_same_targets = reference.targets_hash == crop_line.target_set.targets_hash
        is_longer = measurement.window > crop_line.window
        has_same_precision = measurement.precision == crop_line.precision
        # A checkpoint before the last one may have had fewer tokens than the row that it is held against.
        has_as_many_tokens = _are_trained_alike(measurement, crop_line)
        is_comparable = has_same_targets and has_same_precision and is_longer and has_as_many_tokens
        if is_comparable and kind_of(measurement.run, any_length=True) == kind:
            by_window[measurement.window][measurement.run.seed] = reference
    return {window: list(by_seed.values()) for window, by_seed in by_window.items()}


def _are_trained_alike(first: Measurement, second: Measurement) -> bool:
    """Tell whether two measured checkpoints had as many tokens, up to the last update of a training."""
    first_tokens = tokens_trained_at(first.run, first.step)
    second_tokens = tokens_trained_at(second.run, second.step)
    if isinstance(first_tokens, int) and isinstance(second_tokens, int):
        return math.isclose(first_tokens, second_tokens, rel_tol=SAME_TOKENS)
    return first_tokens == second_tokens


@dataclass(frozen=True)
class TwoLosses:
    """The losses of the seeds of one model, in windows of T and in long ones."""

    near: Sequence[Ratio]
    far: Sequence[Ratio]

    def values(self) -> tuple[np.ndarray, np.ndarray]:
        """Return the losses of each seed: near and far, (seeds,) each."""
        import numpy as np

        near = np.array([ratio.value for ratio in self.near])
        far = np.array([ratio.value for ratio in self.far])
        return near, far


def share_of(short: TwoLosses, long: TwoLosses) -> Recovered:
    """Return the worth of far text to the long-trained seeds, and the share of it that the short ones gain.

    The interval has two parts. The one over documents is a jackknife, which leaves each document out of all
    losses at once. The one over seeds is by the delta method. It pairs the near and the far loss of a seed,
    and does not pair the seeds of the two models (Welch). A single seed has no variance, as everywhere here.
    """
    near, far = short.values()
    long_near, long_far = long.values()
    gains = near - far
    worths = long_near - long_far
    worth = float(worths.mean())
    difference = float(near.mean() - long_near.mean())
    worth_interval = _interval(worth, [worths], document_part(long.near, long.far))
    documents_at_t = document_part(short.near, long.near)
    recovered = Recovered(
        worth=worth,
        worth_ci95=worth_interval,
        difference=difference,
        difference_ci95=_interval(difference, [near, long_near], documents_at_t),
        share=None,
        ci95=None,
        reference=float(long_far.mean()),
        seeds=len(near),
        reference_seeds=len(long_near),
    )
    if worth_interval is None:
        return replace(recovered, note=FEW_DOCUMENTS)
    # A share of nearly nothing can be any number. So there is no share while the worth may be zero.
    if worth_interval[0] <= 0:
        return replace(recovered, note=NO_WORTH)
    # A ratio of means, and not the mean of ratios: seeds of the two models are not paired.
    share = float(gains.mean()) / worth
    gains_without = _without_one(short.near) - _without_one(short.far)
    worths_without = _without_one(long.near) - _without_one(long.far)
    # The whole share without a document, since the same documents are in its numerator and its denominator.
    shares_without = gains_without / worths_without  # (D,)
    all_ratios = (*short.near, *short.far, *long.near, *long.far)
    documents = DocumentPart(jackknife_variance(shares_without), min(ratio.freedom for ratio in all_ratios))
    # Delta method: with share = gain / worth, small changes give d share = (d gain - share d worth) / worth.
    interval = _interval(share, [gains / worth, share * worths / worth], documents)
    return replace(recovered, share=share, ci95=interval)


def _without_one(ratios: Sequence[Ratio]) -> np.ndarray:
    """Return the mean loss over seeds, each time without one of D documents (or groups): (D,)."""
    import numpy as np

    return np.mean([ratio.left_out for ratio in ratios], axis=0)


def _interval(
    value: float, seeds_of_models: Sequence[np.ndarray], documents: DocumentPart
) -> Interval | None:
    """Return the 95% interval of a value that is a sum of means over seeds, one mean for each model.

    The seeds of different models are not paired.
    """
    parts = []
    for seeds in seeds_of_models:
        _, spread = mean_and_spread(list(seeds))
        variance = (spread or 0.0) ** 2 / len(seeds)
        # A single seed has no variance, so its freedom counts for nothing. But `welch` divides by it.
        freedom = max(len(seeds) - 1, 1)
        parts.append((variance, freedom))
    return welch(value, parts, documents).interval()
