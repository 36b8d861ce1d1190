"""Where posenc finds its configuration and keeps its cache."""

from __future__ import annotations

import os
from pathlib import Path

import platformdirs


def conf_dir() -> Path:
    """The YAML tree: inside the installed package, or at the root of a clone."""
    package = Path(__file__).resolve().parent
    shipped = package / "conf"
    return shipped if shipped.is_dir() else package.parent / "conf"


def cache_dir() -> Path:
    """Tokens and trained tokenizers, shared by all projects of this user; `POSENC_CACHE` moves it."""
    named = os.environ.get("POSENC_CACHE")
    return Path(named) if named else Path(platformdirs.user_cache_dir("posenc"))
