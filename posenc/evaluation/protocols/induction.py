"""induction: a random token sequence comes twice in a window; the loss on the second copy, by window.

The W + 1 tokens of a window (its inputs and the last target) are a sequence of m = T/4 tokens (at least 2),
random filler, and the sequence again. The second copy is scored, except for its first token, which nothing
announces. The copies are the same at every W. A shorter window has the end of a longer window's filler.

Symbols are the tokens that make up at least 1 in 1000 of the training split (63 bytes of SymPy's source).
One half of them is for sequences, the other half for filler. No symbol comes twice in a sequence, so m is at
most their number. The token before a target therefore came exactly once before, and a head that looks up one
token copies without error.

The record's unit names the loss at chance, ln(number of symbols for sequences). A model above it takes random
tokens for text and does not copy at any length. Then the change with W says nothing about the encoding.

Source: the repeated random tokens of Olsson et al. 2022 (In-context Learning and Induction Heads), arXiv
2209.11895; without filler and at one length there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from posenc.core.seeds import permutations, raw_draws
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.protocols.base import Protocol
from posenc.evaluation.request import EvalRequest, Plan
from posenc.evaluation.sums import LossSums

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

COUNT = 128  # sequences; at T = 64, fixed-target has 24 times as many windows
RAREST = 1 / 1000  # the least share of the training text that a symbol must have
REVISION = 2  # in the hash of the targets; revision 1 had one set of symbols for sequences and filler
SEED = 2022  # not the training seed, so that all runs see the same sequences


@dataclass(frozen=True, kw_only=True)
class Sequences(Plan):
    """Sequences to copy, each with the filler between its two copies in the longest window."""

    copies: np.ndarray  # (N, m) int64 tokens
    filler: np.ndarray  # (N, longest + 1 - 2m) int64 tokens
    symbols: int  # how many symbols sequences are drawn from

    def check_fits(self, window: int) -> None:
        size = self.copies.shape[1]
        if window + 1 < 2 * size:
            raise NotApplicableError(f"n/a: two copies of {size} tokens do not fit into {window}")

    def tokens(self, window: int) -> int:
        return len(self.copies) * window

    def targets_in(self, window: int) -> int:
        return self.copies.shape[1] - 1

    def count_targets(self, window: int) -> int:
        return len(self.copies) * self.targets_in(window)


class Induction(Protocol[Sequences]):
    name = "induction"
    title = "second copy of a random sequence"
    explain = "loss on the second copy of a random sequence"
    note = "loss on the second copy of a random sequence"
    why_loss_changes = "more random tokens stand between the copies"
    unit = "nats per token of the second copy"
    sample_noun = "sequence"

    def plan(self, request: EvalRequest) -> Sequences:
        """Draw the sequences, which depend on the tokens of the training split and on T alone."""
        symbols = frequent_tokens(request.store.token_counts("train"))
        # Every second one and not the first half, so that both halves have letters, digits and signs.
        sequence_symbols = symbols[::2]
        filler_symbols = symbols[1::2]
        size = min(max(2, request.lengths.base_length // 4), len(sequence_symbols))  # m
        filler_length = max(2 * size, request.lengths.longest + 1) - 2 * size
        draws_a_row = len(sequence_symbols) + filler_length
        # A stream for each row, so that longer filler takes further numbers and changes no sequence.
        raw = np.stack([raw_draws(draws_a_row, SEED, row) for row in range(COUNT)])  # (N, draws)
        sequence_draws, filler_draws = np.split(raw, [len(sequence_symbols)], axis=1)
        order = permutations(sequence_draws)
        copies = sequence_symbols[order[:, :size]]  # (N, m)
        # Not by `integers` of numpy: only the raw output of its generator is the same in all versions.
        symbol_numbers = (filler_draws % np.uint64(len(filler_symbols))).astype(np.int64)
        # drawn from the end of the filler backwards, so that a longer one begins with further tokens
        filler = filler_symbols[symbol_numbers[:, ::-1]]
        digest = request.digest(self.name, REVISION, symbols, copies)
        return Sequences(hash=digest, copies=copies, filler=filler, symbols=len(sequence_symbols))

    def measure(self, context: EvalContext, plan: Sequences, window: int) -> LossSums:
        """Sum the loss of the second copies by sequence. They are no text, so they have no bytes."""
        from posenc.evaluation.passes import Windows  # here, since it imports torch

        plan.check_fits(window)
        count, size = plan.copies.shape
        gap = window + 1 - 2 * size
        filler = plan.filler[:, plan.filler.shape[1] - gap :]  # (N, gap), also where the gap is 0
        tokens = np.concatenate([plan.copies, filler, plan.copies], axis=1)  # (N, W + 1)
        # Not by the cache of passes: no other protocol scores these windows.
        windows = Windows.of_tokens(tokens, n_targets=size - 1)
        nats = context.losses_of_new_pass(windows)  # (N, m - 1)
        return LossSums(
            documents=np.arange(count),
            nats=nats.sum(axis=1),
            targets=np.full(count, size - 1),
            bytes=np.zeros(count, dtype=np.int64),
            of_text=False,
        )

    def unit_of(self, plan: Sequences) -> str:
        return f"{self.unit} (chance {math.log(plan.symbols):.2f})"


def frequent_tokens(counts: np.ndarray) -> np.ndarray:
    """Return the tokens that are frequent enough for symbols, by counts (V,); all tokens if these are < 4."""
    symbols = np.flatnonzero(counts >= max(1.0, RAREST * counts.sum()))
    if len(symbols) < 4:
        # Each half needs two symbols at least, or a sequence could not vary.
        return np.arange(len(counts))
    return symbols
