"""From the settings of the `data` group to documents: find the source, check its parameters, split.

A source is a module of posenc.data.sources with `read(**settings)`. It may define OWN_SPLITS (documents come
with their split), STREAMED (one by one, in the order of their ids), NEEDS_NETWORK, `check(settings)` and
`pinned_identity(settings)`.
"""

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


def check_data(data: Mapping[str, Any]) -> tuple[ModuleType, dict[str, Any]]:
    """Return the source's module and the arguments of its `read`, without reading anything.

    Raises UserError for an unknown source, and for an unknown, missing or ill-typed key.
    """
    sources = sorted(module.name for module in pkgutil.iter_modules([str(Path(__file__).parent / "sources")]))
    name, source = data.get("name"), data.get("source")
    if not isinstance(name, str) or not name:
        raise UserError("data.name", name, "a corpus needs a name")
    if source not in sources:
        raise UserError("data.source", source, "there is no such source", allowed=sources)
    module = importlib.import_module(f"posenc.data.sources.{source}")
    given = {key: value for key, value in data.items() if key not in OWN_KEYS}
    for key, value in given.items():
        if isinstance(value, str) and value == "???":
            raise UserError(f"data.{key}", None, "must be given", hint=f"data.{key}=...")
    arguments = check_arguments(module.read, given, "data")
    _check_split(data, getattr(module, "OWN_SPLITS", False))
    if hasattr(module, "check"):
        module.check(arguments)
    return module, arguments


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
    module, arguments = check_data(data)
    identity: dict[str, Any] | None = None
    if hasattr(module, "pinned_identity"):
        identity = module.pinned_identity(arguments)
    return identity


def read_documents(data: Mapping[str, Any]) -> list[Document]:
    """Return all documents of a corpus, each with its split, sorted by id.

    Raises UserError for wrong settings or unreadable input, RunError when a source is out of reach.
    """
    module, arguments = check_data(data)
    documents: list[Document] = module.read(**arguments)
    if not getattr(module, "OWN_SPLITS", False):
        documents = [replace(d, split=split_of(d.id, data["split"])) for d in documents]
    return sorted(documents, key=lambda document: document.id)


def stream_documents(data: Mapping[str, Any]) -> Iterator[Document]:
    """Yield the documents of a streamed corpus. Raises as `read_documents`, some only on the way."""
    module, arguments = check_data(data)
    yield from module.read(**arguments)


def is_streamed(data: Mapping[str, Any]) -> bool:
    """Return whether the source yields documents one by one."""
    return bool(getattr(check_data(data)[0], "STREAMED", False))


def needs_network(data: Mapping[str, Any]) -> bool:
    """Return whether the text comes from a network when it is not cached; asks nobody."""
    module = importlib.import_module(f"posenc.data.sources.{data['source']}")
    return bool(getattr(module, "NEEDS_NETWORK", False))


def _fractions(*, validation: float, test: float) -> None:
    """Declare the keys of `data.split`."""


def _check_split(data: Mapping[str, Any], own: bool) -> None:
    shares = data.get("split")
    if own:
        if "split" in data:
            raise UserError("data.split", shares, "this corpus comes with splits of its own")
        return
    if not isinstance(shares, Mapping):
        raise UserError("data.split", shares, "missing", allowed="{validation: SHARE, test: SHARE}")
    for key, share in check_arguments(_fractions, shares, "data.split").items():
        if not 0 < share < 1:
            raise UserError(f"data.split.{key}", share, "out of range", allowed="a share between 0 and 1")
    if sum(shares.values()) >= 1:
        raise UserError("data.split", dict(shares), "leaves nothing to train on", allowed="a sum below 1")
