"""Define what a kind of plant is: what a planted pair is made of, and how the pairs of a window are drawn.

A pair is a cue, then a value of one token, then an end. The cue tells which pair it is. N windows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from posenc.data.token_cache import Ints, TokenStore
from posenc.settings.tree import PlantSettings


@dataclass(frozen=True, kw_only=True)
class Plant(ABC):
    """A kind of plant, with the tokens of one text and its tokenizer."""

    name: ClassVar[str]  # as in `data.plant.kind`
    noun: ClassVar[str]  # what recall finds of it, for tables: `planted values`

    settings: PlantSettings
    cue_length: int  # tokens of a cue
    values: Ints  # (alphabet,) different tokens, each drawn as often
    end: Ints  # (e,) tokens behind every value

    @property
    def pair_length(self) -> int:
        """Return the tokens of a whole pair."""
        return self.cue_length + 1 + len(self.end)

    def draw_values(self, raw: np.ndarray) -> Ints:
        """Return a value for each raw draw."""
        index = (raw % np.uint64(len(self.values))).astype(np.int64)
        values: Ints = self.values[index]
        return values

    # --- What a kind adds

    @classmethod
    @abstractmethod
    def check(cls, settings: PlantSettings, tokenizer: str) -> None:
        """Raise UserError for settings that this kind cannot take. `tokenizer` is a name."""

    @classmethod
    @abstractmethod
    def length_of_pair(cls, settings: PlantSettings) -> int:
        """Return the tokens of a whole pair; no text is needed."""

    @classmethod
    @abstractmethod
    def new_tokens(cls, settings: PlantSettings, store: TokenStore) -> int:
        """Return how many tokens it adds to the vocabulary of the tokenizer."""

    @classmethod
    @abstractmethod
    def build(cls, settings: PlantSettings, store: TokenStore) -> Self:
        """Return the plant for a text. Raises UserError for a text that it cannot be planted in."""

    @property
    @abstractmethod
    def cue_draws(self) -> int:
        """Return how many raw draws the cues of a window take."""

    @abstractmethod
    def draw_cues(self, raw: np.ndarray, pairs: int) -> Ints:
        """Return different cues, (N, pairs, cue_length), from raw draws (N, cue_draws).

        What has a smaller draw is taken first.
        """

    @abstractmethod
    def draws_of_used(self, text: Ints) -> np.ndarray:
        """Tell which draws stand for what occurs in a text: (cue_draws,) bool."""

    @abstractmethod
    def tokens(self) -> list[Ints]:
        """Return all tokens that pairs are made of, which tell this plant from another one."""


def slot_count(length: int, pair_length: int) -> int:
    """Return how many pairs, side by side, fit into `length` tokens from any of `pair_length` offsets."""
    # the largest offset is lost in front: (length - (pair_length - 1)) // pair_length
    return (length + 1) // pair_length - 1


def smallest_window(slots: int, pair_length: int) -> int:
    """Return the fewest tokens that so many pairs fit into from any offset."""
    return (slots + 1) * pair_length - 1
