"""Installed Python code as text. It is never imported."""

from __future__ import annotations

import importlib.util
import os
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from posenc.core.errors import UserError
from posenc.data.documents import Document, Notes
from posenc.data.sources.base import Source


@dataclass(frozen=True, kw_only=True)
class PackageSource(Source):
    """The `.py` files of an installed package; ids are paths inside it."""

    package: str
    exclude: list[str]  # patterns, in which `*` crosses slashes

    def read(self, notes: Notes) -> list[Document]:
        """Return a document a file. Raises UserError if there is no such package."""
        # the search itself would import the parents of a dotted name
        spec = importlib.util.find_spec(self.package) if self.package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            hint = "the name as in `import NAME`, without dots; install it with: python -m pip install NAME"
            raise UserError("data.package", self.package, "is not an installed Python package", hint=hint)
        return read_python_files(Path(spec.submodule_search_locations[0]), self.exclude, notes)


@dataclass(frozen=True, kw_only=True)
class StandardLibrarySource(Source):
    """The `.py` files of the running Python's own library; ids are paths inside it."""

    exclude: list[str]

    def read(self, notes: Notes) -> list[Document]:
        """Return a document a file."""
        return read_python_files(Path(sysconfig.get_paths()["stdlib"]), self.exclude, notes)


@dataclass(frozen=True, kw_only=True)
class PythonPackagesSource(Source):
    """The `.py` files of `site-packages`; ids are paths inside it."""

    exclude: list[str]

    def read(self, notes: Notes) -> list[Document]:
        """Return a document a text; of files with equal texts the one whose id sorts first."""
        documents = read_python_files(Path(sysconfig.get_paths()["purelib"]), self.exclude, notes)
        by_text: dict[bytes, Document] = {}
        for document in sorted(documents, key=lambda document: document.id):
            by_text.setdefault(document.text, document)
        return list(by_text.values())


def read_python_files(root: Path, exclude: Sequence[str], notes: Notes) -> list[Document]:
    """Return the non-empty UTF-8 `.py` files below `root` that no pattern excludes."""
    documents = []
    for path in _python_paths(root, exclude):
        try:
            text = path.read_bytes()
            text.decode("utf-8")
        except UnicodeDecodeError:  # Latin-1 does occur
            notes.left_out["not UTF-8"] += 1
            continue
        except OSError:
            notes.left_out["unreadable"] += 1
            continue
        if text:
            documents.append(Document(path.relative_to(root).as_posix(), text, None))
    return documents


def _python_paths(root: Path, exclude: Sequence[str]) -> Iterator[Path]:
    """Yield the files, without entering excluded folders; patterns are held against `/` + path below root."""

    def is_excluded(path: Path, end: str = "") -> bool:
        name = f"/{path.relative_to(root).as_posix()}{end}"
        return any(fnmatchcase(name, pattern) for pattern in exclude)

    for folder, subfolders, names in os.walk(root):
        subfolders[:] = [name for name in subfolders if not is_excluded(Path(folder, name), "/")]
        for name in names:
            path = Path(folder, name)
            if name.endswith(".py") and not is_excluded(path):
                yield path
