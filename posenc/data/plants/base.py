"""The base class of plants: what a planted pair is made of, and how the pairs of a window are drawn.

A pair is a cue, then a value of one token, then an end, which may be empty. The cue tells which pair it is.
Shapes: N windows.
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
    noun: ClassVar[str]  # what recall asks for, in tables: `planted values`

    settings: PlantSettings
    cue_length: int  # tokens of a cue
    values: Ints  # (alphabet,) different tokens, all drawn equally often
    end: Ints  # (e,) tokens after every value

    @property
    def pair_length(self) -> int:
        """Return how many tokens a whole pair has."""
        return self.cue_length + 1 + len(self.end)

    def draw_values(self, raw: np.ndarray) -> Ints:
        """Return a value for each raw draw."""
        # Raw draws and not numpy's `integers`, whose numbers may change with its version.
        index = (raw % np.uint64(len(self.values))).astype(np.int64)
        values: Ints = self.values[index]
        return values

    # --- What a kind adds

    @classmethod
    @abstractmethod
    def check(cls, settings: PlantSettings, tokenizer: str) -> None:
        """Raise UserError for settings that this kind does not allow. `tokenizer` is a name."""

    @classmethod
    @abstractmethod
    def length_of_pair(cls, settings: PlantSettings) -> int:
        """Return how many tokens a whole pair has, by the settings alone."""

    @classmethod
    @abstractmethod
    def cue_count(cls, settings: PlantSettings) -> int:
        """Return how many different cues there are, by the settings alone. A window has each once at most."""

    @classmethod
    @abstractmethod
    def new_tokens(cls, settings: PlantSettings, store: TokenStore) -> int:
        """Return how many tokens it adds to the vocabulary of the tokenizer."""

    @classmethod
    @abstractmethod
    def build(cls, settings: PlantSettings, store: TokenStore) -> Self:
        """Return the plant for a text. Raises UserError if it cannot be planted in this text."""

    @property
    @abstractmethod
    def cue_draws(self) -> int:
        """Return how many raw draws the cues of a window take."""

    @abstractmethod
    def draw_cues(self, raw: np.ndarray, pairs: int) -> Ints:
        """Return different cues, (N, pairs, cue_length), by raw draws (N, cue_draws).

        A draw belongs to a possible cue, or to a possible token of cues. Those with smaller draws come first.
        """

    @abstractmethod
    def draws_of_used(self, text: Ints) -> np.ndarray:
        """Tell which draws belong to cues, or tokens of cues, that occur in a text: (cue_draws,) bool."""

    @abstractmethod
    def tokens(self) -> list[Ints]:
        """Return all tokens that pairs are made of. The hash of recall's targets covers them."""


def slot_count(length: int, pair_length: int) -> int:
    """Return how many pairs fit into `length` tokens side by side, at every offset below `pair_length`."""
    # the largest offset leaves the least room: (length - (pair_length - 1)) // pair_length
    return (length + 1) // pair_length - 1


def smallest_window(slots: int, pair_length: int) -> int:
    """Return the fewest tokens into which `slots` pairs fit at every offset."""
    return (slots + 1) * pair_length - 1
