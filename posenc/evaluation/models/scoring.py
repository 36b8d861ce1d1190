"""Score and continue texts by a model: by posenc's decoder, or by a model that was given.

The decoder gives hidden states, whose losses are computed without all of their logits in memory at once. A
given model has ways of its own from tokens to logits.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.encodings.base import Encoding
from posenc.evaluation.models import MeasuredModel
from posenc.evaluation.models.callables import CallableModel, LogitsOf, OnLayer, TargetLosses
from posenc.model.decoder import Decoder
from posenc.model.loss import token_losses, token_losses_and_choices
from posenc.training.device import autocast


@dataclass(frozen=True, kw_only=True)
class ModelPass:
    """What goes into a pass of a model."""

    inputs: Tensor  # (B, n), on the device
    pos: Tensor  # (n,)
    encoding: Encoding  # the one that acts
    n_targets: int  # the tokens after so many last inputs are asked for
    on_layer: OnLayer | None = None  # reports the progress inside the pass


class Scorer(ABC):
    """Ask a model for losses, logits and its first choice."""

    first_tokens: Sequence[int] = ()  # before every text
    end_tokens: frozenset[int] = frozenset()  # a text that the model writes ends with one of these

    @abstractmethod
    def losses(self, model_pass: ModelPass, targets: Tensor, *, with_best: bool) -> TargetLosses:
        """Return the losses of targets (B, n_targets)."""

    @abstractmethod
    def target_logits(self, model_pass: ModelPass) -> LogitsOf:
        """Make a pass; return a function from columns of the targets to their logits (B, columns, V) float32.

        The logits of all targets at once may not fit into memory.
        """

    @abstractmethod
    def first_choice(self, model_pass: ModelPass) -> Tensor:
        """Return the likeliest token at the first of the targets: (B,) on the CPU."""

    @abstractmethod
    def next_token(self, text: Tensor, pos: Tensor, encoding: Encoding, past: Any) -> tuple[int, Any]:
        """Return the likeliest token after a text (1, n) at positions (n,), and what the model keeps of it.

        `past` is what it kept of the text without the last token, None at first.
        """

    @abstractmethod
    def for_trial(self, share: float) -> Scorer:
        """Return the scorer for a pass over this share of a window, by which memory is estimated."""


class DecoderScorer(Scorer):
    """Ask posenc's own decoder."""

    def __init__(self, model: Decoder, precision: str, device: torch.device) -> None:
        self.model = model
        self.precision = precision
        self.device = device

    def losses(self, model_pass: ModelPass, targets: Tensor, *, with_best: bool) -> TargetLosses:
        # Of the targets alone: the last block, the norm and the output map leave out all other tokens.
        hidden = self._hidden(model_pass).flatten(0, 1)  # (B * targets, d_model)
        weight = self.model.output_weight(hidden.dtype)
        if not with_best:
            losses = token_losses(hidden, weight, targets.flatten())
            return TargetLosses(losses.view_as(targets), is_best=None)
        # In blocks of targets like the losses: all logits of 2048 targets would take 262 MB at V = 32,000,
        # and the estimate of a window's memory is made by a pass that asks for the losses alone.
        losses, choices = token_losses_and_choices(hidden, weight, targets.flatten())
        return TargetLosses(losses.view_as(targets), is_best=choices.view_as(targets) == targets)

    def target_logits(self, model_pass: ModelPass) -> LogitsOf:
        hidden = self._hidden(model_pass)
        weight = self.model.output_weight(hidden.dtype)
        # Softmax and sums are float32. In bf16 the product has been rounded, which moves a distribution by up
        # to a hundredth: `eval.precision=fp32` compares more exactly.
        return lambda columns: F.linear(hidden[:, columns], weight).float()

    def first_choice(self, model_pass: ModelPass) -> Tensor:
        hidden = self._hidden(model_pass)[:, 0]  # (B, d_model)
        return F.linear(hidden, self.model.output_weight(hidden.dtype)).argmax(-1).cpu()

    def next_token(self, text: Tensor, pos: Tensor, encoding: Encoding, past: Any) -> tuple[int, Any]:
        # it keeps nothing, so it reads the whole text for every token
        model_pass = ModelPass(inputs=text, pos=pos, encoding=encoding, n_targets=1)
        return int(self.first_choice(model_pass)), None

    def for_trial(self, share: float) -> Scorer:
        return self

    def _hidden(self, model_pass: ModelPass) -> Tensor:
        """Return the hidden states of the last inputs, (B, n_targets, d_model)."""
        with autocast(self.precision, self.device):
            return self.model.hidden(
                model_pass.inputs, model_pass.pos, model_pass.n_targets, model_pass.encoding
            )


class GivenModelScorer(Scorer):
    """Ask a model that posenc did not train."""

    def __init__(self, model: CallableModel, precision: str, device: torch.device) -> None:
        self.model = model
        # Autocast is for float32 weights alone. A model whose weights are in bf16 computes in bf16 by itself,
        # as it does in transformers.
        self.precision = precision if model.dtype == torch.float32 else "fp32"
        self.device = device
        self.first_tokens = model.first_tokens
        self.end_tokens = model.end_tokens

    def losses(self, model_pass: ModelPass, targets: Tensor, *, with_best: bool) -> TargetLosses:
        with autocast(self.precision, self.device):
            return self.model.losses(
                model_pass.inputs,
                targets,
                model_pass.encoding,
                with_best=with_best,
                on_layer=model_pass.on_layer,
            )

    def target_logits(self, model_pass: ModelPass) -> LogitsOf:
        with autocast(self.precision, self.device):
            logits_of_model = self.model.target_logits(
                model_pass.inputs, model_pass.n_targets, model_pass.encoding, model_pass.on_layer
            )

        # The logits are made after the pass, when its autocast has ended, so they have one of their own.
        def logits_in_precision(columns: slice) -> Tensor:
            with autocast(self.precision, self.device):
                return logits_of_model(columns).float()

        return logits_in_precision

    def first_choice(self, model_pass: ModelPass) -> Tensor:
        # Of one target alone. Those of all outputs of a long window would take gigabytes.
        logits = self.target_logits(model_pass)(slice(0, 1))
        return logits[:, 0].argmax(-1).cpu()

    def next_token(self, text: Tensor, pos: Tensor, encoding: Encoding, past: Any) -> tuple[int, Any]:
        # The model has kept all that came before, so only the newest token is read.
        new_tokens = text if past is None else text[:, -1:]
        with autocast(self.precision, self.device):
            step = self.model.next_logits(new_tokens, past, encoding)
        return int(step.logits[0].argmax()), step.past

    def for_trial(self, share: float) -> Scorer:
        # The chunks of a pass in parts shrink with its window, else a short trial would be a single chunk.
        return GivenModelScorer(self.model.for_trial(share), self.precision, self.device)


def scorer_of(model: MeasuredModel, precision: str, device: torch.device) -> Scorer:
    """Return how to ask a model, with products in `precision`."""
    if isinstance(model, CallableModel):
        return GivenModelScorer(model, precision, device)
    return DecoderScorer(model, precision, device)
