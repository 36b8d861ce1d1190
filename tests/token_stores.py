"""Token stores made from documents in memory, and the requests that protocols plan from."""

import dataclasses

import numpy as np

from posenc.data import Split, TokenStore
from posenc.evaluation.lengths import EvalLengths
from posenc.evaluation.request import EvalRequest


def store_of(test, train=(b"train",)):
    """Return a store of byte strings: the test documents first in its array, then the training documents."""
    documents = [np.array(list(document), dtype=np.uint16) for document in (*test, *train)]
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    starts = np.cumsum(lengths) - lengths
    splits = {}
    for name, rows in (("test", slice(0, len(test))), ("train", slice(len(test), None))):
        names = [f"{name}-{i}" for i in range(len(lengths[rows]))]
        splits[name] = Split(names, starts[rows], lengths[rows])
    tokens = np.concatenate(documents)
    vocabulary = max(256, int(tokens.max()) + 1)
    return TokenStore(tokens, None, "corpus", vocabulary, {"name": "bytes"}, splits)


def store_in_folders(n_folders, n_documents, n_tokens):
    """Return a store of random letters. Its test documents lie in folders: document i in i % n_folders."""
    text = np.random.default_rng(0).integers(97, 123, (n_documents, n_tokens))
    store = store_of(text.tolist())
    test = store.splits["test"]
    ids = [f"{i % n_folders}/{i}" for i in range(n_documents)]
    splits = store.splits | {"test": dataclasses.replace(test, ids=ids)}
    return dataclasses.replace(store, splits=splits)


def request_for(store, windows, *, context_length=16, base_length=None, **changes):
    """Return what protocols make their plans from; `changes` are of its fields."""
    lengths = EvalLengths.of(windows, context_length, base_length)
    fields = {"store": store, "split": "test", "lengths": lengths, "max_targets": 1000}
    return EvalRequest(**(fields | changes))
