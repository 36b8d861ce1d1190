"""Planted pairs: both places inside the window, an exact mask of what can be known, the same for all."""

from dataclasses import replace

import numpy as np
import pytest
from test_batches import store_of

from posenc.data import PlantedSampler, WindowSampler, plant_of, vocabulary
from posenc.data.plant import KNOWN, PLANTED, TEXT

T, SEED = 33, 5
SETTINGS = {"share": 0.5, "pairs": 4, "cue": 1, "weight": 2.0}


def bytes_store():
    """Documents of the bytes 97 to 116, and 128 once: it is less rare than all others but these."""
    store = store_of([400, 300])
    tokens = (97 + np.arange(len(store.tokens)) % 20).astype(np.uint8)
    tokens[7] = 128
    changed = {"tokens": tokens, "vocab_size": 256, "tokenizer": {"name": "bytes"}}
    return replace(store, **changed)


@pytest.mark.parametrize("cue, pairs", [(1, 4), (1, 1), (1, 8), (2, 4), (2, 5), (2, 1)])
def test_the_mask_is_what_a_walk_through_the_window_finds(cue, pairs):
    store = bytes_store()
    plant = plant_of({**SETTINGS, "cue": cue, "pairs": pairs}, store)
    keys, values = set(plant.keys.tolist()), set(plant.values.tolist())
    assert (
        len(keys) == len(values) == 64 and not keys & values and not (keys | values) & {*range(97, 117), 128}
    )
    sampler, plain = PlantedSampler(store, T, SEED, plant), WindowSampler(store, T, SEED)
    distances = []
    for step in range(40):
        inputs, targets, weights, kinds = sampler.batch(step, 6)
        text, _ = plain.batch(step, 6)
        assert not kinds[3:].any() and np.array_equal(inputs[3:], text[3:])  # half of the windows
        assert np.array_equal(weights, np.where(kinds == KNOWN, 2.0, 1.0))
        assert np.array_equal(inputs[:, 1:][kinds[:, :-1] == TEXT], text[:, 1:][kinds[:, :-1] == TEXT])
        for row in range(3):
            window = [int(inputs[row, 0]), *targets[row].tolist()]
            first = {}
            known = []
            for place in range(cue, len(window)):
                before = tuple(window[place - cue : place])
                if window[place] not in values:
                    continue
                assert set(before) <= keys  # no value without its cue
                if before in first:
                    assert window[place] == window[first[before]]
                    distances.append(place - first[before])
                    known.append(place)
                first.setdefault(before, place)
            assert len(first) == len(known) == pairs  # each twice, so both places are inside
            assert np.flatnonzero(kinds[row] == KNOWN).tolist() == [place - 1 for place in known]
            planted = sum(token in keys | values for token in window[1:])
            assert int((kinds[row] != TEXT).sum()) == planted and (kinds[row] == PLANTED).any()
    assert min(distances) == cue + 1 and max(distances) >= T - 2 * (cue + 1)
    if cue == 2 and pairs == 4:  # neither token tells the pair
        cues = np.array(list(first))
        assert {len(np.unique(column)) for column in cues.T} == {2}


def test_a_window_depends_on_seed_step_and_row_alone():
    store = bytes_store()
    plant = plant_of({**SETTINGS, "share": 1.0}, store)
    sampler = PlantedSampler(store, T, SEED, plant)
    many = sampler.batch(3, 8)
    for part, same in zip(sampler.batch(3, 2), many, strict=True):
        assert np.array_equal(part, same[:2])
    for other in (PlantedSampler(store, T, 6, plant).batch(3, 8), sampler.batch(4, 8)):
        assert not np.array_equal(other[3], many[3])


def test_other_tokenizers_get_new_tokens():
    store = replace(store_of([400]), tokenizer={"name": "tokenizers"})
    plant = plant_of(SETTINGS, store)
    assert sorted({*plant.keys, *plant.values}) == list(range(2**16, 2**16 + 128))
    assert vocabulary(SETTINGS, store) == 2**16 + 128
    assert vocabulary(None, store) == 2**16 and vocabulary(SETTINGS, bytes_store()) == 256
