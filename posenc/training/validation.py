"""Measure the loss on a few fixed windows of validation documents while a model trains.

Nothing that is trained depends on it: no random state is used, and the same steps are validated again after
a stop. W windows, T tokens.
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
POINTS = 20  # validations of a run of common length
FEWEST_STEPS = 25  # between two validations
MOST_STEPS = 1000
# Share of the training's operations. A pass without gradients is a third of a step's, so that all passes
# together take about as large a part of the time (nano on two cores: 1.8%).
COST = 0.02
STEP_PASSES = 3  # forward passes that cost as much as a step on the same windows
# One pass holds all windows: on a GPU a pass of a small model takes as long for one window as for all. More
# tokens would need more memory than the step of a small batch.
MOST_TOKENS = 16384


@dataclass(frozen=True)
class ValidationPlan:
    """Hold what is validated, and how often."""

    every: int  # steps between two validations
    windows: Ints  # (W, T + 1): the inputs and the last target

    def is_due(self, step: int, steps: int) -> bool:
        """Tell whether the model is validated after this step. It is after the last one."""
        return step % self.every == 0 or step == steps


def automatic_interval(steps: int, log_every: int) -> int:
    """Return the steps between two validations for `train.validate_every=auto`, a multiple of log_every."""
    interval = min(max(math.ceil(steps / POINTS), FEWEST_STEPS), MOST_STEPS)
    return math.ceil(interval / log_every) * log_every


def window_count(steps: int, batch_windows: int, context_length: int) -> int:
    """Return how many windows are validated: as many as keep the cost of a run at COST.

    The interval does not count: runs that are validated more often have the same windows.
    """
    validations = math.ceil(steps / automatic_interval(steps, log_every=1))
    passes = COST * STEP_PASSES * steps / validations  # as many batches as one validation may hold
    most_windows = MOST_TOKENS // context_length
    return max(1, min(int(passes * batch_windows), most_windows))


def plan_validation(
    store: TokenStore, *, every: int | None, steps: int, batch_windows: int, context_length: int
) -> ValidationPlan | None:
    """Return the plan; None where nothing is to be validated, or no document holds a window."""
    if every is None:
        return None
    count = window_count(steps, batch_windows, context_length)
    windows = NumberedWindows(store, "validation", context_length).spread(count)
    return ValidationPlan(every, windows) if len(windows) else None


def validation_loss(model: Decoder, windows: Ints, precision: str, group: ProcessGroup) -> float:
    """Return the mean loss in nats per token; each process measures a part of the windows.

    The model is as it was afterwards.
    """
    device = model.embedding.weight.device
    part = torch.from_numpy(windows[group.rows(len(windows))]).to(device)  # (W, T + 1)
    inputs = part[:, :-1]
    targets = part[:, 1:].flatten()  # (W * T,)
    loss_sum = torch.zeros((), device=device)
    with _measured(model), torch.no_grad():
        # a generator of its own: positions that are drawn are the same in every validation
        pos = model.positions(inputs.shape[1], generator_for(0, "validation"))  # (T,)
        if len(part):
            with autocast(precision, device):
                hidden = model.hidden(inputs, pos)  # (W, T, d_model)
            weight = model.embedding.weight.to(hidden.dtype)  # (V, d_model)
            loss_sum = token_losses(hidden.flatten(0, 1), weight, targets).sum()
    count = torch.full_like(loss_sum, targets.numel())
    ((total, target_count),) = group.summed(torch.stack([loss_sum, count]).unsqueeze(0))
    return total / target_count


@contextmanager
def _measured(model: Decoder) -> Iterator[None]:
    """Set a model up for a measurement, and back for its training."""
    # Compiled blocks would be compiled once more for the other shapes, which takes longer than all passes.
    compiled = [block._compiled_call_impl for block in model.blocks]
    for block in model.blocks:
        block._compiled_call_impl = None
    model.eval()
    try:
        yield
    finally:
        model.train()
        for block, call in zip(model.blocks, compiled, strict=True):
            block._compiled_call_impl = call
