"""Laws of time: nothing comes from the future, nothing from how long the text is, and order is seen."""

from __future__ import annotations

import torch

from posenc.laws.subject import LONGEST, Subject, largest, logits, tokens
from posenc.laws.verdict import NotApplicableError, Verdict, require, within
from posenc.model import kernels

# Float32 logits of variance 1 that take another kernel or other sizes of block: 1e-6 is usual, 1e-5 where
# counts over 2048 keys become scores. Faults begin at 1e-2.
SAME = 3e-5
SEEN = 1e-3  # what is not noise


def causal(subject: Subject) -> Verdict:
    """Bit for bit: a softmax over the same numbers in the same places has no reason to differ."""
    model, n = subject.fresh(), subject.longest(2)
    ids = tokens(model, n)
    before = logits(model, ids)
    cuts = sorted({1, n // 4, n // 2 - 1, n // 2, n - 1} & set(range(1, n)))
    for cut in cuts:
        changed = ids.clone()
        changed[:, cut:] = (changed[:, cut:] + 1) % model.vocab_size
        after = logits(model, changed)
        off = largest(before[:, :cut], after[:, :cut])
        require(
            torch.equal(before[:, :cut], after[:, :cut]),
            f"tokens changed from {cut} on move logits before them by {off:.1e}",
        )
        require(
            largest(before[:, cut:], after[:, cut:]) > SEEN, f"tokens changed from {cut} on change nothing"
        )
    return Verdict("pass", f"bit for bit at {len(cuts)} cuts")


def prefix(subject: Subject) -> Verdict:
    """Short enough a text before, so that a window for the fused kernel is a longer one too."""
    length = subject.train_length
    longer = subject.windows({length + 1, LONGEST * length, max(kernels.CAUSAL_FROM, LONGEST * length) + 4})
    if not longer:
        raise NotApplicableError(subject.bounded or "no longer window has positions")
    off = 0.0
    for n in longer:
        model = subject.fresh()
        ids = tokens(model, n, batch=1 if n > LONGEST * length else 2)
        moved = largest(logits(model, ids)[:, :length], logits(model, ids[:, :length]))
        off = moved if not moved < off else off
        if subject.declared.prefix_stable:
            within(off, SAME, f"a text of {n} tokens moves the logits of its first {length}")
    if not subject.declared.prefix_stable:
        require(off > SAME, "declares that a longer text changes its prefix, and it does not", f"{off:.1e}")
        return Verdict("n/a", f"{off:.1e}", "declared: a longer text changes its prefix")
    return Verdict("pass", within(off, SAME, "") + f" up to {longer[-1]} tokens")


def order(subject: Subject) -> Verdict:
    """Of one layer without positions the last output is a mean over the past, in whatever order."""
    model, n = subject.fresh(), subject.train_length
    if len(model.blocks) < 2:
        raise NotApplicableError("one layer: without positions it cannot see the order of the past")
    ids = torch.arange(n)[None] % model.vocab_size
    moved = ids.clone()
    moved[:, : n - 1] = ids[:, : n - 1].flip(-1)
    if torch.equal(ids, moved):
        raise NotApplicableError(f"a past of {n - 1} token has one order")
    off = largest(logits(model, ids)[:, -1], logits(model, moved)[:, -1])
    require(off > SEEN, "the past turned round leaves the last output as it is", f"{off:.1e}")
    return Verdict("pass", f"{off:.1e} (at least {SEEN:.0e})")
