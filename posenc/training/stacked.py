"""Run trainings to their ends: one alone, or several of one encoding as one batched model.

Seeds or learning rates share every product, for a GPU that one small model leaves idle. Each run keeps its
own weights, optimizer, batches, checkpoints and clipping; only the forward and backward pass is shared, so a
run differs from the one it would have been alone by the order of its sums (float32, nano: losses 5e-7,
gradients 1e-6 of their norm). N runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor
from torch.func import functional_call, vmap

from posenc.model.fused import plain_formulas
from posenc.training.device import autocast
from posenc.training.loop import Batch

T = TypeVar("T")
Training = Generator[Batch, tuple[Tensor, Tensor], T]


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


def alone(steps: Training[T]) -> T:
    """Run a training to its end, each step by itself, and return what it returns."""
    (end,) = train_stacked([steps])
    if isinstance(end, Exception):
        raise end
    return end


def train_stacked(
    trainings: Sequence[Training[T]], on_alone: Callable[[Exception], None] = lambda _: None
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
