"""`source: stdlib`: the source text of the running Python's own library."""

from __future__ import annotations

import sysconfig
from pathlib import Path

from posenc.core.errors import UserError
from posenc.data.documents import Document
from posenc.data.sources.package import read_tree


def read(*, exclude: list[str]) -> list[Document]:
    """Return the `.py` files of the standard library; ids are paths inside it.

    Raises UserError when this Python keeps its library as bytecode or in an archive.
    """
    documents = read_tree(Path(sysconfig.get_paths()["stdlib"]), exclude)
    if not documents:
        raise UserError("data", "stdlib", "this Python comes without the source of its library")
    return documents
