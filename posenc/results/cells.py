"""Columns and cells of a comparison: a row's numbers at one window length, or in one bin of its curves."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from posenc.core.run_states import DAMAGED, DEAD, FAILED, FINISHED, INTERRUPTED, RUNNING, UNKNOWN_STATE
from posenc.results.measurements import Measurement, Member, pair_of
from posenc.results.plain import TEXT_IN_JSON
from posenc.results.records import BREAK, Curve, Metric
from posenc.results.runs import Run
from posenc.results.statistics.documents import Sample, difference_if_any
from posenc.results.statistics.intervals import Interval, mean_and_spread
from posenc.results.statistics.ranking import Versus
from posenc.results.statistics.verdicts import SAME_WORD, ChangeVerdict, verdict

NOT_MEASURED = "not measured"
NO_RESULTS = "no results"
# States of a run without numbers that say nothing about its encoding. `diverged` is not among them.
INNOCENT_STATES = {RUNNING, DEAD, INTERRUPTED, FAILED, DAMAGED, UNKNOWN_STATE}
SHORTEST_SHOWN = 1 / 8  # of T: tables leave out bins of a curve that end before
LONGEST_NOTE = 12  # characters of the reason why there is no number; a cell has no room for more


@dataclass(frozen=True)
class Column:
    """A window length, or a bin of positions. A count is null if the rows differ in it."""

    multiple: float  # of T; for a bin its last position
    window: int | None  # tokens; for a bin its last position
    targets: int | None
    documents: int | None
    shown: bool = True  # whether tables show it; JSON has every column


@dataclass(frozen=True, kw_only=True)
class Cell:
    """The numbers of a row at one window length, in the metric; if they are null, `note` says why."""

    multiple: float  # of T
    window: int | None  # tokens
    mean: float | None = None  # over seeds
    spread: float | None = None  # standard deviation over seeds; null for one seed
    change: float | None = None  # loss minus the loss as trained at W = T on the same targets
    change_spread: float | None = None  # standard deviation of the paired differences over seeds
    change_ci95: Interval | None = None  # over documents, for one seed: says nothing of other seeds
    seeds: int = 0  # how many the mean is over
    note: str | None = None
    verdict: ChangeVerdict | None = field(default=None, metadata=TEXT_IN_JSON)  # on the change, if rankable
    verdict_change: float | None = None  # the change in bits per byte, whatever the metric
    verdict_ci95: Interval | None = None  # over seeds and documents; for one seed over documents
    versus_best: Versus | None = None  # its mean compared with the lowest mean of the column
    change_versus_best: Versus | None = None  # its change compared with the lowest change of the column
    targets_hash: str | None = None
    targets: int | None = None  # scored in each seed; null if the seeds differ
    documents: int | None = None  # in which these targets are
    rankable: bool = False  # whether the seeds with numbers represent the row: none diverged or was refused
    versus_baseline: Versus | None = None  # compared with the row that the user chose

    @property
    def verdict_word(self) -> str:
        """Return the word of its verdict without a reason, which fits into a table; empty without one."""
        return "" if self.verdict is None else self.verdict.word


@dataclass(frozen=True)
class CurveSummary:
    """Where a row's curves break past T, in tokens."""

    train_length: int  # T
    breaks_at: tuple[int | None, ...]  # for each seed: the first position that surely is 0.1 nats above T
    holds: tuple[bool, ...]  # for each seed: whether surely no position past T is 0.1 nats above T


def shared_or_none(values: Iterable[Any]) -> Any:
    """Return the value that all of them have; None if they differ or if there are no values."""
    # Not a set: tokenizers and models can be dictionaries, which have no hash.
    compared = list(values)
    is_shared = bool(compared) and all(value == compared[-1] for value in compared)
    return compared[-1] if is_shared else None


# --- columns


def columns_of(members: Sequence[Member]) -> tuple[Column, ...]:
    """Return a column for each window length that any run was measured at, and for each bin of curves."""
    by_multiple: dict[float, list[Measurement]] = defaultdict(list)
    for member in members:
        for multiple, measurement in member.by_multiple.items():
            by_multiple[multiple].append(measurement)
    longest = max(by_multiple, default=0.0)
    return tuple(
        _column(multiple, measurements, longest) for multiple, measurements in sorted(by_multiple.items())
    )


def _column(multiple: float, measurements: Sequence[Measurement], longest: float) -> Column:
    """Return the column of a window length or a bin, from the measurements of all runs there."""
    # A record with a note has 0 targets. It would make the column's count differ although every number
    # agrees.
    scored = [measurement for measurement in measurements if measurement.targets]
    return Column(
        multiple=multiple,
        window=shared_or_none(measurement.window for measurement in measurements),
        targets=shared_or_none(measurement.targets for measurement in scored),
        documents=shared_or_none(measurement.documents for measurement in scored),
        shown=all(measurement.rise is None for measurement in measurements) or _is_octave(multiple, longest),
    )


