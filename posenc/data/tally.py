"""The figures of a corpus, taken while its documents go by: none of them is kept."""

from __future__ import annotations

import hashlib
from typing import Any

from posenc.data.documents import SPLITS, Document, Fingerprint


class Tally:
    """Counts documents that are added in the order of their ids."""

    def __init__(self) -> None:
        self._whole, self._train = Fingerprint(), Fingerprint()
        self._documents = dict.fromkeys(SPLITS, 0)
        self._bytes = dict.fromkeys(SPLITS, 0)
        self._longest = dict.fromkeys(SPLITS, 0)
        self._powers: dict[str, list[int]] = {name: [0] * 64 for name in SPLITS}
        self._texts: dict[str, set[bytes]] = {name: set() for name in SPLITS}

    def add(self, document: Document) -> None:
        split, size = str(document.split), len(document.text)
        self._whole.add(document)
        if split == "train":
            self._train.add(document)
        self._documents[split] += 1
        self._bytes[split] += size
        self._texts[split].add(hashlib.blake2b(document.text, digest_size=8).digest())
        self._longest[split] = max(self._longest[split], size)
        if size > 1:  # a window of n bytes has its last target one byte further on
            self._powers[split][(size - 1).bit_length() - 1] += 1

    def figures(self) -> dict[str, Any]:
        """Plain JSON: the fields of `CorpusFacts` that follow from the text."""
        return {
            "fingerprint": self._whole.hexdigest(),
            "train_fingerprint": self._train.hexdigest(),
            "documents": self._documents,
            "bytes": self._bytes,
            "longest": self._longest,
            "holding": {name: _at_least(counts) for name, counts in self._powers.items()},
            "repeats": [
                name for name in SPLITS[1:] if self._texts[name] and self._texts[name] <= self._texts["train"]
            ],
        }


def _at_least(counts: list[int]) -> list[int]:
    """From "so many lie between 2^k and 2^(k+1)" to "so many reach 2^k", without the zeros at the end."""
    sums, total = [], 0
    for count in reversed(counts):
        total += count
        if total:
            sums.append(total)
    return sums[::-1]
