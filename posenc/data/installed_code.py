"""Sources of installed Python code, read and never imported: a package, the standard library, everything."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sysconfig
from fnmatch import fnmatchcase
from importlib.metadata import distributions
from pathlib import Path

from posenc.core.errors import UserError
from posenc.data.documents import Document, Notes


def read_package(notes: Notes, /, *, package: str, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of an installed package; ids are paths inside it, with forward slashes.

    Raises UserError when no such package is installed.
    """
    # the parents of a dotted name would be imported by the search itself
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        hint = "the name as in `import NAME`, without dots; install it with: python -m pip install NAME"
        raise UserError("data.package", package, "is not an installed Python package", hint=hint)
    found = [
        d for folder in spec.submodule_search_locations for d in _read_tree(Path(folder), exclude, notes)
    ]
    return list({document.id: document for document in found}.values())


def read_stdlib(notes: Notes, /, *, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of the running Python's own library; ids are paths inside it."""
    return _read_tree(Path(sysconfig.get_paths()["stdlib"]), exclude, notes)


def read_python_packages(notes: Notes, /, *, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of all installed distributions; ids are paths as in `site-packages`.

    A text that occurs more than once (vendored copies, empty `__init__` files) is kept once, under the id
    that sorts first.
    """
    paths: dict[str, Path] = {}
    for distribution in distributions():
        for file in distribution.files or []:
            name = file.as_posix()
            # "../" leads to scripts and data outside the packages
            if file.suffix == ".py" and not name.startswith((".", "/")) and not _excluded(name, exclude):
                paths.setdefault(name, Path(str(file.locate())))
    first: dict[bytes, Document] = {}
    for name in sorted(paths):
        if text := _read_code(paths[name], notes):
            first.setdefault(hashlib.sha256(text).digest(), Document(name, text, None))
    return list(first.values())


def _read_tree(root: Path, exclude: list[str], notes: Notes) -> list[Document]:
    """Return the non-empty UTF-8 `.py` files below `root`; ids are paths inside it."""
    found = []
    for folder, subfolders, files in os.walk(root):
        inside = Path(folder).relative_to(root).as_posix() + "/"
        here = "" if inside == "./" else inside
        subfolders[:] = [name for name in subfolders if not _excluded(f"{here}{name}/", exclude)]
        for name in files:
            wanted = name.endswith(".py") and not _excluded(here + name, exclude)
            if wanted and (text := _read_code(Path(folder, name), notes)):
                found.append(Document(here + name, text, None))
    return found


def _excluded(name: str, patterns: list[str]) -> bool:
    """Return whether a pattern fits `/` + name; `*` crosses slashes, so `*/tests/*` fits at any depth.

    A folder's name ends in a slash, so that a pattern for all it holds fits the folder too.
    """
    return any(fnmatchcase("/" + name, pattern) for pattern in patterns)


def _read_code(path: Path, notes: Notes) -> bytes:
    """Return a source file's bytes; none when it cannot be read or is not UTF-8 (Latin-1 does occur)."""
    try:
        text = path.read_bytes()
        text.decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        notes.not_read["not UTF-8" if isinstance(error, UnicodeDecodeError) else "unreadable"] += 1
        return b""
    return text
