"""Training windows, drawn so that a step's batch depends on nothing but the seed and the step; planted pairs.

A pair is a cue of 1 or 2 tokens with the value behind it; all pairs of a window occur twice, at drawn places,
and are drawn anew for every window. The second time the value can be known: only by looking back in the
window. Tokens of pairs: of bytes those least used in the training split; other tokenizers get new tokens
behind their vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from posenc.core.errors import UserError
from posenc.core.seeds import raw_draws, seed_for
from posenc.core.signature import between, check_arguments, whole
from posenc.data.token_cache import Ints, TokenStore

LARGEST_ALPHABET = 64
TEXT, PLANTED, KNOWN = 0, 1, 2  # kinds of targets: text, of a pair, a value that can be known


class WindowSampler:
    """Windows of `context_length` tokens inside training documents, uniform over all places; by counter."""

    def __init__(self, store: TokenStore, context_length: int, seed: int) -> None:
        split = store.splits["train"]
        fits = split.lengths > context_length  # the last target lies one place after the last input
        self._tokens = store.tokens
        self._starts = split.starts[fits]
        places = split.lengths[fits] - context_length
        self._ends = np.cumsum(places)  # of each document's places, all laid end to end
        self._first = self._ends - places
        self._offsets = np.arange(context_length + 1, dtype=np.int64)
        self._seed = seed % 2**64

    def batch(self, step: int, size: int) -> tuple[np.ndarray, ...]:
        """Inputs and targets of a step, both int64 `(size, context_length)`; targets are one token on."""
        place = (raw_draws(size, self._seed, step) % np.uint64(self._ends[-1])).astype(np.int64)
        document = np.searchsorted(self._ends, place, side="right")
        start = self._starts[document] + place - self._first[document]
        window = self._tokens[start[:, None] + self._offsets].astype(np.int64)  # (size, T + 1)
        return window[:, :-1], window[:, 1:]


class ScheduledSampler:
    """Windows that grow in the course of a run, a sampler for each stage; all batches have as many tokens."""

    def __init__(self, context_length: int, stages: Sequence[tuple[int, int, WindowSampler]]) -> None:
        """Take stages of (step at which it ends, its length, its sampler) in order."""
        self._context_length, self._stages = context_length, stages

    def batch(self, step: int, size: int) -> tuple[np.ndarray, ...]:
        """Return the batch of a step: `size` windows of `context_length` cut into those of its stage."""
        length, sampler = next((length, one) for end, length, one in self._stages if step < end)
        return sampler.batch(step, size * self._context_length // length)


# --- Planted pairs


@dataclass(frozen=True)
class Plant:
    """The settings `data.plant` with the tokens of one tokenizer."""

    share: float  # of the windows of a batch
    pairs: int
    cue: int
    alphabet: int  # tokens for cues, and as many for values
    weight: float  # of a value that can be known in the loss
    keys: Ints  # (alphabet,)
    values: Ints  # (alphabet,)


def _settings(*, share: float, pairs: int, cue: Literal[1, 2], alphabet: int, weight: float) -> None:
    """Declare the settings of `data.plant`; only the signature is used."""


def check_plant(
    settings: Mapping[str, Any] | None, context_length: int | None = None, asked: Sequence[int] = ()
) -> None:
    """Check `data.plant`, with `context_length` also that its pairs fit; `asked` numbers of pairs, that there
    are so many different ones. Raises UserError.
    """
    if settings is None:
        return
    if not isinstance(settings, Mapping):
        allowed = "null, or {share, pairs, cue, alphabet, weight}"
        raise UserError("data.plant", settings, "wrong type", allowed=allowed)
    given = check_arguments(_settings, settings, "data.plant")
    between("data.plant.share", given["share"], 0, 1, open_low=True)
    between("data.plant.weight", given["weight"], 0, open_low=True)
    alphabet = whole("data.plant.alphabet", given["alphabet"], least=2, most=LARGEST_ALPHABET)
    room = alphabet if context_length is None else slots(context_length + 1, given["cue"]) // 2
    whole("data.plant.pairs", given["pairs"], least=1, most=min(alphabet, room))
    if max(asked, default=0) > alphabet:
        problem = f"more than there are cues: data.plant.alphabet={alphabet}"
        raise UserError("eval.recall.pairs", max(asked), problem, allowed=f"1 to {alphabet}")


def vocabulary(settings: Mapping[str, Any] | None, store: TokenStore) -> int:
    """Return the model's vocabulary: the tokenizer's, with the tokens of pairs where they are new."""
    if settings is None or store.tokenizer["name"] == "bytes":
        return store.vocab_size
    return store.vocab_size + 2 * int(settings["alphabet"])


def plant_of(settings: Mapping[str, Any], store: TokenStore) -> Plant:
    """Return checked settings with the tokens for cues and values."""
    size = settings["alphabet"]
    if store.tokenizer["name"] == "bytes":
        rarest = np.argsort(token_counts(store), kind="stable")[: 2 * size].astype(np.int64)
    else:
        rarest = store.vocab_size + np.arange(2 * size, dtype=np.int64)
    return Plant(**settings, keys=rarest[:size], values=rarest[size:])


def token_counts(store: TokenStore) -> Ints:
    """Count each token in the training split: (V,) int64."""
    split, counts = store.splits["train"], np.zeros(store.vocab_size, dtype=np.int64)
    for i in range(len(split.ids)):
        counts += np.bincount(store.document("train", i), minlength=store.vocab_size)
    return counts


def slots(length: int, cue: int) -> int:
    """Return how many pairs, side by side, fit into `length` tokens from any of cue + 1 offsets."""
    return (length + 1) // (cue + 1) - 1


class PlantedSampler(WindowSampler):
    """Windows of text, a share of them with pairs, from (seed, step, row): the same for every encoding."""

    def __init__(self, store: TokenStore, context_length: int, seed: int, plant: Plant) -> None:
        super().__init__(store, context_length, seed)
        self.plant = plant
        self._plant_seed = seed_for(seed, "plant")

    def batch(self, step: int, size: int) -> tuple[np.ndarray, ...]:
        """Return inputs, targets, weights in the loss (float32) and kinds of the targets, (size, T) each."""
        inputs, targets = super().batch(step, size)
        window = np.concatenate((inputs, targets[:, -1:]), axis=1)  # (size, T + 1)
        count = round(self.plant.share * size)
        kinds = np.zeros_like(window)
        kinds[:count] = plant_pairs(window[:count], self.plant, self._plant_seed, step)
        weights = np.where(kinds[:, 1:] == KNOWN, self.plant.weight, 1).astype(np.float32)
        return window[:, :-1], window[:, 1:], weights, kinds[:, 1:]


def plant_pairs(window: Ints, plant: Plant, seed: int, step: int) -> Ints:
    """Write pairs into windows (N, n) and return the kinds of their tokens; row i takes the i-th draws."""
    count, pairs, unit = len(window), plant.pairs, plant.cue + 1
    places = slots(window.shape[1], plant.cue)
    sizes = (places, 2 * pairs, plant.cue * plant.alphabet, pairs, 1)
    raw = raw_draws(count * sum(sizes), seed, step).reshape(count, -1)
    where, order, keys, values, offset = np.split(raw, np.cumsum(sizes)[:-1], axis=1)
    at = np.sort(shuffled(where)[:, : 2 * pairs]) * unit + (offset % np.uint64(unit)).astype(np.int64)
    pair = shuffled(order) // 2  # (N, 2 pairs): which one comes
    again = (np.tril(pair[:, :, None] == pair[:, None, :], -1)).any(-1)
    row = np.arange(count)[:, None]
    kinds = np.zeros_like(window)
    cues = draw_cues(keys, plant, pairs)  # (N, pairs, cue)
    for i in range(plant.cue):
        window[row, at + i], kinds[row, at + i] = cues[row, pair, i], PLANTED
    window[row, at + plant.cue] = draw_values(values, plant)[row, pair]
    kinds[row, at + plant.cue] = np.where(again, KNOWN, PLANTED)
    return kinds


def draw_cues(raw: np.ndarray, plant: Plant, pairs: int) -> Ints:
    """Return different cues, (N, pairs, cue), from raw draws (N, cue * alphabet).

    Neither token of a cue of two identifies the pair alone.
    """
    if plant.cue == 1:
        return plant.keys[shuffled(raw)[:, :pairs, None]]
    side, i = math.ceil(math.sqrt(pairs)), np.arange(pairs)
    first, second = (shuffled(half) for half in np.split(raw, 2, axis=1))
    return plant.keys[np.stack((first[:, i // side], second[:, i % side]), axis=-1)]


def draw_values(raw: np.ndarray, plant: Plant) -> Ints:
    """Return a value for each raw draw."""
    values: Ints = plant.values[(raw % np.uint64(plant.alphabet)).astype(np.int64)]
    return values


def shuffled(raw: np.ndarray) -> Ints:
    """Return a permutation of the columns of each row."""
    return np.argsort(raw, axis=-1, kind="stable")
