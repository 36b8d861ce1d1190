"""Laws of the kernel: the same numbers however the queries are cut up."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from unittest.mock import patch

from posenc.laws.subject import Subject, largest, logits, tokens
from posenc.laws.verdict import Verdict, within
from posenc.model import kernels

# Sums over keys that are counted from a block's first query round by up to 2e-5; faults give 1e-2 and more.
SAME = 1e-4
NEVER = 1 << 60


def tail(subject: Subject) -> Verdict:
    """The last tokens alone, as evaluation asks for them."""
    model, n = subject.fresh(), subject.longest(4)
    ids = tokens(model, n)
    whole, off = logits(model, ids), 0.0
    for wanted in sorted({1, min(5, n), n // 2}):
        moved = largest(logits(model, ids, wanted=wanted), whole[:, -wanted:])
        off = moved if not moved < off else off
        within(off, SAME, f"the last {wanted} of {n} tokens alone differ from the end of all")
    return Verdict("pass", within(off, SAME, ""))


def blocks(subject: Subject) -> Verdict:
    """Blocks of three queries and of one, and the fused kernels where they serve."""
    model, n = subject.fresh(), subject.longest(4)
    ids = tokens(model, n)
    scores = ids.shape[0] * model.shape.n_heads * n  # of one query
    with _attention():
        whole, off = logits(model, ids), 0.0
    for changed, which in (
        ({"MAX_SCORES": 3 * scores}, "blocks of three queries"),
        ({"MAX_SCORES": scores}, "queries one by one"),
        ({"CAUSAL_FROM": 1}, "the fused kernel's numbers"),
        ({"MASKED_FROM": 1, "MASKED_QUERIES": 3}, "the fused kernel's numbers with a mask"),
    ):
        with _attention(**changed):
            moved = largest(logits(model, ids), whole)
        off = moved if not moved < off else off
        within(off, SAME, f"{which} differ from all at once")
    return Verdict("pass", within(off, SAME, ""))


@contextmanager
def _attention(**changed: int) -> Iterator[None]:
    with ExitStack() as stack:
        for name, value in {"CAUSAL_FROM": NEVER, "MASKED_FROM": NEVER, **changed}.items():
            stack.enter_context(patch.object(kernels, name, value))
        yield
