"""From the settings of the `data` group to documents: find the source, check its parameters, split."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from posenc.core.errors import UserError
from posenc.core.paths import expanded, is_folder
from posenc.core.signature import check_arguments
from posenc.data import files, hub, installed_code
from posenc.data.documents import Document, Notes, split_of

OWN_KEYS = {"name", "source", "split"}


@dataclass(frozen=True)
class Source:
    """A way to read a corpus: `read` takes notes, and its settings, keyword-only and typed."""

    read: Callable[..., Iterable[Document]]
    check: Callable[[dict[str, Any]], None] = lambda settings: None  # of values; raises UserError
    pinned_identity: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda settings: None
    streamed: bool = False  # from the hub: one by one in the order of their ids, with their splits


SOURCES = {
    "files": Source(files.read, check=files.check),
    "hub": Source(hub.read, pinned_identity=hub.pinned_identity, streamed=True),
    "package": Source(installed_code.read_package),
    "python_packages": Source(installed_code.read_python_packages),
    "stdlib": Source(installed_code.read_stdlib),
    "stream": Source(hub.stream, check=hub.check_stream, pinned_identity=hub.pinned_stream, streamed=True),
}


def check_data(data: Mapping[str, Any]) -> tuple[Source, dict[str, Any]]:
    """Return the source and the arguments of its `read`, without reading anything.

    Raises UserError for an unknown source, and for an unknown, missing or ill-typed key.
    """
    name = data.get("name")
    if not isinstance(name, str) or not name:
        raise UserError("data.name", name, "a corpus needs a name")
    source = _source(data)
    given = {key: value for key, value in data.items() if key not in OWN_KEYS}
    for key, value in given.items():
        if isinstance(value, str) and value == "???":
            raise UserError(f"data.{key}", None, "must be given", hint=f"data.{key}=...")
    arguments = check_arguments(source.read, given, "data")
    _check_split(data, source.streamed)
    source.check(arguments)
    return source, arguments


def _source(data: Mapping[str, Any]) -> Source:
    name = data.get("source")
    if not isinstance(name, str) or name not in SOURCES:
        raise UserError("data.source", name, "there is no such source", allowed=list(SOURCES))
    return SOURCES[name]


def absolute_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings with local paths made absolute, so that they mean the same from another folder."""
    paths, repository = data.get("paths"), data.get("repository")
    if isinstance(paths, str):
        return {**data, "paths": str(expanded(paths).absolute())}
    if isinstance(paths, list):
        return {**data, "paths": [str(expanded(path).absolute()) for path in paths]}
    if isinstance(repository, str) and is_folder(repository):
        return {**data, "repository": str(expanded(repository).absolute())}
    return dict(data)


def pinned_identity(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what names the text for good without reading it; None where the source cannot say."""
    source, arguments = check_data(data)
    return source.pinned_identity(arguments)


def read_documents(data: Mapping[str, Any], notes: Notes) -> Iterable[Document]:
    """Return all documents of a corpus that hold more than white space, each with its split, by id.

    Those of a stream come one by one. `notes` takes what is told about them. Raises UserError for wrong
    settings or unreadable input, RunError when a source is out of reach, of a stream also on the way.
    """
    source, arguments = check_data(data)
    found = source.read(notes, **arguments)
    if source.streamed:
        return found
    every = sorted(found, key=lambda document: document.id)
    documents = [d for d in every if d.text and not d.text.decode().isspace()]
    notes.not_read["empty"] += len(every) - len(documents)
    return _split(documents, data["split"], notes)


def _split(documents: list[Document], shares: Mapping[str, float], notes: Notes) -> list[Document]:
    """Return the documents, each with the split of the first one that has its text."""
    own = [split_of(d.id, shares) for d in documents]
    first: dict[bytes, str] = {}
    splits = [
        first.setdefault(hashlib.sha256(d.text).digest(), split)
        for d, split in zip(documents, own, strict=True)
    ]
    if moved := sum(a != b for a, b in zip(own, splits, strict=True)):
        notes.lines.append(f"copies across splits: {moved:,} documents moved to the split of the first copy")
    return [replace(d, split=split) for d, split in zip(documents, splits, strict=True)]


def is_streamed(data: Mapping[str, Any]) -> bool:
    """Return whether the documents come one by one, over the network where they are not cached."""
    return _source(data).streamed


def _check_split(data: Mapping[str, Any], own: bool) -> None:
    shares = data.get("split")
    if own and "split" in data:
        raise UserError("data.split", shares, "this corpus comes with splits of its own")
    valid = own or (
        isinstance(shares, Mapping)
        and set(shares) == {"validation", "test"}
        and all(type(share) is float and share > 0 for share in shares.values())
        and sum(shares.values()) < 1
    )
    if not valid:
        allowed = "{validation: SHARE, test: SHARE}, both above 0, with a sum below 1"
        raise UserError("data.split", shares, "cannot be used", allowed=allowed)
