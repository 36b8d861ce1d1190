"""What is known of a corpus before it is tokenised: sizes, splits, fingerprint, and whether it is enough."""

from __future__ import annotations

import hashlib
import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from posenc.core.atomic_files import check_room, digest_of, read_sealed, write_sealed
from posenc.core.errors import RunError, UserError
from posenc.core.paths import cache_dir, choice_files
from posenc.data import registry
from posenc.data.documents import SPLITS, Document, Fingerprint, fingerprint
from posenc.data.progress import ELSEWHERE, cache_lock, with_progress
from posenc.data.token_cache import TokenStore, build_entry, cached_tokens, entry_of, open_entry, tokens_dir
from posenc.data.tokenizers import ByteTokenizer, check_tokenizer

FACTS = 2  # raised when a source makes other documents of the same data, or a figure is added
FEW = 0.5  # share of the training text inside windows up to which the user is told
# the first line of a corpus's YAML: what it is (licence; size)
ABOUT = re.compile(r"#\s*(?P<description>.+?)\s*\((?P<licence>[^()]*);(?P<size>[^();]*)\)\s*")
log = logging.getLogger(__name__)


class Tally:
    """Count documents that are added in the order of their ids; none of them is kept."""

    def __init__(self) -> None:
        self._whole, self._train = Fingerprint(), Fingerprint()
        self._lengths: dict[str, list[int]] = {name: [] for name in SPLITS}
        self._texts: dict[str, set[bytes]] = {name: set() for name in SPLITS}

    def add(self, document: Document) -> None:
        split = str(document.split)
        self._whole.add(document)
        if split == "train":
            self._train.add(document)
        self._lengths[split].append(len(document.text))
        self._texts[split].add(hashlib.blake2b(document.text, digest_size=8).digest())

    def figures(self) -> dict[str, Any]:
        """Return as plain JSON the fields of `CorpusFacts` that follow from the text."""
        train = self._texts["train"]
        return {
            "fingerprint": self._whole.hexdigest(),
            "train_fingerprint": self._train.hexdigest(),
            "documents": {name: len(sizes) for name, sizes in self._lengths.items()},
            "bytes": {name: sum(sizes) for name, sizes in self._lengths.items()},
            "longest": {name: max(sizes, default=0) for name, sizes in self._lengths.items()},
            "holding": {name: _holding(sizes) for name, sizes in self._lengths.items()},
            "repeats": [name for name in SPLITS[1:] if self._texts[name] and self._texts[name] <= train],
        }


def _holding(sizes: list[int]) -> list[int]:
    """Count for k = 0, 1, ... the documents that hold a window of 2^k bytes and its last target."""
    longest = max(sizes, default=0)
    return [
        sum(size > 2**k for size in sizes) for k in range((longest - 1).bit_length() if longest > 1 else 0)
    ]


@dataclass
class CorpusFacts:
    """A corpus in figures, each per split.

    `identity` is plain JSON for the hash of a run. `loaded` keeps the documents between `inspect` and
    `prepare`, so that nothing is read twice; those of a stream lie on disk instead, as its bytes.
    """

    name: str
    fingerprint: str  # over all documents and their splits
    train_fingerprint: str  # over the training split: what a tokenizer is trained on
    documents: dict[str, int]
    bytes: dict[str, int]
    longest: dict[str, int]  # bytes of the longest document
    holding: dict[str, list[int]]  # [k]: documents that hold a window of 2^k bytes
    identity: dict[str, Any]
    data: dict[str, Any] = field(repr=False)
    repeats: list[str] = field(default_factory=list)  # splits whose texts are all in the training split
    loaded: list[Document] | None = field(default=None, repr=False)

    def fetch(self) -> None:
        """Read the text again where it was let go of or came from the cache of facts.

        Raises RunError when it has changed since, or is out of reach.
        """
        if registry.is_streamed(self.data):
            key = _key(self.data)
            with _stream_lock(key):
                if _stream_bytes(self.fingerprint) is None:
                    self._check_same(_read_stream(self.data, key)["fingerprint"])
        elif self.loaded is None:
            documents = registry.read_documents(self.data)
            self._check_same(fingerprint(documents))
            self.loaded = documents

    def read(self) -> Iterable[Document]:
        """Return the documents, one split after the other and by id within it. Raises as `fetch`."""
        self.fetch()
        if self.loaded is None:
            return _stream_documents(self.fingerprint)
        return sorted(self.loaded, key=lambda d: (SPLITS.index(str(d.split)), d.id))

    def reaching(self, split: str, window: int) -> int:
        """Count the documents of a split that hold a window of so many bytes. Raises as `fetch`.

        Powers of two are among the figures; other windows need the text.
        """
        counts, power = self.holding[split], window.bit_length() - 1
        if power >= len(counts) or window == 2**power:
            return counts[power] if power < len(counts) else 0
        store = _stream_bytes(self.fingerprint) if self.loaded is None else None
        if store is not None:
            return int((store.splits[split].lengths > window).sum())
        return sum(len(document.text) > window for document in self.read() if document.split == split)

    def _check_same(self, found: str) -> None:
        if found != self.fingerprint:
            raise RunError(f"the text of {self.name} has changed since it was first read")


