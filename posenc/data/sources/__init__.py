"""From the settings of the group `data` to documents with splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from posenc.core.errors import UserError, plural
from posenc.core.paths import choice_file, expanded, is_folder
from posenc.data.documents import Document, Notes, split_of
from posenc.data.sources.base import Source
from posenc.data.sources.files import FilesSource
from posenc.data.sources.hub import HubSource, StreamSource
from posenc.data.sources.installed_code import (
    DocstringsSource,
    PackageSource,
    PythonPackagesSource,
    StandardLibrarySource,
)
from posenc.data.sources.task import TaskSource
from posenc.data.tasks.instances import TaskInstances
from posenc.results.identity import own_yaml
from posenc.settings.signature import check_arguments
from posenc.settings.tree import DataSettings

# value of `source` in the YAML -> class
SOURCES: dict[str, type[Source]] = {
    "docstrings": DocstringsSource,
    "files": FilesSource,
    "hub": HubSource,
    "package": PackageSource,
    "python_packages": PythonPackagesSource,
    "stdlib": StandardLibrarySource,
    "stream": StreamSource,
    "task": TaskSource,
}
KEYS_OF_EVERY_CORPUS = ("source", "split")  # all others are parameters of the source
MISSING = "???"  # a YAML's mark for what the user has to give
WHOLE = {"validation": 0.0, "test": 1.0}  # the shares of a text that is only measured


def source_of(data: DataSettings) -> Source:
    """Return the source of a corpus, checked without reading anything. Raises UserError."""
    parameters = data.parameters
    name = parameters.get("source")
    if name not in SOURCES:
        raise UserError("data.source", name, "there is no such source", allowed=list(SOURCES))
    kind = SOURCES[name]
    values = {key: value for key, value in parameters.items() if key not in KEYS_OF_EVERY_CORPUS}
    for key, value in values.items():
        if value == MISSING:
            raise UserError(f"data.{key}", None, "must be given", hint=f"data.{key}=...")
    source = kind(**check_arguments(kind, values, "data"))
    _check_split(parameters.get("split"), source)
    source.check()
    return source


def _check_split(shares: object, source: Source) -> None:
    if source.is_streamed or not source.has_documents:
        if shares is not None:
            raise UserError("data.split", shares, "this corpus comes with splits of its own")
        return
    if shares != WHOLE and not _are_held_out_shares(shares):
        allowed = "{validation: SHARE, test: SHARE}, both above 0, with a sum below 1"
        raise UserError("data.split", shares, "cannot be used", allowed=allowed)


def _are_held_out_shares(shares: object) -> bool:
    if not isinstance(shares, Mapping) or set(shares) != {"validation", "test"}:
        return False
    return all(type(share) is float and share > 0 for share in shares.values()) and sum(shares.values()) < 1


def is_streamed(data: DataSettings) -> bool:
    """Tell whether the documents come over the network where they are not cached; check nothing else."""
    kind = SOURCES.get(str(data.parameters.get("source")))
    return kind is not None and kind.is_streamed


def pinned_identity(data: DataSettings) -> dict[str, Any] | None:
    """Return what identifies the text without reading it; None where only its fingerprint can."""
    return source_of(data).pinned_identity()


def is_task(data: DataSettings) -> bool:
    """Tell whether a corpus is a task, without text."""
    return SOURCES.get(str(data.parameters.get("source"))) is TaskSource


def task_instances(data: DataSettings) -> TaskInstances:
    """Return the instances of a task. Raises UserError."""
    source = source_of(data)
    assert isinstance(source, TaskSource)
    return source.instances()


def named_data(data: DataSettings) -> DataSettings:
    """Return the settings with the name that tells a task from others: runs of several are never one row."""
    if not is_task(data):
        return data
    source = source_of(data)
    assert isinstance(source, TaskSource)
    return data.with_changes(name=source.label)


def absolute_data(data: DataSettings) -> DataSettings:
    """Return the settings with local paths made absolute, so that they mean the same from another folder."""
    paths = data.parameters.get("paths")
    repository = data.parameters.get("repository")
    if isinstance(paths, str):
        return data.with_changes(paths=_absolute(paths))
    if isinstance(paths, list):
        return data.with_changes(paths=[_absolute(path) for path in paths])
    if isinstance(repository, str) and is_folder(repository):
        return data.with_changes(repository=_absolute(repository))
    return data


def measured_whole(data: DataSettings, *, by_default: bool) -> DataSettings:
    """Return the settings of a text that is only measured: `by_default` all of the user's own text is.

    Shares that differ from those of the corpus's YAML were asked for, and stay. `data.split.test=1` asks for
    all of any text. Corpora that come with posenc keep their test documents, which others are measured on.
    """
    shares = data.parameters.get("split")
    if not isinstance(shares, Mapping):
        return data
    kind = SOURCES.get(str(data.parameters.get("source")))
    path = choice_file("data", data.name)
    is_default = path is not None and shares == own_yaml(path)["split"]
    is_of_the_user = kind is not None and kind.is_of_the_user
    if shares.get("test") == 1 or (by_default and is_default and is_of_the_user):
        return data.with_changes(split=WHOLE)
    return data


def is_measured_whole(data: DataSettings) -> bool:
    """Tell whether every document of a text is a test document."""
    return data.parameters.get("split") == WHOLE


def _absolute(path: str) -> str:
    return str(expanded(path).absolute())


def read_documents(data: DataSettings, notes: Notes) -> list[Document]:
    """Return all documents of a corpus that hold more than white space, each with its split, by id."""
    source = source_of(data)
    documents = sorted(source.read(notes), key=lambda document: document.id)
    with_text = [document for document in documents if document.text and not document.text.decode().isspace()]
    notes.left_out["empty"] += len(documents) - len(with_text)
    if source.is_streamed:
        return with_text
    return _with_splits(with_text, data.parameters["split"], notes)


def _with_splits(documents: list[Document], shares: Mapping[str, float], notes: Notes) -> list[Document]:
    """Return the documents, each with the split of the first one that has its text."""
    split_of_text: dict[bytes, str] = {}
    assigned = []
    moved = 0
    for document in documents:
        by_id = split_of(document.id, shares)
        split = split_of_text.setdefault(document.text, by_id)
        moved += split != by_id
        assigned.append(replace(document, split=split))
    if moved:
        count = plural(moved, "document")
        notes.remarks.append(f"copies across splits: {count} moved to the split of the first copy")
    return assigned
