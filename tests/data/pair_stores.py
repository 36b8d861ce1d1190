"""Token stores whose tokens tell where they come from, and pairs to plant in them."""

from dataclasses import replace

import numpy as np
import token_stores

from posenc.data import plant_of
from posenc.settings.tree import PlantSettings

SEED = 5
SETTINGS = PlantSettings(share=0.5, pairs=4, cue=1, alphabet=64, weight=2.0)


def store_of(lengths):
    """Training documents whose tokens number their places; 500 tokens of the test split come before."""
    ends = 500 + np.cumsum(lengths)
    documents = [range(end - length, end) for length, end in zip(lengths, ends, strict=True)]
    return token_stores.store_of([range(500)], documents)


def bytes_store():
    """Documents of the bytes 97 to 116, and 128 once: it is less rare than all others but these."""
    store = store_of([400, 300])
    tokens = (97 + np.arange(len(store.tokens)) % 20).astype(np.uint8)
    tokens[507] = 128
    return replace(store, tokens=tokens, vocab_size=256)


def plant_for(store, **changes):
    return plant_of(SETTINGS.with_changes(**changes), store)
