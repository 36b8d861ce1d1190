"""Plant key-value pairs in training windows, so that it can be seen whether far text is used.

A pair is a cue of 1 or 2 tokens with the value behind it. All pairs of a window occur twice, at drawn places,
and are drawn anew for every window. The second time the value can be known, but only by looking back in the
window. With the tokenizer `bytes` the tokens of pairs are the bytes that the training split uses least. Other
tokenizers get new tokens behind their vocabulary.
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
    weight: float  # weight in the loss of a value that can be known
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
    return Plant(
        share=settings.share,
        pairs=settings.pairs,
        cue=settings.cue,
        alphabet=alphabet,
        weight=settings.weight,
        keys=tokens[:alphabet],
        values=tokens[alphabet:],
    )


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


@dataclass(frozen=True)
class _Draws:
    """Raw random numbers for N windows, a row for each, by what they decide."""

    slots: np.ndarray  # (N, slots): which slots have pairs
    order: np.ndarray  # (N, 2 pairs): which pair stands in which of them
    cues: np.ndarray  # (N, cue * alphabet)
    values: np.ndarray  # (N, pairs)
    offset: np.ndarray  # (N, 1): by how much all pairs are moved


def _draws_of_rows(count: int, slots: int, plant: Plant, seed: int, step: int) -> _Draws:
    """Return the draws of a step for `count` windows with room for `slots` pairs."""
    # The order of these defines every planted window: the numbers of a row are dealt out from left to right.
    draws_per_row = {
        "slots": slots,
        "order": 2 * plant.pairs,
        "cues": plant.cue * plant.alphabet,
        "values": plant.pairs,
        "offset": 1,
    }
    raw = raw_draws(count * sum(draws_per_row.values()), seed, step).reshape(count, -1)
    ends = np.cumsum(list(draws_per_row.values()))
    parts = np.split(raw, ends[:-1], axis=1)
    return _Draws(**dict(zip(draws_per_row, parts, strict=True)))


def plant_pairs(windows: Ints, plant: Plant, seed: int, step: int) -> Ints:
    """Write pairs into windows (N, n) in place; return the kinds of their tokens, (N, n).

    Row i takes the i-th draws of the step, so a window does not depend on how many there are.
    """
    count, length = windows.shape
    pair_length = plant.cue + 1
    slots = slot_count(length, plant.cue)
    draws = _draws_of_rows(count, slots, plant, seed, step)

    # where the pairs stand: two slots for each, all of them moved by one offset
    offset = (draws.offset % np.uint64(pair_length)).astype(np.int64)  # (N, 1)
    shuffled_slots = permutations(draws.slots)
    chosen_slots = np.sort(shuffled_slots[:, : 2 * plant.pairs])
    start = chosen_slots * pair_length + offset  # (N, 2 pairs)

    # which pair stands in each slot: every pair comes twice
    pair = permutations(draws.order) // 2  # (N, 2 pairs): 0, 0, 1, 1, 2, 2, ... in random order
    same_pair = pair[:, :, None] == pair[:, None, :]  # (N, 2 pairs, 2 pairs)
    # whether the same pair stands in an earlier slot: (N, 2 pairs)
    is_second = np.tril(same_pair, -1).any(-1)

    row = np.arange(count)[:, None]
    kinds = np.zeros_like(windows)
    cues = draw_cues(draws.cues, plant, plant.pairs)  # (N, pairs, cue)
    values = draw_values(draws.values, plant)  # (N, pairs)
    for i in range(plant.cue):
        windows[row, start + i] = cues[row, pair, i]
        kinds[row, start + i] = PLANTED
    windows[row, start + plant.cue] = values[row, pair]
    kinds[row, start + plant.cue] = np.where(is_second, KNOWN, PLANTED)
    return kinds


def slot_count(length: int, cue: int) -> int:
    """Return how many pairs, side by side, fit into `length` tokens from any of cue + 1 offsets."""
    # a pair has cue + 1 tokens, and the largest offset, cue, is lost in front: (length - cue) // (cue + 1)
    return (length + 1) // (cue + 1) - 1


def draw_cues(raw: np.ndarray, plant: Plant, pairs: int) -> Ints:
    """Return different cues, (N, pairs, cue), from raw draws (N, cue * alphabet).

    A cue of two tokens is a cell of a square: its first token stands for the row, its second for the column.
    Neither token alone tells the pair.
    """
    if plant.cue == 1:
        chosen = permutations(raw)[:, :pairs]
        return plant.keys[chosen[:, :, None]]
    side = math.ceil(math.sqrt(pairs))
    row, column = np.divmod(np.arange(pairs), side)
    row_draws, column_draws = np.split(raw, 2, axis=1)
    first = permutations(row_draws)[:, row]  # (N, pairs)
    second = permutations(column_draws)[:, column]
    return plant.keys[np.stack((first, second), axis=-1)]


def draw_values(raw: np.ndarray, plant: Plant) -> Ints:
    """Return a value for each raw draw."""
    values: Ints = plant.values[(raw % np.uint64(plant.alphabet)).astype(np.int64)]
    return values
