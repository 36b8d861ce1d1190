"""Token stores from documents at hand, without files, and requests for them."""

import numpy as np

from posenc.data import Split, TokenStore
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.request import EvalRequest


def store_of(test, train=(b"train",)):
    """Test documents first in the array, then the training documents."""
    documents = [np.array(list(document), dtype=np.uint16) for document in (*test, *train)]
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    cut = len(test)
    splits = {
        name: Split([f"{name}-{i}" for i in range(len(lengths[rows]))], starts[rows], lengths[rows])
        for name, rows in (("test", slice(0, cut)), ("train", slice(cut, None)))
    }
    tokens = np.concatenate(documents)
    vocabulary = max(256, int(tokens.max()) + 1)
    return TokenStore(tokens, None, "corpus", vocabulary, {"name": "bytes"}, splits)


def ask(store, windows, *, context_length=16, base_length=None, **changes):
    """What protocols make their plans from, with T = 16 unless another is given."""
    lengths = EvalLengths.of(windows, context_length, base_length)
    return EvalRequest(**{"store": store, "split": "test", "lengths": lengths, "max_targets": 1000} | changes)
