"""fixed-target: the same target tokens at every window length, so that only the text before them changes.

A target block is the last b tokens of a window. Every block has at least longest + 1 tokens up to its end in
its own document (the extra one is the first input), whatever the window that is being measured, and windows
of every length end where the block ends. At W = T no position lies beyond the training length: that record
is the crop line, the loss if the text is truncated to T tokens.

Beside it stands a reference: a smoothed trigram of bytes, fitted on the training split's text.
Interpolated Witten-Bell: P(c | ab) = (N(abc) + K(ab) P(c | b)) / (N(ab) + K(ab)), where N counts in the
training split, K(ab) is how many different bytes follow ab there, and so on down to 1/256 for every byte. On
Python source it is 1.8 to 1.9 nats a byte; how a model extrapolates that is not clearly below says little.

Source: Witten and Bell 1991, method C; interpolated as in Chen and Goodman 1996, arXiv cmp-lg/9606011.
"""

from __future__ import annotations

import numpy as np

from posenc.core.signature import whole
from posenc.data import TokenStore
from posenc.evaluation.forward_cache import LossSums, sums_by_document
from posenc.evaluation.plans import Blocks, EvalRequest, choose, measure_blocks

NAME = "fixed-target"
ORDER = 3  # of the reference
CHUNK = 1 << 21  # bytes of a document counted at once
measure = measure_blocks


def plan(request: EvalRequest) -> Blocks:
    """Choose blocks by the documents' lengths alone, `max_targets` targets in all, spread over documents."""
    block = block_of(request.target_fraction, request.base)
    check_block(min(request.windows), block)
    first = request.longest + 1  # the earliest end
    candidates = np.maximum(0, (request.lengths - first) // block + 1)  # blocks that fit, by document
    documents, places = choose(candidates, max(1, request.max_targets // block))
    ends = first + block * places
    return Blocks(documents, ends, block, request.digest(NAME, block, documents, ends))


def block_of(target_fraction: float, base_length: int) -> int:
    """Return b, the targets a block."""
    return max(1, round(target_fraction * base_length))


def check_block(shortest: int, block: int) -> None:
    """Raise UserError where the shortest window does not hold a block."""
    low = f"shorter than the target block of {block} tokens (eval.target_fraction * context_length)"
    whole("eval.lengths", shortest, least=block, low=low)


# --- the reference


def trigram_sums(byte_store: TokenStore, store: TokenStore, split: str, plan: Blocks) -> LossSums:
    """Sum the trigram's loss on a fixed-target plan; `byte_store` is the same corpus tokenised by bytes."""
    if byte_store.fingerprint != store.fingerprint or byte_store.tokenizer["name"] != "bytes":
        raise ValueError("the trigram needs the same corpus tokenised by bytes")
    starts = store.splits[split].starts[plan.documents]
    begins = store.bytes_between(starts, starts + plan.ends - plan.block)  # (N,) in their documents
    sizes = store.bytes_between(starts, starts + plan.ends) - begins  # (N,) bytes a block
    blocks = np.repeat(np.arange(len(sizes)), sizes)
    places = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(begins, sizes)
    origins = byte_store.splits[split].starts[plan.documents]
    losses = trigram_losses(trigram_counts(byte_store), byte_store.tokens, origins[blocks] + places, places)
    nats = np.bincount(blocks, weights=losses, minlength=len(sizes))
    return sums_by_document(plan.documents, nats, np.full(len(sizes), plan.block), sizes)


def trigram_losses(
    tables: list[np.ndarray], text: np.ndarray, places: np.ndarray, before: np.ndarray
) -> np.ndarray:
    """Return the nats of text[places] (N,); before[i] bytes of the same document come before each."""
    p = np.full(len(places), 1 / 256)
    codes = np.zeros(len(places), dtype=np.int64)
    for n, table in enumerate(tables):
        by_context = table.reshape(-1, 256)  # N(ab...c)
        totals, kinds = by_context.sum(axis=1), np.count_nonzero(by_context, axis=1)  # N(ab...), K(ab...)
        reach = before >= n
        codes[reach] += text[places[reach] - n].astype(np.int64) << (8 * n)
        code, lower = codes[reach], p[reach]
        total, kind = totals[code >> 8], kinds[code >> 8]
        interpolated = (table[code] + kind * lower) / np.maximum(1, total + kind)
        p[reach] = np.where(total > 0, interpolated, lower)
    losses: np.ndarray = -np.log(p)
    return losses


def trigram_counts(store: TokenStore) -> list[np.ndarray]:
    """Count one, two and three bytes of the training split, never across documents: (256^n,) each."""
    tables = [np.zeros(256**n, dtype=np.int32) for n in range(1, ORDER + 1)]
    one = np.int32(1)  # of the tables' dtype: with a plain 1 numpy takes 20 times as long
    for i in range(len(store.splits["train"].ids)):
        text = store.document("train", i)
        for start in range(0, len(text), CHUNK):
            for n, table in enumerate(tables, 1):
                some = text[start : start + CHUNK + n - 1].astype(np.int64)
                several = max(0, len(some) - n + 1)
                codes = sum(some[i : i + several] << 8 * (n - 1 - i) for i in range(n))  # of base 256
                np.add.at(table, codes, one)
    return tables
