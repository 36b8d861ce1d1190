"""Measure a model's attention on text: where its weights go, and how much its outputs still differ.

p_ij is the weight of query i on key j = 0 .. n - 1, and S_i = sum over j of p_ij:
  entropy    - sum over j of (p_ij / S_i) log(p_ij / S_i), in nats; log n if all keys get the same weight
  first      p_i0, the weight on the first token of the window, which many models use as a sink
  variance   of the output, sum over j of p_ij v_j: the variance of each of its numbers over the queries, and
             the mean of these variances
Entropy and first are means over heads and over the last queries of windows of text. S_i is 1, except for
encodings that do not give all of their weight away (stick-breaking). Without any weight the entropy is 0.

If attention spreads over more keys in longer windows, the variance falls: a mean over more values differs
less from text to text (Li et al. 2025, arXiv 2504.02827).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from posenc.encodings.base import Encoding, Shape, float64
from posenc.encodings.shared.composed import Composed
from posenc.evaluation import passes
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.models.callables import CallableModel


@dataclass(frozen=True)
class AttentionStatistics:
    """What attention does in each of L layers; the module says what the three numbers are."""

    entropy: np.ndarray  # (L,) nats
    first: np.ndarray  # (L,)
    variance: np.ndarray  # (L,)
    by_distance: np.ndarray | None  # (L, R) mean weight on the key at each distance; None if not asked for


@dataclass(frozen=True)
class WatchedPass:
    """The losses of a pass over windows, and what its attention did."""

    nats: np.ndarray  # (windows, targets) float64
    attention: AttentionStatistics


def watch_windows(
    context: passes.EvalContext,
    stops: np.ndarray,
    window: int,
    n_targets: int,
    *,
    with_distances: bool = False,
) -> WatchedPass:
    """Measure the attention of the last `n_targets` queries of windows of text, and their losses.

    Window i has `window` inputs, and its last target is the token before stops[i] (count,) of the store. The
    weights of each block of queries are summed before the next block, so memory grows linearly with the
    window. Raises NotApplicableError, OutOfMemoryError.
    """
    # No user gets here: `dispersion` refuses such models by name before anything is measured.
    assert not isinstance(context.model, CallableModel), "posenc cannot see its attention"
    nats = np.empty((len(stops), n_targets))
    layers = [LayerSums() for _ in range(context.model.shape.n_layers)]

    def watch(batch: passes.WindowBatch) -> None:
        recorder = AttentionRecorder(batch.encoding, len(batch.pos), n_targets, with_distances)
        # The losses are those of the watched pass itself, so they belong to the attention that is reported.
        losses = passes.forward(context, batch.tokens, batch.pos, recorder, n_targets)
        nats[batch.numbers] = losses.nats.cpu().double().numpy()
        # Added up only after the whole pass, since a pass that runs out of memory is made again.
        for layer, sums in enumerate(recorder.sums):
            layers[layer].add(sums)

    passes.run_in_batches(context, context.text_windows(stops, window, n_targets), watch)
    return WatchedPass(nats, statistics_of(layers))


def far_losses(context: passes.EvalContext, stops: np.ndarray, window: int, n_targets: int) -> np.ndarray:
    """Return the losses of the last targets of windows of T tokens at far positions: (count, n_targets).

    The first half of the T tokens has the first positions of a window of `window` tokens, the second half its
    last ones. So a query has as many keys as in training, at distances as large as those of the longer
    window. Raises NotApplicableError where positions are drawn or text past T is cut off; OutOfMemoryError.
    """
    length = context.context_length
    acting = context.effective_encoding(window)
    # Two parts cannot both decide the positions. With `truncate` a longer window has no far positions, since
    # the model reads its last T tokens as if they were all.
    if "positions" in acting.hooks or acting.beyond == "truncate":
        raise NotApplicableError("n/a: no position is far")
    # The encoding of the longer window acts, as it does there; FarApart only gives its positions.
    placed_far = Composed(acting.shape, (acting, FarApart(acting.shape, window)))
    inputs = context.window_inputs(length, n_targets, placed_far)
    return context.losses_of_new_pass(context.text_windows(stops, length, n_targets), inputs)


class FarApart(Encoding):
    """Place the first half of n tokens at 0, 1, ... and the second half at ..., end - 2, end - 1."""

    def __init__(self, shape: Shape, end: int) -> None:
        super().__init__(shape)
        self.end = end

    def positions(self, n: int, training: bool, generator: torch.Generator) -> Tensor:
        half = n // 2
        near_the_end = torch.arange(self.end - (n - half), self.end)
        return torch.cat((torch.arange(half), near_the_end))


# The shape (H, E) is known only when the first block comes, and differs between attentions.
def _zero() -> np.ndarray:
    """Return a zero that takes the shape of what is added to it."""
    return np.zeros(())


def _no_distances() -> np.ndarray:
    """Return the empty array that stands for: not asked for."""
    return np.zeros(0)


@dataclass
class LayerSums:
    """Sums over the queries of one layer, all float64."""

    rows: int = 0  # queries times heads
    queries: int = 0
    entropy: float = 0.0
    first: float = 0.0
    output: np.ndarray = field(default_factory=_zero)  # (H, E): a head's output has E numbers
    squares: np.ndarray = field(default_factory=_zero)  # (H, E), of the output
    by_distance: np.ndarray = field(default_factory=_no_distances)  # (R,); empty if not asked for

    def add(self, other: LayerSums) -> None:
        """Add the sums over other queries of the same layer."""
        self.rows += other.rows
        self.queries += other.queries
        self.entropy += other.entropy
        self.first += other.first
        self.output = self.output + other.output
        self.squares = self.squares + other.squares
        # A block of later queries sees more keys, and so has more distances, than one of earlier queries.
        if len(self.by_distance) < len(other.by_distance):
            missing = len(other.by_distance) - len(self.by_distance)
            self.by_distance = np.pad(self.by_distance, (0, missing))
        self.by_distance[: len(other.by_distance)] += other.by_distance


def statistics_of(layers: list[LayerSums]) -> AttentionStatistics:
    """Return the means of every layer by its sums."""
    variances = []
    for sums in layers:
        mean = sums.output / sums.queries  # (H, E)
        # This difference may be far smaller than its two terms, hence sums in float64.
        variances.append(float(np.mean(sums.squares / sums.queries - mean**2)))
    by_distance = None
    if len(layers[0].by_distance):
        by_distance = np.stack([sums.by_distance / sums.rows for sums in layers])
    # Rounding can leave a variance slightly below 0, hence the maximum.
    return AttentionStatistics(
        entropy=np.array([sums.entropy / sums.rows for sums in layers]),
        first=np.array([sums.first / sums.rows for sums in layers]),
        variance=np.maximum(0.0, variances),
        by_distance=by_distance,
    )


class AttentionRecorder(Composed):
    """Act as an encoding does, and add up what the attention of the last queries of a pass does.

    It has the hook `values`. So the attention computes its weights in blocks of queries, which works for
    every encoding, and hands the weights of each block to this hook.
    """

    def __init__(self, encoding: Encoding, inputs: int, n_targets: int, with_distances: bool = False) -> None:
        super().__init__(encoding.shape, (encoding,))
        self.inputs = inputs
        self.n_targets = n_targets
        self.with_distances = with_distances
        self.sums = [LayerSums() for _ in range(encoding.shape.n_layers)]

    @cached_property
    def hooks(self) -> frozenset[str]:
        return super().hooks | {"values"}

    def for_one_pass(self) -> AttentionRecorder:
        """Return a recorder of the encoding of one pass, which adds to the same sums."""
        # An encoding that carries numbers from layer to layer (tape) must not see those of the last pass.
        encoding = self.parts[0].for_one_pass()
        if encoding is self.parts[0]:
            return self
        recorder = AttentionRecorder(encoding, self.inputs, self.n_targets, self.with_distances)
        recorder.sums = self.sums
        return recorder

    def values(self, p: Tensor, v: Tensor, q_pos: Tensor, k_pos: Tensor, layer: int) -> Tensor:
        # The trained encoding may have this hook, too (shaw), so it makes the output and this one only looks.
        y = self.parts[0].values(p, v, q_pos, k_pos, layer)  # (B, H, T, E)
        queries, keys = p.shape[-2:]
        first_query = keys - queries  # index of the block's first query in the window
        n_unscored = max(0, self.inputs - self.n_targets - first_query)  # come first in the block
        if n_unscored < queries:
            # Weights come in the dtype of values. In bf16 a sum of thousands of them would have two digits.
            p_of_targets = p[..., n_unscored:, :].float()
            y_of_targets = y[..., n_unscored:, :]
            self.sums[layer].add(sums_of_block(p_of_targets, y_of_targets, self.with_distances))
        return y


def sums_of_block(p: Tensor, y: Tensor, with_distances: bool) -> LayerSums:
    """Return the sums over a block of queries: weights p (B, H, T, S) float32, outputs y (B, H, T, E)."""
    outputs = float64(y)
    return LayerSums(
        rows=p[..., 0].numel(),
        queries=p.shape[0] * p.shape[2],
        entropy=float(float64(entropies(p)).sum()),
        first=float(float64(p[..., 0]).sum()),
        output=outputs.sum((0, 2)).cpu().numpy(),
        squares=outputs.square().sum((0, 2)).cpu().numpy(),
        by_distance=sums_by_distance(p) if with_distances else _no_distances(),
    )


def entropies(p: Tensor) -> Tensor:
    """Return the entropy in nats of each row of weights, divided by its sum S_i: (..., S) -> (...)."""
    # of p / S it is: sum over j of entr(p_ij) / S_i + log S_i, where entr(p) = - p log p
    total = p.sum(-1)
    # The first query of stick-breaking has no weights, so this would be 0/0. The last line sets it to 0.
    divisor = total.clamp_min(torch.finfo(p.dtype).tiny)
    entropy = torch.special.entr(p).sum(-1) / divisor + divisor.log()
    return torch.where(total > 0, entropy, 0.0)


def sums_by_distance(p: Tensor) -> np.ndarray:
    """Return the sum of the weights at each distance from the query: (B, H, T, S) -> (S,) float64.

    The last query, T - 1, and the last key, S - 1, are the same token.
    """
    queries, keys = p.shape[-2:]
    totals = float64(p.sum((0, 1)))  # (T, S)
    sums = np.zeros(keys)
    for query, row in enumerate(totals.cpu().numpy()):
        n_seen = keys - queries + query + 1  # keys up to the query itself
        # Read backwards from the query itself, a row is in the order of the distances 0, 1, 2, ...
        sums[:n_seen] += row[:n_seen][::-1]
    return sums
