"""Make the works that are timed: a training step, or a batch of an evaluation, on random tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from posenc.core.machine import wait_for
from posenc.core.seeds import generator_for, seed_for
from posenc.data import Split, TokenStore
from posenc.evaluation.passes import DRAWS, EvalContext, Windows
from posenc.model.decoder import Decoder
from posenc.running.bench.case import BenchCase
from posenc.training.graphs import Step
from posenc.training.loop import NextTokenLoss, gradients_function, update
from posenc.training.memory import LiveTensors
from posenc.training.optimizer import build_optimizer


@dataclass(frozen=True)
class Work:
    """Hold a function that can be timed, and its model."""

    model: nn.Module
    device: torch.device
    run: Callable[[], object]
    tokens: int  # tokens that go through the model in one call
    held_bytes: int  # bytes of tensors that exist between calls, too
    plain_run: Callable[[], object] | None = None  # the same without a CUDA graph, whose tensors are not seen

    def seconds(self, calls: int) -> float:
        """Return the seconds of one call, as the mean of several calls in a row."""
        # A GPU works on after a call returns, so the clock runs from an idle device to an idle one.
        wait_for(self.device)
        began = perf_counter()
        for _ in range(calls):
            self.run()
        wait_for(self.device)
        return (perf_counter() - began) / calls

    def tensor_bytes(self) -> int:
        """Return the bytes that tensors hold at the peak, without compilation."""
        # not the peak of the process: by the allocator's luck that was 57 to 100 MB for the same batch
        meter = LiveTensors()
        # Parameters are a part of `held_bytes`, which covers the moments of an optimizer, too.
        meter.ignore([*self.model.parameters(), *self.model.buffers()])
        with meter:
            (self.plain_run or self.run)()
        return self.held_bytes + meter.peak


def bytes_of(model: nn.Module) -> int:
    """Return the bytes of parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def random_batch(case: BenchCase) -> tuple[Tensor, Tensor]:
    """Return inputs and targets of a step, (B, T)."""
    size = (case.step.batch_windows, case.step.settings.context_length + 1)
    generator = torch.Generator().manual_seed(seed_for(case.step.settings.seed, "bench"))
    tokens = torch.randint(case.vocab_size, size, generator=generator).to(case.step.device)  # (B, T + 1)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


def training_work(case: BenchCase, model: Any, make_loss: Callable[[Any], nn.Module] = NextTokenLoss) -> Work:
    """Return a step as posenc.training.loop makes it: loss, gradients, clipping, the optimizer's update."""
    plan = case.step
    optimization = plan.optimization
    optimizer = build_optimizer(model, optimization, plan.precision)
    loss = make_loss(model)
    inputs, targets = random_batch(case)
    make_gradients = partial(
        gradients_function, loss, precision=plan.precision, grad_clip=optimization.grad_clip
    )

    def step_with(step_gradients: Step) -> None:
        model.train()
        generator = generator_for(plan.settings.seed, "positions", 0)
        pos = model.positions(inputs.shape[1], generator)
        step_gradients(inputs, targets, pos, None)
        update(optimizer, optimization.lr)

    plain_step = partial(step_with, make_gradients(cuda_graph=False))
    step = plain_step
    if plan.settings.train.cuda_graph:
        step = partial(step_with, make_gradients(cuda_graph=True))
    step()  # the first step makes the moments
    values_and_two_moments = 3 * bytes_of(model)
    return Work(model, plan.device, step, inputs.numel(), values_and_two_moments, plain_step)


def evaluation_work(case: BenchCase, model: Decoder, window: int) -> Work:
    """Return a batch of windows as fixed-target evaluates them: the last `n_targets` targets are scored."""
    # Twice the window, so that each window of a batch begins elsewhere.
    tokens = np.random.default_rng(0).integers(case.vocab_size, size=2 * window + 1)
    split = Split(["random"], np.array([0]), np.array([len(tokens)]))
    context = EvalContext(
        model=model,
        context_length=case.step.settings.context_length,
        seed=case.step.settings.seed,
        precision=case.step.precision,
        device=case.step.device,
        store=TokenStore(tokens, None, "", case.vocab_size, {"name": "random"}, {"test": split}),
        split="test",
        batch_tokens=case.eval_batch_tokens,
    )
    # One pass, as an evaluation makes it. A window that is longer than a batch has a pass of its own.
    count = max(1, case.eval_batch_tokens // window)
    if "positions" in model.effective_encoding.hooks:
        count *= DRAWS  # a batch holds windows of one draw of positions

    def tokens_of(number: int) -> np.ndarray:
        start = number % window
        return tokens[start : start + window + 1]

    windows = Windows(tokens_of, count, window, case.n_targets)

    def score() -> None:
        context.losses_of_new_pass(windows)

    return Work(model, case.step.device, score, count * window, bytes_of(model))
