"""Lines NAME = VALUE: of words of the text, one value for each name, and the second one can be known."""

import re
from collections import Counter
from itertools import pairwise

import numpy as np
import pytest
import token_stores

from posenc.core.errors import UserError
from posenc.data import PlantedSampler, WindowSampler, check_plant, plant_of, vocabulary
from posenc.data.planted import KNOWN, TEXT
from posenc.data.plants import PLANTS
from posenc.settings.tree import PlantSettings

T = 64
SEED = 5
ROWS = 6
PLANTED_ROWS = 3  # half of them
STEPS = 40
SETTINGS = PlantSettings(kind="assignments", share=0.5, pairs=3, cue=1, alphabet=4, weight=2.0)
# nine words of one letter, four of two, one that is part of a longer one, and letters of another script
WORDS = [*"abcdefghi", "if", "in", "or", "to", "zebra", "\N{LATIN SMALL LETTER E WITH ACUTE}t", "_u", "v2"]
LINE = re.compile(rb"\n(\w+) = (\w)\n")


def store_of_words(words=WORDS):
    """Return a store whose text has the first words most often."""
    lines = []
    for rank, word in enumerate(words):
        lines += [f"  {word} word\n"] * (40 - rank)
    text = "".join(lines).encode()
    return token_stores.store_of([text], [text, text])


def settings_for(cue):
    """Return settings with as many pairs as fit for names of this length."""
    return SETTINGS.with_changes(cue=cue)


@pytest.fixture(params=[1, 2], ids=lambda cue: f"cue{cue}", scope="module")
def cue(request):
    return request.param


@pytest.fixture(scope="module")
def plant(cue):
    return plant_of(settings_for(cue), store_of_words())


@pytest.fixture(scope="module")
def batches(plant):
    """Return the batches of many steps, each with the batch of the same text without pairs."""
    store = store_of_words()
    planted = PlantedSampler(store, T, SEED, plant)
    text = WindowSampler(store, T, SEED)
    return [(planted.batch(step, ROWS), text.batch(step, ROWS)) for step in range(STEPS)]


def planted_windows(batches):
    """Yield the bytes of every planted window, and the kinds of its tokens from the second on."""
    for batch, _ in batches:
        for row in range(PLANTED_ROWS):
            window = np.append(batch.inputs[row], batch.targets[row, -1])
            yield window.astype(np.uint8).tobytes(), batch.kinds[row]


def read_value(text, end):
    """Return the value of the name that is assigned at the end of a text, as the last line before says."""
    name = re.search(rb"\n(\w+) = $", text[:end]).group(1)
    values = [value for other, value in LINE.findall(text[:end].replace(b"\n", b"\n\n")) if other == name]
    return values[-1]


def test_every_known_value_can_be_read_off_the_window(batches):
    known = 0
    for text, kinds in planted_windows(batches):
        for place in np.flatnonzero(kinds == KNOWN) + 1:
            assert read_value(text, place) == text[place : place + 1]
            known += 1
    assert known == STEPS * PLANTED_ROWS * SETTINGS.pairs


def test_values_of_another_window_are_read_by_chance_alone(batches):
    texts = [(text, np.flatnonzero(kinds == KNOWN) + 1) for text, kinds in planted_windows(batches)]
    hits = []
    for (text, places), (other_text, other_places) in pairwise(texts):
        for place, other_place in zip(places, other_places, strict=True):
            hits.append(read_value(text, place) == other_text[other_place : other_place + 1])
    assert np.mean(hits) == pytest.approx(1 / SETTINGS.alphabet, abs=0.1)


def test_every_value_is_drawn_as_often(batches):
    counts = Counter()
    for text, kinds in planted_windows(batches):
        counts.update(text[place] for place in np.flatnonzero(kinds == KNOWN) + 1)
    drawn = STEPS * PLANTED_ROWS * SETTINGS.pairs / SETTINGS.alphabet
    assert len(counts) == SETTINGS.alphabet
    assert min(counts.values()) > 0.7 * drawn


def test_the_text_outside_of_the_lines_is_untouched(batches):
    for planted, text in batches:
        is_text = planted.kinds == TEXT
        assert np.array_equal(planted.targets[is_text], text.targets[is_text])


def test_a_window_has_as_many_planted_tokens_as_two_of_each_pair(batches, plant):
    for planted, _ in batches:
        # the first token of a window is no target
        counts = np.count_nonzero(planted.kinds[:PLANTED_ROWS] != TEXT, axis=1)
        most = 2 * SETTINGS.pairs * plant.pair_length
        assert set(counts.tolist()) <= {most - 1, most}


