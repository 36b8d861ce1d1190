"""Stand in for a tokenised corpus in a plan: documents of the right lengths, without their tokens."""

from __future__ import annotations

import numpy as np

from posenc.data import CorpusFacts, Split, TokenStore, build_tokenizer, task_store
from posenc.data.documents import SPLITS
from posenc.settings.tree import TokenizerSettings

ASSUMED_BYTES_A_TOKEN = 3.0  # about, for a tokenizer that is not trained yet
# A sample of at most 256 kB is tokenised in a moment.
SAMPLED_DOCUMENTS = 32
SAMPLED_BYTES = 8192  # of each


def measured_bytes_a_token(facts: CorpusFacts, tokenizer: TokenizerSettings, split: str) -> float:
    """Return how many bytes a token has in the longest documents, by a sample of these.

    Long documents decide which lengths can be measured. It is an assumption if the tokenizer would have to be
    trained first, or the text to be read first.
    """
    if tokenizer.name == "bytes":
        return 1.0
    if tokenizer.name == "bpe" or not facts.text.is_loaded:
        return ASSUMED_BYTES_A_TOKEN
    texts = [document.text for document in facts.read() if document.split == split]
    longest = sorted(texts, key=len, reverse=True)[:SAMPLED_DOCUMENTS]
    middles: list[bytes] = []
    for text in longest:
        middle = text[len(text) // 2 :][:SAMPLED_BYTES]
        # The cuts may split a character of UTF-8, whose bytes are left out.
        middles.append(middle.decode(errors="ignore").encode())
    encoded = build_tokenizer(tokenizer, facts).encode_all(middles)
    n_tokens = sum(len(text.ids) for text in encoded)
    return sum(map(len, middles)) / max(1, n_tokens)


def store_of_lengths(
    facts: CorpusFacts, tokenizer: TokenizerSettings, bytes_a_token: float | None = None
) -> TokenStore:
    """Return a store for planning: its documents are as long as the corpus's, and every token is 0."""
    if facts.task is not None:
        return task_store(facts.fingerprint, facts.task)
    if tokenizer.name == "bpe":  # building the tokenizer would train it, and write it to the cache
        vocab_size = int(tokenizer.parameters["vocab_size"])
    else:
        vocab_size = build_tokenizer(tokenizer, facts).vocab_size
    if bytes_a_token is None:
        bytes_a_token = 1.0 if tokenizer.name == "bytes" else ASSUMED_BYTES_A_TOKEN
    splits: dict[str, Split] = {}
    start = 0
    for name in SPLITS:
        lengths = (np.array(facts.sizes[name], dtype=np.int64) / bytes_a_token).astype(np.int64)
        starts = start + np.cumsum(lengths) - lengths
        splits[name] = Split([str(index) for index in range(len(lengths))], starts, lengths)
        start += int(lengths.sum())
    tokens = np.broadcast_to(np.uint8(0), max(1, start))  # takes one byte of memory, however long
    tokenizer_settings = tokenizer.plain()
    return TokenStore(
        tokens, None, facts.fingerprint, vocab_size, tokenizer_settings, splits, is_outline=True
    )
