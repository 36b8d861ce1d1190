"""What to say when the cache cannot be written."""

from __future__ import annotations

from pathlib import Path

from posenc.corpus.documents import printable
from posenc.errors import RunError


def cache_error(path: Path, error: OSError) -> RunError:
    """The error of a full disk, or of a place that is not ours."""
    return RunError(
        f"cannot write the cache in {printable(path)}: {error.strerror or error}",
        hint="POSENC_CACHE=FOLDER puts it elsewhere",
    )
