"""Splits, fingerprints and batches are the same on every machine, forever."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import token_stores

from posenc.data import PlantedSampler, WindowSampler, plant_of, vocabulary
from posenc.data.batches import KNOWN, PLANTED, TEXT
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
    """Training documents whose tokens number their places; 500 tokens of the test split come before."""
    ends = 500 + np.cumsum(lengths)
    documents = [range(end - n, end) for n, end in zip(lengths, ends, strict=True)]
    return token_stores.store_of([range(500)], documents)


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


def test_a_batch_is_pinned():
    inputs, _ = WindowSampler(store_of(LENGTHS), 9, 0).batch(0, 6)
    assert inputs[:, 0].tolist() == [565, 652, 506, 584, 587, 632]


# --- Planted pairs: both places inside the window, an exact mask of what can be known, the same for all.
T, SEED = 33, 5
SETTINGS = {"share": 0.5, "pairs": 4, "cue": 1, "alphabet": 64, "weight": 2.0}


def bytes_store():
    """Documents of the bytes 97 to 116, and 128 once: it is less rare than all others but these."""
    store = store_of([400, 300])
    tokens = (97 + np.arange(len(store.tokens)) % 20).astype(np.uint8)
    tokens[507] = 128
    return replace(store, tokens=tokens, vocab_size=256)


@pytest.mark.parametrize("cue, pairs", [(1, 4), (1, 1), (1, 8), (2, 4), (2, 5), (2, 1)])
def test_the_mask_is_what_a_walk_through_the_window_finds(cue, pairs):
    store = bytes_store()
    plant = plant_of({**SETTINGS, "cue": cue, "pairs": pairs}, store)
    keys, values = set(plant.keys.tolist()), set(plant.values.tolist())
    assert len(keys) == len(values) == 64 and len(keys | values) == 128
    assert not (keys | values) & {*range(97, 117), 128}
    sampler, plain = PlantedSampler(store, T, SEED, plant), WindowSampler(store, T, SEED)
    distances = []
    for step in range(40):
        inputs, targets, weights, kinds = sampler.batch(step, 6)
        text, _ = plain.batch(step, 6)
        assert not kinds[3:].any() and np.array_equal(inputs[3:], text[3:])  # half of the windows
        assert np.array_equal(weights, np.where(kinds == KNOWN, 2.0, 1.0))
        assert np.array_equal(inputs[:, 1:][kinds[:, :-1] == TEXT], text[:, 1:][kinds[:, :-1] == TEXT])
        for row in range(3):
            window, first, known = [int(inputs[row, 0]), *targets[row].tolist()], {}, []
            for place in (p for p in range(cue, len(window)) if window[p] in values):
                before = tuple(window[place - cue : place])
                assert set(before) <= keys  # no value without its cue
                if first.setdefault(before, place) < place:
                    assert window[place] == window[first[before]]
                    distances.append(place - first[before])
                    known.append(place)
            assert len(first) == len(known) == pairs  # each twice, so both places are inside
            assert np.flatnonzero(kinds[row] == KNOWN).tolist() == [place - 1 for place in known]
            planted = sum(token in keys | values for token in window[1:])
            assert int((kinds[row] != TEXT).sum()) == planted and (kinds[row] == PLANTED).any()
    assert min(distances) == cue + 1 and max(distances) >= T - 2 * (cue + 1)
    if cue == 2 and pairs == 4:  # neither token tells the pair
        cues = np.array(list(first))
        assert {len(np.unique(column)) for column in cues.T} == {2}


@pytest.mark.parametrize("sampler", [WindowSampler, PlantedSampler])
def test_a_window_depends_on_seed_step_and_row_alone(sampler):
    store = bytes_store()
    plant = [plant_of({**SETTINGS, "share": 1.0}, store)] if sampler is PlantedSampler else []
    made, again, other = (sampler(store, T, seed, *plant) for seed in (SEED, SEED, 6))
    many = made.batch(3, 8)
    made.batch(1, 64)
    for part, same in zip(again.batch(3, 2), many, strict=True):
        assert np.array_equal(part, same[:2])
    for changed in (other.batch(3, 8), made.batch(4, 8)):
        assert not np.array_equal(changed[-1], many[-1])


def test_other_tokenizers_get_new_tokens():
    store = replace(store_of([400]), tokenizer={"name": "tokenizers"})
    plant = plant_of(SETTINGS, store)
    assert sorted({*plant.keys, *plant.values}) == list(range(900, 900 + 128))
    assert vocabulary(SETTINGS, store) == 900 + 128
    assert vocabulary(None, store) == 900 and vocabulary(SETTINGS, bytes_store()) == 256
