"""Installed code as text, and the docstrings in it. The code is read, and never imported."""

from __future__ import annotations

import ast
import importlib.util
import os
import sysconfig
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from posenc.core.errors import UserError
from posenc.data.documents import Document, Notes
from posenc.data.sources.base import Source

PYTHON_FILES = ("*.py",)
# the nodes that can have a docstring
WITH_DOCSTRING = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@dataclass(frozen=True, kw_only=True)
class PackageSource(Source):
    """Files of an installed package. Ids are paths inside it."""

    package: str
    # patterns of paths, in which `*` also stands for slashes; older stored runs do not have this key
    include: list[str] = field(default_factory=lambda: list(PYTHON_FILES))
    exclude: list[str]

    def read(self, notes: Notes) -> list[Document]:
        """Return a document for each file. Raises UserError if there is no such package."""
        return read_files(self._folder(), self.include, self.exclude, notes)

    def _folder(self) -> Path:
        """Return the folder of the package. Raises UserError if it is not installed."""
        # find_spec would import the parents of a name with dots
        spec = importlib.util.find_spec(self.package) if self.package.isidentifier() else None
        if spec is None or not spec.submodule_search_locations:
            hint = "the name as in `import NAME`, without dots; install it with: python -m pip install NAME"
            raise UserError("data.package", self.package, "is not an installed Python package", hint=hint)
        return Path(spec.submodule_search_locations[0])


@dataclass(frozen=True, kw_only=True)
class DocstringsSource(PackageSource):
    """The docstrings of an installed package. Ids are paths inside it."""

    def read(self, notes: Notes) -> list[Document]:
        """Return a document for each file with docstrings. Raises UserError if there is no such package."""
        documents = []
        for file in super().read(notes):
            text = docstrings_of(file.text)
            if text is None:
                notes.left_out["not Python"] += 1
            elif text:
                documents.append(Document(file.id, text.encode(), None))
        return documents


def docstrings_of(code: bytes) -> str | None:
    """Return the docstrings of a Python file in their order; None if it is not Python."""
    try:
        # Code with `\d` in a string that is not raw makes one of these warnings, depending on the Python.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", SyntaxWarning)
            warnings.simplefilter("ignore", DeprecationWarning)
            tree = ast.parse(code)
    except (SyntaxError, ValueError):
        return None
    # ast.walk goes level by level, so the docstrings are sorted by line
    nodes = [node for node in ast.walk(tree) if isinstance(node, WITH_DOCSTRING)]
    nodes.sort(key=_line_of)
    docstrings = [ast.get_docstring(node) for node in nodes]
    texts = [docstring for docstring in docstrings if docstring]
    return "\n\n".join(texts) + "\n" if texts else ""


def _line_of(node: ast.AST) -> int:
    """Return the line of a node; 0 for a module, whose docstring comes first."""
    return getattr(node, "lineno", 0)


@dataclass(frozen=True, kw_only=True)
class StandardLibrarySource(Source):
    """The `.py` files of the running Python's own library. Ids are paths inside it."""

    exclude: list[str]

    def read(self, notes: Notes) -> list[Document]:
        """Return a document for each file."""
        # Not by `sys.path`, which a user may extend.
        return read_files(Path(sysconfig.get_paths()["stdlib"]), PYTHON_FILES, self.exclude, notes)


@dataclass(frozen=True, kw_only=True)
class PythonPackagesSource(Source):
    """The `.py` files of `site-packages`. Ids are paths inside it."""

    exclude: list[str]

    def read(self, notes: Notes) -> list[Document]:
        """Return a document for each text. Of several files with one text, the first by its id is taken."""
        documents = read_files(Path(sysconfig.get_paths()["purelib"]), PYTHON_FILES, self.exclude, notes)
        # Packages carry copies of each other. One copy in training and one in test would test what was
        # learned.
        by_text: dict[bytes, Document] = {}
        for document in sorted(documents, key=lambda document: document.id):
            by_text.setdefault(document.text, document)
        return list(by_text.values())


def read_files(root: Path, include: Sequence[str], exclude: Sequence[str], notes: Notes) -> list[Document]:
    """Return the non-empty UTF-8 files below `root` that a pattern includes and none excludes."""
    documents = []
    for path in _paths(root, include, exclude):
        try:
            text = path.read_bytes()
            # Only to find out whether it is UTF-8: documents hold bytes.
            text.decode("utf-8")
        except UnicodeDecodeError:  # some files are in Latin-1
            notes.left_out["not UTF-8"] += 1
            continue
        except OSError:
            notes.left_out["unreadable"] += 1
            continue
        if text:
            documents.append(Document(path.relative_to(root).as_posix(), text, None))
    return documents


def _paths(root: Path, include: Sequence[str], exclude: Sequence[str]) -> Iterator[Path]:
    """Yield the files below `root`. Patterns are compared with paths such as `/folder/file.py`.

    A folder is compared with a slash at its end. Excluded folders are not entered.
    """

    def matches(name: str, patterns: Sequence[str]) -> bool:
        """Tell whether any pattern fits a name."""
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    # Names are joined as text: objects of pathlib took a third of the time that reading SymPy takes.
    for folder, subfolders, file_names in os.walk(root):
        inside = Path(folder).relative_to(root).as_posix()
        prefix = "/" if inside == "." else f"/{inside}/"
        # In place, since `os.walk` enters the folders that are left in this very list.
        subfolders[:] = [name for name in subfolders if not matches(f"{prefix}{name}/", exclude)]
        for name in file_names:
            if matches(prefix + name, include) and not matches(prefix + name, exclude):
                yield Path(folder, name)
