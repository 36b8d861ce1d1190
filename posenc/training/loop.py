"""Train a decoder: one straight loop, a step after the other.

The same seed gives the same batches and the same initial values of the shared parts, whatever the encoding.
A run that was stopped continues bit for bit on a CPU, because batches and positions depend on seed and step
alone. Shapes: B windows, T tokens, V tokens of the vocabulary.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor, nn

from posenc.core.errors import RunError, first_line
from posenc.core.seeds import generator_for
from posenc.data import Batch, ScheduledSampler, WindowSampler
from posenc.data.planted import KNOWN, TEXT
from posenc.model.decoder import Decoder
from posenc.model.loss import next_token_loss, weighted_loss
from posenc.training.checkpoint import (
    CheckpointPlan,
    NonFiniteWeightsError,
    TrainedSoFar,
    resume,
    save_checkpoint,
)
from posenc.training.device import autocast, fit_threads, is_out_of_memory, keep_freed_memory
from posenc.training.distributed import ProcessGroup, Stop, current
from posenc.training.graphs import GraphedStep, Step
from posenc.training.optimizer import AdamW, Optimization, build_optimizer, learning_rate
from posenc.training.validation import ValidationPlan, validation_loss

log = logging.getLogger(__name__)
KINDS = (TEXT, KNOWN)  # of the targets of planted runs, whose losses are logged apart


@dataclass(frozen=True)
class TrainingPlan:
    """How long to train, on what, in which precision, and what to keep."""

    steps: int
    batch_windows: int  # in one update, of all processes together
    context_length: int  # T, in tokens
    seed: int
    precision: str  # fp32 | bf16, of the matrix products in the model and in Muon
    device: torch.device
    log_every: int  # steps
    checkpoints: CheckpointPlan
    cuda_graph: bool = False  # replay loss and gradients as one CUDA graph
    validation: ValidationPlan | None = None

    @property
    def batch_tokens(self) -> int:
        """Return the tokens of one update. Windows that grow keep this number."""
        return self.batch_windows * self.context_length

    def is_validated(self, step: int) -> bool:
        """Tell whether the loss on validation documents is measured after a step."""
        return self.validation is not None and self.validation.is_due(step, self.steps)

    def is_logged(self, step: int) -> bool:
        """Tell whether a step is logged: at intervals, the last one, and where it is validated."""
        return step % self.log_every == 0 or step == self.steps or self.is_validated(step)


@dataclass(frozen=True)
class LoggedStep:
    """What is logged of a training after some of its steps."""

    step: int
    tokens: int  # since the start of the run
    loss: float  # nats per token, mean over the steps since the last log
    lr: float
    grad_norm: float  # before clipping
    tokens_per_second: float  # of the training, without the validation
    validation_loss: float | None = None  # nats per token, on a few fixed windows of validation documents
    # of planted runs
    natural_loss: float | None = None  # on text
    recall_loss: float | None = None  # on values that can be known

    def metrics(self) -> dict[str, float]:
        """Return the values for `metrics.jsonl` and the trackers, without those that this run lacks."""
        values = {**asdict(self), "tokens_per_second": round(self.tokens_per_second, 1)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Callbacks:
    """Functions that the training calls."""

    on_resume: Callable[[int], None]  # before the first step, with the number of steps already done
    on_log: Callable[[LoggedStep], None]
    on_step: Callable[[int], None] = lambda step: None  # with the number of steps done


@dataclass(frozen=True)
class Trained:
    """How training ended: `finished`, `diverged` (not finite, before the update) or `interrupted`."""

    status: str
    step: int
    tokens: int
    final_loss: float | None  # nats per token: mean over the last tenth of the steps, as far as made here
    seconds: float  # spent on steps in this and earlier processes
    reason: str | None = None
    advanced: bool = True  # whether this process made any of the steps


def train(
    model: Decoder,
    sampler: WindowSampler | ScheduledSampler,
    optimization: Optimization,
    plan: TrainingPlan,
    callbacks: Callbacks,
    stop: Stop,
) -> Trained:
    """Train `model` in place up to update `plan.steps`, from the newest intact checkpoint if there is one.

    A checkpoint is written at intervals, when a stop was requested, and at the end. Of several processes
    each computes a part of every batch, and the first one writes. Raises RunError where memory runs out,
    where the disk refuses, and where another process has failed.
    """
    # ----------------------------------------------------------------------------------------------------
    # Model and optimizer, as the last checkpoint left them
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
            # Batch and positions: drawn by (seed, step), so nothing of earlier steps has to be restored
            fit_threads(plan.device)
            part = _part_of(sampler.batch(step, plan.batch_windows), group, plan.device)
            pos = model.positions(part.inputs.shape[1], generator_for(plan.seed, "positions", step))  # (T,)

            # --------------------------------------------------------------------------------------------
            # Loss and gradient
            model_loss.weight = group.loss_weight(part.windows_of_all)
            with _stop_at_once(group, stop, is_first_step=step == so_far.step):
                part_loss, part_norm = step_gradients(part.inputs, part.targets, pos, part.weights)
            loss, grad_norm, stopping = group.agree(part_loss, part_norm, stop)
            # before the update: these weights are still finite, those after it would not be
            if not (math.isfinite(loss) and math.isfinite(grad_norm)):
                kind = "gradient" if math.isfinite(loss) else "loss"
                return tally.ended("diverged", step, f"non-finite {kind} at step {step + 1}")

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
            # Checkpoint. That of the last step is written below, also where this loop makes no step
            if stopping and step < plan.steps:
                _save(plan, model, optimizer, tally, step, group)
                return tally.ended("interrupted", step, "asked to stop")
            if time.monotonic() - saved_at >= plan.checkpoints.seconds and step < plan.steps:
                _save(plan, model, optimizer, tally, step, group)
                saved_at = time.monotonic()
        if step > so_far.step:
            _save(plan, model, optimizer, tally, step, group)
        return tally.ended("finished", step)
    except NonFiniteWeightsError as error:
        return tally.ended("diverged", step, str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        raise _out_of_memory(error, step + 1) from error


def _begin(
    model: Decoder, optimization: Optimization, plan: TrainingPlan, group: ProcessGroup
) -> tuple[AdamW, TrainedSoFar]:
    """Load the last checkpoint in every process; return the optimizer, and how far the run has come."""
    keep_freed_memory()
    model.to(plan.device).train()
    optimizer = build_optimizer(model, optimization, plan.precision)
    # only the first process reads it; the others get the weights from DDP, moments and step from here
    so_far = group.first(lambda: resume(plan.checkpoints, model, optimizer, plan.steps))
    group.share_moments(model, optimizer)
    return optimizer, so_far


class NextTokenLoss(nn.Module):
    """Compute the mean loss in nats per token, times `weight`; DDP wraps this module.

    If the targets have weights, `last_losses` holds the loss of each target of the last batch. DDP takes only
    one output, so they are kept here and not returned.
    """

    last_losses: Tensor | None  # (B * T,)

    def __init__(self, model: Decoder, weight: float = 1.0) -> None:
        super().__init__()
        self.model = model
        self.weight = weight
        self.last_losses = None

    def forward(self, inputs: Tensor, targets: Tensor, pos: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return a scalar float32. Products have the precision of the autocast around, softmax float32."""
        hidden = self.model.hidden(inputs, pos)  # (B, T, d_model)
        flat_hidden = hidden.flatten(0, 1)  # (B * T, d_model)
        flat_targets = targets.flatten()  # (B * T,)
        embedding = self.model.embedding.weight.to(hidden.dtype)  # (V, d_model)
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
    """Compute the clipped gradient of every parameter; return the loss and the gradient's norm, both scalar.

    `loss_module` is a NextTokenLoss or a wrapper of one. Inputs, targets and their weights are (B, T),
    positions (T,). The norm is the one before clipping.
    """
    with autocast(precision, inputs.device):
        loss: Tensor = loss_module(inputs, targets, pos, weights)
    loss.backward()
    norm = torch.nn.utils.clip_grad_norm_(loss_module.parameters(), grad_clip)
    return loss.detach(), norm


