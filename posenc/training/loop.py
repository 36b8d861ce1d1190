"""The training loop: one straight line a step, and nothing else.

The same seed gives the same batches and the same initial values of the shared parts whatever the encoding,
and a run that stopped continues bit for bit on a CPU: batches and positions depend on (seed, step) alone.
B windows, T tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from posenc.core.errors import RunError, first_line
from posenc.core.seeds import generator_for
from posenc.data import ScheduledSampler, WindowSampler
from posenc.data.batches import KNOWN, TEXT
from posenc.model.decoder import Decoder
from posenc.model.fused import next_token_loss, weighted_loss
from posenc.training.checkpoint import NonFiniteWeightsError, resume, save_checkpoint
from posenc.training.device import autocast, fit_threads, is_out_of_memory, keep_freed_memory
from posenc.training.distributed import Stop, current
from posenc.training.optimizer import AdamW, Optimization, build_optimizer, learning_rate


class NextTokenLoss(nn.Module):
    """The mean loss in nats per token, times `weight`: what DDP wraps. `losses`: of each weighted target."""

    losses: Tensor

    def __init__(self, model: Decoder, weight: float = 1.0) -> None:
        super().__init__()
        self.model, self.weight = model, weight

    def forward(self, inputs: Tensor, targets: Tensor, pos: Tensor, weights: Tensor | None = None) -> Tensor:
        """Return a scalar float32. Products in the precision of the autocast around, softmax in float32."""
        hidden = self.model.hidden(inputs, pos)  # (B, T, d_model)
        weight = self.model.embedding.weight.to(hidden.dtype)  # (V, d_model)
        flat = hidden.flatten(0, 1), weight, targets.flatten()
        if weights is None:
            loss = next_token_loss(*flat)
        else:
            loss, self.losses = weighted_loss(*flat, weights.flatten())
        return loss if self.weight == 1 else loss * self.weight


def gradients(
    loss_of: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    pos: Tensor,
    weights: Tensor | None = None,
    *,
    precision: str,
    grad_clip: float,
) -> tuple[Tensor, Tensor]:
    """Return the loss and the norm of its gradient, both scalar; the parameters get it clipped.

    `loss_of`: a NextTokenLoss or a wrapper of one; inputs, targets and their weights (B, T), positions (T,).
    """
    planted = [] if weights is None else [weights]
    with autocast(precision, inputs.device):
        loss: Tensor = loss_of(inputs, targets, pos, *planted)
    loss.backward()
    return loss.detach(), torch.nn.utils.clip_grad_norm_(loss_of.parameters(), grad_clip)


def update(optimizer: AdamW, lr: float) -> None:
    """Move the weights along the gradients at learning rate `lr`, and drop the gradients."""
    for group in optimizer.param_groups:
        group["lr"] = lr
    optimizer.step()
    optimizer.zero_grad()


@dataclass(frozen=True)
class Progress:
    """One step as it is logged: loss in nats per token, tokens since the start of the run."""

    step: int
    tokens: int
    loss: float
    lr: float
    grad_norm: float
    tokens_per_second: float
    natural_loss: float | None = None  # of planted runs: the loss on text,
    recall_loss: float | None = None  # and on values that can be known

    def metrics(self) -> dict[str, float]:
        """Return the values for `metrics.jsonl` and the trackers."""
        values = {**asdict(self), "tokens_per_second": round(self.tokens_per_second, 1)}
        return {key: value for key, value in values.items() if value is not None}


@dataclass(frozen=True)
class Trained:
    """How training ended: `finished`, `diverged` (non-finite, before the update) or `interrupted`."""

    status: str
    step: int
    tokens: int
    final_loss: float | None  # nats per token, mean of the last tenth of the steps (since the last start)
    seconds: float  # spent on steps in this and earlier processes
    reason: str | None = None
    here: bool = True  # this process made some of the steps


def train(
    model: Decoder,
    sampler: WindowSampler | ScheduledSampler,
    optimization: Optimization,
    *,
    steps: int,
    batch_windows: int,
    context_length: int,
    seed: int,
    precision: str,
    device: torch.device,
    checkpoints: Path,
    checkpoint_seconds: float,
    log_every: int,
    provenance: Mapping[str, Any],
    files: Mapping[str, str],
    on_resume: Callable[[int], None],
    on_log: Callable[[Progress], None],
    stop: Stop,
) -> Trained:
    """Train up to update `steps`, from the newest intact checkpoint if there is one.

    A checkpoint is written every `checkpoint_seconds`, when stopped and at the end: its state has
    `provenance` (plain JSON: text, tokenizer, run), its folder `files`, texts by name. Of several processes
    each computes a part of every batch; the first writes.
    """
    group = current()
    keep_freed_memory()
    model.to(device).train()
    optimizer = build_optimizer(model, optimization)
    step, state = group.first(lambda: resume(checkpoints, model, optimizer, steps, provenance["run"]))
    group.share_moments(model, optimizer)
    own_loss = NextTokenLoss(model)
    loss_of = group.data_parallel(own_loss)
    on_resume(step)
    first_step, seconds_before = step, float(state["seconds"])
    batch_tokens, clip = batch_windows * context_length, optimization.grad_clip
    started, logged_step = time.monotonic(), step
    saved = logged_at = started
    recent: list[float] = []
    apart = torch.zeros(2, 2, device=device)  # of text and of known values since the last log: loss, targets

    def result(status: str, reason: str | None = None) -> Trained:
        here, tail = step > first_step, recent[-max(1, steps // 10) :]
        final = sum(tail) / len(tail) if tail else state["final_loss"]
        seconds = seconds_before + (time.monotonic() - started if here else 0.0)
        return Trained(status, step, step * batch_tokens, final, seconds, reason, here)

    def save() -> None:
        if group.is_first:
            now = result("running")
            facts = {"tokens": now.tokens, "seconds": now.seconds, "final_loss": now.final_loss}
            save_checkpoint(checkpoints, step, model, optimizer, {**facts, **provenance}, files)

    try:
        while step < steps:
            fit_threads(device)
            batch = sampler.batch(step, batch_windows)
            rows, own_loss.weight = group.rows(len(batch[0])), group.loss_weight(len(batch[0]))
            inputs, targets, *planted = (
                torch.from_numpy(part[rows]).to(device, non_blocking=True) for part in batch
            )  # (B, T)
            weights, kinds = planted or (None, None)
            pos = model.positions(inputs.shape[1], generator_for(seed, "positions", step))  # (T,)
            # the first step may compile for a minute, and a stop loses nothing of this process yet
            begins = step == first_step and group.size == 1
            with stop.at_once() if begins else nullcontext():
                found = gradients(loss_of, inputs, targets, pos, weights, precision=precision, grad_clip=clip)
            loss, norm, stopping = group.agree(*found, stop)
            if not (math.isfinite(loss) and math.isfinite(norm)):
                what = "gradient" if math.isfinite(loss) else "loss"
                return result("diverged", f"non-finite {what} at step {step + 1}")
            lr = learning_rate(step, steps, optimization)
            update(optimizer, lr)
            step += 1
            recent.append(loss)
            if kinds is not None:
                for part, kind in zip(apart, (TEXT, KNOWN), strict=True):
                    of = kinds.flatten() == kind
                    part += torch.stack([(own_loss.losses * of).sum(), of.sum()])

            now = time.monotonic()
            if step % log_every == 0 or step == steps:
                rate = (step - logged_step) * batch_tokens / max(now - logged_at, 1e-9)
                window = recent[logged_step - step :]
                mean = sum(window) / len(window)
                parts = [a / n if n else None for a, n in group.summed(apart)] if planted else []
                on_log(Progress(step, step * batch_tokens, mean, lr, norm, rate, *parts))
                logged_at, logged_step = now, step
                apart.zero_()
            if stopping and step < steps:
                save()
                return result("interrupted", "asked to stop")
            if now - saved >= checkpoint_seconds and step < steps:
                save()
                saved = time.monotonic()
        if step > first_step:
            save()
        return result("finished")
    except NonFiniteWeightsError as error:
        return result("diverged", str(error))
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        problem = f"out of memory in step {step + 1} of the training ({first_line(error)})"
        hint = "a smaller train.batch_tokens or model; posenc train --dry-run says what a run takes"
        raise RunError(problem, hint=hint) from error
