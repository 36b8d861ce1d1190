"""What a protocol measures, and the forward passes that all protocols share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from posenc.core.seeds import generator_for
from posenc.data import TokenStore
from posenc.encodings.base import Encoding
from posenc.evaluation.extend import Extension
from posenc.evaluation.memory import OutOfMemoryError, check_memory
from posenc.model.decoder import Decoder
from posenc.model.fused import token_losses
from posenc.results.schema import Curve
from posenc.training.distributed import current
from posenc.training.memory import is_out_of_memory
from posenc.training.precision import autocast

if TYPE_CHECKING:
    from posenc.evaluation.passes import Passes

# Where positions are drawn: how many draws the windows of one length share, window i having number i % DRAWS.
DRAWS = 16


@dataclass(frozen=True)
class Subject:
    """A trained model and the documents it is measured on."""

    model: Decoder
    train_length: int  # T
    seed: int  # for positions that are drawn
    precision: str
    device: torch.device
    store: TokenStore
    split: str
    batch_tokens: int  # tokens in one forward pass
    extension: Extension | None = None  # what is done to the trained model beyond T
    passes: Passes | None = None  # shared by the protocols of one evaluation; None: every pass is made

    def acting(self, window: int) -> Encoding:
        """What the attention sees when the model is given `window` tokens at once."""
        return self.model.acting if self.extension is None else self.extension.acting(window)


@dataclass(frozen=True)
class Sums:
    """Loss by document, summed: nats, targets and bytes of the documents (indices in their split)."""

    documents: np.ndarray  # (N,) int64
    nats: np.ndarray  # (N,) float64
    targets: np.ndarray  # (N,) int64
    bytes: np.ndarray  # (N,) int64
    curve: Curve | None = None  # loss by position, where a protocol makes one


class NotApplicableError(Exception):
    """This window cannot be measured with this encoding; the message is the record's note."""


def stopped_never() -> None:
    """The default of `check_stop`: nobody interrupts."""


def context_for(acting: Encoding, window: int, wanted: int) -> int:
    """How many tokens the model is given of a window: fewer than `window` where its encoding keeps fewer.

    Raises NotApplicableError where the encoding refuses the length, or drops tokens that are to be scored.
    """
    beyond = acting.beyond
    trained = acting.shape.positions  # more than T where training positions are drawn
    if window <= trained or beyond not in ("truncate", "refuse"):
        return window
    if beyond == "refuse":
        raise NotApplicableError(f"refused: {beyond=} past {trained} tokens")
    if wanted > trained:
        raise NotApplicableError(f"n/a: beyond=truncate keeps {trained} tokens, {wanted} were to be scored")
    return trained


@torch.no_grad()
def window_losses(
    subject: Subject,
    read: Callable[[int], np.ndarray],
    count: int,
    window: int,
    wanted: int,
    check_stop: Callable[[], None] = stopped_never,
) -> np.ndarray:
    """Loss in nats of the last `wanted` targets of `count` windows: (count, wanted) float64.

    `read(i)` gives the window's inputs and its last target: (window + 1,) tokens. Positions that are drawn
    depend on the seed, the window's length and i, never on the batch. Batches hold about
    `batch_tokens` tokens, and halve when memory runs out; OutOfMemoryError when one window does not fit. Of
    several processes each makes a part of the batches, and all have all losses.
    """
    model = subject.model.to(subject.device).eval()
    acting = subject.acting(window)
    context = context_for(acting, window, wanted)
    losses = np.empty((count, wanted))
    draws = DRAWS if "positions" in acting.hooks else 1
    drawn = [
        model.positions(context, generator_for(subject.seed, "evaluation", window, draw), acting)  # (S,)
        for draw in range(draws)
    ]
    limit = acting.ends_at
    if limit is not None and any(int(pos[-1]) >= limit for pos in drawn):
        raise NotApplicableError(f"n/a: no encoding of positions from {limit} on")
    with current().sharing(losses, check_stop, OutOfMemoryError):
        _check_fits(subject, drawn[0], acting, wanted)
        for draw, pos in enumerate(drawn):
            rows = np.arange(draw, count, draws)
            _losses_at(subject, read, rows, pos, acting, losses, check_stop)
    return losses


def _losses_at(
    subject: Subject,
    read: Callable[[int], np.ndarray],
    rows: np.ndarray,
    pos: Tensor,
    acting: Encoding,
    losses: np.ndarray,
    check_stop: Callable[[], None],
) -> None:
    """Fill in the losses (count, wanted) of the windows `rows`, all of them at the positions pos."""
    context, wanted = len(pos), losses.shape[1]
    size, start = max(1, subject.batch_tokens // context), 0
    rows = current().batches(rows, size)
    while start < len(rows):
        check_stop()
        some = rows[start : start + size]
        batch = np.stack([read(i)[-context - 1 :] for i in some]).astype(np.int64)
        try:
            nats = _forward(subject, torch.from_numpy(batch).to(subject.device), pos, acting, wanted)
        except (torch.OutOfMemoryError, MemoryError, RuntimeError) as error:
            if not is_out_of_memory(error):
                raise
            if size == 1:
                said = (str(error).splitlines() or [type(error).__name__])[0]  # a MemoryError has no text
                raise OutOfMemoryError(f"oom at {context} tokens, batch 1: {said}") from error
            size = max(1, size // 2)
            continue
        losses[some] = nats.cpu().double().numpy()
        start += len(some)


def _forward(subject: Subject, batch: Tensor, pos: Tensor, acting: Encoding, wanted: int) -> Tensor:
    with autocast(subject.precision, subject.device):
        hidden = subject.model.hidden(batch[:, :-1], pos, wanted, acting)  # (B, T, d_model)
    targets = batch[:, -wanted:]  # (B, T)
    weight = subject.model.embedding.weight.to(hidden.dtype)  # (V, d_model)
    return token_losses(hidden.flatten(0, 1), weight, targets.flatten()).view_as(targets)


def _check_fits(subject: Subject, pos: Tensor, acting: Encoding, wanted: int) -> None:
    """Raises OutOfMemoryError where one window at the positions pos would get the process killed."""

    def make_pass(n: int) -> None:
        tokens = torch.zeros((1, n + 1), dtype=torch.int64)
        _forward(subject, tokens, pos[:n], acting, n if wanted == len(pos) else min(wanted, n))

    if subject.device.type == "cpu":  # a GPU raises an error in time
        check_memory(make_pass, len(pos), subject.model.shape.n_heads)


def sums_by_document(
    documents: np.ndarray, nats: np.ndarray, targets: np.ndarray, byte_counts: np.ndarray
) -> Sums:
    """Rows (N,) of windows added up by their document."""
    found, inverse = np.unique(documents, return_inverse=True)

    def total(values: np.ndarray) -> np.ndarray:
        return np.bincount(inverse, weights=values, minlength=len(found))

    return Sums(
        documents=found.astype(np.int64),
        nats=total(nats),
        targets=total(targets).astype(np.int64),
        bytes=total(byte_counts).astype(np.int64),
    )