def gradients_function(loss_module: nn.Module, *, precision: str, grad_clip: float, cuda_graph: bool) -> Step:
    """Return `gradients` for a module, as a function of inputs, targets, positions and weights.

    With `cuda_graph` its kernels are started as one graph.
    """
    step: Step = partial(gradients, loss_module, precision=precision, grad_clip=grad_clip)
    return GraphedStep(step, loss_module) if cuda_graph else step


def update(optimizer: AdamW, lr: float) -> None:
    """Move the weights along the gradients at learning rate `lr`, and drop the gradients."""
    for parameter_group in optimizer.param_groups:
        parameter_group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()


class Tally:
    """Count losses and seconds of this process, for logged steps, checkpoints and the end of the training.

    The number of the step is the loop's: it is an argument of every method that needs it.
    """

    def __init__(self, plan: TrainingPlan, so_far: TrainedSoFar) -> None:
        self._plan = plan
        self._at_start = so_far
        self._started = time.monotonic()
        self._losses: list[float] = []  # of each step of this process
        self._logged_step = so_far.step
        self._logged_at = self._started
        self._validation_seconds = 0.0
        # since the last log, a row for each of KINDS: summed loss, number of targets
        self._sums_by_kind = torch.zeros(len(KINDS), 2, device=plan.device)
        self._has_kinds = False

    def add(self, loss: float, target_losses: Tensor | None, kinds: Tensor | None) -> None:
        """Take in the mean loss of a step; of planted runs also the loss (B * T,) and kind of each target."""
        self._losses.append(loss)
        if target_losses is None or kinds is None:
            return
        self._has_kinds = True
        for row, kind in enumerate(KINDS):
            is_kind = kinds.flatten() == kind  # (B * T,)
            self._sums_by_kind[row] += torch.stack([(target_losses * is_kind).sum(), is_kind.sum()])

    def logged_step(
        self, step: int, lr: float, grad_norm: float, model: Decoder, group: ProcessGroup
    ) -> LoggedStep:
        """Return the log entry after `step`, and begin to count for the next one.

        The model is validated where the plan says so.
        """
        now = time.monotonic()
        new_steps = step - self._logged_step
        losses = self._losses[-new_steps:]
        seconds = max(now - self._logged_at, 1e-9)
        natural_loss, recall_loss = self._losses_by_kind(group)
        logged = LoggedStep(
            step=step,
            tokens=step * self._plan.batch_tokens,
            loss=sum(losses) / len(losses),
            lr=lr,
            grad_norm=grad_norm,
            tokens_per_second=new_steps * self._plan.batch_tokens / seconds,
            validation_loss=self._validation_loss(step, model, group),
            natural_loss=natural_loss,
            recall_loss=recall_loss,
        )
        self._logged_step = step
        self._logged_at = time.monotonic()  # after the validation, which is no part of the training's rate
        self._sums_by_kind.zero_()
        return logged

    def _validation_loss(self, step: int, model: Decoder, group: ProcessGroup) -> float | None:
        """Return the loss on validation documents; None where it is not due after this step."""
        validation = self._plan.validation
        if validation is None or not self._plan.is_validated(step):
            return None
        began_at = time.monotonic()
        loss = validation_loss(model, validation.windows, self._plan.precision, group)
        self._validation_seconds += time.monotonic() - began_at
        return loss

    def _losses_by_kind(self, group: ProcessGroup) -> tuple[float | None, float | None]:
        """Return the mean loss on text and on known values; None where there was no such target."""
        if not self._has_kinds:
            return None, None
        text, known = group.summed(self._sums_by_kind)
        return _mean(*text), _mean(*known)

    def so_far(self, step: int) -> TrainedSoFar:
        """Return how far the training has come, for a checkpoint."""
        final_steps = max(1, self._plan.steps // 10)
        final_losses = self._losses[-final_steps:]
        final_loss = self._at_start.final_loss
        if final_losses:
            final_loss = sum(final_losses) / len(final_losses)
        seconds = self._at_start.seconds
        if step > self._at_start.step:
            seconds += time.monotonic() - self._started
        tokens = step * self._plan.batch_tokens
        return TrainedSoFar(step=step, tokens=tokens, seconds=seconds, final_loss=final_loss)

    def ended(self, status: str, step: int, reason: str | None = None) -> Trained:
        """Return how the training ended."""
        end = self.so_far(step)
        self._log_cost_of_validation()
        return Trained(
            status=status,
            step=step,
            tokens=end.tokens,
            final_loss=end.final_loss,
            seconds=end.seconds,
            reason=reason,
            advanced=step > self._at_start.step,
        )

    def _log_cost_of_validation(self) -> None:
        """Log what part of this process's time the validation took."""
        if self._plan.validation is None:
            return
        share = self._validation_seconds / max(time.monotonic() - self._started, 1e-9)
        count = len(self._plan.validation.windows)
        text = "the loss on %d windows of validation documents took %.2f s, %.1f%% of the training"
        log.debug(text, count, self._validation_seconds, 100 * share)


def _mean(total: float, count: float) -> float | None:
    return total / count if count else None


@dataclass(frozen=True)
class _BatchPart:
    """This process's rows of a batch on its device, (rows, T) each."""

    windows_of_all: int  # in the batch of all processes
    inputs: Tensor
    targets: Tensor
    weights: Tensor | None
    kinds: Tensor | None


def _part_of(batch: Batch, group: ProcessGroup, device: torch.device) -> _BatchPart:
    """Return the rows of a batch that this process computes, on its device."""
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
    """Let a signal end the first step at once: it may compile for a minute, and nothing is lost yet.

    This is not done with several processes: the others would wait for this one's part of the gradient.
    """
    if is_first_step and group.size == 1:
        return stop.at_once()
    return nullcontext()


def _save(
    plan: TrainingPlan, model: Decoder, optimizer: AdamW, tally: Tally, step: int, group: ProcessGroup
) -> None:
    """Write a checkpoint, in the first process alone."""
    if group.is_first:
        save_checkpoint(plan.checkpoints, model, optimizer, tally.so_far(step))


def _out_of_memory(error: BaseException, step: int) -> RunError:
    problem = f"out of memory in step {step} of the training ({first_line(error)})"
    hint = "a smaller train.batch_tokens or model; posenc train --dry-run says what a run takes"
    return RunError(problem, hint=hint)
