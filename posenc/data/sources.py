"""From the settings of the `data` group to documents; sources of installed Python code, never imported."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from posenc.core.errors import UserError
from posenc.core.paths import expanded, is_folder
from posenc.core.signature import check_arguments
from posenc.data import files, hub
from posenc.data.documents import Document, Notes, number_of, split_of

OWN_KEYS = {"name", "source", "split", "plant"}


def read_package(notes: Notes, /, *, package: str, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of an installed package; ids are paths inside it. Raises UserError."""
    # the parents of a dotted name would be imported by the search itself
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        hint = "the name as in `import NAME`, without dots; install it with: python -m pip install NAME"
        raise UserError("data.package", package, "is not an installed Python package", hint=hint)
    return _read_tree(Path(spec.submodule_search_locations[0]), exclude, notes)


def read_stdlib(notes: Notes, /, *, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of the running Python's own library; ids are paths inside it."""
    return _read_tree(Path(sysconfig.get_paths()["stdlib"]), exclude, notes)


def read_python_packages(notes: Notes, /, *, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of `site-packages`; equal texts are kept once, under the id that sorts first."""
    found = _read_tree(Path(sysconfig.get_paths()["purelib"]), exclude, notes)
    # by id backwards: of equal texts the last one put in stays
    return list({d.text: d for d in sorted(found, key=lambda one: one.id, reverse=True)}.values())


def _read_tree(root: Path, exclude: list[str], notes: Notes) -> list[Document]:
    """Return the non-empty UTF-8 `.py` files below `root`; a `*` in `exclude` crosses slashes."""

    def wanted(path: Path, end: str = "") -> bool:
        name = f"/{path.relative_to(root).as_posix()}{end}"
        return not any(fnmatchcase(name, pattern) for pattern in exclude)

    found = []
    for here, folders, names in os.walk(root):
        folders[:] = [name for name in folders if wanted(Path(here, name), "/")]
        for path in (Path(here, name) for name in names if name.endswith(".py")):
            if not wanted(path):
                continue
            try:
                text = path.read_bytes()
                text.decode("utf-8")
            except (OSError, UnicodeDecodeError) as error:  # Latin-1 does occur
                notes.not_read["not UTF-8" if isinstance(error, UnicodeDecodeError) else "unreadable"] += 1
                continue
            if text:
                found.append(Document(path.relative_to(root).as_posix(), text, None))
    return found


# What reads a corpus, from notes to fill in and the settings, keyword-only and typed
SOURCES: dict[str, Callable[..., Iterable[Document]]] = {
    "files": files.read,
    "hub": hub.read,
    "package": read_package,
    "python_packages": read_python_packages,
    "stdlib": read_stdlib,
    "stream": hub.stream,
}


def check_data(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of the source, checked without reading anything. Raises UserError."""
    source = data.get("source")
    if source not in SOURCES:
        raise UserError("data.source", source, "there is no such source", allowed=list(SOURCES))
    given = {key: value for key, value in data.items() if key not in OWN_KEYS}
    for key in (key for key, value in given.items() if value == "???"):
        raise UserError(f"data.{key}", None, "must be given", hint=f"data.{key}=...")
    arguments = check_arguments(SOURCES[source], given, "data")
    shares = data.get("split")
    if is_streamed(data):
        if shares is not None:
            raise UserError("data.split", shares, "this corpus comes with splits of its own")
        hub.check(arguments)
    elif not (
        isinstance(shares, Mapping)
        and set(shares) == {"validation", "test"}
        and all(type(share) is float and share > 0 for share in shares.values())
        and sum(shares.values()) < 1
    ):
        allowed = "{validation: SHARE, test: SHARE}, both above 0, with a sum below 1"
        raise UserError("data.split", shares, "cannot be used", allowed=allowed)
    return arguments


def is_streamed(data: Mapping[str, Any]) -> bool:
    """Return whether the documents come over the network where they are not cached."""
    return data.get("source") in ("hub", "stream")


def pinned_identity(data: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what identifies the text without reading it; None where only its fingerprint can."""
    arguments = check_data(data)
    return hub.pinned_identity(arguments) if is_streamed(data) else None


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


def read_documents(data: Mapping[str, Any], notes: Notes) -> list[Document]:
    """Return all documents of a corpus that hold more than white space, each with its split, by id."""
    arguments = check_data(data)
    every = sorted(SOURCES[data["source"]](notes, **arguments), key=lambda document: document.id)
    documents = [d for d in every if d.text and not d.text.decode().isspace()]
    notes.not_read["empty"] += len(every) - len(documents)
    return documents if is_streamed(data) else _split(documents, data["split"], notes)


def _split(documents: list[Document], shares: Mapping[str, float], notes: Notes) -> list[Document]:
    """Return the documents, each with the split of the first one that has its text."""
    own, first = [split_of(d.id, shares) for d in documents], dict[bytes, str]()
    splits = [first.setdefault(d.text, split) for d, split in zip(documents, own, strict=True)]
    if moved := sum(a != b for a, b in zip(own, splits, strict=True)):
        what = number_of(moved, "document")
        notes.lines.append(f"copies across splits: {what} moved to the split of the first copy")
    return [replace(d, split=split) for d, split in zip(documents, splits, strict=True)]