def read_facts(data: Mapping[str, Any]) -> CorpusFacts:
    """Return the facts of a corpus; those of a pinned one come from the cache, without loading it again.

    Raises UserError for wrong settings or unreadable input, RunError when a source is out of reach.
    """
    pinned = registry.pinned_identity(data)
    known, loaded = known_figures(pinned), None
    if known is None and registry.is_streamed(data):
        with _stream_lock(_key(data)):
            known = known_figures(pinned)  # another process may have read it while this one waited
            if known is None:
                known = _read_stream(data, _key(data))
                _remember(data, pinned, known)
    elif known is None:
        loaded = registry.read_documents(data)
        tally = Tally()
        for document in loaded:
            tally.add(document)
        known = tally.figures()
        _remember(data, pinned, known)
    identity = pinned or {"name": data["name"], "fingerprint": known["fingerprint"]}
    return CorpusFacts(name=data["name"], identity=identity, data=dict(data), loaded=loaded, **known)


def known_figures(pinned: dict[str, Any] | None) -> dict[str, Any] | None:
    """Return the cached figures of a pinned corpus, if any."""
    return None if pinned is None else read_sealed(_figures_file(pinned))


def _remember(data: Mapping[str, Any], pinned: dict[str, Any] | None, figures: dict[str, Any]) -> None:
    if pinned is not None:
        path = _figures_file(pinned)
        try:
            write_sealed(path, figures)
        except OSError as error:
            log.warning("cannot cache the facts of %s in %s: %s", data["name"], path.parent, error.strerror)


def _figures_file(pinned: dict[str, Any]) -> Path:
    return cache_dir() / "identity" / f"{digest_of([FACTS, pinned])}.json"


# A stream is read once, onto the disk as an entry of bytes: memory stays small, and every tokenizer
# reads the bytes from there.
def _key(data: Mapping[str, Any]) -> str:
    return digest_of([FACTS, registry.pinned_identity(data) or dict(data)])


def _stream_lock(key: str) -> Any:
    return cache_lock(tokens_dir() / f"{key}.lock", "reading this corpus")


def _stream_bytes(found: str) -> TokenStore | None:
    return open_entry(entry_of(found, ByteTokenizer().identity()))


def _stream_documents(found: str) -> Iterator[Document]:
    store = _stream_bytes(found)
    if store is None:
        raise RunError(f"the cached text {found[:12]} is gone from {tokens_dir()}")
    for split in SPLITS:
        for i, name in enumerate(store.splits[split].ids):
            yield Document(name, store.document(split, i).tobytes(), split)


def _read_stream(data: Mapping[str, Any], key: str) -> dict[str, Any]:
    """Read a stream into the cache and return its figures; needs the lock of `key`."""
    limit = data.get("bytes")
    megabytes = f"{(limit or 0) / 1e6:,.0f}"
    tokenizer, tally = ByteTokenizer(), Tally()
    with build_entry(key, tokenizer) as writer:
        hint = f"data.bytes=... reads less; {ELSEWHERE}"
        check_room(tokens_dir(), int(limit or 0), f"up to {megabytes} MB of text", hint=hint)
        most = "" if limit is None else f" of at most {megabytes}"
        documents = registry.stream_documents(data)
        for document in with_progress(documents, f"reading {data['name']}", most, by_split=True):
            tally.add(document)
            writer.add(document.id, str(document.split), *tokenizer.encode(document.text))
        figures = tally.figures()
        writer.finish(data["name"], figures["fingerprint"])
    return figures


