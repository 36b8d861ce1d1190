"""Tokenise a corpus once, whichever process asks first."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import check_room
from posenc.data.corpus_stats import CorpusFacts, read_facts
from posenc.data.progress import ELSEWHERE, cache_lock, with_progress
from posenc.data.token_cache import TokenStore, build_entry, entry_of, open_entry, smallest_dtype, tokens_dir
from posenc.data.tokenizers import Tokenizer, build_tokenizer

log = logging.getLogger(__name__)


def prepare(
    data: Mapping[str, Any], tokenizer: Mapping[str, Any], facts: CorpusFacts | None = None
) -> TokenStore:
    """Return the corpus as tokens, from the cache or put there now.

    `facts` is what `inspect` returned for the same `data`; its documents are let go of. Raises UserError for
    wrong settings or an empty corpus, RunError when a source is out of reach or the cache cannot be written.
    """
    facts = facts if facts is not None else read_facts(data)
    chosen = build_tokenizer(tokenizer, facts)
    entry = entry_of(facts.fingerprint, chosen.identity())
    store = open_entry(entry) or _tokenise(entry, facts, chosen)
    facts.loaded = None
    return store


def _tokenise(entry: Path, facts: CorpusFacts, tokenizer: Tokenizer) -> TokenStore:
    size, doing = _size(facts, tokenizer), f"tokenising {facts.name}"
    with cache_lock(entry.with_suffix(".lock"), doing, needed=size):
        store = open_entry(entry)  # another process may have built it while this one waited
        if store is not None:
            return store
        if entry.exists():
            log.warning("the token cache %s is damaged; it is built again", entry)
        with build_entry(entry.name, tokenizer) as writer:
            check_room(tokens_dir(), size, f"the tokens of {facts.name}", hint=ELSEWHERE)
            most = f" of {sum(facts.bytes.values()) / 1e6:,.1f}"
            read = with_progress(iter(facts.read()), doing, most)
            documents, texts = itertools.tee(read)  # as far apart as a batch of the tokenizer
            encoded = tokenizer.encode_all(document.text for document in texts)
            for document, (ids, sizes) in zip(documents, encoded, strict=True):
                writer.add(document.id, str(document.split), ids, sizes)
            writer.finish(facts.name, facts.fingerprint)
        log.info("tokenised %s into %s", facts.name, entry)
        store = open_entry(entry)
        if store is None:
            raise OSError(f"what was written to {entry} does not read back the same")
        return store


def _size(facts: CorpusFacts, tokenizer: Tokenizer) -> int:
    """Return the bytes of the entry: exact for bytes, else about, at four bytes of text a token."""
    text, width = sum(facts.bytes.values()), smallest_dtype(tokenizer.vocab_size).itemsize
    return text * width if tokenizer.name == "bytes" else text * (width + 2) // 4
