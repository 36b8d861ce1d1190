"""Measure the loss on a few fixed windows of validation documents while a model trains.

Training does not depend on the validation, which shares no random generator with it. A resumed run validates
after the same steps as a run that was never stopped. Shapes: W windows, T tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch

from posenc.core.seeds import generator_for
from posenc.data import NumberedWindows, TokenStore
from posenc.data.token_cache import Ints
from posenc.model.decoder import Decoder
from posenc.model.loss import token_losses
from posenc.training.device import autocast
from posenc.training.distributed import ProcessGroup

AUTO = "auto"
VALIDATIONS = 20  # in a run of 500 to 20,000 steps
FEWEST_STEPS = 25  # between two validations
MOST_STEPS = 1000  # between two validations
# Share of the training's FLOPs that all validations may cost. Their share of the time is about the same: 1.8%
# for the model `nano` on two cores.
COST_SHARE = 0.02
FORWARD_PASSES_PER_STEP = 3  # a step has the FLOPs of so many forward passes over its windows
# All windows go through the model in one pass, since on a GPU a small model is as quick with all as with one.
# The limit keeps the pass below the memory of a training step with a small batch.
MOST_TOKENS = 16384


@dataclass(frozen=True)
class ValidationPlan:
    """The windows that are validated, and how often."""

    every: int  # steps between two validations
    windows: Ints  # (W, T + 1): T inputs, and the target of the last one

    def is_due(self, step: int, steps: int) -> bool:
        """Tell whether a run of `steps` steps is validated after this one. The last step always is."""
        return step % self.every == 0 or step == steps


def automatic_interval(steps: int, log_every: int) -> int:
    """Return the steps between two validations for `train.validate_every=auto`, a multiple of log_every."""
    interval = min(max(math.ceil(steps / VALIDATIONS), FEWEST_STEPS), MOST_STEPS)
    return math.ceil(interval / log_every) * log_every


def window_count(steps: int, batch_windows: int, context_length: int) -> int:
    """Return how many windows each validation has: as many as COST_SHARE pays for at the automatic interval.

    A run with another interval has the same windows, so that its losses can be compared with those of other
    runs. Its validations cost more or less than COST_SHARE.
    """
    validations = math.ceil(steps / automatic_interval(steps, log_every=1))
    batches_per_validation = COST_SHARE * FORWARD_PASSES_PER_STEP * steps / validations
    most_windows = MOST_TOKENS // context_length
    return max(1, min(int(batches_per_validation * batch_windows), most_windows))


def plan_validation(
    store: TokenStore, *, every: int | None, steps: int, batch_windows: int, context_length: int
) -> ValidationPlan | None:
    """Return the plan. It is None if `every` is None, or if no validation document holds a window."""
    if every is None:
        return None
    count = window_count(steps, batch_windows, context_length)
    windows = NumberedWindows(store, "validation", context_length).spread(count)
    return ValidationPlan(every, windows) if len(windows) else None


def validation_loss(model: Decoder, windows: Ints, precision: str, group: ProcessGroup) -> float:
    """Return the mean loss over all windows (W, T + 1) in nats per token, and leave the model as it was.

    Each process measures a part of the windows, which may be none.
    """
    device = model.embedding.weight.device
    part = torch.from_numpy(windows[group.rows(len(windows))]).to(device)  # (windows of this process, T + 1)
    inputs = part[:, :-1]
    targets = part[:, 1:].flatten()  # (windows of this process * T,)
    loss_sum = torch.zeros((), device=device)
    with _evaluation_mode(model), torch.no_grad():
        # Positions that are drawn come from a new generator, so that they are the same in every validation.
        pos = model.positions(inputs.shape[1], generator_for(0, "validation"))  # (T,)
        if len(part):
            with autocast(precision, device):
                hidden = model.hidden(inputs, pos)  # (windows of this process, T, d_model)
            weight = model.output_weight(hidden.dtype)  # (V, d_model)
            loss_sum = token_losses(hidden.flatten(0, 1), weight, targets).sum()
    count = torch.full_like(loss_sum, targets.numel())
    (sums,) = group.summed(torch.stack([loss_sum, count])[None])  # a matrix with one row
    total, target_count = sums
    return total / target_count


@contextmanager
def _evaluation_mode(model: Decoder) -> Iterator[None]:
    """Put the model into evaluation mode without its compiled blocks, and back into the mode before."""
    # Compiled blocks would be compiled once more for the other shapes, which takes longer than all passes.
    compiled_calls = [block._compiled_call_impl for block in model.blocks]
    for block in model.blocks:
        block._compiled_call_impl = None
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)
        for block, compiled_call in zip(model.blocks, compiled_calls, strict=True):
            block._compiled_call_impl = compiled_call
