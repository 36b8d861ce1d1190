"""Compare what a model predicts in a window with what it predicts from the last tokens of that window alone.

p are the probabilities of the next token in a window, q those in the shorter window, and x is the target:
  variation   1/2 sum over the vocabulary of |p - q|, the total variation: 0 if both are the same, 1 if they
              share no token
  gain        p(x) - q(x), how much likelier the right token is in the longer window
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from posenc.evaluation import passes
from posenc.evaluation.models.callables import blocks_of_targets, losses_of_logits


@dataclass(frozen=True)
class ComparedWindows:
    """The losses of targets in windows, and how their distributions differ from those in L shorter ones."""

    nats: np.ndarray  # (windows, targets) float64
    variation: np.ndarray  # (L, windows, targets) float64
    gain: np.ndarray  # (L, windows, targets) float64


def compare_windows(
    context: passes.EvalContext, stops: np.ndarray, window: int, shorter: Sequence[int], n_targets: int
) -> ComparedWindows:
    """Compare windows of `window` tokens with windows of the `shorter` lengths that end at the same place.

    The last target of window i is the token before stops[i] (count,) of the store. Logits are made for a few
    targets at a time, since those of all would take gigabytes. Raises NotApplicableError, OutOfMemoryError.
    """
    count = len(stops)
    nats = np.empty((count, n_targets))
    variation = np.empty((len(shorter), count, n_targets))
    gain = np.empty((len(shorter), count, n_targets))

    def compare(batch: passes.WindowBatch) -> None:
        targets = batch.tokens[:, -n_targets:].to(context.device)
        logits_of = passes.target_logits(
            context, batch.tokens, batch.pos, batch.encoding, n_targets, batch.on_layer
        )
        # Every length has one pass, here. The loop over columns below makes logits from what the passes kept.
        logits_of_shorter = []  # a function for each length
        for length in shorter:
            end = passes.end_of_batch(context, batch, length, n_targets)
            # The hidden states of the longer window are of no use here: from the second layer on they hold
            # what stood farther back.
            logits_of_end = passes.target_logits(context, end.tokens, end.pos, end.encoding, n_targets)
            logits_of_shorter.append(logits_of_end)
        for columns in blocks_of_targets(targets, context.model.vocab_size):
            targets_of_block = targets[:, columns]
            logits = logits_of(columns)  # (B, columns, V)
            losses = losses_of_logits(logits, targets_of_block, with_best=False)
            nats[batch.numbers, columns] = as_array(losses.nats)
            # float32 is enough: whole distributions in float64 gave the same numbers to 1e-5.
            p = logits.softmax(-1)  # (B, columns, V)
            for index, logits_of_end in enumerate(logits_of_shorter):
                q = logits_of_end(columns).softmax(-1)
                difference = p - q  # (B, columns, V)
                variation[index, batch.numbers, columns] = as_array(difference.abs().sum(-1) / 2)
                # Taken from the same difference, so that gain and variation are rounded alike.
                difference_of_target = difference.gather(-1, targets_of_block[..., None])[..., 0]
                gain[index, batch.numbers, columns] = as_array(difference_of_target)

    passes.run_in_batches(context, context.text_windows(stops, window, n_targets), compare)
    return ComparedWindows(nats, variation, gain)


def as_array(values: Tensor) -> np.ndarray:
    """Return a tensor as float64 on the CPU."""
    array: np.ndarray = values.cpu().double().numpy()
    return array
