"""The training loop: one straight line a step, and nothing else.

The same seed gives the same batches and the same initial values of the shared parts whatever the encoding,
and a run that stopped continues bit for bit on a CPU: batches and positions depend on (seed, step) alone.
B windows, T tokens.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from posenc.core.errors import RunError, first_line
from posenc.core.seeds import generator_for
from posenc.data import ScheduledSampler, WindowSampler
from posenc.data.batches import KNOWN, TEXT
from posenc.model.decoder import Decoder
from posenc.model.fused import next_token_loss, plain_formulas, weighted_loss
from posenc.training.checkpoint import NonFiniteWeightsError, resume, save_checkpoint
from posenc.training.device import autocast, free_threads, is_out_of_memory, keep_freed_memory
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


@dataclass(frozen=True)
class Batch:
    """What one step needs: the model's loss, inputs and targets (B, T), positions (T,), how to compute."""

    loss_of: nn.Module  # a NextTokenLoss, or a wrapper of one
    inputs: Tensor
    targets: Tensor
    pos: Tensor
    precision: str
    grad_clip: float
    weights: Tensor | None = None  # of the targets in the loss, (B, T)

    def gradients(self) -> tuple[Tensor, Tensor]:
        """Return the loss and the norm of its gradient, both scalar; the parameters get it clipped."""
        planted = [] if self.weights is None else [self.weights]
        with autocast(self.precision, self.inputs.device):
            loss: Tensor = self.loss_of(self.inputs, self.targets, self.pos, *planted)
        loss.backward()
        return loss.detach(), torch.nn.utils.clip_grad_norm_(self.loss_of.parameters(), self.grad_clip)


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


Training = Generator[Batch, tuple[Tensor, Tensor], "Trained"]


def training(
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
) -> Training:
    """Train up to update `steps`, from the newest intact checkpoint if there is one.

    Yields each step's Batch and is sent the loss and norm of its gradients, so that several runs can share a
    pass; `alone` runs one to its end. A checkpoint is written every `checkpoint_seconds`, when
    stopped and at the end: its state has `provenance` (plain JSON: text, tokenizer, run), its folder `files`,
    texts by name. Of several processes each computes a part of every batch; the first writes.
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
    batch_tokens = batch_windows * context_length
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
            free_threads().fit(device)
            batch = sampler.batch(step, batch_windows)
            rows, own_loss.weight = group.rows(len(batch[0])), group.loss_weight(len(batch[0]))
            inputs, targets, *planted = (
                torch.from_numpy(part[rows]).to(device, non_blocking=True) for part in batch
            )  # (B, T)
            weights, kinds = planted or (None, None)
            pos = model.positions(inputs.shape[1], generator_for(seed, "positions", step))  # (T,)
            given = loss_of, inputs, targets, pos, precision, optimization.grad_clip
            # the first step may compile for a minute, and a stop loses nothing of this process yet
            begins = step == first_step and group.size == 1
            with stop.at_once() if begins else nullcontext():
                loss_and_norm = yield Batch(*given, weights)
            loss, norm, stopping = group.agree(*loss_and_norm, stop)
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


# --- Trainings run to their ends: one alone, or several of one encoding as one batched model.
# Seeds or learning rates share every product, for a GPU that one small model leaves idle. Each run keeps its
# own weights, optimizer, batches, checkpoints and clipping; only the forward and backward pass is shared, so
# a run differs from the one it would have been alone by the order of its sums (float32, nano: losses 5e-7,
# gradients 1e-6 of their norm). N runs.

T = TypeVar("T")
Steps = Generator[Batch, tuple[Tensor, Tensor], T]


def stacked_gradients(batches: Sequence[Batch]) -> list[tuple[Tensor, Tensor]]:
    """Return each batch's loss and gradient norm. Raises where the runs cannot share a pass."""
    first = batches[0]
    if any(not torch.equal(one.pos, first.pos) for one in batches):
        raise ValueError("drawn positions differ between the runs")
    owned = [dict([*one.loss_of.named_parameters(), *one.loss_of.named_buffers()]) for one in batches]
    values = {name: torch.stack([one[name] for one in owned]) for name in owned[0]}  # (N, ...)

    def loss_of(values: dict[str, Tensor], inputs: Tensor, targets: Tensor, *planted: Tensor) -> Any:
        loss = functional_call(first.loss_of, values, (inputs, targets, first.pos, *planted))
        return loss, *((first.loss_of.losses,) if planted else ())

    inputs = torch.stack([one.inputs for one in batches])  # (N, B, T)
    targets = torch.stack([one.targets for one in batches])  # (N, B, T)
    planted = [one.weights for one in batches if one.weights is not None]
    every = inputs, targets, *([torch.stack(planted)] if planted else [])
    with plain_formulas():
        with autocast(first.precision, inputs.device):
            losses, *of_each = vmap(loss_of)(values, *every)  # (N,), (N, B * T)
        losses.sum().backward()
    for one, own in zip(batches, of_each[0] if of_each else (), strict=False):
        one.loss_of.losses = own
    norms = [torch.nn.utils.clip_grad_norm_(one.loss_of.parameters(), one.grad_clip) for one in batches]
    return list(zip(losses.detach(), norms, strict=True))


def alone(steps: Steps[T]) -> T:
    """Run a training to its end, each step by itself, and return what it returns."""
    (end,) = train_stacked([steps])
    if isinstance(end, Exception):
        raise end
    return end


def train_stacked(
    trainings: Sequence[Steps[T]], on_alone: Callable[[Exception], None] = lambda _: None
) -> list[T | Exception]:
    """Run trainings to their ends side by side; return what each returned, or the error that ended it.

    Where a pass cannot be shared `on_alone(error)` is called, and from then on each run makes its own.
    """
    ends: dict[int, T | Exception] = {}
    waiting: dict[int, Batch] = {}
    share = True

    def go_on(i: int, found: tuple[Tensor, Tensor] | BaseException | None) -> None:
        waiting.pop(i, None)
        try:
            if isinstance(found, BaseException):
                waiting[i] = trainings[i].throw(found)
            else:
                waiting[i] = next(trainings[i]) if found is None else trainings[i].send(found)
        except StopIteration as end:
            ends[i] = end.value
        except Exception as error:
            ends[i] = error

    for i in range(len(trainings)):
        go_on(i, None)
    while waiting:
        batches = dict(waiting)
        if share and len(batches) > 1:
            try:
                shared = stacked_gradients(list(batches.values()))
            except (RuntimeError, ValueError) as error:
                share = False
                on_alone(error)
            else:
                for i, found in zip(batches, shared, strict=True):
                    go_on(i, found)
                continue
        for i, batch in batches.items():
            batch.loss_of.zero_grad()
            try:
                go_on(i, batch.gradients())
            except BaseException as error:  # out of memory has its message there, a stop its status
                go_on(i, error)
    return [ends[i] for i in range(len(trainings))]
