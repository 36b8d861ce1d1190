"""The reference beside fixed-target: a smoothed trigram of bytes, fitted on the training split's text.

Interpolated Witten-Bell: P(c | ab) = (N(abc) + K(ab) P(c | b)) / (N(ab) + K(ab)), where N counts in the
training split, K(ab) is how many different bytes follow ab there, and P(c | b) and P(c) are made in the same
way, down to 1/256 for every byte. There is nothing to tune. On Python source it is 1.8 to 1.9 nats a byte. A
model that is not clearly below it has learned no more than pairs of bytes: how it extrapolates says little.

Source: Witten and Bell 1991, IEEE Transactions on Information Theory 37(4), method C; interpolated as in Chen
and Goodman 1996, arXiv cmp-lg/9606011.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posenc.data import TokenStore
from posenc.evaluation.fixed_target import Plan
from posenc.evaluation.forward_cache import LossSums, sums_by_document
from posenc.results.schema import REFERENCE_PROTOCOL

NAME = REFERENCE_PROTOCOL
ORDER = 3
CHUNK = 1 << 21  # bytes of a document counted at once

_fitted: dict[str, Trigram] = {}  # of the last training text, by its fingerprint: jobs of a sweep share it


def trigram_sums(byte_store: TokenStore, store: TokenStore, split: str, plan: Plan) -> LossSums:
    """Sum the trigram's loss on the targets of a fixed-target plan, by document.

    `byte_store` holds the corpus of `store` with bytes for tokens (`store` itself where they are). A token's
    loss is the sum over its bytes, each after the two bytes before it in the document. Raises ValueError
    where the two stores are not of one corpus, or the first is not of bytes.
    """
    if byte_store.fingerprint != store.fingerprint or byte_store.tokenizer["name"] != "bytes":
        raise ValueError("the trigram needs the same corpus tokenised by bytes")
    begins, ends = _byte_spans(store, split, plan)
    sizes = ends - begins  # (N,) bytes a block
    blocks = np.repeat(np.arange(len(sizes)), sizes)
    places = np.arange(sizes.sum()) - np.repeat(np.cumsum(sizes) - sizes, sizes) + np.repeat(begins, sizes)
    origins = byte_store.splits[split].starts[plan.documents]
    losses = fitted(byte_store).losses(byte_store.tokens, origins[blocks] + places, places)
    nats = np.bincount(blocks, weights=losses, minlength=len(sizes))
    return sums_by_document(plan.documents, nats, np.full(len(sizes), plan.block), sizes)


def fitted(store: TokenStore) -> Trigram:
    """Return the trigram of a byte store's training split, fitted once a process."""
    if store.fingerprint not in _fitted:
        _fitted.clear()
        _fitted[store.fingerprint] = fit(store)
    return _fitted[store.fingerprint]


@dataclass(frozen=True)
class Grams:
    """The n-grams that occur, as numbers of base 256, and counts of what follows their first n - 1 bytes."""

    codes: np.ndarray  # (M,) int64, ascending
    counts: np.ndarray  # (M,) int64, N(ab...c)
    totals: np.ndarray  # (256^(n-1),) int64, N(ab...)
    kinds: np.ndarray  # (256^(n-1),) int64, K(ab...)

    def interpolated(self, codes: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Return P of the last byte of each n-gram (N,), from P one order below."""
        at = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        counts = np.where(self.codes[at] == codes, self.counts[at], 0)
        context = codes >> 8
        totals, kinds = self.totals[context], self.kinds[context]
        seen = np.maximum(1, totals + kinds)
        return np.where(totals > 0, (counts + kinds * lower) / seen, lower)


@dataclass(frozen=True)
class Trigram:
    """Counts of one, two and three bytes."""

    grams: tuple[Grams, ...]

    def losses(self, text: np.ndarray, places: np.ndarray, before: np.ndarray) -> np.ndarray:
        """Return the nats of text[places] (N,); before[i] bytes of the same document come before each."""
        p = np.full(len(places), 1 / 256)
        codes = np.zeros(len(places), dtype=np.int64)
        for n, grams in enumerate(self.grams):
            reach = before >= n
            codes[reach] += text[places[reach] - n].astype(np.int64) << (8 * n)
            p[reach] = grams.interpolated(codes[reach], p[reach])
        losses: np.ndarray = -np.log(p)
        return losses


def fit(store: TokenStore) -> Trigram:
    """Count the training split of a byte store, never across documents."""
    split = store.splits["train"]
    tables = [np.zeros(256**n, dtype=np.int64) for n in range(1, ORDER + 1)]
    for i in range(len(split.ids)):
        text = store.document("train", i)
        for start in range(0, len(text), CHUNK):
            for n, table in enumerate(tables, 1):
                np.add.at(table, codes_of(text[start : start + CHUNK + n - 1], n), 1)
    return Trigram(tuple(_grams(table) for table in tables))


def codes_of(text: np.ndarray, n: int) -> np.ndarray:
    """Return the n-grams of a text (L,) in order, as numbers of base 256: (L - n + 1,) int64."""
    count = max(0, len(text) - n + 1)
    codes = np.zeros(count, dtype=np.int64)
    for offset in range(n):
        codes <<= 8
        codes |= text[offset : offset + count]
    return codes


def _grams(table: np.ndarray) -> Grams:
    by_context = table.reshape(-1, 256)
    codes = np.flatnonzero(table)
    return Grams(codes, table[codes], by_context.sum(axis=1), np.count_nonzero(by_context, axis=1))


def _byte_spans(store: TokenStore, split: str, plan: Plan) -> tuple[np.ndarray, np.ndarray]:
    """Return where each block begins and ends in its document, in bytes."""
    begins, ends = plan.ends - plan.block, plan.ends
    if store.token_bytes is None:
        return begins, ends
    documents = store.splits[split]
    spans = np.empty((2, len(ends)), dtype=np.int64)
    for i in np.unique(plan.documents):
        start, length = int(documents.starts[i]), int(documents.lengths[i])
        reached = np.concatenate([[0], np.cumsum(store.token_bytes_of(start, start + length))])
        rows = plan.documents == i
        spans[0, rows], spans[1, rows] = reached[begins[rows]], reached[ends[rows]]
    return spans[0], spans[1]
