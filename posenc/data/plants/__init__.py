"""Kinds of plants: one file each, with an entry in PLANTS. docs/architecture.md says where to add what.

A plant is what is written into training windows to measure whether a model uses far text.
"""

from __future__ import annotations

from posenc.core.errors import UserError
from posenc.data.plants.assignments import Assignments
from posenc.data.plants.base import Plant, slot_count, smallest_window
from posenc.data.plants.tokens import TokenPairs
from posenc.data.token_cache import TokenStore
from posenc.settings.numbers import check_whole
from posenc.settings.tree import PlantSettings

# From values of `data.plant.kind` to classes.
PLANTS: dict[str, type[Plant]] = {plant.name: plant for plant in (TokenPairs, Assignments)}


def find_plant(kind: str, key: str = "data.plant.kind") -> type[Plant]:
    """Return the class of a kind; `key` is the setting that names it. Raises UserError."""
    if kind not in PLANTS:
        raise UserError(key, kind, "there is no such plant", allowed=list(PLANTS))
    return PLANTS[kind]


def check_plant(settings: PlantSettings, context_length: int, tokenizer: str) -> None:
    """Check that the tokenizer has the tokens of a plant, and a window room for its pairs. Raises UserError.

    `tokenizer` is a name, since no text is read here.
    """
    plant = find_plant(settings.kind)
    plant.check(settings, tokenizer)
    pair_length = plant.length_of_pair(settings)
    room = slot_count(context_length + 1, pair_length) // 2  # each pair comes twice
    if room == 0:
        problem = f"too short for a pair of {pair_length} tokens, twice (data.plant)"
        hint = f"the smallest that works is {smallest_window(2, pair_length) - 1}"
        raise UserError("context_length", context_length, problem, hint=hint)
    # Cues do not repeat in a window, so there are at most as many pairs as cues.
    most_pairs = min(plant.cue_count(settings), room)
    check_whole("data.plant.pairs", settings.pairs, least=1, most=most_pairs)


def vocabulary(settings: PlantSettings | None, store: TokenStore) -> int:
    """Return the size of the model's vocabulary: that of the tokenizer, and new tokens for pairs."""
    if settings is None:
        return store.vocab_size
    return store.vocab_size + find_plant(settings.kind).new_tokens(settings, store)


def plant_of(settings: PlantSettings, store: TokenStore) -> Plant:
    """Return the plant of the settings, with its tokens. Raises UserError if the text does not have them."""
    return find_plant(settings.kind).build(settings, store)
