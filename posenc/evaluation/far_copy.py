"""far-copy: real text that can be copied from beyond the training length, and from nowhere nearer.

A target is a token whose preceding 8 bytes (of longer tokens as many, at least 2) last came more than T
tokens back in its document, followed by the same token, all within the longest window. The same targets are
scored at every W, each at the end of a window of its own: the change against W = T, where nothing can be
copied, is what the far text gives. The loss itself says little: shorter matches nearby help at every W.
"""

from __future__ import annotations

import math

import numpy as np

from posenc.evaluation.forward_cache import EvalContext, LossSums, NotApplicableError
from posenc.evaluation.plans import Blocks, EvalRequest, choose, measure_blocks

NAME = "far-copy"
UNIT = "nats per token (far copies)"

CUE_BYTES = 8
# Each target costs a whole window: at T = 64 and target_fraction = 1/4 a fifth of what fixed-target costs.
TARGETS_SHARE = 80
MULTIPLIER = 0x9E3779B97F4A7C15  # odd, of the rolling hash modulo 2^64


def plan(request: EvalRequest) -> Blocks:
    """Find the targets in the documents' tokens, spread over each document; none where nothing recurs."""
    split, count = request.store.splits[request.split], len(request.lengths)
    text_bytes = int(request.store.bytes_between(split.starts, split.starts + split.lengths).sum())
    cue = max(2, math.ceil(CUE_BYTES * int(split.lengths.sum()) / max(1, text_bytes)))  # tokens of 8 bytes
    found = [
        far_copies(request.store.document(request.split, i), cue, request.base, request.longest)
        for i in range(count)
    ]
    candidates = np.array([len(places) for places in found], dtype=np.int64)
    documents, at = choose(candidates, max(1, request.max_targets // TARGETS_SHARE))
    places = np.array([found[document][i] for document, i in zip(documents, at, strict=True)], dtype=np.int64)
    return Blocks(documents, places + 1, 1, request.digest(NAME, cue, documents, places))


def far_copies(tokens: np.ndarray, cue: int, near: int, longest: int) -> np.ndarray:
    """Find the places p >= longest of a document (L,) whose `cue` tokens came before, followed by tokens[p].

    The last time they came is p - d with near < d and d + cue <= longest.
    """
    last = len(tokens) - cue  # cues with a token after them start before this
    if last <= longest - cue:
        return np.zeros(0, dtype=np.int64)
    codes = np.zeros(last, dtype=np.uint64)  # equal where cues are: 3 MB have 1e13 pairs, 2^64 is 2e19
    for offset in range(cue):
        codes = codes * np.uint64(MULTIPLIER) + tokens[offset : offset + last].astype(np.uint64)
    order = np.argsort(codes, kind="stable")  # equal cues side by side, in the order of the text
    again = codes[order[1:]] == codes[order[:-1]]
    now, before = order[1:][again], order[:-1][again]  # starts of a cue and of its last occurrence
    distance = now - before
    far = (distance > near) & (distance + cue <= longest) & (now + cue >= longest)
    now, before = now[far], before[far]
    places: np.ndarray = np.sort(now[tokens[now + cue] == tokens[before + cue]] + cue)
    return places


def measure(context: EvalContext, plan: Blocks, window: int) -> LossSums:
    """Sum the loss of every target, each the last of a window. Raises NotApplicableError without one."""
    if len(plan.ends) == 0:
        far = f"more than {context.train_length} tokens back"
        raise NotApplicableError(f"n/a: no text comes again from {far}")
    return measure_blocks(context, plan, window)
