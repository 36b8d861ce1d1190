"""Train a decoder: one straight loop, a step after the other.

Batches and drawn positions depend on seed and step alone. So all encodings see the same batches, and on a CPU
a run that was stopped continues bit for bit. Shapes: B windows, T tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from posenc.core.errors import RunError, first_line, plural
from posenc.core.run_states import DIVERGED, FINISHED, INTERRUPTED
from posenc.core.seeds import generator_for
from posenc.data import Batch, ScheduledSampler, WindowSampler
from posenc.model.decoder import Decoder
from posenc.model.loss import next_token_loss, weighted_loss
from posenc.training.checkpoint import NonFiniteWeightsError, TrainedSoFar, resume, save_checkpoint
from posenc.training.device import autocast, fit_threads
from posenc.training.distributed import ProcessGroup, Stop, current
from posenc.training.graphs import GraphedStep, Step
from posenc.training.memory import is_out_of_memory, keep_freed_memory
from posenc.training.optimizer import AdamW, Optimization, build_optimizer, learning_rate
from posenc.training.plan import TrainingPlan
from posenc.training.tally import LoggedStep, Tally, Trained


@dataclass(frozen=True)
class Callbacks:
    """Functions that the training calls."""

    on_resume: Callable[[int], None]  # called before the first step, with the number of steps already done
    on_log: Callable[[LoggedStep], None]
    on_step: Callable[[int], None] = lambda step: None  # called after a step, with the number of steps done


def train(
    model: Decoder,
    sampler: WindowSampler | ScheduledSampler,
    optimization: Optimization,
    plan: TrainingPlan,
    callbacks: Callbacks,
    stop: Stop,
) -> Trained:
    """Train `model` in place up to update `plan.steps`, from the newest intact checkpoint if there is one.

    A checkpoint is written at intervals, when a stop was requested, and at the end. If there are several
    processes, each computes a part of every batch, and the first one writes. Raises RunError if memory runs
    out, the disk refuses, or another process has failed.
    """
    # ----------------------------------------------------------------------------------------------------
    # Model and optimizer, from the last checkpoint if there is one
    group = current()
    optimizer, so_far = _begin(model, optimization, plan, group)
    model_loss = NextTokenLoss(model)
    step_gradients = gradients_function(
        group.data_parallel(model_loss),  # a wrapper; weight and losses stay on `model_loss`
        precision=plan.precision,
        grad_clip=optimization.grad_clip,
        cuda_graph=plan.cuda_graph and group.size == 1,
    )
    callbacks.on_resume(so_far.step)
    step = so_far.step
    tally = Tally(plan, so_far)
    saved_at = time.monotonic()

    try:
        while step < plan.steps:
            # --------------------------------------------------------------------------------------------
            # Batch and positions, drawn by seed and step, so that a continued run has no generator to restore
            fit_threads(plan.device)
            part = _part_of(sampler.batch(step, plan.batch_windows), group, plan.device)
            pos = model.positions(part.inputs.shape[1], generator_for(plan.seed, "positions", step))  # (T,)

            # --------------------------------------------------------------------------------------------
            # Loss and gradient
            model_loss.weight = group.loss_weight(part.windows_of_all)
            with _stop_at_once(group, stop, is_first_step=step == so_far.step):
                part_loss, part_norm = step_gradients(part.inputs, part.targets, pos, part.weights)
            loss, grad_norm, stopping = group.agree(part_loss, part_norm, stop)
            # Looked at before the update, while the weights are still finite.
            if not (math.isfinite(loss) and math.isfinite(grad_norm)):
                kind = "gradient" if math.isfinite(loss) else "loss"
                return tally.ended(DIVERGED, step, f"non-finite {kind} at step {step + 1}")

            # --------------------------------------------------------------------------------------------
            # Update
            lr = learning_rate(step, plan.steps, optimization)
            update(optimizer, lr)
            step += 1

            # --------------------------------------------------------------------------------------------
            # Log
            tally.add(loss, model_loss.last_losses, part.kinds)
            callbacks.on_step(step)
            if plan.is_logged(step):
                callbacks.on_log(tally.logged_step(step, lr, grad_norm, model, group))

            # --------------------------------------------------------------------------------------------
            # Checkpoint, at intervals and before the training ends
            is_last = step == plan.steps
            is_due = time.monotonic() - saved_at >= plan.checkpoints.seconds
            if is_last or is_due or stopping:
                _save(plan, model, optimizer, tally, step, group)
                saved_at = time.monotonic()
            if stopping and not is_last:
                return tally.ended(INTERRUPTED, step, "asked to stop")
        return tally.ended(FINISHED, step)
    except NonFiniteWeightsError as error:
        return tally.ended(DIVERGED, step, str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise _out_of_memory(error, step) from error


def _begin(
    model: Decoder, optimization: Optimization, plan: TrainingPlan, group: ProcessGroup
) -> tuple[AdamW, TrainedSoFar]:
    """Load the last checkpoint in every process. Return the optimizer, and how far the run has come."""
    keep_freed_memory()
    model.to(plan.device).train()
    optimizer = build_optimizer(model, optimization, plan.precision)
    # Only the first process reads the checkpoint. The others get the weights by DDP, moments and step here.
    so_far = group.first(lambda: resume(plan.checkpoints, model, optimizer, plan.steps))
    group.share_moments(model, optimizer)
    return optimizer, so_far


class NextTokenLoss(nn.Module):
    """Compute the mean loss in nats per token, times `weight`. DDP wraps this module.

    If the targets have weights, `last_losses` holds the loss of each target of the last batch. It is not
    returned, since a module of DDP should have one output.
    """

    last_losses: Tensor | None  # (B * T,)

    def __init__(self, model: Decoder, weight: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.weight = weight
        self.last_losses = None

    def forward(self, inputs: Tensor, targets: Tensor, pos: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return the loss of inputs and targets (B, T) at positions pos (T,): a float32 scalar."""
        hidden = self.model.hidden(inputs, pos)  # (B, T, d_model)
        flat_hidden = hidden.flatten(0, 1)  # (B * T, d_model)
        flat_targets = targets.flatten()  # (B * T,)
        embedding = self.model.output_weight(hidden.dtype)  # (V, d_model)
        if weights is None:
            loss = next_token_loss(flat_hidden, embedding, flat_targets)
        else:
            loss, self.last_losses = weighted_loss(flat_hidden, embedding, flat_targets, weights.flatten())
        return loss if self.weight == 1 else loss * self.weight


