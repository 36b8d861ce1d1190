"""Count what a training logs, stores and reports: its losses, its speed, and how it ended."""

from __future__ import annotations

import logging
import time
from dataclasses import asdict, dataclass

import torch
from torch import Tensor

from posenc.data.planted import KNOWN, TEXT
from posenc.model.decoder import Decoder
from posenc.training.checkpoint import TrainedSoFar
from posenc.training.distributed import ProcessGroup
from posenc.training.plan import TrainingPlan
from posenc.training.validation import validation_loss

log = logging.getLogger(__name__)
KINDS = (TEXT, KNOWN)  # of the targets of planted runs, whose losses are logged apart


@dataclass(frozen=True)
class LoggedStep:
    """An entry of the log of a training."""

    step: int
    tokens: int  # since the start of the run
    loss: float  # nats per token, mean over the steps since the last log, after a resume since the checkpoint
    lr: float
    grad_norm: float  # before clipping
    tokens_per_second: float  # of the training, without the validation
    validation_loss: float | None = None  # nats per token, on a few fixed windows of validation documents
    natural_loss: float | None = None  # planted runs: the loss on text
    recall_loss: float | None = None  # planted runs: the loss on values that can be known

    def metrics(self) -> dict[str, float]:
        """Return the values for `metrics.jsonl` and the trackers, without those that this run lacks."""
        values = {**asdict(self), "tokens_per_second": round(self.tokens_per_second, 1)}
        return {name: value for name, value in values.items() if value is not None}


@dataclass(frozen=True)
class Trained:
    """How a training ended."""

    status: str  # finished | diverged (the loss or a gradient is not finite) | interrupted
    so_far: TrainedSoFar
    reason: str | None = None
    advanced: bool = True  # whether this process made any of the steps


class Tally:
    """Count losses and seconds of this process, for logged steps, checkpoints and the end of the training.

    The loop counts the steps. It passes their number to every method that needs it.
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
        """Add the mean loss of a step; in planted runs also the loss (B * T,) and kind (B, T) of targets."""
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

        The model is validated if the plan says so.
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
        self._logged_at = time.monotonic()  # after the validation, whose time must not count as training
        self._sums_by_kind.zero_()
        return logged

    def _validation_loss(self, step: int, model: Decoder, group: ProcessGroup) -> float | None:
        """Return the loss on validation documents; None if it is not due after this step."""
        validation = self._plan.validation
        if validation is None or not self._plan.is_validated(step):
            return None
        began_at = time.monotonic()
        loss = validation_loss(model, validation.windows, self._plan.precision, group)
        self._validation_seconds += time.monotonic() - began_at
        return loss

    def _losses_by_kind(self, group: ProcessGroup) -> tuple[float | None, float | None]:
        """Return the mean loss on text and on known values; None if there was no such target."""
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
        so_far = self.so_far(step)
        self._log_cost_of_validation()
        return Trained(status, so_far, reason, advanced=step > self._at_start.step)

    def _log_cost_of_validation(self) -> None:
        """Log how much of this process's time the validation took."""
        if self._plan.validation is None:
            return
        share = self._validation_seconds / max(time.monotonic() - self._started, 1e-9)
        count = len(self._plan.validation.windows)
        text = "the loss on %d windows of validation documents took %.2f s, %.1f%% of the training"
        log.debug(text, count, self._validation_seconds, 100 * share)


def _mean(total: float, count: float) -> float | None:
    """Return the mean; None without values."""
    return total / count if count else None
