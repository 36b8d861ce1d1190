"""Laws of what logits depend on: not the future, the batch, the kernel, past calls or the text's length."""

from __future__ import annotations

import contextlib

import torch

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.laws.subject import (
    FAR,
    LONGEST,
    Subject,
    changed_from,
    has_positions,
    logits,
    tokens,
)
from posenc.laws.verdict import NotApplicableError, Verdict, bounded, identical, largest, require, within
from posenc.model import kernels

# Float32 logits of variance 1 by another kernel or other block sizes: 1e-6 is usual, 1e-5 with counts over
# 2048 keys. Faults begin at 1e-2.
SAME = 3e-5
SEEN = 1e-3  # more than noise
BLOCKS = 1e-4  # sums over keys that start at a block's first query round by up to 2e-5; faults give 1e-2
NEVER = 1 << 60  # a number of keys that no kernel starts at
SHIFTED = 5e-5  # cosines of other angles round differently: 2e-6 is usual; float32 angles 3e-4


def causal(subject: Subject) -> Verdict:
    """Changed future tokens leave past logits bit-identical."""
    model = subject.fresh()
    n = subject.longest(2)
    ids = tokens(model, n)
    before = logits(model, ids)
    cuts = (1, n // 4, n // 2 - 1, n // 2, n - 1)
    for cut in cuts:
        after = logits(model, changed_from(ids, cut, model))
        changed = f"tokens changed from {cut} on"
        identical(before[:, :cut], after[:, :cut], f"{changed} move logits before them")
        require(largest(before[:, cut:], after[:, cut:]) > SEEN, f"{changed} change nothing")
    return Verdict("pass", f"bit for bit at {len(cuts)} cuts")


def prefix(subject: Subject) -> Verdict:
    """A longer text leaves the logits of its prefix alone, unless declared."""
    length = subject.train_length
    longest = LONGEST * length
    past_fused = max(kernels.limits().causal_from, longest) + 4
    windows = subject.windows({length + 1, longest, past_fused})
    if not windows:
        raise NotApplicableError(subject.bounded or "no longer window has positions")
    off = 0.0
    for n in windows:
        model = subject.fresh()
        ids = tokens(model, n, batch=1 if n > longest else 2)
        moved = largest(logits(model, ids)[:, :length], logits(model, ids[:, :length]))
        if subject.declared.prefix_stable:
            within(moved, SAME, f"a text of {n} tokens moves the logits of its first {length}")
        off = max(off, moved)
    if not subject.declared.prefix_stable:
        require(off > SAME, "declares that a longer text changes its prefix, and it does not", f"{off:.1e}")
        return Verdict("n/a", f"{off:.1e}", "declared: a longer text changes its prefix")
    return Verdict("pass", f"{bounded(off, SAME)} up to {windows[-1]} tokens")


def order(subject: Subject) -> Verdict:
    """With two layers or more, the order of the past changes the last output.

    One layer without positions outputs a mean over the past, in whatever order.
    """
    model = subject.fresh()
    n = subject.train_length
    if len(model.blocks) < 2:
        raise NotApplicableError("one layer: without positions it cannot see the order of the past")
    ids = torch.arange(n)[None] % model.vocab_size
    reordered = ids.clone()
    reordered[:, : n - 1] = ids[:, : n - 1].flip(-1)
    off = largest(logits(model, ids)[:, -1], logits(model, reordered)[:, -1])
    require(off > SEEN, "the past turned round leaves the last output as it is", f"{off:.1e}")
    return Verdict("pass", f"{off:.1e} (at least {SEEN:.0e})")


def shift(subject: Subject) -> Verdict:
    """If relative: logits stay when all positions shift alike, to 65 536."""
    if not subject.declared.relative:
        raise NotApplicableError("not declared relative")
    model = subject.anywhere(subject.fresh())
    n = subject.longest(2)
    ids = tokens(model, n)
    pos = torch.arange(n)
    before = logits(model, ids, pos)
    off = 0.0
    for by in (1, 1000, FAR - LONGEST * subject.train_length):
        try:
            after = logits(model, ids, pos + by)
        except ValueError as error:
            raise NotApplicableError(f"refuses far positions: {error}") from error
        reason = f"logits move when all positions move by {by}"
        off = max(off, within(largest(before, after), SHIFTED, reason))
    return Verdict("pass", bounded(off, SHIFTED))


def positions(subject: Subject) -> Verdict:
    """Positions are increasing whole numbers, and used if and only if declared."""
    for training in (True, False):
        _check_positions(subject, training)
    model = subject.anywhere(subject.fresh())
    n = subject.train_length // 2
    ids = tokens(model, n)
    pos = torch.arange(n)
    before = logits(model, ids, pos)
    is_used = subject.declared.uses_positions
    changes = {
        "a gap in the middle": pos + n * (pos >= n // 2),
        "a stretch": 3 * pos,  # alone it is too little: a share of the length does not change
        "a long stretch": (FAR - 1) // n * pos,
    }
    for change, changed in changes.items():
        off = largest(before, logits(model, ids, changed))
        if is_used and off > SAME:
            return Verdict("pass", f"{off:.1e} by {change}")
        require(is_used or off == 0, f"declared unused, and {change} changes logits", f"{off:.1e}")
    require(not is_used, "declared used, and no change of positions changes logits")
    return Verdict("pass", "0", "declared: uses no positions")


def _check_positions(subject: Subject, training: bool) -> None:
    """Raise ViolationError unless the positions of a window increase and follow from their generator."""
    length = subject.train_length
    model = subject.fresh().train(training)
    pos = model.positions(length, generator_for(1, "law"))
    is_index = pos.shape == (length,) and pos.dtype == torch.int64
    require(is_index, f"positions are {pos.dtype} {tuple(pos.shape)}")
    is_increasing = int(pos[0]) >= 0 and bool((pos.diff() > 0).all())
    require(is_increasing, "positions do not increase from 0 or above")
    again = model.positions(length, generator_for(1, "law"))
    identical(pos, again, "positions depend on more than their generator")


def batch(subject: Subject) -> Verdict:
    """Other texts in a batch and torch's random state leave a text's logits bit-identical.

    A run neither seeds nor saves torch's global generator: an encoding that draws from it cannot be resumed.
    """
    model = subject.fresh()
    ids = tokens(model, subject.train_length, batch=4)
    with_others = changed_from(ids, 0, model)
    with_others[0] = ids[0]
    for mode in ("in training", "in evaluation"):
        of_first_text = []
        for seed, texts in enumerate((ids, ids, with_others)):
            with torch.random.fork_rng():
                torch.manual_seed(seed)
                of_first_text.append(logits(model, texts, training=mode == "in training")[0])
        first, again, beside_others = of_first_text
        identical(first, again, f"the same text has other logits the second time {mode}")
        identical(first, beside_others, f"other texts in the batch move a text's logits {mode}")
    return Verdict("pass", "bit for bit beside three others, and twice")


def trace(subject: Subject) -> Verdict:
    """No number depends on what this process computed before.

    Train at T, evaluate long, use bf16 and run a model of another size in between.
    """
    length, longest = subject.train_length, subject.longest()
    model = subject.fresh()
    short, long = tokens(model, length), tokens(model, longest)
    at_short = f"differ: logits at {length} tokens"
    at_long = f"differ: logits at {longest} tokens"
    long_logits = logits(subject.fresh(), long)  # of a model that never saw T
    model.train()
    model(short, model.positions(length, generator_for(0, "law"))).sum().backward()
    short_logits = logits(model, short)
    reason = f"{at_long} after training at {length}, and of a fresh model"
    identical(logits(model, long), long_logits, reason)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits(model, long)
    identical(logits(model, short), short_logits, f"{at_short}, before and after longer windows")
    with contextlib.suppress(UserError):  # settings that fit this T alone
        larger = subject.fresh(1, context_length=2 * length)
        for n in (length, 2 * longest):  # which would overwrite a table shared by the process
            if has_positions(larger, n):
                logits(larger, tokens(larger, n, batch=1))
    identical(logits(model, short), short_logits, f"{at_short}, before and after another model")
    identical(logits(model, long), long_logits, f"{at_long}, before and after another model")
    identical(logits(subject.fresh(), short), short_logits, f"{at_short}, and of a fresh model")
    return Verdict("pass", f"bit for bit at {length} and {longest} tokens")


def blocks(subject: Subject) -> Verdict:
    """The same numbers in small blocks of queries, at once, fused, or of the last tokens alone."""
    model = subject.fresh()
    n = subject.longest(4)
    ids = tokens(model, n)
    scores_of_a_query = ids.shape[0] * model.shape.n_heads * n
    without_fused = {"causal_from": NEVER, "masked_from": NEVER}
    with kernels.changed_limits(**without_fused):
        at_once = logits(model, ids)
    off = 0.0
    for changes, numbers in (
        ({"max_scores": 3 * scores_of_a_query}, "blocks of three queries"),
        ({"max_scores": scores_of_a_query}, "queries one by one"),
        ({"causal_from": 1}, "the fused kernel's numbers"),
        ({"masked_from": 1, "masked_queries": 3}, "the fused kernel's numbers with a mask"),
    ):
        with kernels.changed_limits(**{**without_fused, **changes}):
            difference = largest(logits(model, ids), at_once)
        off = max(off, within(difference, BLOCKS, f"{numbers} differ from all at once"))
    for n_targets in (1, 5, n // 2):  # as evaluation asks for them
        difference = largest(logits(model, ids, n_targets=n_targets), at_once[:, -n_targets:])
        reason = f"the last {n_targets} of {n} tokens alone differ from the end of all"
        off = max(off, within(difference, BLOCKS, reason))
    return Verdict("pass", bounded(off, BLOCKS))
