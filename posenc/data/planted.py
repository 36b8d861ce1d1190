"""Plant pairs in training windows, by which it can be measured whether a model uses far text.

A pair is a cue and the value after it; `plants/` has the kinds of pairs. Each window has pairs of its own,
drawn anew, and each pair occurs twice in it, at drawn places. The second time its value can be known, but
only from the first time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from posenc.core.seeds import permutations, raw_draws, seed_for
from posenc.data.plants.base import Plant, slot_count
from posenc.data.token_cache import Ints, TokenStore
from posenc.data.windows import Batch, WindowSampler
from posenc.settings.tree import PlantSettings

# Kinds of targets.
TEXT = 0
PLANTED = 1  # a token of a pair, except for a value that can be known
KNOWN = 2  # a value that can be known, since its pair occurred earlier in the window


class PlantedSampler(WindowSampler):
    """Draw windows of text, a share of them with pairs. Seed, step and row of the window decide all draws."""

    def __init__(self, store: TokenStore, context_length: int, seed: int, plant: Plant) -> None:
        super().__init__(store, context_length, seed)
        self.plant = plant
        # Another stream than that of the windows, so that plants do not change which text is drawn.
        self._plant_seed = seed_for(seed, "plant")

    def batch(self, step: int, size: int) -> Batch:
        """Return the batch of a step, with the weights and the kinds of its targets."""
        windows = self._windows(step, size)  # (size, T + 1)
        kinds = np.zeros_like(windows)
        settings = self.plant.settings
        count = planted_windows(settings, size)
        # The first windows of a batch. They are drawn at random, so their rows mean nothing.
        kinds[:count] = plant_pairs(windows[:count], self.plant, self._plant_seed, step)
        target_kinds = kinds[:, 1:]
        # Values that can be known are few, so with a weight of 1 the other targets outweigh them.
        weights = np.where(target_kinds == KNOWN, settings.weight, 1).astype(np.float32)
        return Batch(inputs=windows[:, :-1], targets=windows[:, 1:], weights=weights, kinds=target_kinds)


def planted_windows(settings: PlantSettings, size: int) -> int:
    """Return how many of the `size` windows of a batch have pairs."""
    # A fixed number and no draw for each window, so that every batch teaches as much recall.
    return round(settings.share * size)


@dataclass(frozen=True)
class _Draws:
    """Raw random numbers for N windows, a row for each, by what they decide."""

    slots: np.ndarray  # (N, slots): which slots have a pair
    order: np.ndarray  # (N, 2 pairs): which pair each of these slots has
    cues: np.ndarray  # (N, cue_draws)
    values: np.ndarray  # (N, pairs)
    offset: np.ndarray  # (N, 1): by how many tokens all slots are moved


def _draws_of_rows(count: int, slots: int, plant: Plant, seed: int, step: int) -> _Draws:
    """Return the draws of a step for `count` windows with room for `slots` pairs."""
    pairs = plant.settings.pairs
    # The order of these entries decides every planted window: a row's numbers are dealt out in it.
    draws_per_row = {
        "slots": slots,
        "order": 2 * pairs,
        "cues": plant.cue_draws,
        "values": pairs,
        "offset": 1,
    }
    raw = raw_draws(count * sum(draws_per_row.values()), seed, step).reshape(count, -1)
    ends = np.cumsum(list(draws_per_row.values()))
    parts = np.split(raw, ends[:-1], axis=1)
    return _Draws(**dict(zip(draws_per_row, parts, strict=True)))


def plant_pairs(windows: Ints, plant: Plant, seed: int, step: int) -> Ints:
    """Write pairs into windows (N, n) in place. Return the kinds of their tokens, (N, n).

    A window is divided into slots, each as long as a pair, and some of them get one. Row i takes the i-th
    draws of the step, so a window does not depend on N.
    """
    count, length = windows.shape
    pairs = plant.settings.pairs
    pair_length = plant.pair_length
    slots = slot_count(length, pair_length)
    draws = _draws_of_rows(count, slots, plant, seed, step)

    # Where the pairs stand: two slots for each, and all slots moved by one offset.
    offset = (draws.offset % np.uint64(pair_length)).astype(np.int64)  # (N, 1)
    # Slots and no free places, so that pairs cannot overlap whatever is drawn.
    shuffled_slots = permutations(draws.slots)
    # Sorted, so that an earlier column is an earlier place in the text: `is_second` below relies on it.
    chosen_slots = np.sort(shuffled_slots[:, : 2 * pairs])
    start = chosen_slots * pair_length + offset  # (N, 2 pairs)

    # Which pair each slot has: every pair comes twice.
    pair = permutations(draws.order) // 2  # (N, 2 pairs): 0, 0, 1, 1, 2, 2, ... in random order
    # For all pairs of slots at once, since a loop over windows would take most of the time of a batch.
    same_pair = pair[:, :, None] == pair[:, None, :]  # (N, 2 pairs, 2 pairs)
    is_second = np.tril(same_pair, -1).any(-1)  # (N, 2 pairs): an earlier slot has the same pair

    row = np.arange(count)[:, None]
    kinds = np.zeros_like(windows)
    for i in range(pair_length):
        kinds[row, start + i] = PLANTED
    # The first value of a pair is a guess, and so is no question of recall.
    kinds[row, start + plant.cue_length] = np.where(is_second, KNOWN, PLANTED)
    cues = plant.draw_cues(draws.cues, pairs)  # (N, pairs, cue_length)
    values = plant.draw_values(draws.values)  # (N, pairs)
    write_pairs(windows, start, cues[row, pair], values[row, pair], plant.end)
    return kinds


def write_pairs(windows: Ints, start: Ints, cues: Ints, values: Ints, end: Ints) -> None:
    """Write p pairs into each of windows (N, n), in place.

    start (N, p) is where each pair begins, cues (N, p, cue_length) and values (N, p) are its tokens, and end
    (e,) are the tokens after every value.
    """
    row = np.arange(len(windows))[:, None]
    cue_length = cues.shape[2]
    for i in range(cue_length):
        windows[row, start + i] = cues[:, :, i]
    windows[row, start + cue_length] = values
    for i, token in enumerate(end):
        windows[row, start + cue_length + 1 + i] = token
