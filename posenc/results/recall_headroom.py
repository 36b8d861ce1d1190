"""Recall of planted values, and headroom: how much of what training long gains a short-trained model has.

Recall is how many planted values a row finds within T and beyond, and how far back. An accuracy is over
windows (texts), which are the same at all distances and in all seeds. Its interval is Wilson's over windows,
joined with Student's t over seeds by the root of the sum of squares.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Literal

from posenc.results.load import Run
from posenc.results.schema import HEADLINE, Record, multiple_of
from posenc.results.settings import Selected, kind_of, pair_of
from posenc.results.statistics import CONFIDENCE, Ratio, document_part, mean_and_spread, ratios_of, welch

LEVEL = 90.0  # per cent within T: a row below it did not learn to look back, and is not ranked
KEPT = 0.5  # of the accuracy within T, at the recall horizon

Place = tuple[float, int, int | None, int]  # window as a multiple of T and in tokens, distance, pairs
Seed = tuple[float, float, int]  # what a seed finds at a place: accuracy, nats, windows
Rank = Literal["best", "tied", "below"]


@dataclass
class RecallCell:
    """The values that a row finds in windows of one length; shares from 0 to 1."""

    multiple: float  # of T: the window
    window: int  # tokens
    distance: int | None  # tokens between the two places of the pair; null: the mean over those within T
    pairs: int  # in each window
    accuracy: float  # mean over seeds
    spread: float | None  # standard deviation over seeds; null for one
    ci95: list[float]  # over windows and seeds
    nats: float  # per value, mean over seeds
    windows: int  # that were asked, in each seed
    seeds: int
    rank: Rank | None = None  # of its column, tied: not resolved; null where the row is not ranked


@dataclass
class Horizon:
    """The largest distance, in the longest window, with at least half of the accuracy within T."""

    distance: int  # tokens; 0 where no distance has
    multiple: float  # the distance / T
    longest: bool  # no longer distance was asked for, so it may be more


@dataclass
class RowRecall:
    """The recall of a row."""

    within: RecallCell | None  # in windows of T
    learned: bool | None  # it finds enough within T, as trained; null where that was not measured
    beyond: list[RecallCell | None]  # in the order of the comparison's multiples
    horizon: Horizon | None  # null for a row that did not learn
    grid: list[RecallCell]  # every window, distance and number of pairs
    note: str | None  # how many seeds have no number or did not learn


@dataclass
class RecallColumns:
    """What the rows' recall is of."""

    level: float  # per cent within T that a row needs
    multiples: list[float]  # of T: windows beyond it, each with its farthest distance


def recall_of_rows(
    rows: Sequence[Sequence[Selected]], level: float, hidden: Collection[float] = ()
) -> tuple[RecallColumns | None, list[RowRecall | None]]:
    """Return the columns, None without a number, and the recall of each row.

    A row is the records of its seeds; `hidden` are windows that get no column.
    """
    records = [record for members in rows for one in members for record in _asked([one])]
    windows = {multiple_of(record) for record in records}
    multiples = sorted(one for one in windows if one > 1 and one not in hidden)
    found = [_recall_of(members, level, multiples) for members in rows]
    if not any(found):
        return None, found
    if len({record["targets_hash"] for record in records}) == 1:
        whole = [sum(bool(m.cells) or m.run.state == "diverged" for m in members) for members in rows]
        _rank(found, whole)
    return RecallColumns(level, multiples), found


def _asked(members: Sequence[Selected]) -> list[Record]:
    return [record for one in members for record in one.records if "recall" in record]


