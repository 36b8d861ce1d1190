"""The token cache: built once whoever asks, verified whenever opened, rebuilt when damaged."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from posenc.core.atomic_files import cannot_write, check_room
from posenc.data.entry import EntryWriter, building, entry_of, open_entry, put_in_place
from posenc.data.facts import CorpusFacts, read_facts
from posenc.data.store import TokenStore, smallest_dtype
from posenc.data.tokenizer_choice import build_tokenizer
from posenc.data.tokenizers import Tokenizer
from posenc.data.trouble import ELSEWHERE
from posenc.data.waiting import one_at_a_time
from posenc.data.watch import watched

log = logging.getLogger(__name__)


def prepare(
    data: Mapping[str, Any], tokenizer: Mapping[str, Any], facts: CorpusFacts | None = None
) -> TokenStore:
    """The corpus as tokens, from the cache or put there now.

    `facts` is what `inspect` returned for the same `data`; its documents are let go of. Raises UserError for
    wrong settings or an empty corpus, RunError when a source is out of reach or the cache cannot be written.
    """
    facts = facts if facts is not None else read_facts(data)
    chosen = build_tokenizer(tokenizer, facts)
    entry = entry_of(facts.fingerprint, chosen.identity())
    store = open_entry(entry)
    if store is None:
        try:
            store = _build_once(entry, facts, chosen)
        except OSError as error:
            raise cannot_write(entry.parent, error, needed=_size(facts, chosen), hint=ELSEWHERE) from error
    facts.loaded = None
    return store


def _build_once(entry: Path, facts: CorpusFacts, tokenizer: Tokenizer) -> TokenStore:
    with one_at_a_time(entry.with_suffix(".lock"), f"tokenising {facts.name}"):
        store = open_entry(entry)  # another process may have built it while this one waited
        if store is not None:
            return store
        if entry.exists():
            log.warning("the token cache %s is damaged; it is built again", entry)
        with building(entry.name) as folder:
            check_room(folder.parent, _size(facts, tokenizer), f"the tokens of {facts.name}", hint=ELSEWHERE)
            writer = EntryWriter(folder, tokenizer.vocab_size)
            try:
                whole = f" of {sum(facts.bytes.values()) / 1e6:,.1f}"
                read = watched(iter(facts.read()), f"tokenising {facts.name}", most=whole)
                documents, texts = itertools.tee(read)  # as far apart as a batch of the tokenizer
                encoded = tokenizer.encode_all(document.text for document in texts)
                for document, (ids, sizes) in zip(documents, encoded, strict=True):
                    writer.add(document.id, str(document.split), ids, sizes)
                writer.finish(facts.name, facts.fingerprint, tokenizer)
            finally:
                writer.close()
            put_in_place(folder, entry)
        log.info("tokenised %s into %s", facts.name, entry)
    store = open_entry(entry)
    if store is None:
        raise OSError(f"what was written to {entry} does not read back the same")
    return store


def _size(facts: CorpusFacts, tokenizer: Tokenizer) -> int:
    """Bytes of the entry to be; of another tokenizer than bytes about, at four bytes of text a token."""
    text, width = sum(facts.bytes.values()), smallest_dtype(tokenizer.vocab_size).itemsize
    return text * width if tokenizer.name == "bytes" else text * (width + 2) // 4
