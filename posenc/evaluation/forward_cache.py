"""Forward passes over windows of text: the losses that every protocol sums, each made once in an evaluation.

A protocol that asks for the same pass again gets the same numbers, bit for bit: `positions` asks for the
longest windows of `nonoverlapping`, as does `sliding` with a stride of a whole window.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from posenc.core.errors import first_line
from posenc.core.machine import free_memory
from posenc.core.seeds import generator_for
from posenc.data import Split, TokenStore
from posenc.encodings.base import Encoding
from posenc.evaluation.extensions import Extension
from posenc.evaluation.foreign import Foreign, NotApplicableError, Subject
from posenc.model.fused import token_losses
from posenc.results.schema import Curve, Recall
from posenc.training.device import LiveTensors, autocast, is_out_of_memory

# Where positions are drawn: how many draws the windows of one length share, window i having number i % DRAWS.
DRAWS = 16
# float32 numbers for each pair of tokens and each head: while even these fit, no pass is tried.
WORST = 32
# What a window needs is measured at a sixteenth and at an eighth of it, which takes 1/50 of its time.
SHORT = 16


@dataclass(frozen=True)
class EvalContext:
    """A trained model and the documents it is measured on."""

    model: Subject
    train_length: int  # T
    seed: int  # for positions that are drawn
    precision: str
    device: torch.device
    store: TokenStore
    split: str
    batch_tokens: int  # tokens in one forward pass
    extension: Extension | None = None  # what is done to the trained model beyond T
    recorded_precision: str | None = None  # None: that of the training
    cache: dict[Hashable, np.ndarray] = field(default_factory=dict)  # passes of one evaluation
    check_stop: Callable[[], None] = lambda: None  # between batches; raises when a stop was asked for

    @property
    def starts(self) -> np.ndarray:
        """Where each document of the split begins, in the store's tokens: (N,) int64."""
        return self.store.splits[self.split].starts

    def effective_encoding(self, window: int) -> Encoding:
        """Return what the attention sees when the model is given `window` tokens at once."""
        if self.extension is None:
            return self.model.effective_encoding
        return self.extension.effective_encoding(window)


@dataclass(frozen=True)
class LossSums:
    """Nats, targets and bytes summed by document (an index in the split)."""

    documents: np.ndarray  # (N,) int64
    nats: np.ndarray  # (N,) float64
    targets: np.ndarray  # (N,) int64
    bytes: np.ndarray  # (N,) int64
    of_text: bool = True  # False: `documents` are sequences that a probe made up, of no group
    curve: Curve | None = None  # loss by position, from the protocol that makes one
    recall: Recall | None = None  # likewise

    def columns(self, split: Split) -> dict[str, Any]:
        """Return the sums as a record is made from, with the groups of the documents where they have some."""
        groups = split.groups if self.of_text else None
        own = {name: value for name, value in vars(self).items() if name != "of_text"}
        return {**own, "groups": None if groups is None else groups[self.documents]}


class OutOfMemoryError(Exception):
    """One window alone does not fit; the message says what it would need."""


def text_losses(context: EvalContext, stops: np.ndarray, window: int, n_targets: int) -> np.ndarray:
    """Return the losses in nats of the last targets of windows of text: (count, n_targets) float64.

    Window i has `window` inputs; its last target is the token before stops[i] (count,) of the store.
    """
    plain = context.effective_encoding(window) is context.model.effective_encoding
    key = (None if plain else context.extension, window, n_targets, stops.tobytes())
    if key not in context.cache:

        def read(i: int) -> np.ndarray:
            return context.store.tokens[stops[i] - window - 1 : stops[i]]

        context.cache[key] = window_losses(context, read, len(stops), window, n_targets)
        context.cache[key].setflags(write=False)
    return context.cache[key]


def n_inputs(encoding: Encoding, window: int, n_targets: int) -> int:
    """Return how many tokens of a window the model is given: fewer than all if the encoding truncates."""
    beyond = encoding.beyond
    trained = encoding.shape.positions  # more than T where training positions are drawn
    if window <= trained or beyond not in ("truncate", "refuse"):
        return window
    if beyond == "refuse":
        raise NotApplicableError(f"refused: {beyond=} past {trained} tokens")
    if n_targets > trained:
        problem = f"beyond=truncate keeps {trained} tokens, {n_targets} were to be scored"
        raise NotApplicableError(f"n/a: {problem}")
    return trained


