"""A corpus for a dry run: its cached tokens, else random ones in documents of its lengths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from posenc.core.errors import RunError
from posenc.data import CorpusFacts, Split, TokenStore, build_tokenizer
from posenc.data.documents import SPLITS
from posenc.data.token_cache import cached_tokens, entry_of, open_entry
from posenc.data.corpus_stats import known_figures
from posenc.data.registry import is_streamed, needs_network, pinned_identity
from posenc.data.token_cache import smallest_dtype

BYTES_A_TOKEN = 3.0  # of a vocabulary of some thousands, about
MOST_TOKENS = 20_000_000  # of random ones


def refuse_to_fetch(data: Mapping[str, Any]) -> None:
    """Raises RunError for a corpus that would have to be fetched, or noted down, to be looked at."""
    pinned = pinned_identity(data)
    away = needs_network(data) or is_streamed(data)
    if (away or pinned is not None) and known_figures(pinned) is None:
        raise RunError(
            f"data={data['name']} is not here yet, and a dry run fetches nothing",
            hint=f"posenc data prepare data={data['name']}",
        )


def store_for(facts: CorpusFacts, tokenizer: Mapping[str, Any]) -> tuple[TokenStore, bool]:
    """The tokens, and whether they are the real ones. Nothing is written."""
    found = _cached(facts, tokenizer)
    return (found, True) if found is not None else (_random(facts, tokenizer), False)


def _cached(facts: CorpusFacts, tokenizer: Mapping[str, Any]) -> TokenStore | None:
    if tokenizer["name"] != "bpe":  # building one that is not cached would train it, and keep it
        return open_entry(entry_of(facts.fingerprint, build_tokenizer(tokenizer, facts).identity()))
    for row in cached_tokens():
        alike = (row["fingerprint"], row["tokenizer"]) == (facts.fingerprint, "bpe")
        if alike and row["vocab_size"] == tokenizer["vocab_size"]:
            return open_entry(Path(row["path"]))
    return None


def _random(facts: CorpusFacts, tokenizer: Mapping[str, Any]) -> TokenStore:
    if tokenizer["name"] == "hf":
        vocab_size, each = build_tokenizer(tokenizer, facts).vocab_size, BYTES_A_TOKEN
    elif tokenizer["name"] == "bytes":
        vocab_size, each = 256, 1.0
    else:
        vocab_size, each = int(tokenizer["vocab_size"]), BYTES_A_TOKEN
    splits, start = {}, 0
    for name in SPLITS:
        lengths = (_lengths(facts, name) / each).astype(np.int64)
        lengths = lengths[np.cumsum(lengths) <= max(MOST_TOKENS // 3, lengths[:1].sum())]
        starts = start + np.cumsum(lengths) - lengths
        splits[name] = Split([str(i) for i in range(len(lengths))], starts, lengths)
        start += int(lengths.sum())
    dtype = smallest_dtype(vocab_size)
    tokens = np.random.default_rng(0).integers(0, vocab_size, size=max(1, start), dtype=dtype)
    return TokenStore(tokens, None, facts.fingerprint, vocab_size, dict(tokenizer), splits)


def _lengths(facts: CorpusFacts, split: str) -> np.ndarray:
    """Bytes of a split's documents; all of the mean length, and the longest, where only that is known."""
    if facts.loaded is not None:
        return np.array([len(d.text) for d in facts.loaded if d.split == split], dtype=np.int64)
    count = max(1, facts.documents[split])
    rest = (facts.bytes[split] - facts.longest[split]) // max(1, count - 1)
    return np.array([facts.longest[split], *[rest] * (count - 1)], dtype=np.int64)