def _recall_of(members: Sequence[Selected], level: float, multiples: Sequence[float]) -> RowRecall | None:
    """Return the recall of a row; None without a number."""
    at: dict[Place, list[Seed]] = defaultdict(list)
    usual = set()  # the numbers of pairs of the training
    for one in members:
        for multiple, record in one.cells.items():
            for distance, pairs, seed in _lines(record):
                at[multiple, record["window"], distance, pairs].append(seed)
            usual |= {*record["recall"]["pairs"][:1]} if "recall" in record else set()
    if not at:
        return None
    grid = [cell_of(place, seeds) for place, seeds in sorted(at.items())]
    trained = [cell for cell in grid if cell.pairs in usual]
    farthest = {cell.multiple: cell for cell in trained}
    within, as_trained = _within(members), _within(members, base=True)
    learned = None if as_trained is None else _enough(as_trained, level)
    missing = sum(not _asked([one]) for one in members)
    weak = sum(not _enough(cell, level) for one in members if (cell := _within([one], base=True)))
    notes = {f"{missing} of {len(members)} without": missing > 0}
    notes[f"{weak} of {len(members)} did not learn"] = weak > 0 and bool(learned)
    return RowRecall(
        within=within,
        learned=learned,
        beyond=[farthest.get(one) for one in multiples],
        horizon=_horizon(trained, within) if learned and within else None,
        grid=grid,
        note=", ".join(note for note, holds in notes.items() if holds) or None,
    )


def _lines(record: Record) -> Iterator[tuple[int, int, Seed]]:
    """Yield distance, pairs and what was found; those of the training first."""
    if "recall" in record:
        recall = record["recall"]
        columns = (recall[key] for key in ("distance", "pairs", "correct", "windows", "nats"))
        for distance, pairs, correct, windows, nats in zip(*columns, strict=True):
            yield distance, pairs, (correct / windows, nats, windows)


def cell_of(place: Place, seeds: Sequence[Seed]) -> RecallCell:
    """Return what the seeds of a row find at a place, with its interval."""
    accuracies, nats, windows = zip(*seeds, strict=True)
    mean, spread = mean_and_spread(accuracies)
    loss, _ = mean_and_spread(nats)
    cell = RecallCell(*place, mean, spread, [], loss, min(windows), len(seeds))
    cell.ci95 = list(_interval(cell, CONFIDENCE))
    return cell


def _within(members: Sequence[Selected], base: bool = False) -> RecallCell | None:
    """Return the mean over the distances in windows of T, with the training's pairs; None without a number.

    All distances are asked for in the same texts, so that the windows of one are what the interval is over.
    """
    seeds: list[Seed] = []
    for one in members:
        record = one.base if base else one.cells.get(1.0)
        if record is not None and "recall" in record:
            pairs, window = record["recall"]["pairs"][0], record["window"]
            usual = [seed for _, own, seed in _lines(record) if own == pairs]
            accuracy, nats = (math.fsum(seed[i] for seed in usual) / len(usual) for i in (0, 1))
            seeds.append((accuracy, nats, min(windows for _, _, windows in usual)))
    return cell_of((1.0, window, None, pairs), seeds) if seeds else None


def _enough(within: RecallCell, level: float) -> bool:
    return 100 * within.accuracy >= level - 1e-9


def _horizon(cells: Sequence[RecallCell], within: RecallCell) -> Horizon:
    """Return how far a row looks back; `cells` have the training's pairs."""
    longest = max(cell.multiple for cell in cells)
    here = [(cell.distance or 0, cell) for cell in cells if cell.multiple == longest]
    kept = [distance for distance, cell in here if cell.accuracy >= KEPT * within.accuracy]
    distance = max(kept, default=0)
    return Horizon(distance, distance / within.window, distance == max(here)[0])


def _rank(rows: Sequence[RowRecall | None], whole: Sequence[int]) -> None:
    """Rank the rows that learned in each column; a cell has to be of all seeds, survivors win nothing.

    Tied: the interval of the difference from the best row (Newcombe 1998) reaches 0, at a confidence that is
    corrected (Bonferroni) for the rows.
    """
    ranked = [(row, seeds) for row, seeds in zip(rows, whole, strict=True) if row and row.learned]
    for column in zip(*(row.beyond for row, _ in ranked), strict=True):
        cells = [one for one, (_, seeds) in zip(column, ranked, strict=True) if one and one.seeds == seeds]
        if len(cells) < 2:
            continue
        best = max(cells, key=lambda cell: cell.accuracy)
        confidence = 1 - (1 - CONFIDENCE) / (len(cells) - 1)
        for cell in cells:
            below = apart(best, cell, confidence)
            cell.rank = "best" if cell is best else "below" if below else "tied"


