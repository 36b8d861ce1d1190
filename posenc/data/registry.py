"""From the settings of the `data` group to documents: finds the source, checks its parameters, splits."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from posenc.core.errors import UserError
from posenc.core.paths import expanded, is_folder
from posenc.core.signature import check_arguments
from posenc.data.documents import Document, split_of

OWN_KEYS = {"name", "source", "split"}


def list_sources() -> list[str]:
    """What `data.source` may be: the modules of posenc.data.sources."""
    here = [str(Path(__file__).parent / "sources")]
    return sorted(module.name for module in pkgutil.iter_modules(here))


def check_data(data: Mapping[str, Any]) -> tuple[ModuleType, dict[str, Any]]:
    """The source's module and the arguments of its `read`, checked without reading anything.

    Raises UserError for an unknown source, and for an unknown, missing or ill-typed key.
    """
    name, source = data.get("name"), data.get("source")
    if not isinstance(name, str) or not name:
        raise UserError("data.name", name, "a corpus needs a name")
    if source not in list_sources():
        raise UserError("data.source", source, "there is no such source", allowed=list_sources())
    module = importlib.import_module(f"posenc.data.sources.{source}")
    given = {key: value for key, value in data.items() if key not in OWN_KEYS}
    missing = [key for key, value in given.items() if isinstance(value, str) and value == "???"]
    if missing:
        raise UserError(f"data.{missing[0]}", None, "must be given", hint=f"data.{missing[0]}=...")
    arguments = check_arguments(module.read, given, "data")
    _check_split(data, getattr(module, "OWN_SPLITS", False))
    if hasattr(module, "check"):
        module.check(**arguments)
    return module, arguments


def absolute_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """The settings with local paths made absolute, so that they mean the same from another folder."""
    paths, repository = data.get("paths"), data.get("repository")
    if isinstance(paths, str):
        return {**data, "paths": str(expanded(paths).absolute())}
    if isinstance(paths, list):
        return {**data, "paths": [str(expanded(path).absolute()) for path in paths]}
    if isinstance(repository, str) and is_folder(repository):
        return {**data, "repository": str(expanded(repository).absolute())}
    return dict(data)


def pinned_identity(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """What names the corpus for good without reading it, for sources that can say so; else None."""
    module, arguments = check_data(data)
    pinned = getattr(module, "pinned_identity", None)
    identity: dict[str, Any] | None = pinned(**arguments) if pinned else None
    return identity


def read_documents(data: Mapping[str, Any]) -> list[Document]:
    """All documents of a corpus, each with its split, sorted by id.

    `data` is the `data` group as plain values. Raises UserError for wrong settings or unreadable input,
    RunError when something it needs is out of reach.
    """
    module, arguments = check_data(data)
    documents: list[Document] = module.read(**arguments)
    if not getattr(module, "OWN_SPLITS", False):
        documents = [replace(d, split=split_of(d.id, data["split"])) for d in documents]
    return sorted(documents, key=lambda document: document.id)


def is_streamed(data: Mapping[str, Any]) -> bool:
    """Whether its source gives documents one by one, in the order of their ids, each with its split."""
    module, _ = check_data(data)
    return bool(getattr(module, "STREAMED", False))


def needs_network(data: Mapping[str, Any]) -> bool:
    """Whether it comes from somewhere else when it is not cached; asks nobody."""
    module = importlib.import_module(f"posenc.data.sources.{data['source']}")
    return bool(getattr(module, "NEEDS_NETWORK", False))


def stream_documents(data: Mapping[str, Any]) -> Iterator[Document]:
    """The documents of a streamed corpus. Raises as `read_documents`, some only on the way."""
    module, arguments = check_data(data)
    documents: Iterator[Document] = module.read(**arguments)
    return documents


def stream_limit(data: Mapping[str, Any]) -> int | None:
    """The most bytes of text that a stream takes from one split of the data set, if that is limited."""
    limit = data.get("bytes")
    return None if limit is None else int(limit)


def _fractions(*, validation: float, test: float) -> None:
    """The keys of `data.split`."""


def _check_split(data: Mapping[str, Any], own: bool) -> None:
    if own and "split" in data:
        raise UserError("data.split", data["split"], "this corpus comes with splits of its own")
    if own:
        return
    if not isinstance(data.get("split"), Mapping):
        raise UserError(
            "data.split", data.get("split"), "missing", allowed="{validation: SHARE, test: SHARE}"
        )
    shares = check_arguments(_fractions, data["split"], "data.split")
    for key, share in shares.items():
        if not 0 < share < 1:
            raise UserError(f"data.split.{key}", share, "out of range", allowed="a share between 0 and 1")
    if sum(shares.values()) >= 1:
        raise UserError(
            "data.split", dict(data["split"]), "leaves nothing to train on", allowed="a sum below 1"
        )