def gradients(
    loss_module: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    pos: Tensor,
    weights: Tensor | None = None,
    *,
    precision: str,
    grad_clip: float,
) -> tuple[Tensor, Tensor]:
    """Compute the clipped gradient of every parameter; return the loss and the norm before clipping, scalars.

    `loss_module` is a NextTokenLoss or a wrapper of one. Inputs, targets and their weights are (B, T),
    positions (T,).
    """
    with autocast(precision, inputs.device):
        loss: Tensor = loss_module(inputs, targets, pos, weights)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(loss_module.parameters(), grad_clip)
    return loss.detach(), norm


def gradients_function(loss_module: nn.Module, *, precision: str, grad_clip: float, cuda_graph: bool) -> Step:
    """Return `gradients` for a module, as a function of inputs, targets, positions and weights of targets.

    With `cuda_graph` the GPU gets all of its kernels at once, as one graph.
    """
    step: Step = partial(gradients, loss_module, precision=precision, grad_clip=grad_clip)
    return GraphedStep(step, loss_module) if cuda_graph else step


def update(optimizer: AdamW, lr: float) -> None:
    """Move the weights along the gradients at learning rate `lr`, and drop the gradients."""
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True)
class _BatchPart:
    """The windows of a batch that this process computes, on its device: (windows, T) each."""

    windows_of_all: int  # in the batch of all processes
    inputs: Tensor
    targets: Tensor
    weights: Tensor | None  # of the targets
    kinds: Tensor | None  # of the targets, in planted runs


def _part_of(batch: Batch, group: ProcessGroup, device: torch.device) -> _BatchPart:
    """Return the windows of a batch that this process computes, on its device."""
    rows = group.rows(batch.n_windows)

    def tensor(array: npt.NDArray[Any]) -> Tensor:
        return torch.from_numpy(array).to(device, non_blocking=True)

    return _BatchPart(
        windows_of_all=batch.n_windows,
        inputs=tensor(batch.inputs[rows]),
        targets=tensor(batch.targets[rows]),
        weights=None if batch.weights is None else tensor(batch.weights[rows]),
        kinds=None if batch.kinds is None else tensor(batch.kinds[rows]),
    )


def _stop_at_once(group: ProcessGroup, stop: Stop, *, is_first_step: bool) -> AbstractContextManager[None]:
    """Return a context in which a signal ends the first step at once, while nothing is lost.

    The first step may compile for a minute. With several processes it is not ended, since the others would
    wait for this one's part of the gradient.
    """
    if is_first_step and group.size == 1:
        return stop.at_once()
    return nullcontext()


def _save(
    plan: TrainingPlan, model: Decoder, optimizer: AdamW, tally: Tally, step: int, group: ProcessGroup
) -> None:
    """Write a checkpoint, if this is the first process."""
    if group.is_first:
        save_checkpoint(plan.checkpoints, model, optimizer, tally.so_far(step))


def _out_of_memory(error: BaseException, step: int) -> RunError:
    """Return the error for memory that ran out after `step`: in the next one, a validation or a save."""
    problem = f"out of memory after {plural(step, 'step')} of the training ({first_line(error)})"
    hint = "a smaller train.batch_tokens or model; posenc train --dry-run says what a run takes"
    return RunError(problem, hint=hint)
