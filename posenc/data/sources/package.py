"""`source: package`: the source text of one installed Python package, read and never imported."""

from __future__ import annotations

import importlib.util
import os
from fnmatch import fnmatchcase
from pathlib import Path

from posenc.core.errors import UserError
from posenc.data.documents import Document


def read(*, package: str, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of an installed package; ids are paths inside it, with forward slashes.

    Raises UserError when no such package is installed.
    """
    # the parents of a dotted name would be imported by the search itself
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(
            "data.package",
            package,
            "is not an installed Python package",
            hint="the name as in `import NAME`, without dots; install it with: python -m pip install NAME",
        )
    folders = [Path(folder) for folder in spec.submodule_search_locations]
    documents = [document for folder in folders for document in read_tree(folder, exclude)]
    return sorted({document.id: document for document in documents}.values(), key=lambda d: d.id)


def read_tree(root: Path, exclude: list[str]) -> list[Document]:
    """Return the non-empty UTF-8 `.py` files below `root`; ids are paths inside it."""
    found = []
    for folder, subfolders, files in os.walk(root):
        inside = Path(folder).relative_to(root).as_posix() + "/"
        here = "" if inside == "./" else inside
        subfolders[:] = [name for name in subfolders if not excluded(f"{here}{name}/", exclude)]
        for name in sorted(files):
            if name.endswith(".py") and not excluded(here + name, exclude):
                text = read_code(Path(folder, name))
                if text:
                    found.append(Document(here + name, text, None))
    return sorted(found, key=lambda document: document.id)


def excluded(name: str, patterns: list[str]) -> bool:
    """Return whether a pattern fits `/` + name; `*` crosses slashes, so `*/tests/*` fits at any depth.

    A folder's name ends in a slash, so that a pattern for all it holds fits the folder too.
    """
    return any(fnmatchcase("/" + name, pattern) for pattern in patterns)


def read_code(path: Path) -> bytes | None:
    """Return a source file's bytes; None when it cannot be read or is not UTF-8 (Latin-1 files do occur)."""
    try:
        text = path.read_bytes()
        text.decode("utf-8")
    except (OSError, UnicodeDecodeError):
        return None
    return text
