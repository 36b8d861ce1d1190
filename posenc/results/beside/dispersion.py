"""Dispersion: what attention does in a row by length, and which reasons of a collapse the numbers support.

A row that collapses can have several reasons, or none. Each has a criterion, for means over seeds at the
longest window W. Reasons are directions to look in, not proofs: only the first one is an experiment.
  positions  The loss over the last T tokens alone, with the first half of them placed as far away as W
  reaches, rises by at least 30% of the row's rise at W. So far positions do harm without more keys.
  spread     The entropy, mean over layers, rises by at least half of log(W / T): attention spreads to at
  least sqrt(W / T) times as many keys. And the variance of the output falls to less than half.
  sink       The layer with the most weight on the first token at T loses more than half of that weight. At T
  this must be at least a tenth of all weight, and twice an equal share.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Annotated, Literal

from annotated_types import MinLen
from pydantic import AfterValidator
from typing_extensions import TypedDict  # pydantic cannot read typing's before Python 3.12

from posenc.results.beside.base import NumbersBeside, TableBeside, by_window
from posenc.results.checks import check_aligned
from posenc.results.measurements import Measurement, Member
from posenc.results.statistics.documents import Number
from posenc.results.statistics.verdicts import COLLAPSED_WORD

FAR_SHARE = 0.3  # far positions alone must make at least this share of the change at W (docs/softmax.md)
SPREAD_SHARE = 0.5  # the entropy must rise by this share of log(W / T), the rise of equal weights
VARIANCE_LEFT = 0.5  # the variance must fall below this share of that at T
SINK_WEIGHT = 0.1  # a sink has at least this weight on the first token at T
SINK_SHARES = 2.0  # a sink has at least this many equal shares of the weight at T
SINK_LEFT = 0.5  # a sink with less than this share of its weight at T is broken

Reason = Literal["positions", "spread", "sink"]


# --- in a record


class DispersionByLayer(TypedDict):
    """What attention does for the queries of the targets: lists have a mean for each layer."""

    # Heads are averaged already (note of the protocol). Layers are kept apart, since a sink may stand in one
    # layer.
    entropy: Annotated[list[Number], MinLen(1)]  # nats
    first: list[Number]  # weight on the first token of the window
    variance: list[Number]  # of the numbers of the output, over the queries
    far_nats: Number | None  # per token: last T tokens, the older half as far as the window; null up to T


def _check(dispersion: DispersionByLayer) -> DispersionByLayer:
    """Return the dispersion if its lists are equally long. Raises ValueError."""
    check_aligned(dispersion["entropy"], dispersion["first"], dispersion["variance"])
    return dispersion


RECORD = Annotated[DispersionByLayer, AfterValidator(_check)]


# --- in a row


@dataclass(frozen=True)
class DispersionCell:
    """What attention does in windows of one length, mean over seeds. Lists have a value for each layer."""

    multiple: float  # of T
    window: int  # tokens
    nats: float  # loss of the targets, per token
    entropy: tuple[float, ...]  # nats
    first: tuple[float, ...]  # weight on the first token
    variance: tuple[float, ...]  # of the output
    far_nats: float | None  # per token: last T tokens, the older half as far as the window; null up to T
    seeds: int

    @property
    def mean_entropy(self) -> float:
        """Return the entropy in nats, mean over layers."""
        return fmean(self.entropy)

    @property
    def mean_first(self) -> float:
        """Return the weight on the first token, mean over layers."""
        return fmean(self.first)

    @property
    def sink_layer(self) -> int:
        """Return the index of the layer with most weight on the first token."""
        # A mean over layers would hide a sink that one layer alone has.
        return max(range(len(self.first)), key=lambda layer: self.first[layer])


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
        """Return the variance in the longest window divided by that at T, as geometric mean over layers."""
        return None if self.at_t is None else variance_ratio(self.at_t, self.longest)

    @property
    def far_share(self) -> float | None:
        """Return the change by far positions alone, as a share of the change in the longest window.

        None if far positions were not measured, or if the loss does not rise.
        """
        far_change = self.far_change(self.longest)
        # A share of a change that is zero or negative says nothing: a loss that falls has no harm to explain.
        if self.at_t is None or far_change is None or self.longest.nats <= self.at_t.nats:
            return None
        return far_change / (self.longest.nats - self.at_t.nats)

    def far_change(self, cell: DispersionCell) -> float | None:
        """Return the change against T, in nats, if only positions are as far as in a window.

        None if that was not measured.
        """
        if self.at_t is None or cell.far_nats is None:
            return None
        return cell.far_nats - self.at_t.nats


def _rows_of(table: TableBeside) -> list[RowDispersion | None]:
    """Return what attention does in each row, with the reasons of the rows that collapse."""
    rows = []
    for members, shown, left_out in zip(table.rows, table.cells, table.cells_left_out, strict=True):
        # Whether a row collapses in its longest window does not depend on the columns that a user chose.
        cells = (*shown, *left_out)
        collapsed_at = {cell.multiple for cell in cells if cell.verdict_word == COLLAPSED_WORD}
        rows.append(dispersion_of_row(members, collapsed_at))
    return rows


DISPERSION: NumbersBeside[DispersionByLayer, RowDispersion, None] = NumbersBeside(
    protocol="dispersion", rows_of=_rows_of, order=50
)


def dispersion_of_row(members: Sequence[Member], collapsed_at: Collection[float]) -> RowDispersion | None:
    """Return the dispersion of a row by its members of the protocol `dispersion`; None without any number.

    Only a row that collapses in the longest window of this protocol gets reasons: they are of that window.
    `collapsed_at` are the windows in which it collapses, as multiples of T.
    """
    cells = tuple(_cell_of(measured) for measured in by_window(members, DISPERSION))
    if not cells:
        return None
    # Made twice, since the reasons need the share of far positions, which is a property of a whole row.
    without_reasons = RowDispersion(cells, None)
    at_t = without_reasons.at_t
    longest = without_reasons.longest
    # Entropy grows with the number of keys in good models, too. So a row that keeps its loss gets no reasons.
    if longest.multiple not in collapsed_at or at_t is None or longest.multiple <= 1:
        return without_reasons
    return RowDispersion(cells, reasons_of(at_t, longest, without_reasons.far_share))


def _cell_of(measured: Sequence[Measurement]) -> DispersionCell:
    """Return the means over seeds; `measured` are the measurements of one window, one for each seed."""
    dispersions = [numbers for numbers in map(DISPERSION.measured, measured) if numbers is not None]
    losses = [measurement.nats for measurement in measured if measurement.nats is not None]
    far_losses = [dispersion["far_nats"] for dispersion in dispersions if dispersion["far_nats"] is not None]
    # `far_change` subtracts the mean loss of all seeds, so a mean over some of them would not belong to it.
    all_have_far = len(far_losses) == len(dispersions)
    return DispersionCell(
        multiple=measured[0].multiple,
        window=measured[0].window,
        nats=fmean(losses),
        entropy=_means([dispersion["entropy"] for dispersion in dispersions]),
        first=_means([dispersion["first"] for dispersion in dispersions]),
        variance=_means([dispersion["variance"] for dispersion in dispersions]),
        far_nats=fmean(far_losses) if all_have_far else None,
        seeds=len(dispersions),
    )


def _means(by_seed: Sequence[Sequence[float]]) -> tuple[float, ...]:
    """Return the mean over seeds of each layer."""
    return tuple(fmean(values) for values in zip(*by_seed, strict=True))


def reasons_of(at_t: DispersionCell, longest: DispersionCell, far_share: float | None) -> tuple[Reason, ...]:
    """Return the reasons whose criteria hold."""
    reasons: list[Reason] = []
    # A low share does not acquit positions: T/2 keys at unseen distances may do little where 7T of them do
    # much.
    if far_share is not None and far_share >= FAR_SHARE:
        reasons.append("positions")
    if is_spread(at_t, longest):
        reasons.append("spread")
    if is_sink_broken(at_t, longest):
        reasons.append("sink")
    return tuple(reasons)


def is_spread(at_t: DispersionCell, longest: DispersionCell) -> bool:
    """Tell whether attention spreads over more keys, and its outputs differ less."""
    rise = longest.mean_entropy - at_t.mean_entropy
    # The entropy of equal weights on n keys is log n.
    rise_of_equal_weights = math.log(longest.window / at_t.window)
    if rise < SPREAD_SHARE * rise_of_equal_weights:
        return False
    # The entropy alone does not do: that of NoPE rose by 1.9 nats at 8T (docs/log.md, 2026-11-27), while its
    # outputs still varied 0.80 times as much.
    ratio = variance_ratio(at_t, longest)
    return ratio is not None and ratio < VARIANCE_LEFT


def is_sink_broken(at_t: DispersionCell, longest: DispersionCell) -> bool:
    """Tell whether the layer with the most weight on the first token at T has a sink, and loses it."""
    layer = at_t.sink_layer
    weight = at_t.first[layer]
    # Below 20 tokens a tenth of the weight is less than two equal shares, so the shares decide there.
    is_sink = weight >= max(SINK_WEIGHT, SINK_SHARES / at_t.window)
    return is_sink and longest.first[layer] < SINK_LEFT * weight


def variance_ratio(at_t: DispersionCell, cell: DispersionCell) -> float | None:
    """Return the variance divided by that at T, geometric mean over layers; None if a variance is 0."""
    if not all(at_t.variance) or not all(cell.variance):
        return None
    pairs = zip(at_t.variance, cell.variance, strict=True)
    # Layers differ in the size of their outputs. A geometric mean of ratios gives each layer the same say.
    logarithms = [math.log(variance / variance_at_t) for variance_at_t, variance in pairs]
    return math.exp(fmean(logarithms))