def test_a_row_without_pairs_is_plain_text(batches):
    for planted, text in batches:
        assert np.array_equal(planted.inputs[PLANTED_ROWS:], text.inputs[PLANTED_ROWS:])


def test_a_known_value_has_the_weight_of_the_settings(batches):
    for planted, _ in batches:
        assert set(planted.weights[planted.kinds == KNOWN]) == {SETTINGS.weight}
        assert set(planted.weights[planted.kinds != KNOWN]) == {1.0}


def test_a_batch_depends_on_seed_and_step_alone(plant):
    first = PlantedSampler(store_of_words(), T, SEED, plant)
    first.batch(0, ROWS)
    second = PlantedSampler(store_of_words(), T, SEED, plant)
    assert np.array_equal(first.batch(7, ROWS).inputs, second.batch(7, ROWS).inputs)


@pytest.mark.parametrize(("seed", "step"), [(SEED + 1, 3), (SEED, 4)])
def test_another_seed_or_step_plants_other_lines(plant, seed, step):
    first = PlantedSampler(store_of_words(), T, SEED, plant).batch(3, ROWS)
    other = PlantedSampler(store_of_words(), T, seed, plant).batch(step, ROWS)
    assert not np.array_equal(first.kinds, other.kinds)


# --- Which words


def words_of(plant):
    """Return the names and the values of a plant as text."""
    lines = [bytes(cue.tolist()).decode() for cue in plant.cues]
    names = [re.fullmatch(r"\n(\w+) = ", line).group(1) for line in lines]
    return names, list(bytes(plant.values.tolist()).decode())


def test_names_and_values_are_the_commonest_words_of_their_length():
    assert words_of(plant_of(settings_for(1), store_of_words())) == (list("abcd"), list("efgh"))
    assert words_of(plant_of(settings_for(2), store_of_words())) == (["if", "in", "or", "to"], list("abcd"))


def test_words_that_are_as_frequent_are_sorted():
    text = b"d c b a h g f e "
    plant = plant_of(settings_for(1), token_stores.store_of([text], [text]))
    assert words_of(plant) == (list("abcd"), list("efgh"))


@pytest.mark.parametrize("word", ["u", "t", "z", "v"])
def test_a_part_of_a_word_is_no_word(word):
    """Nine letters are words; the others stand in a longer one, or behind a letter of another script."""
    with pytest.raises(UserError, match="has only 5 words of 1 letter and 4 others of one"):
        plant_of(
            SETTINGS.with_changes(alphabet=5), store_of_words([*WORDS, f"{word}\N{CYRILLIC SMALL LETTER A}"])
        )


@pytest.mark.parametrize("kind", PLANTS)
@pytest.mark.parametrize("cue", [1, 2])
def test_the_length_of_a_pair_is_known_without_a_text(kind, cue):
    settings = SETTINGS.with_changes(kind=kind, cue=cue)
    assert PLANTS[kind].length_of_pair(settings) == plant_of(settings, store_of_words()).pair_length


def test_words_of_the_text_add_nothing_to_the_vocabulary():
    assert vocabulary(SETTINGS, store_of_words()) == 256


# --- Refused


def test_a_kind_that_there_is_not_is_refused():
    with pytest.raises(UserError, match="there is no such plant") as caught:
        check_plant(SETTINGS.with_changes(kind="assignment"), T, "bytes")
    assert caught.value.key == "data.plant.kind"


def test_a_tokenizer_of_other_tokens_than_bytes_is_refused():
    with pytest.raises(UserError, match="write words as bytes") as caught:
        check_plant(SETTINGS, T, "bpe")
    assert caught.value.key == "tokenizer"


def test_more_values_than_letters_are_refused():
    check_plant(SETTINGS.with_changes(alphabet=26), T, "bytes")
    with pytest.raises(UserError, match="more than there are words of one letter"):
        check_plant(SETTINGS.with_changes(alphabet=27), T, "bytes")


def test_a_cue_of_three_tokens_is_refused_for_tokens_alone():
    check_plant(SETTINGS.with_changes(cue=3), T, "bytes")
    with pytest.raises(UserError, match="too long") as caught:
        check_plant(SETTINGS.with_changes(cue=3, kind="tokens"), T, "bytes")
    assert caught.value.key == "data.plant.cue"


def test_only_as_many_pairs_as_fit_into_a_window():
    """Four pairs of seven bytes, twice, and the largest offset of six fill 62 of 65."""
    check_plant(SETTINGS.with_changes(pairs=4), T, "bytes")
    with pytest.raises(UserError, match=r"data\.plant\.pairs"):
        check_plant(SETTINGS.with_changes(pairs=4), T - 4, "bytes")