def _is_octave(multiple: float, longest: float) -> bool:
    """Tell whether tables show a bin: the last one, and those that end at T times a power of two."""
    # A curve to 8T has 32 bins in even logarithmic steps, more than a screen has columns for.
    return multiple == longest or (multiple >= SHORTEST_SHOWN and is_power_of_two(multiple))


def is_power_of_two(multiple: float) -> bool:
    """Tell whether a multiple of T is a power of two, up to the rounding of bins to whole positions."""
    octave = math.log2(multiple)
    return abs(octave - round(octave)) < 0.02


# --- cells


@dataclass(frozen=True)
class _Seed:
    """A seed that has a number in a cell; numbers are in the metric."""

    measurement: Measurement
    crop_line: Measurement | None
    value: float
    change: float | None  # value minus that of the crop line; None without a number at T


@dataclass(frozen=True)
class _Missing:
    """Why a seed has no number in a cell."""

    reason: str
    is_innocent: bool  # whether it says nothing about the encoding, so that the other seeds represent the row


@dataclass(frozen=True)
class _Change:
    """The change of a cell's seeds against T, in the metric."""

    mean: float | None = None
    spread: float | None = None
    ci95: Interval | None = None


@dataclass(frozen=True)
class _JudgedChange:
    """A change in bits per byte, and the verdict on it."""

    verdict: ChangeVerdict | None = None
    change: float | None = None
    ci95: Interval | None = None


def make_cell(members: Sequence[Member], multiple: float, metric: Metric) -> Cell:
    """Return the cell of a row at one window length, or of one bin of its curves. It has no rank yet."""
    measurements = [member.by_multiple.get(multiple) for member in members]
    seeds = _seeds(members, multiple, metric)
    missing = _missing_seeds(members, multiple, metric)
    # The mean of perplexities is not the perplexity of the mean loss, so that it is shown and never ranked.
    mean, spread = mean_and_spread([seed.value for seed in seeds]) if seeds else (None, None)
    pairs = _pairs(seeds)
    change = _change(seeds, pairs, metric)
    # A row must not look better because its worst seeds have no numbers.
    represents_row = bool(seeds) and all(seed.is_innocent for seed in missing)
    # Ranks pair documents, and the bins of curves have no sums by document.
    rankable = represents_row and all(seed.measurement.sums is not None for seed in seeds)
    has_verdict = rankable and len(pairs) == len(seeds)  # every seed has a change, with its documents
    judged = _judged(pairs) if has_verdict else _JudgedChange()
    # Both at once: a count of targets from one seed with the documents of another seed would describe
    # neither.
    counts = shared_or_none((seed.measurement.targets, seed.measurement.documents) for seed in seeds)
    targets, documents = counts or (None, None)
    return Cell(
        multiple=multiple,
        window=shared_or_none(measurement.window for measurement in measurements if measurement),
        mean=mean,
        spread=spread,
        change=change.mean,
        change_spread=change.spread,
        change_ci95=change.ci95,
        seeds=len(seeds),
        note=_note(seeds, missing, len(members)),
        verdict=judged.verdict,
        verdict_change=judged.change,
        verdict_ci95=judged.ci95,
        targets_hash=shared_or_none(seed.measurement.target_set.targets_hash for seed in seeds),
        targets=targets,
        documents=documents,
        rankable=rankable,
    )


def _seeds(members: Sequence[Member], multiple: float, metric: Metric) -> list[_Seed]:
    """Return the seeds with a number, each with its change."""
    seeds = []
    for member in members:
        measurement = member.by_multiple.get(multiple)
        value = None if measurement is None else measurement.value(metric)
        if measurement is None or value is None:
            continue
        # A bin of a curve stores its change, which is against the level at T in the same passes.
        change = measurement.rise
        at_t = None if member.crop_line is None else member.crop_line.value(metric)
        if change is None and at_t is not None:
            change = value - at_t
        seeds.append(_Seed(measurement, member.crop_line, value, change))
    return seeds


def _missing_seeds(members: Sequence[Member], multiple: float, metric: Metric) -> list[_Missing]:
    """Return why each seed without a number has none."""
    missing = []
    for member in members:
        measurement = member.by_multiple.get(multiple)
        if measurement is None or measurement.value(metric) is None:
            missing.append(_missing(member.run, measurement))
    return missing


def _pairs(seeds: Sequence[_Seed]) -> list[tuple[Sample, Sample]]:
    """Return the sums by document of each seed, in the cell and at its crop line."""
    pairs = []
    for seed in seeds:
        if seed.crop_line is seed.measurement:  # the change of the crop line is 0 by definition
            continue
        pair = pair_of(seed.measurement, seed.crop_line)
        if pair is not None:
            pairs.append(pair)
    return pairs


