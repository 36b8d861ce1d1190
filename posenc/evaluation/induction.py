"""induction: a random token sequence comes twice in a window; the loss on the second copy, by window.

A window of W inputs and its last target is a sequence of m = T/4 tokens (at least 2), random filler, and the
sequence again, scored but for its first token. The copies are the same at every W, and a shorter window's
filler is the end of a longer one's.

Symbols are the tokens that are at least 1 in 1000 of the training split (63 bytes of SymPy's source). Every
other one is for sequences, which have none twice (so m is at most their number), and the rest for filler: the
token before a target came once before it, so that a head that looks up one token copies without an error.
Chance, ln(number of symbols of sequences), is given in the record's unit. A model above it takes random
tokens for text and does not copy at any length: then the change with W says nothing about the encoding.

Source: the repeated random tokens of Olsson et al. 2022 (In-context Learning and Induction Heads), arXiv
2209.11895; without filler and at one length there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from posenc.core.seeds import permutations, raw_draws
from posenc.evaluation.forward_cache import EvalContext, LossSums, NotApplicableError, window_losses
from posenc.evaluation.plans import EvalRequest

NAME = "induction"

COUNT = 128  # sequences: at T = 64 one window for every 24 of fixed-target
RAREST = 1 / 1000  # share of the training text that a symbol has at least
REVISION = 2  # of the targets: 1 had one set of symbols for sequences and filler
SEED = 2022  # of the tokens, never the training seed: all runs see the same sequences


@dataclass(frozen=True)
class Plan:
    """Sequences to copy, each with the filler before its second copy."""

    copies: np.ndarray  # (N, m) int64 tokens
    filler: np.ndarray  # (N, longest + 1 - 2m) int64 tokens
    unit: str
    hash: str

    def tokens(self, window: int) -> int:
        """Count a window for each sequence."""
        return len(self.copies) * window


def plan(request: EvalRequest) -> Plan:
    """Draw the sequences from the training split's tokens and T; neither targets nor hash know windows."""
    counts = request.store.train_counts()
    symbols = np.flatnonzero(counts >= max(1.0, RAREST * counts.sum()))
    if len(symbols) < 4:
        symbols = np.arange(request.store.vocab_size)
    letters, others = symbols[::2], symbols[1::2]
    size = min(max(2, request.train_length // 4), len(letters))  # m
    length = max(2 * size, request.longest + 1) - 2 * size  # of the filler
    raw = np.stack([raw_draws(len(letters) + length, SEED, i) for i in range(COUNT)])
    copies = letters[permutations(raw[:, : len(letters)])[:, :size]]  # (N, m)
    drawn = (raw[:, len(letters) :] % np.uint64(len(others))).astype(np.int64)  # (N, length)
    filler = others[drawn[:, ::-1]]  # drawn from its end backwards
    unit = f"nats per token of the second copy (chance {math.log(len(letters)):.2f})"
    return Plan(copies, filler, unit, request.digest(NAME, REVISION, symbols, copies))


def measure(context: EvalContext, plan: Plan, window: int) -> LossSums:
    """Sum the loss of the second copies by sequence; they stand for no text, so they have no bytes."""
    count, size = plan.copies.shape
    gap = window + 1 - 2 * size
    if gap < 0:
        raise NotApplicableError(f"n/a: two copies of {size} tokens do not fit into {window}")
    between = plan.filler[:, plan.filler.shape[1] - gap :]
    windows = np.concatenate([plan.copies, between, plan.copies], axis=1)  # (N, W + 1)
    nats = window_losses(context, windows.__getitem__, count, window, size - 1)
    no_bytes, targets = np.zeros(count, dtype=np.int64), np.full(count, size - 1)
    return LossSums(np.arange(count), nats.sum(axis=1), targets, no_bytes, of_text=False)
