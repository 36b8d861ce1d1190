"""assignments: lines `NAME = VALUE`, of words that the text itself uses. Tokens are bytes.

    \\nx = q\\n    the cue is "\\nx = ", the value is "q", the end is "\\n"

A name has `data.plant.cue` letters. A value has one, so that it is a single token. Both are the most frequent
words of their length in the training split, and no word is both. All values are drawn equally often, so a
guess finds one of `data.plant.alphabet`.

The text itself may assign another value to a planted name. Recall therefore asks for names that the text does
not assign. In training such names are allowed: on SymPy one of 10,000 known values had such a line between
the two places of its pair.
"""

from __future__ import annotations

import itertools
import re
import string
from collections import Counter
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view

from posenc.core.errors import UserError, plural
from posenc.core.seeds import permutations
from posenc.data.plants.base import Plant
from posenc.data.token_cache import Ints, TokenStore
from posenc.settings.tree import LARGEST_ALPHABET, PlantSettings

LINE_END = b"\n"
SIGN = b" = "
# An ASCII word that begins with a letter. Bytes from 0x80 on belong to letters of other scripts.
WORD = re.compile(rb"(?<![\w\x80-\xff])[A-Za-z]\w*(?![\w\x80-\xff])")
LETTERS = string.ascii_letters.encode()


@dataclass(frozen=True, kw_only=True)
class Assignments(Plant):
    """Lines that give a name a value."""

    name: ClassVar[str] = "assignments"
    noun: ClassVar[str] = "values of planted names"

    cues: Ints  # (alphabet, cue_length) bytes: a line end, then `NAME = `

    @classmethod
    def check(cls, settings: PlantSettings, tokenizer: str) -> None:
        if tokenizer != "bytes":
            problem = f"plants of the kind {cls.name} write words as bytes"
            raise UserError("tokenizer", tokenizer, problem, allowed="bytes")
        # Every value is a word of one letter. Names of one letter have to share the letters with the values.
        most = len(LETTERS) if settings.cue > 1 else len(LETTERS) // 2
        if settings.alphabet > most:
            problem = f"more than there are words of one letter, for plants of the kind {cls.name}"
            raise UserError("data.plant.alphabet", settings.alphabet, problem, allowed=f"2 to {most}")

    @classmethod
    def length_of_pair(cls, settings: PlantSettings) -> int:
        return len(LINE_END) + settings.cue + len(SIGN) + 1 + len(LINE_END)

    @classmethod
    def cue_count(cls, settings: PlantSettings) -> int:
        return settings.alphabet  # names

    @classmethod
    def new_tokens(cls, settings: PlantSettings, store: TokenStore) -> int:
        return 0

    @classmethod
    def build(cls, settings: PlantSettings, store: TokenStore) -> Self:
        # An outline has no text to count words in. Its plan needs their number alone.
        words = _any_words(settings.cue) if store.is_outline else _common_words(store)
        names = [word for word in words if len(word) == settings.cue][: settings.alphabet]
        # No word is both, since a value that is also a name could be taken for the cue of another pair.
        values = [word for word in words if len(word) == 1 and word not in names][: settings.alphabet]
        if min(len(names), len(values)) < settings.alphabet:
            raise _too_few_words(settings, len(names), len(values))
        cues = np.stack([_tokens_of(LINE_END + name + SIGN) for name in names])
        return cls(
            settings=settings,
            cue_length=cues.shape[1],
            cues=cues,
            values=_tokens_of(b"".join(values)),
            end=_tokens_of(LINE_END),
        )

    @property
    def cue_draws(self) -> int:
        return len(self.cues)

    def draw_cues(self, raw: np.ndarray, pairs: int) -> Ints:
        cues: Ints = self.cues[permutations(raw)[:, :pairs]]
        return cues

    def draws_of_used(self, text: Ints) -> np.ndarray:
        # Without the line end: behind a planted pair, which ends a line, any text begins a line.
        assigned = self.cues[:, len(LINE_END) :]  # (alphabet, k): `NAME = `
        # A view of the text and no copy, so that its length times the length of a name takes no memory.
        pieces = sliding_window_view(text, assigned.shape[1])  # (n - k + 1, k)
        is_at = (pieces == assigned[:, None]).all(-1)  # (alphabet, n - k + 1)
        is_used: np.ndarray = is_at.any(-1)
        return is_used

    def tokens(self) -> list[Ints]:
        return [self.cues, self.values, self.end]


def _tokens_of(text: bytes) -> Ints:
    return np.frombuffer(text, dtype=np.uint8).astype(np.int64)


def _common_words(store: TokenStore) -> list[bytes]:
    """Return the words of the training split, the most frequent ones first."""
    counts: Counter[bytes] = Counter()
    for i in range(len(store.splits["train"].ids)):
        counts.update(WORD.findall(store.document("train", i).astype(np.uint8).tobytes()))
    # Equally frequent words are sorted, since otherwise the order of the documents would decide.
    return sorted(counts, key=lambda word: (-counts[word], word))


def _any_words(length: int) -> list[bytes]:
    """Return words of `length` letters and of one, for plans that are made without a text."""
    spellings = itertools.product(LETTERS, repeat=length)
    words = [bytes(letters) for letters in itertools.islice(spellings, LARGEST_ALPHABET)]
    return words + [bytes([letter]) for letter in LETTERS]


def _too_few_words(settings: PlantSettings, names: int, values: int) -> UserError:
    """Return the error for a text with too few words of the lengths that names and values have."""
    counts = f"{plural(names, 'word')} of {plural(settings.cue, 'letter')} and {values} others of one"
    problem = f"the training text has only {counts}"
    return UserError("data.plant.alphabet", settings.alphabet, problem, hint="a smaller one, or another text")
