"""A corpus of made-up words that is the same on every machine."""

from __future__ import annotations

import random
from pathlib import Path


def write_texts(folder: Path, seed: int) -> None:
    """Write 60 files of 2 to 4 kB into a new folder."""
    chance = random.Random(seed)
    letters = "etaoinshrdlu"
    words = ["".join(chance.choices(letters, k=chance.randint(2, 8))) for _ in range(150)]
    folder.mkdir()
    for document in range(60):
        text = ""
        while len(text) < 2000 + 33 * document:
            separator = " " if chance.random() < 0.9 else ".\n"
            text += chance.choice(words) + separator
        (folder / f"{document:03d}.txt").write_text(text)
