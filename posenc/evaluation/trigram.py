"""The trigram reference knows no positions: a smoothed trigram of bytes, fitted to the training split.

The smoothing is interpolated Witten-Bell. Of a byte c after the bytes ab
  P(c | ab) = (N(abc) + K(ab) P(c | b)) / (N(ab) + K(ab))
where N counts in the training split, and K(ab) is how many different bytes follow ab there. P(c | b) is made
of P(c) in the same way, and P(c) of 1/256.

On Python source the trigram has 1.8 to 1.9 nats a byte. If a model is not clearly below that, the way it
extrapolates says little.

Source: Witten and Bell 1991, method C; interpolated as in Chen and Goodman 1996, arXiv cmp-lg/9606011.
"""

from __future__ import annotations

import numpy as np

from posenc.data import TokenStore
from posenc.evaluation.blocks import Blocks
from posenc.evaluation.sums import LossSums, sums_by_document

ORDER = 3  # bytes: the one that is predicted and the two before it
CHUNK = 1 << 21  # bytes of a document that are counted at once, to bound the memory


def trigram_sums(byte_store: TokenStore, store: TokenStore, split: str, plan: Blocks) -> LossSums:
    """Sum the trigram's loss on the targets of a plan for `store`, over their bytes in `byte_store`."""
    if byte_store.fingerprint != store.fingerprint or byte_store.tokenizer["name"] != "bytes":
        raise ValueError("the trigram needs the same corpus tokenised by bytes")
    # Targets are tokens of any tokenizer, so their places are translated into bytes first.
    document_starts = store.splits[split].starts[plan.documents]  # (N,) in the tokens of the store
    first_bytes = store.bytes_between(document_starts, document_starts + plan.ends - plan.block)  # (N,)
    end_bytes = store.bytes_between(document_starts, document_starts + plan.ends)  # (N,) in their documents
    sizes = end_bytes - first_bytes  # (N,) bytes of a block
    block_of_byte = np.repeat(np.arange(len(sizes)), sizes)  # (bytes,)
    earlier_blocks = np.cumsum(sizes) - sizes  # (N,) bytes of all blocks before a block
    place_in_block = np.arange(sizes.sum()) - np.repeat(earlier_blocks, sizes)  # (bytes,)
    bytes_before = place_in_block + np.repeat(first_bytes, sizes)  # (bytes,) in the document
    byte_starts = byte_store.splits[split].starts[plan.documents]  # (N,) of the documents in the byte store
    indices = byte_starts[block_of_byte] + bytes_before  # (bytes,) in the byte store
    losses = trigram_losses(trigram_counts(byte_store), byte_store.tokens, indices, bytes_before)
    nats = np.bincount(block_of_byte, weights=losses, minlength=len(sizes))  # (N,)
    return sums_by_document(plan.documents, nats, np.full(len(sizes), plan.block), sizes)


def trigram_losses(
    tables: list[np.ndarray], text: np.ndarray, indices: np.ndarray, bytes_before: np.ndarray
) -> np.ndarray:
    """Return the loss in nats of each byte text[indices[i]]: (N,).

    bytes_before[i] says how many bytes of its document come before it. `tables` are the counts of
    `trigram_counts`.
    """
    probability = np.full(len(indices), 1 / 256)  # (N,)
    codes = np.zeros(len(indices), dtype=np.int64)  # (N,) of the byte and its context, in base 256
    # from no context to a context of two bytes, each interpolated with the one before
    for context_size, table in enumerate(tables):
        by_context = table.reshape(-1, 256)
        totals = by_context.sum(axis=1)  # N(context)
        kinds = np.count_nonzero(by_context, axis=1)  # K(context)
        has_context = bytes_before >= context_size  # near the beginning of a document the shorter one stands
        context_byte = text[indices[has_context] - context_size].astype(np.int64)
        codes[has_context] += context_byte << (8 * context_size)
        code = codes[has_context]
        lower = probability[has_context]
        # The lowest byte of a code is the predicted one, so the others are the number of its context.
        total = totals[code >> 8]
        kind = kinds[code >> 8]
        # A context that the training text does not have would give 0/0. The next line takes `lower` there.
        interpolated = (table[code] + kind * lower) / np.maximum(1, total + kind)
        probability[has_context] = np.where(total > 0, interpolated, lower)
    losses: np.ndarray = -np.log(probability)
    return losses


def trigram_counts(store: TokenStore) -> list[np.ndarray]:
    """Count the runs of one, two and three bytes in the training split: (256,), (256^2,) and (256^3,).

    A run never crosses the border of two documents.
    """
    # int32, since the table of three bytes has 16.8 million numbers: 67 MB, and 134 MB in int64.
    tables = [np.zeros(256**size, dtype=np.int32) for size in range(1, ORDER + 1)]
    for document in range(len(store.splits["train"].ids)):
        text = store.document("train", document)
        for start in range(0, len(text), CHUNK):
            for size, table in enumerate(tables, 1):
                # Chunks overlap by size - 1 bytes, so that a run across a border is counted, and once.
                count_runs(table, text[start : start + CHUNK + size - 1], size)
    return tables


def count_runs(table: np.ndarray, text: np.ndarray, size: int) -> None:
    """Count every run of `size` bytes of text (L,) in the table, at the index that is the run in base 256."""
    n_runs = max(0, len(text) - size + 1)
    codes = np.zeros(n_runs, dtype=np.int64)
    for i in range(size):
        codes += text[i : i + n_runs].astype(np.int64) << (8 * (size - 1 - i))
    # The 1 has the table's dtype: with a plain 1 numpy takes 20 times as long.
    np.add.at(table, codes, np.int32(1))
