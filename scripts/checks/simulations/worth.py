"""Simulate models trained at T and at 8T, and hold the worth of far text and its share against the truth.

The documents are those of `alibi`, trained at both lengths. Losses at 8T are moved until the worth and the
share are what a case asks for. Standard deviations over seeds are near those of the records.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.random import Generator

from posenc.results.discovery import load_runs
from posenc.results.headroom import Recovered, TwoLosses, long_trained, share_of
from posenc.results.statistics.documents import Ratio, Sample, ratios_of
from simulations.printing import holds, percent, print_table
from simulations.study import STUDY, study_columns

HEADROOM = "docs/records/study-headroom"
ENCODING = "alibi"
SPREAD_AT_T = 0.006  # standard deviation over seeds of the loss at T, nats


@dataclass(frozen=True)
class Case:
    """The truth, in nats per token, and the standard deviations over seeds."""

    name: str
    worth: float
    share: float
    spread_of_worth: float
    spread_of_gain: float


CASES = (
    Case("much worth, harmed (`alibi`)", 0.119, -0.13, 0.0066, 0.0026),
    Case("much worth, none recovered", 0.119, 0.0, 0.0066, 0.0026),
    Case("much worth, half recovered", 0.119, 0.5, 0.0066, 0.005),
    Case("much worth, all recovered", 0.119, 1.0, 0.0066, 0.0066),
    Case("little worth, none recovered (`cable`)", 0.030, 0.0, 0.005, 0.002),
    Case("little worth, half recovered", 0.030, 0.5, 0.005, 0.005),
    Case("little worth, harmed (`kerple_log`)", 0.023, -0.73, 0.005, 0.012),
    Case("hardly any worth (`stick_breaking`)", 0.013, 0.33, 0.005, 0.001),
    Case("no worth", 0.0, 0.0, 0.005, 0.005),
)
SEEDS = ((1, 1), (3, 1), (5, 1), (3, 3), (5, 3), (5, 5))  # trained at T, trained at 8T


@dataclass(frozen=True)
class Documents:
    """Sums by document of the two models, in nats, mean over the seeds of the records: (D,) each."""

    targets: np.ndarray
    short_near: np.ndarray
    short_far: np.ndarray
    long_near: np.ndarray
    long_far: np.ndarray

    def gain(self) -> float:
        """Return what the model trained at T gains at 8T, nats per token."""
        return float((self.short_near - self.short_far).sum() / self.targets.sum())

    def worth(self) -> float:
        """Return what far text is worth to the model trained at 8T, nats per token."""
        return float((self.long_near - self.long_far).sum() / self.targets.sum())

    def difference(self) -> float:
        """Return how much more the model trained at T loses at T than the other one, nats per token."""
        return float((self.short_near - self.long_near).sum() / self.targets.sum())


def recorded_documents() -> Documents:
    """Return the documents of the encoding whose records have both models."""
    columns = study_columns("fixed-target")
    row = columns[1.0].names.index(ENCODING)
    near = list(columns[1.0].rows[row].values())
    far = list(columns[8.0].rows[row].values())
    references = []
    for reference in long_trained(load_runs([STUDY, HEADROOM]), "fixed-target"):
        facts = reference.at_own_length.run.facts
        if facts is not None and facts["encoding"]["name"] == ENCODING:
            references.append(reference)
    window = min(references[0].by_window.keys() & {64})  # T of the study
    long_near = []
    long_far = []
    for reference in references:
        near_sample = reference.by_window[window].sample
        far_sample = reference.at_own_length.sample
        assert near_sample is not None
        assert far_sample is not None
        long_near.append(near_sample.nats)
        long_far.append(far_sample.nats)
    return Documents(
        targets=near[0].targets,
        short_near=np.mean([sample.nats for sample in near], axis=0),
        short_far=np.mean([sample.nats for sample in far], axis=0),
        long_near=np.mean(long_near, axis=0),
        long_far=np.mean(long_far, axis=0),
    )


@dataclass(frozen=True)
class Model:
    """One of the two models: its sums by document, and how its seeds differ, in nats per token."""

    near: np.ndarray
    far: np.ndarray
    shift_far: float  # added to the loss at 8T
    spread_of_gain: float


def simulate_seeds(
    rng: Generator, model: Model, targets: np.ndarray, seeds: int
) -> tuple[list[Sample], list[Sample], np.ndarray]:
    """Return the near and the far sample of each new seed, and the error of its gain."""
    errors_near = SPREAD_AT_T * rng.normal(size=seeds)
    errors_of_gain = model.spread_of_gain * rng.normal(size=seeds)
    documents = np.arange(len(targets))
    near = []
    far = []
    for seed in range(seeds):
        nats_near = model.near + errors_near[seed] * targets
        shift = model.shift_far + errors_near[seed] - errors_of_gain[seed]
        near.append(Sample(documents, nats_near, targets, bytes=targets))
        far.append(Sample(documents, model.far + shift * targets, targets, bytes=targets))
    return near, far, errors_of_gain


@dataclass(frozen=True)
class Judged:
    """What one simulated pair of models says, held against the truth."""

    recovered: Recovered
    worth_covered: bool
    difference_covered: bool
    share_covered: bool | None  # None without a share
    share_covered_of_models: bool | None  # the truth is of these very seeds


def judge(rng: Generator, recorded: Documents, case: Case, seeds: tuple[int, int]) -> Judged:
    """Return what posenc says of new seeds on new documents."""
    count = len(recorded.targets)
    drawn = rng.integers(count, size=count)
    targets = recorded.targets[drawn]
    short = Model(
        recorded.short_near[drawn],
        recorded.short_far[drawn],
        recorded.gain() - case.share * case.worth,
        case.spread_of_gain,
    )
    long = Model(
        recorded.long_near[drawn],
        recorded.long_far[drawn],
        recorded.worth() - case.worth,
        case.spread_of_worth,
    )
    near, far, errors_of_gain = simulate_seeds(rng, short, targets, seeds[0])
    long_near, long_far, errors_of_worth = simulate_seeds(rng, long, targets, seeds[1])
    ratios = ratios_of([*near, *far, *long_near, *long_far], "targets")
    short_losses = _two_losses(ratios[: 2 * seeds[0]])
    long_losses = _two_losses(ratios[2 * seeds[0] :])
    recovered = share_of(short_losses, long_losses)
    gain_of_models = case.share * case.worth + errors_of_gain.mean()
    share_of_models = gain_of_models / (case.worth + errors_of_worth.mean())
    has_share = recovered.share is not None
    return Judged(
        recovered=recovered,
        worth_covered=holds(recovered.worth_ci95, case.worth),
        difference_covered=holds(recovered.difference_ci95, recorded.difference()),
        share_covered=holds(recovered.ci95, case.share) if has_share else None,
        share_covered_of_models=holds(recovered.ci95, float(share_of_models)) if has_share else None,
    )


def _two_losses(ratios: list[Ratio]) -> TwoLosses:
    """Return the losses of a model: the near ones of its seeds come first, then as many far ones."""
    seeds = len(ratios) // 2
    return TwoLosses(ratios[:seeds], ratios[seeds:])


def percent_of_known(hits: list[bool | None]) -> str:
    """Return the share of the hits among those that are known."""
    known = [hit for hit in hits if hit is not None]
    return percent(known) if known else "-"


def check_worth(experiments: int) -> None:
    """Print how often the intervals of the worth, of the difference at T and of the share recovered cover."""
    recorded = recorded_documents()
    lines = []
    for case, seeds in itertools.product(CASES, SEEDS):
        rng = np.random.default_rng(0)
        judged = [judge(rng, recorded, case, seeds) for _ in range(experiments)]
        widths = [
            result.recovered.ci95[1] - result.recovered.ci95[0]
            for result in judged
            if result.recovered.ci95 is not None
        ]
        has_no_worth = case.worth == 0
        lines.append(
            [
                case.name,
                f"{case.worth:g}, {case.share:.0%}",
                f"{seeds[0]} and {seeds[1]}",
                percent([result.worth_covered for result in judged]),
                percent([result.difference_covered for result in judged]),
                percent([result.recovered.share is not None for result in judged]),
                "-" if has_no_worth else percent_of_known([result.share_covered for result in judged]),
                "-"
                if has_no_worth
                else percent_of_known([result.share_covered_of_models for result in judged]),
                f"{np.median(widths) / 2:.0%}" if widths else "-",
            ]
        )
    heads = [
        "case",
        "true worth, nats, and share",
        "seeds at T and at 8T",
        "worth covered",
        "difference covered",
    ]
    heads += ["has a share", "share covered", "of these models", "median half-width of the share"]
    print_table(f"Worth and recovered, {experiments} experiments each", heads, lines)
