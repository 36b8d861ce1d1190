"""Resolve `train.lr=tuned` to the rate that did best on validation documents in `experiment=tuning`."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from posenc.core.console import say
from posenc.core.errors import UserError
from posenc.core.paths import expanded, is_folder
from posenc.core.run_states import FINISHED
from posenc.results.discovery import load_runs
from posenc.results.records import HEADLINE, Record
from posenc.results.runs import Run
from posenc.running.planned_run import PlannedRun, run_hash
from posenc.settings.tree import RunSettings

TUNED = "tuned"
TUNING = "tuning"  # the experiment whose runs are read, below runs_dir
FEWEST_RATES = 2  # rates to choose from
ANY_RATE = 1.0  # stands for the rate while runs are searched that differ only in it


@dataclass
class Trials:
    """Hold the rates that were tried, with the losses of their seeds."""

    # by rate and seed: the loss in nats per token
    losses: dict[float, dict[int, float]] = field(default_factory=lambda: defaultdict(dict))

    def add(self, rate: float, seed: int, loss: float) -> None:
        self.losses[rate][seed] = loss

    @property
    def seeds(self) -> set[int]:
        """Return the seeds of all rates."""
        return set().union(*self.losses.values())

    @property
    def comparable(self) -> list[float]:
        """Return the rates that every seed tried.

        Seeds differ by as much as rates do. So the mean of a rate with fewer seeds, such as one whose other
        seeds diverged, says more about the seeds than about the rate.
        """
        return sorted(rate for rate, losses in self.losses.items() if losses.keys() == self.seeds)

    @property
    def missing(self) -> str:
        """Return as text which seeds have no loss at the rates that cannot be compared; empty if all can."""
        lacking = []
        for rate in sorted(self.losses.keys() - set(self.comparable)):
            seeds = self.seeds - self.losses[rate].keys()
            noun = "seed" if len(seeds) == 1 else "seeds"
            lacking.append(f"{rate:g} lacks {noun} {_listing(seeds)}")
        return ", ".join(lacking)

    @property
    def best(self) -> float:
        """Return the rate with the lowest mean loss, of those that can be compared."""
        # A mean over seeds, since by a single seed luck could choose.
        means = {rate: statistics.fmean(self.losses[rate].values()) for rate in self.comparable}
        return min(means, key=lambda rate: means[rate])


def with_tuned_rate(settings: RunSettings, planned_run: Callable[[RunSettings], PlannedRun]) -> RunSettings:
    """Return the settings with the best rate; their `train.tuned` says how it was chosen.

    `planned_run` returns the run of settings, validated. Raises UserError if fewer than two rates were tried
    by the same seeds, and for a seed that the rates were chosen by.
    """
    train = settings.train.with_changes(lr=ANY_RATE)
    # `tuned` is no number, and a plan needs one.
    run = planned_run(settings.with_changes(train=train))
    folder = expanded(settings.runs_dir) / TUNING
    runs = load_runs([str(folder)]) if is_folder(folder) else []
    tried = _as_tried(run, runs, settings.train.precision)
    if tried is not run:
        settings = settings.with_changes(train=settings.train.with_changes(precision=tried.precision))
    trials = _trials_of(runs, tried)
    if len(trials.losses) < FEWEST_RATES:
        problem = f"{len(trials.losses)} rates were tried with these settings below {folder}"
        hint = "posenc train -m experiment=tuning encoding=NAME, with the settings of this run"
        raise UserError("train.lr", TUNED, problem, hint=hint)
    if settings.seed in trials.seeds:
        problem = "the rate was chosen by this seed, so its loss would flatter it"
        seeds = ", ".join(map(str, sorted(trials.seeds)))
        raise UserError("seed", settings.seed, problem, allowed=f"not {seeds}")
    if len(trials.comparable) < FEWEST_RATES:
        problem = f"rates are compared over the same seeds, and {trials.missing}"
        seeds = ",".join(map(str, sorted(trials.seeds)))
        hint = f"posenc train -m experiment=tuning encoding=NAME seed={seeds}, with the settings of this run"
        raise UserError("train.lr", TUNED, problem, hint=hint)
    if trials.missing:
        say(f"train.lr=tuned: rates are compared over the same seeds; left out: {trials.missing}")
    best = trials.best
    # The best of all rates may then lie beyond those that were tried.
    if best in (min(trials.losses), max(trials.losses)):
        rates = _listing(trials.losses)
        say(f"train.lr=tuned: {best:g} is at the end of those tried ({rates}); try further ones")
    how = f"best of {_listing(trials.comparable)} on validation documents, seeds {_listing(trials.seeds)}"
    return settings.with_changes(train=settings.train.with_changes(lr=best, tuned=how))


def _as_tried(run: PlannedRun, runs: Sequence[Run], asked_precision: str) -> PlannedRun:
    """Return the run in the precision that its rates were tried in, where `auto` was asked for.

    Rates may be tried on a machine with bf16 in hardware and used on one without, as a run that was begun on
    the first one is continued on the second in bf16.
    """
    # Who names a precision means rates that were tried in it.
    if asked_precision != "auto" or _trials_of(runs, run).losses:
        return run
    other = run.in_other_precision
    if not _trials_of(runs, other).losses:
        return run
    auto = f"train.precision=auto is {run.precision} here"
    say(f"train.lr=tuned: {auto}; the rates were tried in {other.precision}, and this run is trained so")
    return other


def _trials_of(runs: Sequence[Run], planned: PlannedRun) -> Trials:
    """Return what finished runs measured that differ from the planned one only in rate and seed."""
    trials = Trials()
    settings = planned.settings
    for run, run_settings in _finished_runs(runs):
        loss = stored_validation_loss(run)
        rate = run_settings.train.lr
        if loss is None or not isinstance(rate, float):
            continue
        # a run differs only in these two if they give its hash
        train = settings.train.with_changes(lr=rate)
        same_run = settings.with_changes(seed=run_settings.seed, train=train)
        if run.name.endswith(run_hash(same_run, planned.facts, planned.code)):
            trials.add(rate, run_settings.seed, loss)
    return trials


def _finished_runs(runs: Sequence[Run]) -> Iterator[tuple[Run, RunSettings]]:
    """Yield the finished runs with their settings."""
    for run in runs:
        if run.state == FINISHED and isinstance(run.settings, RunSettings):
            yield run, run.settings


def stored_validation_loss(run: Run) -> float | None:
    """Return the trained model's loss at T on validation documents of its own text; None if not measured.

    It is in nats per token.
    """
    for record in run.records:
        is_headline = record["protocol"] == HEADLINE and record["split"] == "validation"
        is_at_t = record["multiple"] == 1 and record["nats"] is not None
        if is_headline and is_at_t and _is_as_trained(record, run):
            return record["nats"]
    return None


def _is_as_trained(record: Record, run: Run) -> bool:
    """Tell whether a record is of the finished model as it was trained, on the text of its training."""
    facts = run.facts
    if facts is None or record["extend"] is not None or record.get("precision"):
        return False
    is_own_text = record["fingerprint"] == facts["corpus"]["fingerprint"]
    return is_own_text and record["checkpoint_step"] == facts["steps"]


def _listing(numbers: Iterable[float]) -> str:
    return " ".join(f"{number:g}" for number in sorted(numbers))
