"""What `posenc bench` times: a training step, and the evaluation of one batch of windows.

Random tokens, already on the device: no corpus is read.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from posenc.core.seeds import generator_for, seed_for
from posenc.data import Split, TokenStore
from posenc.evaluation.forward_cache import DRAWS, EvalContext, window_losses
from posenc.model.decoder import ModelShape
from posenc.running.build import build_model
from posenc.training.loop import NextTokenLoss, gradients, update
from posenc.training.optimizer import Optimization, build_optimizer, moments_of


@dataclass(frozen=True)
class Work:
    """Something to repeat: `tokens` go through the model each time, `held` bytes are always there."""

    run: Callable[[], object]
    tokens: int
    held: int


class Worker:
    """A model of some settings with its initial values, and what is asked of it."""

    def __init__(self, asked: Mapping[str, Any], settings: Mapping[str, Any], device: torch.device) -> None:
        self.asked, self.settings, self.device = asked, settings, device
        shape = ModelShape(**asked["model"])
        self.model = build_model(dict(settings), shape, asked["vocab_size"]).to(device)
        self.weights = sum(one.nbytes for one in (*self.model.parameters(), *self.model.buffers()))
        self._training: Work | None = None

    def training(self) -> Work:
        """A step as posenc.training.loop makes it: loss, gradients, clipping, AdamW."""
        if self._training is None:
            self._training = self._train()
        return self._training

    def _train(self) -> Work:
        asked, length, seed = self.asked, self.settings["context_length"], self.settings["seed"]
        how = Optimization(**{**asked["optimization"], "betas": tuple(asked["optimization"]["betas"])})
        optimizer, loss_of = build_optimizer(self.model, how), NextTokenLoss(self.model)
        drawn = torch.Generator().manual_seed(seed_for(seed, "bench"))
        size = (asked["batch_windows"], length + 1)
        tokens = torch.randint(asked["vocab_size"], size, generator=drawn).to(self.device)
        inputs, targets = tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()

        def step() -> None:
            self.model.train()
            pos = self.model.positions(length, generator_for(seed, "positions", 0))
            gradients(loss_of, inputs, targets, pos, precision=asked["precision"], grad_clip=how.grad_clip)
            update(optimizer, how.lr)

        step()  # makes the moments
        return Work(step, inputs.numel(), self.weights + sum(one.nbytes for one in moments_of(optimizer)))

    def evaluation(self, window: int) -> Work:
        """One batch of windows as the protocol fixed-target has them: their last `wanted` targets scored."""
        asked, wanted = self.asked, self.asked["wanted"]
        tokens = np.random.default_rng(0).integers(asked["vocab_size"], size=2 * window + 1)
        split = Split(["random"], np.array([0]), np.array([len(tokens)]))
        identity = {"name": "random"}
        store = TokenStore(tokens, None, "", asked["vocab_size"], identity, {"test": split})
        subject = EvalContext(
            model=self.model,
            train_length=self.settings["context_length"],
            seed=self.settings["seed"],
            precision=asked["precision"],
            device=self.device,
            store=store,
            split="test",
            batch_tokens=asked["eval_batch_tokens"],
        )
        count = max(1, asked["eval_batch_tokens"] // window)
        if "positions" in self.model.effective_encoding.hooks:
            count *= DRAWS  # windows with positions of their own go in batches of their own

        def score() -> None:
            window_losses(
                subject, lambda i: tokens[i % window : i % window + window + 1], count, window, wanted
            )

        return Work(score, count * window, self.weights)