@torch.no_grad()
def window_losses(
    context: EvalContext,
    read: Callable[[int], np.ndarray],
    count: int,
    window: int,
    n_targets: int,
    hits: bool = False,
) -> np.ndarray:
    """Return the loss in nats of the last `n_targets` of `count` windows: (count, n_targets) float64.

    `read(i)` gives a window's inputs and its last target: (window + 1,) tokens. Drawn positions depend on the
    seed, the window's length and i, never on the batch. Batches hold about `batch_tokens` tokens, and halve
    when memory runs out; OutOfMemoryError when one window does not fit. With `hits` as many columns more: 1
    where no token has a higher logit than the target.
    """
    model = context.model.to(context.device).eval()
    encoding = context.effective_encoding(window)
    inputs = n_inputs(encoding, window, n_targets)
    draws = DRAWS if "positions" in encoding.hooks else 1
    drawn = [
        model.positions(inputs, generator_for(context.seed, "evaluation", window, draw), encoding)  # (S,)
        for draw in range(draws)
    ]
    limit = encoding.ends_at
    if limit is not None and any(int(pos[-1]) >= limit for pos in drawn):
        raise NotApplicableError(f"n/a: no encoding of positions from {limit} on")
    _check_fits(context, drawn[0], encoding, n_targets)
    losses = np.empty((count, (1 + hits) * n_targets))
    size = max(1, context.batch_tokens // inputs)
    for draw, pos in enumerate(drawn):
        rows = np.arange(draw, count, draws)
        while len(rows):
            context.check_stop()
            batch = np.stack([read(i)[-inputs - 1 :] for i in rows[:size]]).astype(np.int64)
            try:
                nats = _forward(context, torch.from_numpy(batch), pos, encoding, n_targets, hits)
            except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
                if not is_out_of_memory(error):
                    raise
                if size == 1:
                    problem = f"oom at {inputs} tokens, batch 1: {first_line(error)}"
                    raise OutOfMemoryError(problem) from error
                size = max(1, size // 2)
            else:
                losses[rows[:size]] = nats.cpu().double().numpy()
                rows = rows[size:]
    return losses


def _forward(
    context: EvalContext, batch: Tensor, pos: Tensor, encoding: Encoding, n_targets: int, hits: bool = False
) -> Tensor:
    batch = batch.to(context.device)
    inputs, targets = batch[:, :-1], batch[:, -n_targets:]  # (B, S), (B, T)
    if isinstance(context.model, Foreign):
        assert not hits  # recall is of runs that posenc trains
        with autocast(context.precision, context.device):
            logits = context.model(inputs, n_targets, encoding).float()  # (B, T, V)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    with autocast(context.precision, context.device):
        hidden = context.model.hidden(inputs, pos, n_targets, encoding)  # (B, T, d_model)
    weight = context.model.embedding.weight.to(hidden.dtype)  # (V, d_model)
    losses = token_losses(hidden.flatten(0, 1), weight, targets.flatten()).view_as(targets)
    if not hits:
        return losses
    best = F.linear(hidden, weight).argmax(-1)  # (B, T)
    return torch.cat((losses, (best == targets).float()), dim=1)


def _check_fits(context: EvalContext, pos: Tensor, encoding: Encoding, n_targets: int) -> None:
    """Raise OutOfMemoryError where one window at the positions pos would get the process killed."""
    if context.device.type != "cpu":  # a GPU raises an error in time
        return
    window, free = len(pos), free_memory()
    if 4 * WORST * context.model.shape.n_heads * window**2 <= free:
        return

    def make_pass(n: int) -> None:
        tokens = torch.zeros((1, n + 1), dtype=torch.int64)
        _forward(context, tokens, pos[:n], encoding, n if n_targets == window else min(n_targets, n))

    need = memory_needed(make_pass, window)
    if need > free:
        needs = f"needs about {need / 1e9:.3g} GB, {free / 1e9:.3g} GB free"
        raise OutOfMemoryError(f"oom at {window} tokens, batch 1: {needs}")


def memory_needed(make_pass: Callable[[int], object], window: int) -> float:
    """Return the peak bytes of a window of S tokens: a S + b S^2, fitted to two shorter windows."""
    n, peaks = max(1, window // SHORT), []
    for length in (n, 2 * n):
        with LiveTensors() as meter:
            make_pass(length)
        peaks.append(meter.peak)
    one, two = peaks
    squared = max(0.0, (two - 2 * one) / (2 * n**2))
    linear = two / (2 * n) - squared * 2 * n
    return linear * window + squared * window**2


def sums_by_document(
    documents: np.ndarray, nats: np.ndarray, targets: np.ndarray, byte_counts: np.ndarray
) -> LossSums:
    """Add up rows (N,) of windows by their document."""
    found, inverse = np.unique(documents, return_inverse=True)
    sums = [np.bincount(inverse, values, len(found)) for values in (nats, targets, byte_counts)]
    return LossSums(found.astype(np.int64), sums[0], sums[1].astype(np.int64), sums[2].astype(np.int64))
