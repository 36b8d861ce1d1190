"""positions: the loss at each position of one long context, in logarithmic bins. Where does it break?

One forward pass is made over each span of `spans.py`, at the longest window alone. Position p is a target
with p tokens before it, so that p = T is the last position of training.

- The level at T is the mean loss over T/2 < p <= T. If there is an extension, the level is that of the model
  as trained, on the first T tokens of the same spans.
- The rise of a bin is its mean loss minus the level, on the same spans, with an interval over documents.
- The curve breaks at the first bin past T whose interval of the rise lies entirely above 0.1 nats (BREAK).
  Each bin has its own interval of 95%, without a correction for the number of bins.

Some encodings make scores by the total length (they fail the law `prefix` of `posenc check`). Their losses at
the first positions of a long pass, and so the level, are not those of a short pass.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.protocols.base import Protocol
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.spans import Spans, plan_spans
from posenc.evaluation.sums import LossSums
from posenc.results.records import BREAK, Curve
from posenc.results.statistics.documents import MIN_GROUPS, ratio_interval

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

BINS_PER_OCTAVE = 4


class Positions(Protocol[Spans]):
    name = "positions"
    title = "each position of one long context"
    explain = "loss by position in one long context"
    note = "one pass over the longest context; a column is the last bin before it"

    def windows(self, lengths: EvalLengths) -> Sequence[int]:
        """Return the longest window alone."""
        # The curve over positions shows all shorter lengths, so no further pass is needed.
        return [lengths.longest]

    def plan(self, request: EvalRequest) -> Spans:
        return plan_spans(request)

    def measure(self, context: EvalContext, plan: Spans, window: int) -> LossSums:
        """Sum the loss of each span, from one pass over it, and add the curve over positions.

        Raises NotApplicableError for windows below T. Without finite losses there is no curve.
        """
        length = context.context_length
        if window < length:
            raise NotApplicableError(f"n/a: positions need a window of T = {length} tokens or more")
        stops = plan.stops(context)  # (N,)
        # `text_losses` remembers its passes: if `nonoverlapping` runs too, it has made this one.
        nats = context.text_losses(stops, window, window)  # (N, W)
        # The first half of T is left out, since its tokens have hardly any text before them.
        level_nats = nats[:, length // 2 : length]  # (N, T/2)
        if context.extension is not None:  # an extension may change what comes before T as well
            as_trained = dataclasses.replace(context, extension=None)
            stops_at_t = stops - window + length
            first_nats = as_trained.text_losses(stops_at_t, length, length)  # (N, T)
            level_nats = first_nats[:, length // 2 :]
        sums = plan.sums(context, nats.sum(axis=1))
        if not (np.isfinite(nats).all() and np.isfinite(level_nats).all()):
            return sums  # a record holds finite numbers only: without a curve it says `diverged`
        units = independent_units(context, plan)
        curve = curve_of(nats, level_nats, units, length)
        return dataclasses.replace(sums, extra={"curve": curve})


def independent_units(context: EvalContext, plan: Spans) -> np.ndarray:
    """Return the number of each span's document or group, (N,) int64. The interval is made over these units.

    They are groups (folders, books) if the spans lie in enough of them for an interval, else documents.
    """
    groups = context.store.splits[context.split].groups
    if groups is None:
        return plan.documents
    group_of_span: np.ndarray = groups[plan.documents]
    has_enough_groups = len(np.unique(group_of_span)) >= MIN_GROUPS
    return group_of_span if has_enough_groups else plan.documents


def curve_of(nats: np.ndarray, level_nats: np.ndarray, units: np.ndarray, context_length: int) -> Curve:
    """Return the curve over positions of the losses of N spans, nats (N, W).

    level_nats (N, T/2) are the losses whose mean is the level. `units` (N,) are the documents or groups of
    the spans, over which the intervals are made.
    """
    edges = bin_edges(context_length, nats.shape[1])
    bins = list(itertools.pairwise(edges))  # positions start .. stop - 1
    # For each span its own level, so that a span of difficult text does not widen the interval of a rise.
    level = level_nats.mean(axis=1)  # (N,)
    # Column p - 1 is the target at position p: the first one of a span has a token before it.
    bin_means = [nats[:, start - 1 : stop - 1].mean(axis=1) for start, stop in bins]  # (N,) each
    rises = [mean - level for mean in bin_means]  # (N,) each
    intervals = [_interval(rise, np.ones(len(nats)), units) for rise in rises]
    slope, slope_interval = slope_past(nats, units, context_length)
    return Curve(
        edges=edges,
        nats=[float(mean.mean()) for mean in bin_means],
        targets=[len(nats) * (stop - start) for start, stop in bins],
        level=float(level.mean()),
        rise=[float(rise.mean()) for rise in rises],
        rise_ci95=intervals,
        slope=slope,
        slope_ci95=slope_interval,
        breaks_at=first_break(edges, intervals, context_length),
    )


def slope_past(
    nats: np.ndarray, units: np.ndarray, context_length: int
) -> tuple[float | None, list[float] | None]:
    """Return the slope of the loss past T in nats per token, by least squares, and its interval.

    Both are None with fewer than two positions past T. The slope is the ratio of a sum of products to a sum
    of squares, both over spans. So its interval is that of a ratio.
    """
    positions = np.arange(context_length + 1, nats.shape[1] + 1)
    if len(positions) < 2:
        return None, None
    centred = positions - positions.mean()
    squares = np.full(len(nats), float(np.sum(centred**2)))  # (N,)
    # Centred positions add up to 0, so the mean loss of a span cancels and no intercept is needed.
    products = nats[:, context_length:] @ centred  # (N,)
    slope = float(products.sum() / squares.sum())
    return slope, _interval(products, squares, units)


def first_break(
    edges: Sequence[int], intervals: Sequence[list[float] | None], context_length: int
) -> int | None:
    """Return the start of the first bin past T whose interval of the rise lies entirely above BREAK."""
    for start, interval in zip(edges[:-1], intervals, strict=True):
        # None stands for too few documents to make an interval, so that nothing is sure there.
        if start > context_length and interval is not None and interval[0] > BREAK:
            return start
    return None


def bin_edges(context_length: int, window: int) -> list[int]:
    """Return the edges of the bins: bin i has the positions edges[i] .. edges[i+1]-1.

    Bins end at T/2, T, 2T, ... and at up to three positions between each pair of these. Positions are rounded
    to whole tokens, and empty bins are left out.
    """
    # Enough octaves from T down to position 1 and up to the window. What lies outside is left out below.
    octaves = math.ceil(math.log2(max(context_length, window)) + 1)
    steps = range(-BINS_PER_OCTAVE * octaves, BINS_PER_OCTAVE * octaves + 1)
    last_positions = {round(context_length * 2 ** (step / BINS_PER_OCTAVE)) for step in steps}
    inside = [position for position in sorted(last_positions) if 1 <= position < window]
    return [1, *(position + 1 for position in inside), window + 1]


def _interval(sums: np.ndarray, counts: np.ndarray, units: np.ndarray) -> list[float] | None:
    """Return the 95% interval of sum(sums) / sum(counts) over units. All arguments are (N,), one a span."""
    _, unit_of_row = np.unique(units, return_inverse=True)
    sums_by_unit = np.bincount(unit_of_row, weights=sums).tolist()
    counts_by_unit = np.bincount(unit_of_row, weights=counts).tolist()
    interval = ratio_interval(sums_by_unit, counts_by_unit)
    return None if interval is None else list(interval)