def _change(seeds: Sequence[_Seed], pairs: Sequence[tuple[Sample, Sample]], metric: Metric) -> _Change:
    """Return the change over all seeds; an empty one if any of them has no number at T.

    The mean change of some seeds would not belong to the mean loss of all seeds in the same cell.
    """
    changes = [seed.change for seed in seeds if seed.change is not None]
    if not seeds or len(changes) < len(seeds) or not all(map(math.isfinite, changes)):
        return _Change()
    mean, spread = mean_and_spread(changes)
    # An interval over documents is wrong for several seeds, since it leaves out how seeds differ. A
    # perplexity is no ratio of two sums, so that the jackknife has nothing to leave a document out of.
    if len(seeds) > 1 or metric == "ppl":
        return _Change(mean, spread)
    estimate = difference_if_any(pairs, "targets" if metric == "nats" else "bytes")
    if estimate is None:  # a bin of a curve has no sums by document, but stores its interval
        return _Change(mean, spread, seeds[0].measurement.rise_ci95)
    return _Change(mean, spread, estimate.interval())


def _judged(pairs: Sequence[tuple[Sample, Sample]]) -> _JudgedChange:
    """Return the verdict on a change, with the change; an empty one if the targets have no bytes."""
    # A verdict does not look at other rows: unlike a rank it has Student's t over the row's own seeds, and
    # keeps its word whichever rows stand beside it.
    change = difference_if_any(pairs, "bytes")
    if change is None:
        return _JudgedChange()
    # If the two measurements are equal, so is the loss, even if the documents are too few for an interval.
    is_copy = all(at_window.nats.tolist() == at_t.nats.tolist() for at_window, at_t in pairs)
    verdict_on_change = ChangeVerdict(SAME_WORD) if is_copy else verdict(change)
    return _JudgedChange(verdict_on_change, change.value, change.interval())


def _note(seeds: Sequence[_Seed], missing: Sequence[_Missing], members: int) -> str | None:
    """Return how many seeds have no number and why: `1 of 3 diverged`, or `diverged` if none has one."""
    notes = []
    reasons = Counter(seed.reason for seed in missing)
    for reason, count in sorted(reasons.items()):
        notes.append(f"{count} of {members} {reason}" if seeds else reason)
    with_change = sum(seed.change is not None for seed in seeds)
    if 0 < with_change < len(seeds):
        notes.append(f"{with_change} of {len(seeds)} with 1x")
    return ", ".join(notes) or None


def _missing(run: Run, measurement: Measurement | None) -> _Missing:
    """Return why a seed has no number."""
    if measurement is not None:
        # A window that a model could not score says something about it, whatever the first word of the note.
        # That word may be `failed` or `unknown`, and is no state of the run then.
        reason = "no bytes" if measurement.note is None else short_note(measurement.note)
        return _Missing(reason, is_innocent=False)
    if run.state == FINISHED:
        reason = NO_RESULTS if run.facts is None else NOT_MEASURED
        return _Missing(reason, is_innocent=True)
    # A run that still trains, or failed, has no number because of its state, and the state is what a reader
    # can act on.
    return _Missing(run.state, run.state in INNOCENT_STATES)


def short_note(note: str) -> str:
    """Return the first word of a note, which fits into a cell: `oom`, `n/a`, `refused`."""
    match = re.match(r"[A-Za-z/]+", note)
    return match.group()[:LONGEST_NOTE] if match else "no number"


def samples_of(members: Sequence[Member], multiple: float) -> dict[int, Sample]:
    """Return the sums by document of each seed of a row at one window length."""
    samples: dict[int, Sample] = {}
    for member in members:
        measurement = member.by_multiple.get(multiple)
        sample = None if measurement is None else measurement.sample
        if member.run.seed is not None and sample is not None:
            samples[member.run.seed] = sample
    return samples


def change_pairs_of(members: Sequence[Member], multiple: float) -> dict[int, tuple[Sample, Sample]]:
    """Return the sums by document of each seed of a row at one window length, and at its crop line."""
    pairs: dict[int, tuple[Sample, Sample]] = {}
    for member in members:
        pair = pair_of(member.by_multiple.get(multiple), member.crop_line)
        if member.run.seed is not None and pair is not None:
            pairs[member.run.seed] = pair
    return pairs


# --- curves


def curve_summary(members: Sequence[Member]) -> CurveSummary | None:
    """Return where the curves of a row's seeds break; None without a curve."""
    curves: list[Curve] = []
    train_length = 0
    for member in members:
        for measurement in member.measurements:
            if measurement.curve is not None:
                curves.append(measurement.curve)
                train_length = train_length or measurement.train_length
    if not curves:
        return None
    return CurveSummary(
        train_length=train_length,
        breaks_at=tuple(curve["breaks_at"] for curve in curves),
        holds=tuple(_holds(curve, train_length) for curve in curves),
    )


def _holds(curve: Curve, train_length: int) -> bool:
    """Tell whether there are bins past T, and the interval of every one lies below a break."""
    # `breaks_at` is empty both where no bin breaks and where no interval can tell. Tables once said "no
    # break" for both (docs/log.md, 2026-11-22), so that holding needs every interval below the limit.
    bins = zip(curve["edges"][:-1], curve["rise_ci95"], strict=True)
    intervals_past_t = [interval for start, interval in bins if start > train_length]
    if not intervals_past_t:
        return False
    return all(interval is not None and interval[1] <= BREAK for interval in intervals_past_t)