def apart(best: RecallCell, cell: RecallCell, confidence: float) -> bool:
    """Tell whether the interval of a difference, Newcombe's from both intervals, lies above 0."""
    low, _ = _interval(best, confidence)
    _, high = _interval(cell, confidence)
    return best.accuracy - cell.accuracy > math.hypot(best.accuracy - low, high - cell.accuracy)


def wilson(share: float, count: int, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Return the interval of a share of `count` (Wilson 1927), which is none too narrow at 0 and 1."""
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    middle, shrink = share + z * z / (2 * count), 1 + z * z / count
    half = z * math.sqrt(share * (1 - share) / count + z * z / (4 * count * count))
    return (max(0.0, (middle - half) / shrink), min(1.0, (middle + half) / shrink))


def _interval(cell: RecallCell, confidence: float) -> tuple[float, float]:
    low, high = wilson(cell.accuracy, cell.windows, confidence)
    if cell.spread is None:
        return low, high
    from scipy.special import stdtrit

    t = -float(stdtrit(cell.seeds - 1, (1 - confidence) / 2))
    seeds = t * cell.spread / math.sqrt(cell.seeds)
    low, high = math.hypot(cell.accuracy - low, seeds), math.hypot(high - cell.accuracy, seeds)
    return max(0.0, cell.accuracy - low), min(1.0, cell.accuracy + high)


# --- headroom: the share of what the far text is worth that a short-trained model gains from it
# recovered = (L(T) - L(8T)) / (L(T) - R(8T)): L is the loss of a model trained at T in windows of T and 8T, R
# that of one trained at 8T in windows of 8T, of the same encoding, settings and tokens, on the same targets.
# 0% is what cropping gives, 100% is as good as training long, below 0 the far text harms.

WITH_ROOM = (HEADLINE, "key-tokens")  # the targets are the same at every window, and see a whole one
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
    for run in runs if protocol in WITH_ROOM else ():
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
        far = [(base, one.cells.get(multiple)) for one, base in bases]
        pairs = [pair for base, record in far for pair in pair_of(base, record)]
        if pairs:
            samples, count = [one for pair in pairs for one in pair], 2 * len(pairs)
            samples += [record["per_document"] or {} for record in by_seed.values()]
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
    around = _unpaired(room, at_t, reference, document_part(near, long))
    found = Recovered(None, None, room, around, float(reference.mean()), len(near), len(long))
    if around is None or around[0] <= 0:
        return replace(found, note=FEW_DOCUMENTS if around is None else NO_ROOM)
    share = float((at_t - at_far).mean()) / room
    without = [np.mean([one.left_out for one in some], axis=0) for some in (near, far, long)]
    left_out = (without[0] - without[1]) / (without[0] - without[2])
    n, freedom = len(left_out), min(one.freedom for one in (*near, *far, *long))
    documents = float((n - 1) / n * ((left_out - left_out.mean()) ** 2).sum())
    own, theirs = (at_t - at_far - share * at_t) / room, share * reference / room
    return replace(found, share=share, ci95=_unpaired(share, own, theirs, (documents, freedom)))


def _unpaired(
    value: float, a: Iterable[float], b: Iterable[float], documents: tuple[float | None, float]
) -> list[float] | None:
    """Return the 95% interval of a value whose seeds vary as mean(a) - mean(b) does, unpaired."""
    spreads = [(mean_and_spread(one)[1] or 0.0, len(one)) for one in (list(a), list(b))]
    parts = [(spread**2 / n, max(n - 1, 1)) for spread, n in spreads]
    return welch(value, parts, documents).interval()
