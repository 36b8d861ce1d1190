"""`source: python_packages`: the Python source of everything that is installed."""

from __future__ import annotations

import hashlib
from importlib.metadata import distributions
from pathlib import Path

from posenc.data.documents import Document
from posenc.data.sources.package import excluded, read_code


def read(*, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of installed distributions; ids are paths as in `site-packages`.

    A text that occurs more than once (vendored copies, empty `__init__` files) is kept once, under the id
    that sorts first.
    """
    paths: dict[str, Path] = {}
    for distribution in distributions():
        for file in distribution.files or []:
            name = file.as_posix()
            # "../" leads to scripts and data outside the packages
            if file.suffix == ".py" and not name.startswith((".", "/")) and not excluded(name, exclude):
                paths.setdefault(name, Path(str(file.locate())))
    seen: set[bytes] = set()
    documents = []
    for name in sorted(paths):
        text = read_code(paths[name])
        digest = hashlib.sha256(text or b"").digest()
        if text and digest not in seen:
            seen.add(digest)
            documents.append(Document(name, text, None))
    return documents
