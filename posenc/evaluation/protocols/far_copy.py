"""far-copy: real text that can be copied from beyond the training length, and from nowhere nearer.

The cue of a token is the 8 bytes before it (with longer tokens: as many tokens as 8 bytes are on average, at
least 2). A token is a target if its cue came earlier in the document, was followed by the same token, and
last came more than T tokens back, but within the longest window. T is `eval.base_length` where it is set.

The same targets are scored at every W, each at the end of a window of its own. At W = T nothing can be
copied, so the change against W = T is what the far text gives. The loss itself says little, because shorter
matches nearby help at every W.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from posenc.evaluation.blocks import Blocks, choose_blocks, measure_blocks
from posenc.evaluation.errors import NotApplicableError
from posenc.evaluation.protocols.base import Protocol
from posenc.evaluation.request import EvalRequest
from posenc.evaluation.sums import LossSums

if TYPE_CHECKING:
    from posenc.evaluation.passes import EvalContext

CUE_BYTES = 8
# It scores max_targets / 80 targets, since each costs a whole window. At T = 64 and target_fraction = 1/4 it
# takes a fifth of the time of fixed-target.
TARGETS_DIVISOR = 80
# An even number would push bits of a cue's first tokens out of the 64.
MULTIPLIER = 0x9E3779B97F4A7C15  # of the hash of a cue, modulo 2^64; it must be odd


@dataclass(frozen=True, kw_only=True)
class FarCopies(Blocks):
    """The targets, each a block of its own."""

    near: int  # tokens: their cue came farther back than this


class FarCopy(Protocol[FarCopies]):
    name = "far-copy"
    title = "text that is copied from far away"
    explain = "text that can be copied only from more than T tokens before"
    note = "loss on text that can be copied only from more than T tokens before"
    unit = "nats per token (far copies)"

    def plan(self, request: EvalRequest) -> FarCopies:
        """Find all targets of all documents, and choose some that are spread over each document."""
        cue = cue_tokens(request)
        near = request.lengths.base_length
        longest = request.lengths.longest
        copies_by_document = []
        for document in range(len(request.document_lengths)):
            tokens = request.store.document(request.split, document)
            copies_by_document.append(far_copies(tokens, cue, near, longest))
        candidates = np.array([len(copies) for copies in copies_by_document], dtype=np.int64)  # (documents,)
        documents, ordinals = choose_blocks(candidates, max(1, request.max_targets // TARGETS_DIVISOR))
        pairs = zip(documents, ordinals, strict=True)
        targets_of_blocks = [copies_by_document[document][ordinal] for document, ordinal in pairs]
        targets = np.array(targets_of_blocks, dtype=np.int64)  # (N,) index of the token in its document
        digest = request.digest(self.name, cue, documents, targets)
        return FarCopies(hash=digest, documents=documents, ends=targets + 1, block=1, near=near)

    def measure(self, context: EvalContext, plan: FarCopies, window: int) -> LossSums:
        """Sum the loss of every target, each the last of a window. Raises NotApplicableError without any."""
        if len(plan.ends) == 0:
            distance = f"more than {plan.near} tokens back"
            raise NotApplicableError(f"n/a: no text comes again from {distance}")
        return measure_blocks(context, plan, window)


def cue_tokens(request: EvalRequest) -> int:
    """Return how many tokens CUE_BYTES are on average, at least 2."""
    split = request.store.splits[request.split]
    tokens = int(split.lengths.sum())
    text_bytes = int(request.store.bytes_between(split.starts, split.starts + split.lengths).sum())
    # A cue of one token would be a common word, which comes again everywhere.
    return max(2, math.ceil(CUE_BYTES * tokens / max(1, text_bytes)))


def far_copies(tokens: np.ndarray, cue: int, near: int, longest: int) -> np.ndarray:
    """Return the indices of the tokens (L,) of a document that can be copied only from far: (N,) int64.

    Token p is such a token if the `cue` tokens before it came earlier, too, and at the latest of these times
    the same token followed, at p - d. Further conditions: d > near (it is far), d + cue <= longest (the
    earlier cue lies in the longest window that ends with p), and p >= longest (that window fits into the
    document).
    """
    # A window that is shorter than a cue has room for no copy, as `d + cue <= longest` says.
    if len(tokens) <= max(longest, cue):
        return np.zeros(0, dtype=np.int64)
    n_cues = len(tokens) - cue  # runs of `cue` tokens that have a token after them
    codes = cue_codes(tokens, cue, n_cues)
    order = np.argsort(codes, kind="stable")  # equal cues become neighbours, in the order of the text
    # Sorted and compared by numpy, since a dictionary of cues would take a step of Python for each token.
    is_repeated = codes[order[1:]] == codes[order[:-1]]
    starts = order[1:][is_repeated]  # where a cue begins that came before
    earlier = order[:-1][is_repeated]  # where it began the last time
    distance = starts - earlier
    is_far = (distance > near) & (distance + cue <= longest) & (starts + cue >= longest)
    # The latest earlier cue alone decides: a model that copies would copy from there.
    is_copy = tokens[starts + cue] == tokens[earlier + cue]
    targets: np.ndarray = np.sort(starts[is_far & is_copy] + cue)
    return targets


def cue_codes(tokens: np.ndarray, cue: int, n_cues: int) -> np.ndarray:
    """Return a hash of each run of `cue` tokens: (n_cues,) uint64.

    Two runs with one hash are improbable: 3 MB of text have 1e13 pairs of runs, and there are 2e19 hashes.
    """
    codes = np.zeros(n_cues, dtype=np.uint64)
    for offset in range(cue):
        # Unsigned numbers of numpy wrap around without a warning, which is the modulus.
        codes = codes * np.uint64(MULTIPLIER) + tokens[offset : offset + n_cues].astype(np.uint64)
    return codes
