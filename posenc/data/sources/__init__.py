"""Turn the settings of the group `data` into documents with splits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from posenc.core.errors import UserError, plural
from posenc.core.paths import absolute_path, is_folder
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
from posenc.settings.signature import check_arguments
from posenc.settings.tree import DataSettings

# From values of `source` in the YAML to classes.
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
MISSING = "???"  # in a YAML, the mark of a value that the user has to give
WHOLE = {"validation": 0.0, "test": 1.0}  # the shares of a text that is only measured, and all of it


def source_of(data: DataSettings) -> Source:
    """Return the source of a corpus, checked as far as that is possible without reading. Raises UserError."""
    parameters = data.parameters
    name = parameters.get("source")
    if name not in SOURCES:
        raise UserError("data.source", name, "there is no such source", allowed=list(SOURCES))
    source_class = SOURCES[name]
    values = {key: value for key, value in parameters.items() if key not in KEYS_OF_EVERY_CORPUS}
    for key, value in values.items():
        # Before types are checked, which would call `???` a wrong type and not a missing value.
        if value == MISSING:
            raise UserError(f"data.{key}", None, "must be given", hint=f"data.{key}=...")
    # By the fields of the class, so that a new source brings its settings along.
    source = source_class(**check_arguments(source_class, values, "data"))
    _check_split(parameters.get("split"), source)
    source.check()
    return source


def _check_split(shares: object, source: Source) -> None:
    """Raise UserError for shares of splits that this source does not allow."""
    if source.is_streamed or not source.has_documents:
        if shares is not None:
            raise UserError("data.split", shares, "this corpus comes with splits of its own")
        return
    if not _measures_all(shares) and not _are_held_out_shares(shares):
        allowed = "{validation: SHARE, test: SHARE}, both above 0, with a sum below 1"
        raise UserError("data.split", shares, "cannot be used", allowed=allowed)


def _measures_all(shares: object) -> bool:
    """Tell whether all of a text is measured."""
    return shares == WHOLE and not any(isinstance(share, bool) for share in shares.values())


def _are_held_out_shares(shares: object) -> bool:
    """Tell whether a setting gives a share to validation and to test, and leaves some for training."""
    if not isinstance(shares, Mapping) or set(shares) != {"validation", "test"}:
        return False
    # `true` is no share, and a whole number cannot be one: 0 and 1 are both refused.
    are_positive = all(type(share) is float and share > 0 for share in shares.values())
    return are_positive and sum(shares.values()) < 1


def is_streamed(data: DataSettings) -> bool:
    """Tell whether the documents come over the network unless they are cached. Nothing is checked."""
    source_class = SOURCES.get(str(data.parameters.get("source")))
    return source_class is not None and source_class.is_streamed


def pinned_identity(data: DataSettings) -> dict[str, Any] | None:
    """Return what identifies the text without reading it; None if only its fingerprint can."""
    return source_of(data).pinned_identity()


def is_task(data: DataSettings) -> bool:
    """Tell whether a corpus is a task, which has no text."""
    # Without building the source, since settings may be asked before they are checked.
    return SOURCES.get(str(data.parameters.get("source"))) is TaskSource


def task_instances(data: DataSettings) -> TaskInstances:
    """Return the instances of a task. Raises UserError."""
    source = source_of(data)
    assert isinstance(source, TaskSource)
    return source.instances()


def named_data(data: DataSettings) -> DataSettings:
    """Return the settings; the name of a task has its options, so that different tasks are different rows."""
    if not is_task(data):
        return data
    source = source_of(data)
    assert isinstance(source, TaskSource)
    return data.with_changes(name=source.label)


def absolute_data(data: DataSettings) -> DataSettings:
    """Return the settings with local paths made absolute, so that they mean the same from any folder.

    Nothing is checked. An empty path stays empty, so that it can be refused, and is not the working folder.
    """
    paths = data.parameters.get("paths")
    repository = data.parameters.get("repository")
    if isinstance(paths, str):
        return data.with_changes(paths=_absolute(paths))
    if isinstance(paths, list):
        return data.with_changes(paths=[_absolute(path) for path in paths])
    # A name of the hub looks like a relative path. Only a folder that exists is taken for one.
    if isinstance(repository, str) and is_folder(repository):
        return data.with_changes(repository=_absolute(repository))
    return data


def asks_for_whole(data: DataSettings) -> bool:
    """Tell whether the shares of a text ask for all of it to be measured: `data.split.test=1`."""
    shares = data.parameters.get("split")
    if not isinstance(shares, Mapping):
        return False
    test_share = shares.get("test")
    return test_share == 1 and not isinstance(test_share, bool)  # to Python True is 1


def is_of_the_user(data: DataSettings) -> bool:
    """Tell whether a text is the user's own, whatever its name. Nothing is checked."""
    source_class = SOURCES.get(str(data.parameters.get("source")))
    return source_class is not None and source_class.is_of_the_user


def measured_whole(data: DataSettings) -> DataSettings:
    """Return the settings of a text that is only measured, with every document a test document."""
    return data.with_changes(split=WHOLE)


def is_measured_whole(data: DataSettings) -> bool:
    """Tell whether every document of a text is a test document."""
    return data.parameters.get("split") == WHOLE


def _absolute(path: str) -> str:
    return absolute_path(path) if path.strip() else path


def read_documents(data: DataSettings, notes: Notes) -> list[Document]:
    """Return the documents of a corpus in the order of their ids, each with its split.

    Documents with nothing but white space are left out.
    """
    source = source_of(data)
    # The order of the file system differs between machines. Fingerprint and tokens must not.
    documents = sorted(source.read(notes), key=lambda document: document.id)
    with_text = []
    for document in documents:
        # By characters and not by bytes, since some white space has several bytes in UTF-8.
        is_blank = not document.text or document.text.decode().isspace()
        if not is_blank:
            with_text.append(document)
    notes.left_out["empty"] += len(documents) - len(with_text)
    # Such a source has given each document its split.
    if source.is_streamed:
        return with_text
    return _with_splits(with_text, data.parameters["split"], notes)


def _with_splits(documents: list[Document], shares: Mapping[str, float], notes: Notes) -> list[Document]:
    """Return the documents, each with its split. Copies of a text are in the split of the first copy."""
    # A copy in another split would have a model tested on a text that it was trained on.
    split_of_text: dict[bytes, str] = {}
    with_splits = []
    n_moved = 0
    for document in documents:
        split_by_id = split_of(document.id, shares)
        split = split_of_text.setdefault(document.text, split_by_id)
        n_moved += split != split_by_id
        with_splits.append(replace(document, split=split))
    if n_moved:
        count = plural(n_moved, "document")
        notes.remarks.append(f"copies across splits: {count} moved to the split of the first copy")
    return with_splits
