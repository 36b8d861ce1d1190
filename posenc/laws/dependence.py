"""Laws of what logits depend on: not the future, the batch, the kernel, past calls or the text's length."""

from __future__ import annotations

import torch
from torch import Tensor

from posenc.core.errors import UserError
from posenc.core.seeds import generator_for
from posenc.encodings.base import LONGEST_OF_LAWS
from posenc.laws.subject import (
    FAR,
    Subject,
    changed_from,
    has_positions,
    logits,
    tokens,
)
from posenc.laws.verdict import (
    LawNotApplicableError,
    Verdict,
    largest_difference,
    require,
    require_below,
    require_identical,
    with_bound,
)
from posenc.model import kernels
from posenc.model.decoder import Decoder

# Bounds on differences of float32 logits, whose variance is 1.
# Another kernel or other block sizes: 1e-6 is usual, 1e-5 with counts over 2048 keys. Faults begin at 1e-2.
SAME_BOUND = 3e-5
VISIBLE_CHANGE = 1e-3  # a larger difference is no rounding
# Sums over keys that start at a block's first query round by up to 2e-5; faults give 1e-2.
BLOCKS_BOUND = 1e-4
# Cosines of other angles round differently: 2e-6 is usual. Angles in float32 give 3e-4.
SHIFT_BOUND = 5e-5

NEVER = 1 << 60  # keys: no window is so long, so a kernel that is used from there on never is


