from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from posenc.core.errors import UserError
from posenc.data import TokenStore, WindowSampler, left_out_of_training, prepare
from posenc.data.store import Split

LENGTHS = [3, 40, 9, 10, 100, 2]


def store_of(lengths: list[int]) -> TokenStore:
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


def test_windows_lie_inside_training_documents() -> None:
    store = store_of(LENGTHS)
    split = store.splits["train"]
    inputs, targets = WindowSampler(store, 9, 0).batch(0, 4000)
    assert inputs.shape == targets.shape == (4000, 9) and inputs.dtype == targets.dtype == np.int64
    assert (targets == inputs + 1).all() and (np.diff(inputs, axis=1) == 1).all()
    document = np.searchsorted(split.starts, inputs[:, 0], side="right") - 1
    assert (targets[:, -1] < split.starts[document] + split.lengths[document]).all()


def test_every_place_comes_equally_often() -> None:
    store = store_of(LENGTHS)
    sampler = WindowSampler(store, 9, 0)
    starts = np.concatenate([sampler.batch(step, 500)[0][:, 0] for step in range(100)])
    places = {s + i for s, n in zip(store.splits["train"].starts, LENGTHS, strict=True) for i in range(n - 9)}
    values, counts = np.unique(starts, return_counts=True)
    assert set(values.tolist()) == places and len(places) == 31 + 1 + 91
    expected = 50_000 / len(places)
    assert abs(counts - expected).max() < 5 * np.sqrt(expected)


def test_a_batch_depends_on_seed_and_step_only() -> None:
    store = store_of(LENGTHS)
    sampler = WindowSampler(store, 9, 3)
    later = sampler.batch(7, 5)[0]
    sampler.batch(1, 64)
    assert np.array_equal(sampler.batch(7, 5)[0], later)
    assert np.array_equal(WindowSampler(store, 9, 3).batch(7, 5)[0], later)
    assert np.array_equal(WindowSampler(store, 9, 3).batch(7, 9)[0][:5], later)
    assert not np.array_equal(sampler.batch(8, 5)[0], later)
    assert not np.array_equal(WindowSampler(store, 9, 4).batch(7, 5)[0], later)
    assert WindowSampler(store, 9, 0).batch(0, 6)[0][:, 0].tolist() == [65, 152, 6, 84, 87, 132]


def test_too_long_for_every_document() -> None:
    WindowSampler(store_of(LENGTHS), 99, 0).batch(0, 2)
    with pytest.raises(UserError, match="longest that works is 99"):
        WindowSampler(store_of(LENGTHS), 100, 0)


def test_a_batch_takes_little_time(files_data: Callable[..., dict[str, Any]]) -> None:
    sampler = WindowSampler(prepare(files_data(), {"name": "bytes"}), 64, 0)
    times = []
    for step in range(50):
        started = time.perf_counter()
        sampler.batch(step, 32)
        times.append(time.perf_counter() - started)
    assert min(times) < 0.3e-3


def test_text_that_no_window_fits_into_is_told() -> None:
    def stored(*lengths: int) -> Any:
        split = SimpleNamespace(lengths=np.array(lengths))
        return SimpleNamespace(splits={"train": split})

    assert left_out_of_training(stored(100, 100, 10), 16) is None
    told = left_out_of_training(stored(*[10] * 9, 30), 16)
    assert told is not None and told.startswith(
        "only 1 of 10 training documents are longer than 16 tokens, 25%"
    )
