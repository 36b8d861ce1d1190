"""tokens: a cue of one or two tokens, then a value, all of them tokens that the text hardly has.

With the tokenizer `bytes` they are the rarest bytes of the training split. For other tokenizers they are new
tokens, with ids after the vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np

from posenc.core.errors import UserError
from posenc.core.seeds import permutations
from posenc.data.plants.base import Plant
from posenc.data.token_cache import Ints, TokenStore
from posenc.settings.tree import PlantSettings

LONGEST_CUE = 2
NO_END = np.zeros(0, dtype=np.int64)


@dataclass(frozen=True, kw_only=True)
class TokenPairs(Plant):
    """Pairs of one or two keys and a value, tokens that the text hardly has."""

    name: ClassVar[str] = "tokens"
    noun: ClassVar[str] = "planted values"

    keys: Ints  # (alphabet,) tokens of cues

    @classmethod
    def check(cls, settings: PlantSettings, tokenizer: str) -> None:
        # Cues are cells of a square. Longer ones would need a cube, and a rule for which of its cells.
        if settings.cue > LONGEST_CUE:
            problem = f"too long for plants of the kind {cls.name}"
            raise UserError("data.plant.cue", settings.cue, problem, allowed=f"1 to {LONGEST_CUE}")

    @classmethod
    def length_of_pair(cls, settings: PlantSettings) -> int:
        return settings.cue + 1

    @classmethod
    def cue_count(cls, settings: PlantSettings) -> int:
        return settings.alphabet**settings.cue

    @classmethod
    def new_tokens(cls, settings: PlantSettings, store: TokenStore) -> int:
        return 0 if store.tokenizer["name"] == "bytes" else 2 * settings.alphabet

    @classmethod
    def build(cls, settings: PlantSettings, store: TokenStore) -> Self:
        alphabet = settings.alphabet
        if store.tokenizer["name"] == "bytes":
            # Many bytes never occur. A stable sort takes the same ones of them everywhere.
            rarest_first = np.argsort(store.token_counts("train"), kind="stable")
            tokens = rarest_first[: 2 * alphabet].astype(np.int64)
        else:
            tokens = store.vocab_size + np.arange(2 * alphabet, dtype=np.int64)
        return cls(
            settings=settings,
            cue_length=settings.cue,
            keys=tokens[:alphabet],
            values=tokens[alphabet:],
            end=NO_END,
        )

    @property
    def cue_draws(self) -> int:
        return self.cue_length * len(self.keys)

    def draw_cues(self, raw: np.ndarray, pairs: int) -> Ints:
        """Return different cues, (N, pairs, cue_length), by raw draws (N, cue_draws).

        Cues of two tokens are the cells of a square: the first token is the row, the second one the column.
        So neither token alone tells which pair it is.
        """
        if self.cue_length == 1:
            key_numbers = permutations(raw)[:, :pairs]
            return self.keys[key_numbers[:, :, None]]
        # The smallest square with a cell for each pair, so that as many pairs as possible share a token.
        side = math.ceil(math.sqrt(pairs))
        row, column = np.divmod(np.arange(pairs), side)
        row_draws, column_draws = np.split(raw, 2, axis=1)
        first = permutations(row_draws)[:, row]  # (N, pairs)
        second = permutations(column_draws)[:, column]
        return self.keys[np.stack((first, second), axis=-1)]

    def draws_of_used(self, text: Ints) -> np.ndarray:
        # A cue of two tokens has a draw for each key in either place.
        return np.tile(np.isin(self.keys, text), self.cue_length)

    def tokens(self) -> list[Ints]:
        return [self.keys, self.values]
