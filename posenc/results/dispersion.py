"""Dispersion: what attention does in a row by length, and which reasons of a collapse the numbers support.

A reason is supported where its criterion holds at the longest window W, in means over seeds. A row may have
several, or none. They are directions, not proofs: only the first one is an experiment.
  positions  the last T tokens alone, the older half of them placed as far as W reaches, lose at least half of
             what the row loses at W: the positions do it, without one more key
  spread     the entropy, mean over layers, rises by at least half of log(W / T), so that attention spreads to
             at least sqrt(W / T) times as many keys, and the variance of the output falls below half
  sink       in the layer that has most on the first token at T, at least a tenth and twice an equal share,
             the weight falls below half
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Literal

from posenc.results.measurements import Measurement, Member

FAR_SHARE = 0.5  # of the change at W that far positions do by themselves
SPREAD_SHARE = 0.5  # of log(W / T), the most that equal weights rise by
LESS_VARIANCE = 0.5  # of the variance at T
SINK_WEIGHT = 0.1  # on the first token at T, below which there is no sink
SINK_SHARES = 2.0  # times an equal share
LESS_SINK = 0.5  # of the weight at T

Reason = Literal["positions", "spread", "sink"]


@dataclass(frozen=True)
class DispersionCell:
    """What attention does in windows of one length, mean over seeds; lists have a value for each layer."""

    multiple: float  # of T
    window: int  # tokens
    nats: float  # loss of the targets, per token
    entropy: tuple[float, ...]  # nats
    first: tuple[float, ...]  # weight on the first token
    variance: tuple[float, ...]  # of the output
    far_nats: (
        float | None
    )  # loss of the last T tokens, the older half of them as far away as the window reaches
    seeds: int

    @property
    def mean_entropy(self) -> float:
        """Return the entropy in nats, mean over layers."""
        return fmean(self.entropy)

    @property
    def mean_first(self) -> float:
        """Return the weight on the first token, mean over layers."""
        return fmean(self.first)


@dataclass(frozen=True)
class RowDispersion:
    """What attention does in a row, and why it fails if it collapses."""

    cells: tuple[DispersionCell, ...]  # by ascending window
    reasons: tuple[Reason, ...] | None  # null for a row that does not collapse, or has no number at T

    @property
    def at_t(self) -> DispersionCell | None:
        """Return the cell of windows of T."""
        return next((cell for cell in self.cells if cell.multiple == 1), None)

    @property
    def longest(self) -> DispersionCell:
        """Return the cell of the longest window."""
        return self.cells[-1]

    @property
    def variance_ratio(self) -> float | None:
        """Return the variance in the longest window over that at T, geometric mean of the layers."""
        return None if self.at_t is None else variance_ratio(self.at_t, self.longest)

    @property
    def far_share(self) -> float | None:
        """Return which share of the loss of the longest window far positions lose by themselves."""
        if self.at_t is None or self.longest.far_nats is None or self.longest.nats <= self.at_t.nats:
            return None
        return (self.longest.far_nats - self.at_t.nats) / (self.longest.nats - self.at_t.nats)


def dispersion_of_row(members: Sequence[Member], collapsed: bool) -> RowDispersion | None:
    """Return the dispersion of a row, given as its members of the protocol; None without a number."""
    by_window: dict[int, list[Measurement]] = defaultdict(list)
    for member in members:
        for measurement in member.measurements:
            if measurement.dispersion is not None and measurement.nats is not None:
                by_window[measurement.window].append(measurement)
    cells = tuple(_cell_of(measured) for _, measured in sorted(by_window.items()))
    if not cells:
        return None
    row = RowDispersion(cells, None)
    if not collapsed or row.at_t is None or row.longest.multiple <= 1:
        return row
    return RowDispersion(cells, reasons_of(row.at_t, row.longest, row.far_share))


def _cell_of(measured: Sequence[Measurement]) -> DispersionCell:
    """Return the mean over seeds; `measured` are of one window."""
    dispersions = [measurement.dispersion for measurement in measured if measurement.dispersion is not None]
    losses = [measurement.nats for measurement in measured if measurement.nats is not None]
    far = [dispersion["far_nats"] for dispersion in dispersions if dispersion["far_nats"] is not None]
    return DispersionCell(
        multiple=measured[0].multiple,
        window=measured[0].window,
        nats=fmean(losses),
        entropy=_means([dispersion["entropy"] for dispersion in dispersions]),
        first=_means([dispersion["first"] for dispersion in dispersions]),
        variance=_means([dispersion["variance"] for dispersion in dispersions]),
        far_nats=fmean(far) if len(far) == len(dispersions) else None,
        seeds=len(dispersions),
    )


def _means(by_seed: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the mean over seeds of each layer."""
    return tuple(fmean(values) for values in zip(*by_seed, strict=True))


def reasons_of(at_t: DispersionCell, longest: DispersionCell, far_share: float | None) -> tuple[Reason, ...]:
    """Return the reasons whose criteria hold."""
    reasons: list[Reason] = []
    if far_share is not None and far_share >= FAR_SHARE:
        reasons.append("positions")
    if is_spread(at_t, longest):
        reasons.append("spread")
    if is_sink_broken(at_t, longest):
        reasons.append("sink")
    return tuple(reasons)


def is_spread(at_t: DispersionCell, longest: DispersionCell) -> bool:
    """Tell whether attention spreads over more keys, and its outputs differ less for it."""
    rise = longest.mean_entropy - at_t.mean_entropy
    most = math.log(longest.window / at_t.window)
    ratio = variance_ratio(at_t, longest)
    return rise >= SPREAD_SHARE * most and ratio is not None and ratio < LESS_VARIANCE


def is_sink_broken(at_t: DispersionCell, longest: DispersionCell) -> bool:
    """Tell whether the layer with most weight on the first token at T loses it."""
    layer = max(range(len(at_t.first)), key=lambda index: at_t.first[index])
    weight = at_t.first[layer]
    is_sink = weight >= max(SINK_WEIGHT, SINK_SHARES / at_t.window)
    return is_sink and longest.first[layer] < LESS_SINK * weight


def variance_ratio(at_t: DispersionCell, longest: DispersionCell) -> float | None:
    """Return the variance over that at T, geometric mean of the layers; None where a layer has none at T."""
    if not all(at_t.variance) or not all(longest.variance):
        return None
    logarithms = [math.log(far / near) for near, far in zip(at_t.variance, longest.variance, strict=True)]
    return math.exp(fmean(logarithms))
