"""Planted pairs: both places inside the window, an exact mask of what can be known, the rarest tokens."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
from pair_stores import SEED, SETTINGS, bytes_store, plant_for, store_of

from posenc.core.errors import UserError
from posenc.data import PlantedSampler, WindowSampler, check_plant, vocabulary
from posenc.data.planted import KNOWN, PLANTED, TEXT

T = 33
STEPS = 40
ROWS = 6
PLANTED_ROWS = 3  # half of them
TEXT_TOKENS = {*range(97, 117), 128}


@dataclass
class Drawn:
    """The windows of a step with pairs, and the same without."""

    batch: object
    text: object


@pytest.fixture(params=[(1, 4), (1, 1), (1, 8), (2, 4), (2, 5), (2, 1)], ids=lambda cue: f"cue{cue}")
def drawn(request):
    """The pairs that are planted, and the batches of many steps."""
    cue, pairs = request.param
    store = bytes_store()
    plant = plant_for(store, cue=cue, pairs=pairs)
    planted, plain = PlantedSampler(store, T, SEED, plant), WindowSampler(store, T, SEED)
    steps = [Drawn(planted.batch(step, ROWS), plain.batch(step, ROWS)) for step in range(STEPS)]
    return plant, steps


def planted_windows(steps):
    """Yield each window with pairs, with its last target, and the kinds of its targets."""
    for step in steps:
        for row in range(PLANTED_ROWS):
            window = [int(step.batch.inputs[row, 0]), *step.batch.targets[row].tolist()]
            yield window, step.batch.kinds[row]


def occurrences(window, plant):
    """Walk through a window: the places of the values of each cue."""
    places = {}
    values = set(plant.values.tolist())
    for place in range(plant.cue_length, len(window)):
        if window[place] in values:
            cue = tuple(window[place - plant.cue_length : place])
            places.setdefault(cue, []).append(place)
    return places


def test_every_pair_occurs_twice_with_the_same_value(drawn):
    plant, steps = drawn
    keys = set(plant.keys.tolist())
    for window, _ in planted_windows(steps):
        places = occurrences(window, plant)
        assert len(places) == plant.settings.pairs
        for cue, (first, second) in places.items():
            assert set(cue) <= keys
            assert window[first] == window[second]


def test_what_can_be_known_are_the_values_that_came_before(drawn):
    plant, steps = drawn
    for window, kinds in planted_windows(steps):
        second_places = sorted(second for _, second in occurrences(window, plant).values())
        assert np.flatnonzero(kinds == KNOWN).tolist() == [place - 1 for place in second_places]


def test_the_other_tokens_of_pairs_are_planted(drawn):
    plant, steps = drawn
    tokens_of_pairs = {*plant.keys.tolist(), *plant.values.tolist()}
    for window, kinds in planted_windows(steps):
        is_of_pair = [token in tokens_of_pairs for token in window[1:]]
        assert (kinds != TEXT).tolist() == is_of_pair
        assert (kinds == PLANTED).any()


def test_pairs_replace_text_and_leave_the_rest(drawn):
    _, steps = drawn
    for step in steps:
        is_text = step.batch.kinds == TEXT
        assert np.array_equal(step.batch.targets[is_text], step.text.targets[is_text])


def test_inputs_and_targets_have_the_same_pairs(drawn):
    _, steps = drawn
    for step in steps:
        assert np.array_equal(step.batch.inputs[:, 1:], step.batch.targets[:, :-1])


def test_windows_without_a_share_are_text(drawn):
    _, steps = drawn
    for step in steps:
        assert not step.batch.kinds[PLANTED_ROWS:].any()
        assert np.array_equal(step.batch.inputs[PLANTED_ROWS:], step.text.inputs[PLANTED_ROWS:])


def test_a_value_that_can_be_known_has_its_weight(drawn):
    _, steps = drawn
    for step in steps:
        assert np.array_equal(step.batch.weights, np.where(step.batch.kinds == KNOWN, 2.0, 1.0))


def test_distances_reach_from_side_by_side_to_almost_the_window(drawn):
    plant, steps = drawn
    distances = [
        second - first
        for window, _ in planted_windows(steps)
        for first, second in occurrences(window, plant).values()
    ]
    assert min(distances) == plant.cue_length + 1
    assert max(distances) >= T - 2 * (plant.cue_length + 1)


def test_neither_token_of_a_cue_of_two_tells_the_pair():
    store = bytes_store()
    plant = plant_for(store, cue=2, pairs=4)
    batch = PlantedSampler(store, T, SEED, plant).batch(0, ROWS)
    window = [int(batch.inputs[0, 0]), *batch.targets[0].tolist()]
    cues = np.array(list(occurrences(window, plant)))
    for column in cues.T:
        assert len(np.unique(column)) == 2


# --- Tokens


def test_of_bytes_the_rarest_are_keys_and_values():
    plant = plant_for(bytes_store())
    keys, values = set(plant.keys.tolist()), set(plant.values.tolist())
    assert len(keys) == len(values) == 64
    assert not keys & values
    assert not (keys | values) & TEXT_TOKENS


def test_bytes_need_no_new_tokens():
    assert vocabulary(SETTINGS, bytes_store()) == 256


@pytest.fixture
def other_tokenizer():
    return replace(store_of([400]), tokenizer={"name": "tokenizers"})


def test_other_tokenizers_get_new_tokens(other_tokenizer):
    plant = plant_for(other_tokenizer)
    assert sorted({*plant.keys, *plant.values}) == list(range(900, 900 + 128))
    assert vocabulary(SETTINGS, other_tokenizer) == 900 + 128


def test_without_pairs_the_vocabulary_is_the_tokenizers(other_tokenizer):
    assert vocabulary(None, other_tokenizer) == 900


# --- Settings


@pytest.mark.parametrize(("cue", "most"), [(1, 8), (2, 5)])
def test_a_window_has_room_for_so_many_pairs(cue, most):
    check_plant(SETTINGS.with_changes(cue=cue, pairs=most), T, "bytes")
    with pytest.raises(UserError, match=f"from 1 to {most}"):
        check_plant(SETTINGS.with_changes(cue=cue, pairs=most + 1), T, "bytes")


def test_cues_of_two_tokens_are_as_many_as_pairs_of_tokens():
    settings = SETTINGS.with_changes(cue=2, alphabet=4)
    check_plant(settings.with_changes(pairs=16), 1024, "bytes")
    with pytest.raises(UserError, match="from 1 to 16"):
        check_plant(settings.with_changes(pairs=17), 1024, "bytes")


def test_there_are_as_many_cues_as_the_alphabet_has_tokens():
    with pytest.raises(UserError, match=r"data\.plant\.pairs"):
        check_plant(SETTINGS.with_changes(pairs=3, alphabet=2), T, "bytes")
