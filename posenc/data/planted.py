"""Plant key-value pairs in training windows, so that it can be seen whether far text is used.

A pair is a cue of 1 or 2 tokens with the value behind it. All pairs of a window occur twice, at drawn places,
and are drawn anew for every window. The second time the value can be known, but only by looking back in the
window. The tokens of pairs are, of bytes, those that the training split uses least; other tokenizers get new
tokens behind their vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from posenc.core.errors import UserError
from posenc.core.seeds import permutations, raw_draws, seed_for
from posenc.data.token_cache import Ints, TokenStore
from posenc.data.windows import Batch, WindowSampler
from posenc.settings.numbers import check_whole
from posenc.settings.tree import PlantSettings

# kinds of targets
TEXT = 0
PLANTED = 1  # a token of a pair
KNOWN = 2  # a value that can be known, since its pair stands before in the window


@dataclass(frozen=True)
class Plant:
    """The settings `data.plant`, with the tokens of one tokenizer."""

    share: float  # share of the windows of a batch that have pairs
    pairs: int  # pairs in such a window, each twice
    cue: int  # tokens before a value
    alphabet: int  # tokens for cues, and as many for values
    weight: float  # of a value that can be known, in the loss
    keys: Ints  # (alphabet,) tokens
    values: Ints  # (alphabet,) tokens


# --- Settings


def check_plant(plant: PlantSettings, context_length: int) -> None:
    """Check that a window has room for its pairs, and the alphabet enough cues. Raises UserError."""
    room = slot_count(context_length + 1, plant.cue) // 2  # each pair comes twice
    check_whole("data.plant.pairs", plant.pairs, least=1, most=min(plant.alphabet, room))


def check_recall_pairs(plant: PlantSettings, pairs: Sequence[int]) -> None:
    """Check the numbers of pairs that are recalled: each needs as many different cues. Raises UserError."""
    most = max(pairs, default=0)
    if most > plant.alphabet:
        problem = f"more than there are cues: data.plant.alphabet={plant.alphabet}"
        raise UserError("eval.recall.pairs", most, problem, allowed=f"1 to {plant.alphabet}")


def vocabulary(plant: PlantSettings | None, store: TokenStore) -> int:
    """Return the size of the model's vocabulary: the tokenizer's, and new tokens of pairs."""
    if plant is None or store.tokenizer["name"] == "bytes":
        return store.vocab_size
    return store.vocab_size + 2 * plant.alphabet


def plant_of(settings: PlantSettings, store: TokenStore) -> Plant:
    """Return the plant of the settings, with the tokens for cues and values."""
    alphabet = settings.alphabet
    if store.tokenizer["name"] == "bytes":
        rarest_first = np.argsort(store.train_counts(), kind="stable")
        tokens = rarest_first[: 2 * alphabet].astype(np.int64)
    else:
        tokens = store.vocab_size + np.arange(2 * alphabet, dtype=np.int64)
    return Plant(**settings.plain(), keys=tokens[:alphabet], values=tokens[alphabet:])


# --- Windows


class PlantedSampler(WindowSampler):
    """Draw windows of text, a share of them with pairs, by (seed, step, row): the same for every encoding."""

    def __init__(self, store: TokenStore, context_length: int, seed: int, plant: Plant) -> None:
        super().__init__(store, context_length, seed)
        self.plant = plant
        self._plant_seed = seed_for(seed, "plant")

    def batch(self, step: int, size: int) -> Batch:
        """Return the batch of a step, with the weights and the kinds of its targets."""
        windows = self._windows(step, size)  # (size, T + 1)
        kinds = np.zeros_like(windows)
        count = round(self.plant.share * size)
        kinds[:count] = plant_pairs(windows[:count], self.plant, self._plant_seed, step)
        target_kinds = kinds[:, 1:]
        weights = np.where(target_kinds == KNOWN, self.plant.weight, 1).astype(np.float32)
        return Batch(inputs=windows[:, :-1], targets=windows[:, 1:], weights=weights, kinds=target_kinds)


def plant_pairs(windows: Ints, plant: Plant, seed: int, step: int) -> Ints:
    """Write pairs into windows (N, n) in place; return the kinds of their tokens, (N, n).

    Row i takes the i-th draws of the step, so a window does not depend on how many there are.
    """
    count, length = windows.shape
    pair_length = plant.cue + 1
    slots = slot_count(length, plant.cue)
    draws_per_row = (slots, 2 * plant.pairs, plant.cue * plant.alphabet, plant.pairs, 1)
    raw = raw_draws(count * sum(draws_per_row), seed, step).reshape(count, -1)
    slot_draws, order_draws, key_draws, value_draws, offset_draws = np.split(
        raw, np.cumsum(draws_per_row)[:-1], axis=1
    )

    # where the pairs stand: two slots for each, all of them moved by one offset
    offset = (offset_draws % np.uint64(pair_length)).astype(np.int64)  # (N, 1)
    chosen_slots = np.sort(permutations(slot_draws)[:, : 2 * plant.pairs])
    start = chosen_slots * pair_length + offset  # (N, 2 pairs)

    # which pair stands in each slot: every pair comes twice
    pair = permutations(order_draws) // 2  # (N, 2 pairs)
    same_pair = pair[:, :, None] == pair[:, None, :]  # (N, 2 pairs, 2 pairs)
    is_second = np.tril(same_pair, -1).any(-1)  # (N, 2 pairs)

    row = np.arange(count)[:, None]
    kinds = np.zeros_like(windows)
    cues = draw_cues(key_draws, plant, plant.pairs)  # (N, pairs, cue)
    for i in range(plant.cue):
        windows[row, start + i] = cues[row, pair, i]
        kinds[row, start + i] = PLANTED
    windows[row, start + plant.cue] = draw_values(value_draws, plant)[row, pair]
    kinds[row, start + plant.cue] = np.where(is_second, KNOWN, PLANTED)
    return kinds


def slot_count(length: int, cue: int) -> int:
    """Return how many pairs, side by side, fit into `length` tokens from any of cue + 1 offsets."""
    return (length + 1) // (cue + 1) - 1


def draw_cues(raw: np.ndarray, plant: Plant, pairs: int) -> Ints:
    """Return different cues, (N, pairs, cue), from raw draws (N, cue * alphabet).

    Neither token of a cue of two identifies the pair alone: they are the cells of a square, numbered by row
    and column.
    """
    if plant.cue == 1:
        return plant.keys[permutations(raw)[:, :pairs, None]]
    side = math.ceil(math.sqrt(pairs))
    cell = np.arange(pairs)
    first_draws, second_draws = np.split(raw, 2, axis=1)
    first = permutations(first_draws)[:, cell // side]  # (N, pairs)
    second = permutations(second_draws)[:, cell % side]
    return plant.keys[np.stack((first, second), axis=-1)]


def draw_values(raw: np.ndarray, plant: Plant) -> Ints:
    """Return a value for each raw draw."""
    values: Ints = plant.values[(raw % np.uint64(plant.alphabet)).astype(np.int64)]
    return values
