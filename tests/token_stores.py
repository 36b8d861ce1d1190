"""Token stores from documents at hand, without files."""

import numpy as np

from posenc.data import Split, TokenStore
from posenc.evaluation.plans import EvalRequest


def store_of(test, train=(b"train",), *, token_bytes=None, fingerprint="corpus", tokenizer="bytes"):
    """Test documents first in the array, then the training documents; `token_bytes` are of all tokens."""
    documents = [np.array(list(document), dtype=np.uint16) for document in (*test, *train)]
    lengths = np.array([len(document) for document in documents], dtype=np.int64)
    starts = np.concatenate([[0], np.cumsum(lengths)[:-1]]).astype(np.int64)
    cut = len(test)
    splits = {
        name: Split([f"{name}-{i}" for i in range(len(lengths[rows]))], starts[rows], lengths[rows])
        for name, rows in (("test", slice(0, cut)), ("train", slice(cut, None)))
    }
    tokens = np.concatenate(documents)
    return TokenStore(
        tokens=tokens,
        token_bytes=token_bytes,
        fingerprint=fingerprint,
        vocab_size=max(256, int(tokens.max()) + 1),
        tokenizer={"name": tokenizer},
        splits=splits,
    )


def ask(store, windows, **changes):
    """With T = 16 unless another is given."""
    wanted = {
        "split": "test",
        "train_length": 16,
        "target_fraction": 0.25,
        "max_targets": 1000,
        "stride": 4,
        **changes,
    }
    return EvalRequest(store=store, windows=windows, **wanted)
