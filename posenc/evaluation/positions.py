"""positions: the loss at each position of one long context, in logarithmic bins. Where does it break?

One forward pass over each span of `plan_spans`, at the longest window alone: position p is a target with p
tokens before it, so p = T is the last one that training shows. The level at T is the mean over T/2 < p <= T
(with an extension: of the model as trained, given the first T tokens of the span); a bin's rise is its
difference to that level on the same spans, its interval clustered by document. The curve breaks at the first
bin past T whose rise is above 0.1 nats with its whole interval.

Where scores depend on the total length (law prefix of `posenc check`), the first positions of a long pass are
not what a short one would give.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np

from posenc.evaluation.forward_cache import EvalContext, LossSums, NotApplicableError, text_losses
from posenc.evaluation.plans import Blocks, EvalRequest, plan_spans
from posenc.results.schema import BREAK, Curve
from posenc.results.statistics import MIN_GROUPS, ratio_interval

NAME = "positions"
plan = plan_spans

BINS_AN_OCTAVE = 4


def windows_of(request: EvalRequest) -> list[int]:
    """Return the longest window alone."""
    return [request.longest]


def measure(context: EvalContext, plan: Blocks, window: int) -> LossSums:
    """Sum the loss of every target, each span one pass, and make its curve; NotApplicableError below T."""
    if window < context.train_length:
        raise NotApplicableError(f"n/a: positions need a window of T = {context.train_length} tokens or more")
    ends, length = context.starts[plan.documents] + plan.ends, context.train_length
    nats = text_losses(context, ends, window, window)  # (N, W)
    level = None
    if context.extension is not None:  # it may change what comes before T as well
        plain = dataclasses.replace(context, extension=None)
        level = text_losses(plain, ends - window + length, length, length)[:, length // 2 :]
    sums = plan.sums(context, nats.sum(axis=1))
    finite = np.isfinite(nats).all() and (level is None or np.isfinite(level).all())
    units, groups = plan.documents, context.store.splits[context.split].groups
    if groups is not None and len(np.unique(groups[units])) >= MIN_GROUPS:
        units = groups[units]
    curve = curve_of(nats, units, length, level) if finite else None
    return dataclasses.replace(sums, curve=curve)


def curve_of(
    nats: np.ndarray, documents: np.ndarray, train_length: int, at_level: np.ndarray | None = None
) -> Curve:
    """Return the curve of losses (N, W), row i of documents[i]; `at_level` (N, T/2): as trained."""
    window = nats.shape[1]
    edges = bin_edges(train_length, window)
    bins = [nats[:, a - 1 : b - 1].mean(axis=1) for a, b in itertools.pairwise(edges)]  # (N,)
    level = (nats[:, train_length // 2 : train_length] if at_level is None else at_level).mean(axis=1)  # (N,)
    rises = [one - level for one in bins]  # (N,)
    intervals = [_interval(rise, np.ones(len(nats)), documents) for rise in rises]
    past = np.arange(train_length + 1, window + 1)  # positions past T
    slope = slope_ci95 = None
    if len(past) > 1:
        centred = past - past.mean()
        weights = np.full(len(nats), float(np.sum(centred**2)))
        products = nats[:, train_length:] @ centred  # (N,) of least squares, by row
        slope, slope_ci95 = float(products.sum() / weights.sum()), _interval(products, weights, documents)
    past_t = ((start, ci) for start, ci in zip(edges[:-1], intervals, strict=True) if start > train_length)
    broken = [start for start, ci in past_t if ci is not None and ci[0] > BREAK]
    return Curve(
        edges=edges,
        nats=[float(one.mean()) for one in bins],
        targets=[int(len(nats) * (b - a)) for a, b in itertools.pairwise(edges)],
        level=float(level.mean()),
        rise=[float(rise.mean()) for rise in rises],
        rise_ci95=intervals,
        slope=slope,
        slope_ci95=slope_ci95,
        breaks_at=broken[0] if broken else None,
    )


def bin_edges(train_length: int, window: int) -> list[int]:
    """Return the edges of up to four bins an octave, edges[i] .. edges[i+1]-1; T, T/2 and 2T end bins."""
    octaves = BINS_AN_OCTAVE * math.ceil(math.log2(max(train_length, window)) + 1)
    ends = {round(train_length * 2 ** (k / BINS_AN_OCTAVE)) for k in range(-octaves, octaves + 1)}
    inside = sorted(end for end in ends if 1 <= end < window)
    return [1, *(end + 1 for end in inside), window + 1]


def _interval(sums: np.ndarray, counts: np.ndarray, documents: np.ndarray) -> list[float] | None:
    """Return the interval of sums / counts over documents, from rows."""
    _, inverse = np.unique(documents, return_inverse=True)
    by_document = [np.bincount(inverse, weights=values).tolist() for values in (sums, counts)]
    interval = ratio_interval(*by_document)
    return None if interval is None else list(interval)
