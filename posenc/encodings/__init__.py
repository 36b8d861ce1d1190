"""Positional encodings, one a file, and how they are found by name."""

from __future__ import annotations

from posenc.encodings.build import build_encoding, resolve_encoding
from posenc.encodings.registry import encoding_class, list_encodings, origins_of, source_of, sources_of

__all__ = [
    "build_encoding",
    "encoding_class",
    "list_encodings",
    "origins_of",
    "resolve_encoding",
    "source_of",
    "sources_of",
]