def inspect(
    data: Mapping[str, Any],
    tokenizer: Mapping[str, Any],
    *,
    split: str,
    needed_tokens: int,
    context_length: int | None,
) -> CorpusFacts:
    """Check everything about a corpus that needs no tokens, and return its facts.

    `split` is the one to evaluate on, `needed_tokens` the longest window there + 1; without `context_length`
    only that split is checked. A document has at most as many tokens as bytes, so what is refused here cannot
    work; `check_lengths` is the exact test. Raises UserError for wrong settings, an empty split, a split that
    repeats the training text, or documents that are too short.
    """
    check_tokenizer(tokenizer)
    facts = read_facts(data)
    for each in SPLITS if context_length is not None else (split,):
        if not facts.documents[each]:
            counts = ", ".join(f"{name} {facts.documents[name]}" for name in SPLITS)
            raise UserError(
                "data",
                facts.name,
                f"the {each} split is empty (documents: {counts})",
                hint="splits hold whole documents, drawn by a hash of their names: give more files, "
                "one JSON line a chapter,\nor larger shares in data.split",
            )
    if context_length is not None and split in facts.repeats:
        raise UserError(
            "data",
            facts.name,
            f"every document of the {split} split holds the same text as one of the training split",
            hint="give documents that differ",
        )
    unit = "tokens" if tokenizer["name"] == "bytes" else "bytes"
    _check(facts.longest, split, needed_tokens, context_length, unit)
    return facts


def check_lengths(store: TokenStore, *, split: str, needed_tokens: int, context_length: int | None) -> None:
    """Check the lengths of `inspect` exactly, in tokens. Raises UserError."""
    longest = {name: int(some.lengths.max(initial=0)) for name, some in store.splits.items()}
    _check(longest, split, needed_tokens, context_length, "tokens")


def left_out_of_training(store: TokenStore, context_length: int) -> str | None:
    """Return a note where most of the training text is in documents shorter than a window; else None."""
    lengths = store.splits["train"].lengths
    fits = lengths > context_length
    share = int(lengths[fits].sum()) / max(1, int(lengths.sum()))
    if share > FEW:
        return None
    return (
        f"only {int(fits.sum()):,} of {len(lengths):,} training documents are longer than {context_length} "
        f"tokens, {share:.0%} of the text: nothing else is trained on"
    )


def _check(
    longest: Mapping[str, int], split: str, needed_tokens: int, context_length: int | None, unit: str
) -> None:
    checks = [("eval.lengths", split, needed_tokens)]
    if context_length is not None:  # a window of n inputs has n targets, one place further on
        checks.insert(0, ("context_length", "train", context_length + 1))
    for key, name, needed in checks:
        have = longest[name]
        if have < needed:
            raise UserError(
                key,
                needed - 1,
                f"no document of the {name} split is that long: the longest has {have} {unit}",
                hint=f"the longest that works is {have - 1}"
                + (" or less, as a token may stand for several bytes" if unit == "bytes" else ""),
            )


def list_corpora() -> list[dict[str, Any]]:
    """Return a row for each choice of `data`: what it is, whether it needs a network, what is cached."""
    rows = []
    for name, path in choice_files("data").items():
        text = path.read_text(encoding="utf-8")
        first = text.split("\n", 1)[0]
        about = ABOUT.fullmatch(first)
        settings = yaml.safe_load(text)
        rows.append(
            {
                "name": name,
                "description": about["description"] if about else first.removeprefix("#").strip(),
                "licence": about["licence"].strip() if about else "",
                "size": about["size"].strip() if about else "",
                "source": str(settings["source"]),
                "network": registry.needs_network(settings),
                "cached": cached_of(settings),
            }
        )
    return rows


def cached_of(data: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cached tokens of a corpus; of a pinned one at this revision and limit only."""
    try:
        pinned = registry.pinned_identity(data)
    except (UserError, RunError):  # incomplete (data.paths), or a branch that nobody can resolve now
        pinned = None
    figures = known_figures(pinned)
    if pinned is not None and figures is None:
        return []
    if figures is not None:  # whoever tokenised the text, and under whatever name
        return [row for row in cached_tokens() if row["fingerprint"] == figures["fingerprint"]]
    return [row for row in cached_tokens() if row["corpus"] == data["name"]]
