"""Splits, fingerprints and batches are the same on every machine, forever."""

from collections import Counter

import numpy as np
import pytest

from posenc.core.errors import UserError
from posenc.data import Split, TokenStore, WindowSampler
from posenc.data.documents import Document, fingerprint_of, split_of

SHARES = {"validation": 0.1, "test": 0.2}
TINY = [Document("a", b"one", "train"), Document("b", "zwö".encode(), "test"), Document("c/d", b"", "train")]
LENGTHS = [3, 40, 9, 10, 100, 2]


def test_the_split_of_an_id_never_changes():
    ids = ["core/add.py", "solvers/ode/ode.py", "printing/str.py", "sets/sets.py"]
    assert [split_of(i, SHARES) for i in ids] == ["train", "train", "validation", "test"]
    counts = Counter(split_of(f"doc{i}", SHARES) for i in range(5000))
    assert abs(counts["test"] - 1000) < 120 and abs(counts["validation"] - 500) < 90
    more = {"validation": 0.1, "test": 0.4}  # a larger share keeps what is in it
    assert all(split_of(i, more) == "test" for i in map(str, range(300)) if split_of(i, SHARES) == "test")


def test_the_fingerprint_is_pinned_and_sees_every_part():
    pinned = "f5d7f778e020b2dc574343f2de0b9a31c63b3f663f18553e5b936b29bd9c5d59"
    assert fingerprint_of(TINY) == pinned
    for name, text, split in (("a2", b"one", "train"), ("a", b"onE", "train"), ("a", b"one", "test")):
        assert fingerprint_of([Document(name, text, split), *TINY[1:]]) != pinned
    assert fingerprint_of([Document("ao", b"ne", "train"), *TINY[1:]]) != pinned  # cut elsewhere
    names = ("a\udcfe", "a\udcff", "a?")  # that are no text
    assert len({fingerprint_of([Document(name, b"x", "train")]) for name in names}) == 3


def store_of(lengths):
    """Training documents whose tokens number their places; tokens of the test split come after."""
    sizes = np.array(lengths, dtype=np.int64)
    total = int(sizes.sum())
    empty = np.zeros(0, dtype=np.int64)
    return TokenStore(
        tokens=np.arange(total + 500, dtype=np.uint16),
        token_bytes=None,
        fingerprint="f",
        vocab_size=2**16,
        tokenizer={"name": "bytes"},
        splits={
            "train": Split([str(i) for i in range(len(lengths))], np.cumsum(sizes) - sizes, sizes),
            "validation": Split([], empty, empty),
            "test": Split(["t"], np.array([total]), np.array([500])),
        },
    )


def test_windows_lie_inside_training_documents_and_every_place_comes_equally_often():
    store = store_of(LENGTHS)
    split = store.splits["train"]
    inputs, targets = WindowSampler(store, 9, 0).batch(0, 50_000)
    assert inputs.shape == targets.shape == (50_000, 9) and inputs.dtype == targets.dtype == np.int64
    assert (targets == inputs + 1).all() and (np.diff(inputs, axis=1) == 1).all()
    document = np.searchsorted(split.starts, inputs[:, 0], side="right") - 1
    assert (targets[:, -1] < split.starts[document] + split.lengths[document]).all()
    places = {s + i for s, n in zip(split.starts, LENGTHS, strict=True) for i in range(n - 9)}
    values, counts = np.unique(inputs[:, 0], return_counts=True)
    assert set(values.tolist()) == places and len(places) == 31 + 1 + 91
    expected = 50_000 / len(places)
    assert abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_a_batch_depends_on_seed_and_step_only():
    store = store_of(LENGTHS)
    with pytest.raises(UserError, match="longest that works is 99"):
        WindowSampler(store, 100, 0)
    sampler = WindowSampler(store, 9, 3)
    later = sampler.batch(7, 5)[0]
    sampler.batch(1, 64)
    assert np.array_equal(WindowSampler(store, 9, 3).batch(7, 9)[0][:5], later)
    assert not np.array_equal(sampler.batch(8, 5)[0], later)
    assert not np.array_equal(WindowSampler(store, 9, 4).batch(7, 5)[0], later)
    assert WindowSampler(store, 9, 0).batch(0, 6)[0][:, 0].tolist() == [65, 152, 6, 84, 87, 132]
