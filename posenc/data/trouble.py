"""What to say when the cache cannot be written."""

from __future__ import annotations

from pathlib import Path

from posenc.core.atomic_files import cannot_write
from posenc.core.errors import RunError

ELSEWHERE = "POSENC_CACHE=FOLDER puts the cache elsewhere"


def cache_error(path: Path, error: OSError) -> RunError:
    """The error of a full disk, or of a place that is not ours."""
    return cannot_write(path, error, hint=ELSEWHERE)
