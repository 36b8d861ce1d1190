"""A corpus that is read as a stream: once, document by document, onto the disk as an entry of bytes.

So memory stays small, and whatever tokenizer comes later reads the bytes from here, not from the network.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

from posenc.core.atomic_files import check_room
from posenc.core.errors import RunError
from posenc.data.documents import SPLITS, Document
from posenc.data.entry import EntryWriter, building, entry_of, open_entry, put_in_place, tokens_dir
from posenc.data.registry import stream_documents, stream_limit
from posenc.data.store import TokenStore
from posenc.data.tally import Tally
from posenc.data.tokenizers import ByteTokenizer
from posenc.data.trouble import ELSEWHERE, cache_error
from posenc.data.waiting import one_at_a_time
from posenc.data.watch import watched


def streamed_entry(fingerprint: str) -> TokenStore | None:
    """The bytes of a stream that was read, or None."""
    return open_entry(entry_of(fingerprint, ByteTokenizer().identity()))


def documents_of(fingerprint: str) -> Iterator[Document]:
    """Its documents, one split after the other. Raises RunError when they are gone."""
    store = streamed_entry(fingerprint)
    if store is None:
        raise RunError(f"the cached text {fingerprint[:12]} is gone from {tokens_dir()}")
    for split in SPLITS:
        for i, name in enumerate(store.splits[split].ids):
            yield Document(name, store.document(split, i).tobytes(), split)


@contextlib.contextmanager
def reading_alone(key: str) -> Iterator[None]:
    """Other processes that want the same stream wait, and then find it read. Raises RunError."""
    try:
        with one_at_a_time(tokens_dir() / f"{key}.lock", "reading this corpus"):
            yield
    except OSError as error:
        raise cache_error(tokens_dir(), error) from error


def take_in(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Read a stream into the cache and return its figures (`Tally.figures`); needs `reading_alone(key)`.

    Raises UserError for wrong settings, RunError when the source or the disk fails; then nothing is left.
    """
    tokenizer, tally = ByteTokenizer(), Tally()
    try:
        with building(key) as folder:
            limit = stream_limit(data)
            hint = f"data.bytes=... reads less; {ELSEWHERE}"
            check_room(tokens_dir(), limit or 0, f"up to {(limit or 0) / 1e6:,.0f} MB of text", hint=hint)
            writer = EntryWriter(folder, tokenizer.vocab_size)
            try:
                for document in watched(
                    stream_documents(data),
                    f"reading {data['name']}",
                    most="" if limit is None else f" of at most {limit / 1e6:,.0f}",
                    part_of=lambda document: document.id.partition("/")[0],
                    always=True,
                ):
                    tally.add(document)
                    ids, sizes = tokenizer.encode(document.text)
                    writer.add(document.id, str(document.split), ids, sizes)
                figures = tally.figures()
                entry = entry_of(figures["fingerprint"], tokenizer.identity())
                writer.finish(data["name"], figures["fingerprint"], tokenizer)
            finally:
                writer.close()
            if open_entry(entry) is None:
                put_in_place(folder, entry)
    except OSError as error:
        raise cache_error(tokens_dir(), error) from error
    return figures
