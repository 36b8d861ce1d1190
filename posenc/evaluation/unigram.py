"""The unigram reference: the loss of predicting each token by its frequency in the measured documents.

No prediction without a context is better. If a model is not clearly below it, the model cannot read the
text. Then a change of its loss says nothing about its encoding. In the study, models of the King James Bible
lose 4.5 to 5.3 nats a byte on documentation, where the frequencies of its bytes give 3.4. Far text lowers the
loss of four of them all the same.
"""

from __future__ import annotations

import numpy as np

from posenc.data import TokenStore
from posenc.evaluation.blocks import Blocks
from posenc.evaluation.sums import LossSums, sums_by_document


def unigram_sums(store: TokenStore, split: str, plan: Blocks) -> LossSums:
    """Sum the loss of a plan's targets by the frequencies of the tokens of a split."""
    counts = store.token_counts(split)
    # Every target is a token of the split, so a token that the split lacks is never asked for.
    nats_of_token = -np.log(np.maximum(counts, 1) / counts.sum())  # (V,)
    stops = store.splits[split].starts[plan.documents] + plan.ends  # (N,) in the tokens of the store
    starts = stops - plan.block  # (N,)
    places = starts[:, None] + np.arange(plan.block)  # (N, block)
    nats = nats_of_token[store.tokens[places]].sum(axis=1)  # (N,)
    targets = np.full(len(stops), plan.block)
    return sums_by_document(plan.documents, nats, targets, store.bytes_between(starts, stops))