def causal(subject: Subject) -> Verdict:
    """Changed future tokens leave past logits bit-identical."""
    model = subject.fresh()
    # 2T, so that positions that no training window has are among them.
    n = subject.longest(2)
    ids = tokens(model, n)
    original = logits(model, ids)
    cuts = (1, n // 4, n // 2 - 1, n // 2, n - 1)  # both ends, and both sides of the middle
    for cut in cuts:
        changed = logits(model, changed_from(ids, cut, model))
        change = f"tokens changed from {cut} on"
        require_identical(original[:, :cut], changed[:, :cut], f"{change} move logits before them")
        # A model that ignores its input would be causal as well.
        later_change = largest_difference(original[:, cut:], changed[:, cut:])
        require(later_change > VISIBLE_CHANGE, f"{change} change nothing")
    return Verdict("pass", f"bit for bit at {len(cuts)} cuts")


def change_by_later_tokens(model: Decoder, n: int) -> float:
    """Return how far logits of n/2 tokens move, at most, when the n/2 tokens behind them are others.

    It is 0 for a model that draws numbers in each pass, whose logits move without any change of tokens.
    """
    ids = tokens(model, n)
    cut = n // 2
    original = logits(model, ids)
    if not torch.equal(original, logits(model, ids)):
        return 0.0
    changed = logits(model, changed_from(ids, cut, model))
    return largest_difference(original[:, :cut], changed[:, :cut])


def prefix(subject: Subject) -> Verdict:
    """A longer text leaves the logits of its prefix alone, unless declared."""
    length = subject.train_length
    longest = LONGEST_OF_LAWS * length
    # a few tokens past the length from which the fused kernel computes
    fused = max(kernels.limits().causal_from, longest) + 4
    # T + 1 finds what changes as soon as a text is longer, such as a scale by its length.
    windows = subject.windows({length + 1, longest, fused})
    if not windows:
        raise LawNotApplicableError(
            subject.limited_to_train_length or "positions.max leaves no longer window"
        )
    moves: dict[int, float] = {}
    for n in windows:
        model = subject.fresh()
        # One text alone in the longest window, which takes most of the time.
        ids = tokens(model, n, batch=1 if n > longest else 2)
        prefix_of_window = logits(model, ids)[:, :length]
        prefix_alone = logits(model, ids[:, :length])
        moves[n] = largest_difference(prefix_of_window, prefix_alone)
    largest = max(moves.values())
    if not subject.declared.prefix_stable:
        reason = "declares that a longer text changes its prefix, and it does not"
        require(largest > SAME_BOUND, reason, f"{largest:.1e}")
        return Verdict(
            "n/a", f"{largest:.1e}", "declared (prefix_stable = False): a longer text changes its prefix"
        )
    for n, move in moves.items():
        require_below(move, SAME_BOUND, f"a text of {n} tokens moves the logits of its first {length}")
    return Verdict("pass", f"{with_bound(largest, SAME_BOUND)} up to {windows[-1]} tokens")


def order(subject: Subject) -> Verdict:
    """With two layers or more, the order of the past changes the last output.

    One layer without positions outputs a mean over the past, in whatever order.
    """
    model = subject.fresh()
    n = subject.train_length
    if len(model.blocks) < 2:
        raise LawNotApplicableError("one layer cannot see the order of the past without positions: take two")
    # Tokens that differ: a past of equal ones would be the same text when it is turned round.
    ids = torch.arange(n)[None] % model.vocab_size
    reordered = ids.clone()
    # The last token stays: with another one the output would change for that reason.
    reordered[:, : n - 1] = ids[:, : n - 1].flip(-1)
    change = largest_difference(logits(model, ids)[:, -1], logits(model, reordered)[:, -1])
    require(change > VISIBLE_CHANGE, "the past turned round leaves the last output as it is", f"{change:.1e}")
    return Verdict("pass", f"{change:.1e} (at least {VISIBLE_CHANGE:.0e})")


def shift(subject: Subject) -> Verdict:
    """If relative: logits stay when all positions shift alike, to 65 536."""
    if not subject.declared.relative:
        raise LawNotApplicableError("declare relative = True if logits depend on distances alone")
    model = subject.accept_any_positions(subject.fresh())
    n = subject.longest(2)
    ids = tokens(model, n)
    pos = torch.arange(n)
    # Positions from 0 and not the model's own, which may be drawn.
    unshifted = logits(model, ids, pos)
    farthest = FAR - LONGEST_OF_LAWS * subject.train_length  # so that every window ends below FAR
    largest = 0.0
    for offset in (1, 1000, farthest):
        try:
            shifted = logits(model, ids, pos + offset)
        except ValueError as error:
            raise LawNotApplicableError(f"refuses far positions: {error}") from error
        move = largest_difference(unshifted, shifted)
        require_below(move, SHIFT_BOUND, f"logits move when all positions move by {offset}")
        largest = max(largest, move)
    return Verdict("pass", with_bound(largest, SHIFT_BOUND))


def positions(subject: Subject) -> Verdict:
    """Positions are increasing whole numbers, and used if and only if declared."""
    for training in (True, False):
        _check_positions(subject, training)
    model = subject.accept_any_positions(subject.fresh())
    n = subject.train_length // 2
    ids = tokens(model, n)
    pos = torch.arange(n)
    contiguous = logits(model, ids, pos)
    # A stretch alone is not enough: an encoding that divides positions by the longest one does not see it.
    long_stretch = (FAR - 1) // n
    changes = {
        "a gap in the middle": torch.where(pos < n // 2, pos, pos + n),
        "a stretch": 3 * pos,
        "a long stretch": long_stretch * pos,
    }
    is_used = subject.declared.uses_positions
    for change, changed in changes.items():
        move = largest_difference(contiguous, logits(model, ids, changed))
        if not is_used:
            require(move == 0, f"declared unused, and {change} changes logits", f"{move:.1e}")
        elif move > SAME_BOUND:
            return Verdict("pass", f"{move:.1e} by {change}")
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
    require_identical(pos, again, "positions depend on more than their generator")


def batch(subject: Subject) -> Verdict:
    """Other texts in a batch and torch's random state leave a text's logits bit-identical.

    A run neither seeds nor saves torch's global generator: an encoding that draws from it cannot be resumed.
    """
    model = subject.fresh()
    ids = tokens(model, subject.train_length, batch=4)
    with_others = changed_from(ids, 0, model)
    with_others[0] = ids[0]
    for training, mode in ((True, "in training"), (False, "in evaluation")):
        first = _logits_of_first_text(model, ids, 0, training)
        again = _logits_of_first_text(model, ids, 1, training)
        beside_others = _logits_of_first_text(model, with_others, 2, training)
        require_identical(first, again, f"the same text has other logits the second time {mode}")
        require_identical(first, beside_others, f"other texts in the batch move a text's logits {mode}")
    return Verdict("pass", "bit for bit beside three others, and twice")


def _logits_of_first_text(model: Decoder, ids: Tensor, global_seed: int, training: bool) -> Tensor:
    """Return the logits (T, V) of a batch's first text, with a seed of torch's global generator."""
    with torch.random.fork_rng():
        torch.manual_seed(global_seed)
        return logits(model, ids, training=training)[0]


def trace(subject: Subject) -> Verdict:
    """No number depends on what this process computed before.

    Train at T, evaluate long, use bf16 and run a model of another size in between.
    """
    length = subject.train_length
    longest = subject.longest()
    model = subject.fresh()
    short = tokens(model, length)
    long = tokens(model, longest)
    short_differ = f"differ: logits at {length} tokens"
    long_differ = f"differ: logits at {longest} tokens"
    long_logits = logits(subject.fresh(), long)  # of a model that never saw T
    model.train()
    pos = model.positions(length, generator_for(0, "law"))
    # A backward pass as well, since an encoding may keep something for it.
    model(short, pos).sum().backward()
    short_logits = logits(model, short)
    reason = f"{long_differ} after training at {length}, and of a fresh model"
    require_identical(logits(model, long), long_logits, reason)
    # A table that is made in bf16 and kept would spoil every later pass in float32.
    with torch.autocast("cpu", dtype=torch.bfloat16):
        logits(model, long)
    require_identical(logits(model, short), short_logits, f"{short_differ}, before and after longer windows")
    _run_larger_model(subject)
    require_identical(logits(model, short), short_logits, f"{short_differ}, before and after another model")
    require_identical(logits(model, long), long_logits, f"{long_differ}, before and after another model")
    require_identical(logits(subject.fresh(), short), short_logits, f"{short_differ}, and of a fresh model")
    return Verdict("pass", f"bit for bit at {length} and {longest} tokens")


def _run_larger_model(subject: Subject) -> None:
    """Run a model of 2T at T and at twice the longest window.

    If the models of a process shared a table, this one would overwrite it.
    """
    length = subject.train_length
    try:
        larger = subject.fresh(1, context_length=2 * length)
    except UserError:
        return  # the encoding has settings that fit this T alone
    for n in (length, 2 * subject.longest()):
        if has_positions(larger, n):
            logits(larger, tokens(larger, n, batch=1))


def blocks(subject: Subject) -> Verdict:
    """The same numbers in small blocks of queries, at once, fused, or of the last tokens alone."""
    model = subject.fresh()
    n = subject.longest(4)
    ids = tokens(model, n)
    scores_of_a_query = ids.shape[0] * model.shape.n_heads * n
    # Blocks of three, since blocks of a power of two would divide the window and hide errors at its end.
    limits_of: dict[str, dict[str, int]] = {
        "blocks of three queries": {"max_scores": 3 * scores_of_a_query},
        "queries one by one": {"max_scores": scores_of_a_query},
        "the fused kernel's numbers": {"causal_from": 1},
        "the fused kernel's numbers with a mask": {"masked_from": 1, "masked_queries": 3},
    }
    # So the reference is the plain formula: all scores at once and a softmax.
    without_fused = {"causal_from": NEVER, "masked_from": NEVER}
    with kernels.changed_limits(**without_fused):
        at_once = logits(model, ids)
    largest = 0.0
    for numbers, limits in limits_of.items():
        with kernels.changed_limits(**(without_fused | limits)):
            difference = largest_difference(logits(model, ids), at_once)
        require_below(difference, BLOCKS_BOUND, f"{numbers} differ from all at once")
        largest = max(largest, difference)
    for n_targets in (1, 5, n // 2):  # evaluation computes the last tokens of a window alone
        targets = logits(model, ids, n_targets=n_targets)
        difference = largest_difference(targets, at_once[:, -n_targets:])
        reason = f"the last {n_targets} of {n} tokens alone differ from the end of all"
        require_below(difference, BLOCKS_BOUND, reason)
        largest = max(largest, difference)
    return Verdict("pass", with_bound(largest, BLOCKS_BOUND))
